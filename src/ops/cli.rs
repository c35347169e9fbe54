//! The command line: commands, exit codes, errors.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand, ValueEnum};

use super::config::{self, ConfigError};
use super::say::{NoVerdict, UsageError, remark, say};
use super::settings;
use super::{audit, complete, convert, cordon, daemon, doctor, explain, get, manifests, ui};
use baton_decide::core::rules::Plugins;
use baton_runtime::words;

const ABOUT: &str =
    "Hands every GPU and RDMA NIC of a Kubernetes cluster to exactly the pod that the scheduler chose it for";

const EXIT_CODES: &str = "Exit codes: 0 done · 1 it failed, the text says why and what to do · 2 the command line or the \
                          configuration is wrong, nothing was started";

const DEVICE_PLUGIN: &str = "\
Runs on every node, as root. Finds GPUs (NVML) and RDMA NICs (sysfs), publishes them as the node's Device object, registers \
with the kubelet, answers each Allocate with the devices that the scheduler assigned to that very pod, and removes the node \
lock when the pod is served.\n\n\
Every flag is also an environment variable and a key of the YAML file given by --config-file: flag wins over environment, \
environment over file. Each value that is not the default is logged at start, with where it came from.";

/// What the help lists together.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Look", &["get", "explain", "ui", "audit", "doctor"]),
    ("Act", &["cordon", "drain", "uncordon"]),
    ("Install", &["manifests", "crds", "config", "completion", "version"]),
    ("Try", &["demo", "simulate"]),
    ("Daemons", &["device-plugin", "scheduler", "controller"]),
];

/// Words that people try, and what they mean.
const VERBS: [(&[&str], &str); 5] = [
    (&["describe", "why", "inspect", "what-if"], "explain"),
    (&["list", "ls", "show", "status", "top"], "get"),
    (&["check", "verify", "diagnose"], "audit` for the cluster, or `baton doctor` on a node, or `baton explain"),
    (&["dashboard", "web", "browse", "open"], "ui"),
    (&["install", "apply", "deploy"], "manifests"),
];

const DOCTOR: &str = "\
Checks this node as the node daemon would and prints a line for everything that must hold: ok, warn or fail, what was found, \
and what to do. It changes nothing. Run it with the daemon's own flags, environment or file: \
`kubectl -n baton-system exec <pod> -- /usr/bin/baton doctor`, or as root on the node. Exit code 1 when something failed.";

const SCHEDULER: &str = "\
Places pods that ask for it by spec.schedulerName, chooses their devices, locks the node, binds with the assignment, and goes \
on with the next pod. Several may run: one leads, by a Lease.\n\n\
Flags, environment and file as for `baton device-plugin`.";

const CONTROLLER: &str = "\
Runs TYJobs from submission to clean-up: validates them, makes their pods where the scheduler placed them, replaces failed \
ones, restarts a job whose leader is lost, and cleans up. Several may run: one leads, by a Lease.\n\n\
Flags, environment and file as for `baton device-plugin`.";

/// The commands of an operator.
#[derive(Subcommand)]
enum OperatorCommand {
    /// Show nodes, devices, pods or locks, TYJobs, gangs, or the queue
    ///
    /// Reads cluster objects and prints them; writes nothing. `locks` shows the holder of each node's lock, for how long, whether
    /// that is normal, and what to do if not. `gangs` and `queue` come from the leading scheduler.
    #[command(after_help = examples(&["get nodes", "get devices --state unhealthy", "get pods -A -o wide", "get pod/ml/train -o yaml", "get locks --watch"]))]
    Get(get::GetArgs),
    /// Show why a pod, a gang or a TYJob is where it is, what a node takes, or what would be decided
    ///
    /// Shows, by the answer of the leading scheduler, why a pod, gang or TYJob is where it is. `baton explain pod ns/name` gives the
    /// state, which rule refused which nodes, what would wake the pod, and what to do; -o wide adds every node and device. `baton
    /// explain --what-if -f pod.yaml` shows what would be decided for a pod that does not exist: node, devices and scores, or why
    /// not. Nothing is written.
    ///
    /// The scheduler is reached through the API server: by a port-forward to one of the pods labelled app.kubernetes.io/part-of=baton
    /// and app.kubernetes.io/component=scheduler, which takes the Role baton-operator of their namespace. --admin-url names an
    /// address instead: http://127.0.0.1:9413 beside `kubectl -n baton-system port-forward <leading pod> 9413`.
    #[command(after_help = examples(&["explain pod ml/train", "explain gang train -n ml", "explain node node-1", "explain --what-if -f pod.yaml"]))]
    Explain(explain::ExplainArgs),
    /// Show the cluster in a browser, live
    ///
    /// Serves pages for a browser on this machine, with your own rights, and prints the URL to open: who holds which GPU, why a pod
    /// waits and what would help, gangs, locks, health; live, and without anything to install in the cluster. It writes nothing. The
    /// URL has a token, without which nothing is shown. docs/commands.md describes the pages.
    #[command(after_help = examples(&["ui --open"]))]
    Ui(ui::UiArgs),
    /// Check what must always hold of a cluster
    ///
    /// Reads nodes, pods and Device objects and checks what must always hold: no device (or share of one) is held by two live pods,
    /// free and assigned add up, bound pods' assignments are complete, no lock stands for long. Prints what does not hold, with what
    /// to do; writes nothing. Exit code 1 when something does not hold, 2 when the
    /// cluster cannot be read.
    #[command(after_help = examples(&["audit", "audit -o json"]))]
    Audit(audit::AuditArgs),
    /// Take one device out of use
    ///
    /// Takes one device out of use: `baton cordon node-1/gpu-3 --reason 'fan fails' --until 2h`. The scheduler gives it to no new
    /// pod; pods that hold it go on. A cordoned GPU covers its MIG devices. `baton get devices`, `get nodes`, `explain` and `kubectl
    /// get device NODE -o yaml` show it. The cordon is an annotation of the node's Device object and goes with the node.
    ///
    /// It takes the rights of ClusterRole baton-operator.
    #[command(after_help = examples(&["cordon node-1/gpu-3 --reason fan --until 2h"]))]
    Cordon(cordon::CordonArgs),
    /// Return a device
    ///
    /// Returns a device that was taken out of use by `baton cordon` or `baton drain`.
    #[command(after_help = examples(&["uncordon node-1/gpu-3"]))]
    Uncordon(cordon::CommonArgs),
    /// Take one device out of use and evict its pods
    ///
    /// Lists the pods that hold a device and, with --yes, cordons it and evicts them. PodDisruptionBudgets are respected: an eviction
    /// that one puts off is tried again until --timeout. Exit code 1 while pods hold the device.
    #[command(after_help = examples(&["drain node-1/gpu-3", "drain node-1/gpu-3 --yes"]))]
    Drain(cordon::DrainArgs),
    /// Print or write the Kubernetes manifests
    ///
    /// Prints everything a cluster needs: `baton manifests | kubectl apply --server-side -f -`. With --dir it writes the files, with
    /// a kustomization, its components and example pods: `baton manifests --dir my-baton && kubectl apply --server-side -k my-baton`.
    /// What else can be chosen is a value of the Helm chart, daemonset/chart.
    #[command(after_help = examples(&["manifests", "manifests --dir my-baton"]))]
    Manifests(manifests::ManifestsArgs),
    /// Print the CustomResourceDefinitions
    ///
    /// Prints the definitions of Device, PodGroup and TYJob, without which none of the daemons does its work: `baton crds | kubectl
    /// apply --server-side -f -`. `baton manifests` prints them too.
    #[command(after_help = examples(&["crds"]))]
    Crds(manifests::CrdsArgs),
    /// Convert kube-scheduler's configuration
    ///
    /// `baton config convert FILE` prints the configuration of `baton scheduler` for a KubeSchedulerConfiguration (v1, v1beta1 to
    /// v1beta3) or a Policy. A comment at the top names each setting that is not carried over, first those that change where pods go:
    /// exit code 3 says that there are some. Nothing is applied.
    #[command(after_help = examples(&["config convert kube-scheduler.yaml"]))]
    Config(convert::ConfigArgs),
    /// Print the completions of a shell
    ///
    /// Prints the completions of a shell, names of nodes, devices, pods and gangs among them: `source <(baton completion bash)`.
    #[command(after_help = examples(&["completion bash"]))]
    Completion(complete::CompletionArgs),
    /// Print the version of this program
    ///
    /// Prints the version of this program, and of a released one the revision of its sources. `baton get nodes -o wide` shows that of each node daemon.
    Version,
    /// Show the whole hand-off on this machine
    ///
    /// Starts a simulated cluster (API server, three nodes with virtual GPUs and NICs), the scheduler and the node daemons as they
    /// ship, submits pods of every kind, prints what happens, and checks that annotations, kubelets and ledgers name the same
    /// devices. Needs no Kubernetes and no GPU. Exit code 1 when they do not agree.
    #[cfg(feature = "sim")]
    #[command(after_help = examples(&["demo", "demo --keep", "demo fault node-1/gpu-3 xid 79"]))]
    Demo(super::demo::DemoArgs),
    /// Show how many GPUs of your cluster each profile hands out
    ///
    /// Replays the pods of your cluster through this scheduler, in virtual time and without a cluster, and shows how many GPUs each
    /// profile hands out. The cluster comes as JSON or YAML, or as a CSV file of pods with one of nodes: `kubectl get
    /// nodes,pods,devices -A -o json > cluster.json && baton simulate cluster.json`.
    ///
    /// Pods come in random order, all of the cluster first, then drawn from them until the demand reaches --load. With --departures
    /// they come and end as they did. Columns, output and what it is good for: docs/placement.md.
    #[cfg(feature = "simulate")]
    #[command(after_help = examples(&["simulate cluster.json"]))]
    Simulate(super::simulate::SimulateArgs),
}

/// What stands below the options of a command.
fn examples(lines: &[&str]) -> String {
    lines.iter().fold("Examples:".to_owned(), |text, line| format!("{text}\n  baton {line}"))
}

/// With the revision of the sources in what `.ci/compile.sh` builds.
pub(super) const VERSION: &str = match option_env!("BATON_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The whole command line.
pub fn command() -> Command {
    let scheduler = Command::new("scheduler")
        .about("Central scheduler: places pods and chooses their devices")
        .long_about(SCHEDULER);
    let controller =
        Command::new("controller").about("TYJob controller: runs leaders with sets of workers").long_about(CONTROLLER);
    let doctor = Command::new("doctor").about("Check this node and show what to do").long_about(DOCTOR);
    let command = Command::new("baton")
        .version(VERSION)
        .after_help(EXIT_CODES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(node_daemon("device-plugin"))
        .subcommand(config::arguments(scheduler, &settings::scheduler()).arg(print_config()))
        .subcommand(config::arguments(controller, &settings::controller()))
        .subcommand(doctor::arguments(doctor));
    let command = OperatorCommand::augment_subcommands(command);
    let line = |name: &&str| {
        let about = command.find_subcommand(name)?.get_about()?.to_string();
        Some(format!("  {name:<14} {about}\n"))
    };
    let group =
        |(title, names): (&str, &[&str])| format!("{title}:\n{}\n", names.iter().filter_map(line).collect::<String>());
    let groups: String = GROUPS.into_iter().map(group).collect();
    command.about(ABOUT).help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    ))
}

/// The command line of the node daemon, as `baton device-plugin` and as a program of its own.
pub fn node_daemon(name: &'static str) -> Command {
    let about = "Node daemon: kubelet device plugin for GPUs and RDMA NICs";
    config::arguments(Command::new(name).about(about).long_about(DEVICE_PLUGIN), &settings::agent())
}

fn print_config() -> Arg {
    let help = "Print the effective configuration as a file for --config-file, plugins included, and exit";
    Arg::new(daemon::PRINT_CONFIG).long(daemon::PRINT_CONFIG).action(ArgAction::SetTrue).help(help)
}

/// Runs the process: parses, starts, and turns the outcome into an exit code.
pub fn main() -> ExitCode {
    complete::answer(command);
    exit(parse(command(), explain::split_names(std::env::args_os())).and_then(|matches| run(&matches)))
}

/// Runs the process as the node daemon and nothing else, so that the linker leaves the rest out.
pub fn device_plugin() -> ExitCode {
    let command = node_daemon("baton-device-plugin").version(VERSION).after_help(EXIT_CODES);
    exit(parse(command, std::env::args_os()).and_then(|matches| daemon::device_plugin(&matches)))
}

/// Runs the process as a scheduler with these rules: flags, environment, file, logging and exit codes are those of
/// `baton scheduler`, and the file's plugins are those of Baton.
pub fn scheduler(plugins: &Plugins) -> ExitCode {
    let about = Command::new("scheduler").about("Scheduler with rules of its own, on Baton").after_help(EXIT_CODES);
    let command = config::arguments(about, &settings::scheduler()).arg(print_config());
    exit(parse(command, std::env::args_os()).and_then(|matches| daemon::scheduler(&matches, plugins)))
}

/// Reads the command line. Of a removed flag it says what to do instead. clap prints its other errors, with the nearest flag, and exits
/// with 2.
fn parse(command: Command, words: impl IntoIterator<Item = OsString>) -> anyhow::Result<ArgMatches> {
    let words: Vec<OsString> = words.into_iter().collect();
    command.try_get_matches_from(&words).or_else(|error| match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::InvalidSubcommand, _) => {
            let is_it =
                |word: &&str| error.get(ContextKind::InvalidSubcommand).is_some_and(|of| of.to_string() == **word);
            let hint = words.get(1).and_then(|word| word.to_str()).filter(is_it).and_then(hint);
            Err(UsageError(hint.unwrap_or_else(|| error.exit())).into())
        }
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) => {
            let of_any = || config::removed(flag.trim_start_matches('-')).map(|problem| format!("--{problem}"));
            let of_command = |name: &OsString| config::removed(&format!("{} {flag}", name.display()));
            let problem = words.get(1).and_then(of_command).or_else(of_any).unwrap_or_else(|| error.exit());
            Err(UsageError(problem).into())
        }
        _ => error.exit(),
    })
}

/// What is meant by a word that is no command.
fn hint(word: &str) -> Option<String> {
    let resource = get::Resource::from_str(word.split('/').next()?, true).ok();
    let near = config::nearest(word, GROUPS.iter().flat_map(|(_, names)| names.iter().copied())).map(str::to_owned);
    if near.as_deref() == Some(word) {
        return Some(format!(
            "`baton {word}` is not in this build: images leave it out, the tarball of a release has it"
        ));
    }
    let verb = VERBS.iter().find(|(words, _)| words.contains(&word)).map(|(_, verb)| (*verb).to_owned());
    let meant = resource.map(|_| format!("get {word}")).or(verb).or(near)?;
    Some(format!("there is no command {word:?}; try `baton {meant}`, or `baton --help`"))
}

fn exit(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    match outcome {
        Ok(code) => code,
        Err(error) => {
            remark(format_args!("baton: {}", words(error.as_ref())));
            let wrong_words = error.is::<ConfigError>() || error.is::<UsageError>();
            ExitCode::from(if wrong_words || error.is::<NoVerdict>() { 2 } else { 1 })
        }
    }
}

fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    match matches.subcommand() {
        Some(("device-plugin", matches)) => return daemon::device_plugin(matches),
        Some(("scheduler", matches)) => return daemon::scheduler(matches, &Plugins::default()),
        Some(("controller", matches)) => return daemon::controller(matches),
        Some(("doctor", matches)) => {
            let options = daemon::options("doctor", &settings::agent(), settings::AGENT_SECTIONS, matches)?;
            return short(doctor::run(options, matches));
        }
        _ => {}
    }
    match OperatorCommand::from_arg_matches(matches)? {
        OperatorCommand::Get(args) => short(get::run(args))?,
        OperatorCommand::Explain(args) => short(explain::run(args))?,
        OperatorCommand::Ui(args) => return short(ui::run(args)),
        OperatorCommand::Audit(args) => return short(audit::run(args)),
        OperatorCommand::Cordon(args) => short(cordon::cordon(args))?,
        OperatorCommand::Uncordon(args) => short(cordon::uncordon(args))?,
        OperatorCommand::Drain(args) => return short(cordon::drain(args)),
        OperatorCommand::Manifests(args) => manifests::run(&args)?,
        OperatorCommand::Crds(args) => manifests::print_crds(&args)?,
        OperatorCommand::Config(args) => return convert::run(&args),
        OperatorCommand::Completion(args) => complete::run(&args)?,
        OperatorCommand::Version => say(format!("baton {VERSION}\n"))?,
        #[cfg(feature = "sim")]
        OperatorCommand::Demo(args) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            return runtime.block_on(super::demo::run(args));
        }
        #[cfg(feature = "simulate")]
        OperatorCommand::Simulate(args) => return super::simulate::run(args),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command that ends by itself on a runtime of one thread.
fn short<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_one_line_text_and_a_help() {
        for command in command().get_subcommands() {
            let name = command.get_name();
            let about = command.get_about().unwrap_or_else(|| panic!("{name} has no text")).to_string();
            assert!(!about.contains("Arguments of") && !about.contains('`'), "{name}: {about}");
            let long = command.get_long_about().unwrap_or_else(|| panic!("{name} has no long text")).to_string();
            assert!(long.len() > about.len() && !long.contains("Arguments of"), "{name}: {long}");
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&name)).count();
            assert_eq!(groups, 1, "{name} is in one group of the help");
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for example in examples.lines().filter_map(|line| line.strip_prefix("  baton ")) {
                let words = ["baton"].into_iter().chain(example.split(' '));
                let parsed = super::command().try_get_matches_from(words);
                assert!(parsed.is_ok(), "{example}: {}", parsed.err().unwrap());
            }
        }
    }

    #[test]
    fn a_word_that_is_no_command_is_answered_with_the_command_that_is_meant() {
        for (word, meant) in [
            ("describe", "`baton explain`"),
            ("nodes", "`baton get nodes`"),
            ("pod/ml/train", "`baton get pod/ml/train`"),
            ("verify", "`baton audit`"),
            ("explian", "`baton explain`"),
            ("gets", "`baton get`"),
        ] {
            assert!(hint(word).unwrap().contains(meant), "{word}: {:?}", hint(word));
        }
        assert_eq!(hint("fly"), None);
    }
}
