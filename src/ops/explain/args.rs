//! The command line of `baton explain`, and how an answer is printed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use super::gang::{self, GangArgs};
use super::job::{self, JobArgs};
use super::pod::{self, PodArgs};
use super::what_if::{self, WhatIfArgs};
use crate::ops::config::print_yaml;
use crate::ops::leader::{Leader, LeaderArgs};
use crate::ops::live;
use crate::ops::say::{Usage, say};

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text with every node and device, or every member.
    Wide,
    /// The answer as one JSON object.
    Json,
    /// The same as YAML.
    Yaml,
}

/// What is to be explained.
#[derive(Debug, Subcommand)]
pub enum Subject {
    /// A pod: its state, which rule refused which nodes, what would wake it, what to do.
    #[command(visible_alias = "po", alias = "pods")]
    Pod(PodArgs),
    /// A gang: its group, how many are placed of how many needed, the root cause, what to do.
    #[command(visible_alias = "gangs")]
    Gang(GangArgs),
    /// A TYJob: its turn, its share of the cluster, its places, and what each node is to the pods without one.
    #[command(visible_alias = "jobs", alias = "tyjob", alias = "tyj")]
    Job(JobArgs),
}

/// Arguments of `baton explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// What is to be explained; none with --what-if.
    #[command(subcommand)]
    pub subject: Option<Subject>,
    /// A pod that does not exist.
    #[command(flatten)]
    pub what_if: WhatIfArgs,
    /// What all subjects share.
    #[command(flatten)]
    pub common: Common,
}

/// What all subjects share.
#[derive(Debug, Args)]
pub struct Common {
    /// Another format than text.
    #[arg(short, long, value_enum, global = true)]
    pub output: Option<Output>,
    /// Credentials; else KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Where the scheduler is.
    #[command(flatten)]
    pub scheduler: LeaderArgs,
}

impl Common {
    /// The leading scheduler.
    pub async fn leader(&self) -> anyhow::Result<Leader> {
        Leader::find(&self.scheduler, self.kubeconfig.as_deref()).await
    }

    /// The namespace of what is named without one: `given`, else that of the kubeconfig's context, as kubectl has it.
    pub async fn namespace(&self, given: Option<&str>) -> String {
        match given {
            Some(given) => given.to_owned(),
            None => live::namespace(self.kubeconfig.as_deref()).await,
        }
    }

    /// The answer in the format that was asked for; `text` is told whether it is the wide one.
    pub fn print<T: Serialize>(&self, answer: &T, text: impl FnOnce(&T, bool) -> String) -> anyhow::Result<String> {
        Ok(match self.output {
            Some(Output::Json) => serde_json::to_string_pretty(answer)? + "\n",
            Some(Output::Yaml) => print_yaml(answer)?,
            wide => text(answer, wide == Some(Output::Wide)),
        })
    }
}

/// Asks and prints.
pub async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let printed = match &args.subject {
        Some(_) if args.what_if.what_if => {
            let text = "--what-if judges the pod of the file: leave out what stands beside it";
            return Err(Usage(text.to_owned()).into());
        }
        _ if args.what_if.what_if => what_if::run(&args.what_if, &args.common).await?,
        Some(Subject::Pod(pod)) if pod.what_if.what_if => what_if::run(&pod.what_if, &args.common).await?,
        Some(Subject::Pod(pod)) => pod::run(pod, &args.common).await?,
        Some(Subject::Gang(gang)) => gang::run(gang, &args.common).await?,
        Some(Subject::Job(job)) => job::run(job, &args.common).await?,
        None => {
            let text = "nothing to explain: `baton explain pod namespace/name`, `baton explain gang namespace/name`, \
                        `baton explain job namespace/name`, or `baton explain --what-if -f pod.yaml`";
            return Err(Usage(text.to_owned()).into());
        }
    };
    say(printed)
}
