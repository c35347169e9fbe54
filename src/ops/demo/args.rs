//! The command line of `baton demo` and its course.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::cluster::Cluster;
use super::gangs;
use super::jobs;
use super::story;
use super::table;
use crate::ops::say::{remark, say};
use crate::runtime::shutdown;

/// As shells count it: ended by SIGINT.
const INTERRUPTED: u8 = 130;

/// How to print the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One JSON object on standard output; progress goes to standard error.
    Json,
}

/// Arguments of `baton demo`.
#[derive(Debug, Clone, Default, Args)]
pub struct DemoArgs {
    /// Another format than text.
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
    /// Leave the cluster running until Ctrl-C, with a KUBECONFIG for kubectl.
    #[arg(long)]
    pub keep: bool,
    /// Also show the daemons' logs.
    #[arg(short, long)]
    pub verbose: bool,
    /// A real NVML library instead of the virtual one: one node, with this machine's /sys and /dev.
    #[arg(long, value_name = "FILE")]
    pub nvml_library: Option<PathBuf>,
    /// A real sysfs instead of the virtual one, for its NICs: one node.
    #[arg(long, value_name = "DIR")]
    pub sysfs_root: Option<PathBuf>,
    /// Where the device nodes of real devices are.
    #[arg(long, value_name = "DIR")]
    pub dev_root: Option<PathBuf>,
}

impl DemoArgs {
    /// Something of this machine's own hardware is used.
    pub fn real(&self) -> bool {
        self.nvml_library.is_some() || self.sysfs_root.is_some() || self.dev_root.is_some()
    }
}

/// Where progress is printed.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    to_stderr: bool,
}

impl Progress {
    /// Prints one line.
    pub fn line(self, line: impl std::fmt::Display) {
        if self.to_stderr {
            remark(line);
        } else {
            // A demo whose text nobody reads any more still ends its daemons in order.
            let _ = say(format_args!("{line}\n"));
        }
    }
}

/// Gangs and a TYJob first, because those chapters take everything away again; then what stays to be looked at.
async fn tell(cluster: &mut Cluster, progress: Progress) -> anyhow::Result<story::Outcome> {
    let mut found = gangs::tell(cluster, progress).await?;
    let (job, wrong) = jobs::tell(cluster, progress).await?;
    found.extend(wrong);
    let mut outcome = story::tell(cluster, progress).await?;
    outcome.report.job = job;
    outcome.report.blame(found);
    Ok(outcome)
}

/// Starts the cluster, tells the story, prints the verdict. A signal ends the daemons and the demo at any point.
pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let stop = shutdown::on_signals()?;
    let json = args.output == Some(Output::Json);
    let progress = Progress { to_stderr: json };
    let started = tokio::select! {
        started = Cluster::start(&args, progress) => started,
        () = stop.cancelled() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    let mut cluster = started?;
    let outcome = tokio::select! {
        outcome = tell(&mut cluster, progress) => Some(outcome),
        () = stop.cancelled() => None,
    };
    let ok = match &outcome {
        Some(Ok(outcome)) => {
            if json {
                say(serde_json::to_string(&outcome.report)? + "\n")?;
            } else {
                progress.line(table::devices(outcome));
                progress.line(table::pods(&outcome.report));
                if let Some(job) = &outcome.report.job {
                    progress.line(table::job(job));
                }
                progress.line(table::verdict(&outcome.report));
            }
            if args.keep {
                progress.line(cluster.invitation()?);
                stop.cancelled().await;
            }
            outcome.report.ok
        }
        Some(Err(_)) | None => false,
    };
    cluster.stop().await;
    match outcome {
        Some(Ok(_)) if ok => Ok(ExitCode::SUCCESS),
        Some(Ok(_)) => Ok(ExitCode::FAILURE),
        Some(Err(error)) => Err(error),
        None => Ok(ExitCode::from(INTERRUPTED)),
    }
}
