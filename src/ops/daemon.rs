//! Starting a daemon: its configuration from flags, environment and file, logging, signals, and its end.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::ArgMatches;
use tokio_util::sync::CancellationToken;

use super::config::{self, ConfigError, Loaded, Section, Setting, Source, load};
use super::say::say;
use super::settings::{self, DaemonSettings};
use baton_agent as agent;
use baton_cluster::client::server;
use baton_decide::core::rules::Plugins;
use baton_decide::health::xid_named;
use baton_runtime::timings::Timed;
use baton_runtime::{shutdown, telemetry};
use baton_scheduler as scheduler;
use baton_tyjob::Controller;

/// Where each key's value came from.
type Sources = BTreeMap<&'static str, Source>;

/// Threads that run tasks of the scheduler: its decisions are one task, the others wait for the API server.
const SCHEDULER_THREADS: usize = 2;

/// Flag of `baton scheduler` that prints the effective configuration instead of starting.
pub(super) const PRINT_CONFIG: &str = "print-config";

/// `baton device-plugin`.
pub(super) fn device_plugin(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let (mut options, sources) = configure("device-plugin", &settings::agent(), settings::AGENT_SECTIONS, matches)?;
    pass_over(&mut options.xid, &sources);
    options.validate().map_err(|error| wrong("device-plugin", &error, &sources))?;
    // The agent module makes the runtime that its memory and thread budgets assume.
    serve(agent::daemon::runtime()?, |stop| async move { Ok(agent::daemon::run(options, stop).await?) })
}

/// NVIDIA's plugin passes over what names no XID: in its variables such words are warnings, elsewhere errors.
fn pass_over(xid: &mut agent::options::XidOptions, sources: &Sources) {
    for (key, text) in [("dp-disable-healthchecks", &mut xid.disable), ("dp-enable-healthchecks", &mut xid.enable)] {
        let Some(Source::Environment(variable)) = sources.get(key) else { continue };
        if config::THEIRS.contains(&variable.as_str()) {
            let (known, others) = text.split(',').partition::<Vec<_>, _>(|word| xid_named(word).is_some());
            for word in others.into_iter().filter(|word| !word.trim().is_empty()) {
                tracing::warn!(variable, word, "is no XID and is passed over, as by NVIDIA's plugin");
            }
            *text = known.join(",");
        }
    }
}

/// `baton scheduler`.
pub(super) fn scheduler(matches: &ArgMatches, plugins: &Plugins) -> anyhow::Result<ExitCode> {
    let (settings, sections) = (settings::scheduler(), settings::SCHEDULER_SECTIONS);
    if matches.get_flag(PRINT_CONFIG) {
        let loaded = read("scheduler", &settings, sections, matches)?;
        loaded.options.options.validate().map_err(|error| wrong("scheduler", &error, &loaded.sources))?;
        let head = settings::print_plugins(&loaded.options.options);
        say(config::print(head, &settings, &loaded.options)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (options, sources) = configure("scheduler", &settings, sections, matches)?;
    options.validate().map_err(|error| wrong("scheduler", &error, &sources))?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(SCHEDULER_THREADS).thread_name("baton").enable_all().build()?;
    serve(runtime, |stop| async move { Ok(Box::pin(scheduler::run(options, plugins, stop)).await?) })
}

/// `baton controller`.
pub(super) fn controller(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let (options, sources) = configure("controller", &settings::controller(), settings::CONTROLLER_SECTIONS, matches)?;
    options.validate().map_err(|error| wrong("controller", &error, &sources))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    serve(runtime, |stop| async move { Ok(Controller::new(options).await?.run(stop).await?) })
}

/// Runs a daemon until it ends by itself or by a signal.
fn serve<F>(runtime: tokio::runtime::Runtime, run: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<ExitCode>
where
    F: Future<Output = anyhow::Result<()>>,
{
    runtime.block_on(async {
        let stop = shutdown::on_signals()?;
        run(stop).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Options that can be read and cannot work. Where the problem begins with a key that was set, the error names its source.
fn wrong(command: &'static str, error: &dyn std::fmt::Display, sources: &Sources) -> ConfigError {
    let problem = error.to_string();
    let key = problem.trim_start_matches('-');
    let key = key.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').next().unwrap_or_default();
    let place = match sources.get(key) {
        Some(source @ (Source::File { .. } | Source::Environment(_))) => format!(" (set by {source})"),
        Some(Source::Flag | Source::Default) | None => String::new(),
    };
    ConfigError::unusable(command, problem + &place)
}

/// Reads the configuration of `baton <command>`. Fixed times that the file shortens are refused where the API server is not this
/// machine's: another cluster is no test.
fn read<O: Default + Timed + 'static>(
    command: &'static str,
    settings: &[Setting<DaemonSettings<O>>],
    sections: &[Section<DaemonSettings<O>>],
    matches: &ArgMatches,
) -> Result<Loaded<DaemonSettings<O>>, ConfigError> {
    let environment = |name: &str| std::env::var(name).ok();
    let loaded = load(settings, sections, matches, &environment, &format!("baton {command}"))?;
    if let Some(source) = loaded.sources.get(settings::TIMINGS) {
        let problem = match server(loaded.options.options.kubeconfig()) {
            Ok(server) if server.host().is_some_and(is_loopback) => return Ok(loaded),
            Ok(server) => format!("the API server {server} is not on a loopback address"),
            Err(error) => error.to_string(),
        };
        let advice = "is for tests on this machine alone; remove it";
        return Err(ConfigError::unusable(
            command,
            format_args!("{} ({source}) {advice}: {problem}", settings::TIMINGS),
        ));
    }
    Ok(loaded)
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Reads the configuration of `baton <command>`, starts logging and logs what it differs in from the default, with the source of
/// each value.
fn configure<O: Default + Timed + 'static>(
    command: &'static str,
    settings: &[Setting<DaemonSettings<O>>],
    sections: &[Section<DaemonSettings<O>>],
    matches: &ArgMatches,
) -> anyhow::Result<(O, Sources)> {
    let loaded = read(command, settings, sections, matches)?;
    telemetry::init(loaded.options.log.format, &loaded.options.log.filter)?;
    report(command, settings, &loaded);
    Ok((loaded.options.options, loaded.sources))
}

/// Reads the configuration of a command that ends by itself: it logs only with --log.
pub(super) fn options<O: Default + Timed + 'static>(
    command: &'static str,
    settings: &[Setting<DaemonSettings<O>>],
    sections: &[Section<DaemonSettings<O>>],
    matches: &ArgMatches,
) -> anyhow::Result<O> {
    let loaded = read(command, settings, sections, matches)?;
    if matches!(loaded.sources.get("log"), Some(Source::Flag)) {
        telemetry::init(loaded.options.log.format, &loaded.options.log.filter)?;
    }
    Ok(loaded.options.options)
}

/// The options of `baton scheduler`, for a command that asks what it would do.
#[cfg(feature = "simulate")]
pub(super) fn scheduler_options(matches: &ArgMatches) -> anyhow::Result<scheduler::SchedulerOptions> {
    let loaded = read("scheduler", &settings::scheduler(), settings::SCHEDULER_SECTIONS, matches)?;
    loaded.options.options.validate().map_err(|error| wrong("scheduler", &error, &loaded.sources))?;
    Ok(loaded.options.options)
}

/// Logs in one line what is not the default, with its source.
fn report<O>(command: &str, settings: &[Setting<DaemonSettings<O>>], loaded: &Loaded<DaemonSettings<O>>) {
    let values = settings.iter().map(|setting| (setting, &loaded.sources[setting.name]));
    let effective: Vec<String> = values
        .filter(|(_, source)| **source != Source::Default)
        .map(|(setting, source)| format!("{}={:?} ({source})", setting.name, (setting.show)(&loaded.options)))
        .collect();
    tracing::info!(
        command,
        version = super::cli::VERSION,
        config = effective.join(", "),
        "configuration: what differs from the default, each value with its source"
    );
    if let Some(source) = loaded.sources.get(settings::TIMINGS) {
        tracing::warn!(%source, "fixed times are shortened, for tests");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_xid_are_passed_over_in_nvidias_variables_alone() {
        for (name, value, known) in [
            ("DP_DISABLE_HEALTHCHECKS", "foo;bar,79, 94,,+5", Ok("79, 94")),
            ("BATON_DP_DISABLE_HEALTHCHECKS", "79,x", Err("--dp-disable-healthchecks: \"x\" is no XID")),
        ] {
            let settings = settings::agent();
            let command = config::arguments(clap::Command::new("t"), &settings);
            let matches = command.try_get_matches_from(["t", "--node-name=a"]).unwrap();
            let environment = |asked: &str| (asked == name).then(|| value.to_owned());
            let loaded = load(&settings, &[], &matches, &environment, "baton t").unwrap();
            let mut options = loaded.options.options;
            pass_over(&mut options.xid, &loaded.sources);
            match (options.validate(), known) {
                (Ok(()), Ok(known)) => assert_eq!(options.xid.disable, known),
                (Err(error), Err(said)) => {
                    let error = wrong("device-plugin", &error, &loaded.sources).to_string();
                    assert!(error.contains(said) && error.contains(name), "{error}");
                }
                (judged, _) => panic!("{name}: {judged:?}"),
            }
        }
    }
}
