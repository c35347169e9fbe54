//! The command line of `baton demo`, and where its progress goes.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::fault::FaultArgs;
use super::process::DaemonLog;
use crate::say::{remark, say};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DemoOutput {
    /// One JSON object on standard output; progress goes to standard error.
    Json,
}

#[derive(Debug, Clone, Default, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    /// What is done to a demo that was kept.
    #[command(subcommand)]
    pub command: Option<DemoCommand>,
    /// Another format than text.
    #[arg(short, long, value_enum)]
    pub output: Option<DemoOutput>,
    /// Leave the cluster running until Ctrl-C, with a KUBECONFIG for kubectl.
    #[arg(long)]
    pub keep: bool,
    /// Show the cluster in the browser from its start, and leave it running as --keep does.
    #[arg(long)]
    pub ui: bool,
    /// Also show every step of the burst, and the daemons' logs.
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

/// What is done to a kept demo.
#[derive(Debug, Clone, Subcommand)]
pub enum DemoCommand {
    /// Break something in the kept demo: a GPU, a NIC, a node daemon, a kubelet, a lock.
    Fault(FaultArgs),
}

impl DemoArgs {
    /// Hardware of this machine is used.
    pub fn real(&self) -> bool {
        self.nvml_library.is_some() || self.sysfs_root.is_some() || self.dev_root.is_some()
    }

    /// Where the daemons' logs go.
    pub fn daemon_log(&self) -> DaemonLog {
        if self.verbose { DaemonLog::FileAndStderr } else { DaemonLog::File }
    }
}

/// Where progress is printed.
#[derive(Debug, Clone, Copy)]
pub struct ProgressOutput {
    /// Standard output is for the outcome.
    pub to_stderr: bool,
    /// Nothing is left out.
    pub verbose: bool,
}

impl ProgressOutput {
    pub fn heading(self, title: &str) {
        self.line(format_args!("\n== {title} =="));
    }

    pub fn line(self, line: impl std::fmt::Display) {
        if self.to_stderr {
            remark(line);
        } else {
            // When the reader of the text has left, the demo still ends its daemons in order.
            let _ = say(format_args!("{line}\n"));
        }
    }
}
