//! The command line: commands, exit codes, errors.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::config::{self, ConfigError};
use super::say::{UsageError, remark, say};
use super::settings;
use super::{audit, complete, convert, cordon, daemon, doctor, explain, get, manifests, ui};
use baton_decide::core::rules::Plugins;
use baton_runtime::words;

const ABOUT: &str =
    "Hands every GPU and RDMA NIC of a Kubernetes cluster to exactly the pod that the scheduler chose it for";

const EXIT_CODES: &str = "Exit codes: 0 done · 1 it failed, the text says why and what to do · 2 the command line or the \
                          configuration is wrong, nothing was started";

const DEVICE_PLUGIN: &str = "\
Runs on every node, as root. Finds GPUs (NVML) and RDMA NICs (sysfs), publishes them as the node's Device object, registers
with the kubelet, answers each Allocate with the devices that the scheduler assigned to that very pod, and removes the node
lock when the pod is served.

Every flag is also an environment variable and a key of the YAML file given by --config-file: flag wins over environment,
environment over file. The effective configuration and where each value came from is logged at start.";

const DOCTOR: &str = "\
Checks this node as the node daemon would and prints a line for everything that must hold: ok, warn or fail, what was found,
and what to do. It changes nothing. Run it with the daemon's own flags, environment or file:
`kubectl -n baton-system exec <pod> -- /usr/bin/baton doctor`, or as root on the node. Exit code 1 when something failed.";

const GET: &str = "\
Reads cluster objects and prints them; writes nothing. `locks` shows the holder of each node's lock, for how long, whether
that is normal, and what to do if not. `gangs` and `queue` come from the leading scheduler.";

const EXPLAIN: &str = "\
Shows, by the answer of the leading scheduler, why a pod, gang or TYJob is where it is. `baton explain pod ns/name` gives the
state, which rule refused which nodes, what would wake the pod, and what to do; -o wide adds every node and device. `baton
explain --what-if -f pod.yaml` shows what would be decided for a pod that does not exist: node, devices and scores, or why not.
Nothing is written.

The scheduler is reached through the API server: by a port-forward to one of the pods labelled app.kubernetes.io/part-of=baton and
app.kubernetes.io/component=scheduler, which takes the Role baton-operator of their namespace. --admin-url names an address instead:
http://127.0.0.1:9413 beside `kubectl -n baton-system port-forward <leading pod> 9413`.";

const UI: &str = "\
Serves pages for a browser on this machine, with your own rights, and prints the URL to open: who holds which GPU, why a pod waits and
what would help, gangs, locks, health; live, and without anything to install in the cluster. It writes nothing. The URL has a token,
without which nothing is shown. docs/commands.md describes the pages.";

const CORDON: &str = "\
Takes one device out of use: `baton cordon node-1/gpu-3 --reason 'fan fails' --until 2h`. The scheduler gives it to no new pod; pods
that hold it go on. A cordoned GPU covers its MIG devices. `baton get devices`, `get nodes`, `explain` and `kubectl get device NODE
-o yaml` show it. The cordon is an annotation of the node's Device object and goes with the node.

It takes the rights of ClusterRole baton-operator.";

const UNCORDON: &str = "\
Returns a device that was taken out of use by `baton cordon` or `baton drain`.";

const DRAIN: &str = "\
Lists the pods that hold a device and, with --yes, cordons it and evicts them. PodDisruptionBudgets are respected: an eviction
that one puts off is tried again until --timeout. Exit code 1 while pods hold the device.";

const COMPLETION: &str = "\
Prints the completions of a shell, names of nodes, devices, pods and gangs among them: `source <(baton completion bash)`.";

const AUDIT: &str = "\
Reads nodes, pods and Device objects and checks what must always hold: no device (or share of one) is held by two live
pods, free and assigned add up, bound pods' assignments are complete, no lock stands for long. Prints what does not hold, with
what to do; writes nothing. Exit code 1 when something does not hold.";

const MANIFESTS: &str = "\
Prints everything a cluster needs: `baton manifests | kubectl apply --server-side -f -`. With --dir it writes the files, with a
kustomization, its components and example pods: `baton manifests --dir my-baton && kubectl apply --server-side -k my-baton`. What
else can be chosen is a value of the Helm chart, daemonset/chart.";

const CRDS: &str = "\
Prints the definitions of Device, PodGroup and TYJob, without which none of the daemons does its work: `baton crds | kubectl
apply --server-side -f -`. `baton manifests` prints them too.";

const CONFIG: &str = "\
`baton config convert FILE` prints the configuration of `baton scheduler` for a KubeSchedulerConfiguration (v1, v1beta1 to v1beta3) or
a Policy. A comment at the top names each setting that is not carried over, first those that change where pods go: exit code 3 says
that there are some. Nothing is applied.";

const SCHEDULER: &str = "\
Places pods that ask for it by spec.schedulerName, chooses their devices, locks the node, binds with the assignment, and goes
on with the next pod. Several may run: one leads, by a Lease.

Flags, environment and file as for `baton device-plugin`.";

const CONTROLLER: &str = "\
Runs TYJobs from submission to clean-up: validates them, makes their pods where the scheduler placed them, replaces failed
ones, restarts a job whose leader is lost, and cleans up. Several may run: one leads, by a Lease.

Flags, environment and file as for `baton device-plugin`.";

#[cfg(feature = "sim")]
const DEMO: &str = "\
Starts a simulated cluster (API server, three nodes with virtual GPUs and NICs), the scheduler and the node daemons as they
ship, submits pods of every kind, prints what happens, and checks that annotations, kubelets and ledgers name the same devices.
Needs no Kubernetes and no GPU. Exit code 1 when they do not agree.";

#[cfg(feature = "simulate")]
const SIMULATE: &str = "\
Replays the pods of your cluster through this scheduler, in virtual time and without a cluster, and shows how many GPUs each
profile hands out. The cluster comes as JSON or YAML, or as a CSV file of pods with one of nodes:
`kubectl get nodes,pods,devices -A -o json > cluster.json && baton simulate cluster.json`.

Pods come in random order, all of the cluster first, then drawn from them until the demand reaches --load. With --departures they
come and end as they did. Columns, output and what it is good for: docs/placement.md.";

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
    let command = Command::new("baton")
        .about(ABOUT)
        .version(VERSION)
        .after_help(EXIT_CODES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(node_daemon("device-plugin"))
        .subcommand(config::arguments(scheduler, &settings::scheduler()).arg(print_config()))
        .subcommand(config::arguments(controller, &settings::controller()));
    #[cfg(feature = "sim")]
    let command = command.subcommand(
        super::demo::DemoArgs::augment_args(Command::new("demo"))
            .about("Show the whole hand-off on this machine")
            .long_about(DEMO),
    );
    #[cfg(feature = "simulate")]
    let command = command.subcommand(
        super::simulate::SimulateArgs::augment_args(Command::new("simulate"))
            .about("Show how many GPUs of your cluster each profile hands out")
            .long_about(SIMULATE),
    );
    // Deriving the arguments replaces the texts of the command by the doc comment of their type: the texts are set afterwards.
    let get = get::GetArgs::augment_args(Command::new("get"))
        .about("Show nodes, devices, pods or locks, TYJobs, gangs, or the queue");
    let explain = explain::ExplainArgs::augment_args(Command::new("explain"))
        .about("Show why a pod, a gang or a TYJob is where it is, what a node takes, or what would be decided");
    let cordon = cordon::CordonArgs::augment_args(Command::new("cordon")).about("Take one device out of use");
    let uncordon = cordon::UncordonArgs::augment_args(Command::new("uncordon")).about("Return a device");
    let drain =
        cordon::DrainArgs::augment_args(Command::new("drain")).about("Take one device out of use and evict its pods");
    let completion =
        complete::CompletionArgs::augment_args(Command::new("completion")).about("Print the completions of a shell");
    let audit = audit::AuditArgs::augment_args(Command::new("audit")).about("Check what must always hold of a cluster");
    let ui = ui::UiArgs::augment_args(Command::new("ui")).about("Show the cluster in a browser, live");
    let manifests = manifests::ManifestsArgs::augment_args(Command::new("manifests"))
        .about("Print or write the Kubernetes manifests");
    let crds = manifests::CrdsArgs::augment_args(Command::new("crds")).about("Print the CustomResourceDefinitions");
    let config =
        convert::ConfigArgs::augment_args(Command::new("config")).about("Convert kube-scheduler's configuration");
    let version = Command::new("version")
        .about("Print the version of this program")
        .long_about("Prints the version of this program, and of a released one the revision of its sources. `baton get nodes -o wide` shows that of each node daemon.");
    let doctor = Command::new("doctor").about("Check this node and show what to do").long_about(DOCTOR);
    let command = command.subcommand(version);
    command
        .subcommand(doctor::arguments(doctor))
        .subcommand(get.long_about(GET))
        .subcommand(explain.long_about(EXPLAIN))
        .subcommand(ui.long_about(UI))
        .subcommand(audit.long_about(AUDIT))
        .subcommand(cordon.long_about(CORDON))
        .subcommand(uncordon.long_about(UNCORDON))
        .subcommand(drain.long_about(DRAIN))
        .subcommand(manifests.long_about(MANIFESTS))
        .subcommand(crds.long_about(CRDS))
        .subcommand(config.long_about(CONFIG))
        .subcommand(completion.long_about(COMPLETION))
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
    command.try_get_matches_from(&words).or_else(|error| match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if error.kind() == ErrorKind::UnknownArgument => {
            let of_any = || config::removed(flag.trim_start_matches('-')).map(|problem| format!("--{problem}"));
            let of_command = |name: &OsString| config::removed(&format!("{} {flag}", name.display()));
            let problem = words.get(1).and_then(of_command).or_else(of_any).unwrap_or_else(|| error.exit());
            Err(UsageError(problem).into())
        }
        _ => error.exit(),
    })
}

fn exit(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    match outcome {
        Ok(code) => code,
        Err(error) => {
            remark(format_args!("baton: {}", words(error.as_ref())));
            let wrong_words = error.is::<ConfigError>() || error.is::<UsageError>();
            ExitCode::from(if wrong_words { 2 } else { 1 })
        }
    }
}

fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    match matches.subcommand() {
        Some(("device-plugin", matches)) => daemon::device_plugin(matches),
        Some(("scheduler", matches)) => daemon::scheduler(matches, &Plugins::default()),
        Some(("controller", matches)) => daemon::controller(matches),
        #[cfg(feature = "sim")]
        Some(("demo", matches)) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(super::demo::run(super::demo::DemoArgs::from_arg_matches(matches)?))
        }
        #[cfg(feature = "simulate")]
        Some(("simulate", matches)) => super::simulate::run(super::simulate::SimulateArgs::from_arg_matches(matches)?),
        Some(("get", matches)) => short(get::run(get::GetArgs::from_arg_matches(matches)?)).map(|()| ExitCode::SUCCESS),
        Some(("explain", matches)) => {
            short(explain::run(explain::ExplainArgs::from_arg_matches(matches)?)).map(|()| ExitCode::SUCCESS)
        }
        Some(("ui", matches)) => short(ui::run(ui::UiArgs::from_arg_matches(matches)?)),
        Some(("cordon", matches)) => {
            short(cordon::cordon(cordon::CordonArgs::from_arg_matches(matches)?)).map(|()| ExitCode::SUCCESS)
        }
        Some(("uncordon", matches)) => {
            short(cordon::uncordon(cordon::UncordonArgs::from_arg_matches(matches)?)).map(|()| ExitCode::SUCCESS)
        }
        Some(("drain", matches)) => short(cordon::drain(cordon::DrainArgs::from_arg_matches(matches)?)),
        Some(("completion", matches)) => {
            complete::run(&complete::CompletionArgs::from_arg_matches(matches)?).map(|()| ExitCode::SUCCESS)
        }
        Some(("audit", matches)) => short(audit::run(audit::AuditArgs::from_arg_matches(matches)?)),
        Some(("doctor", matches)) => {
            let options = daemon::options("doctor", &settings::agent(), settings::AGENT_SECTIONS, matches)?;
            short(doctor::run(options, matches))
        }
        Some(("manifests", matches)) => {
            manifests::run(&manifests::ManifestsArgs::from_arg_matches(matches)?).map(|()| ExitCode::SUCCESS)
        }
        Some(("config", matches)) => convert::run(&convert::ConfigArgs::from_arg_matches(matches)?),
        Some(("crds", matches)) => {
            manifests::print_crds(&manifests::CrdsArgs::from_arg_matches(matches)?).map(|()| ExitCode::SUCCESS)
        }
        Some(("version", _)) => say(format!("baton {VERSION}\n")).map(|()| ExitCode::SUCCESS),
        other => anyhow::bail!("no such command: {:?}", other.map(|(name, _)| name)),
    }
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
        }
    }
}
