//! The command line of `baton explain`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::node::{self, NodeArgs};
use super::output::{Common, NamedObject};
use super::pod::{self, PodArgs};
use super::what_if::{self, WhatIfArgs};
use super::{gang, job};
use crate::complete;
use crate::say::{UsageError, say};

/// What is to be explained.
#[derive(Debug, Subcommand)]
pub enum ExplainSubject {
    /// A pod: its state, which rule refused which nodes, what would wake it, what to do.
    #[command(visible_alias = "po", alias = "pods")]
    Pod(PodArgs),
    /// A gang: its group, how many are placed of how many needed, the root cause, what to do.
    #[command(visible_alias = "gangs", mut_arg("object", |arg| arg.add(complete::gangs())))]
    Gang(NamedObject),
    /// A node: whether it takes new pods with devices, what is free, its lock, each device and its holders.
    #[command(visible_alias = "no", alias = "nodes")]
    Node(NodeArgs),
    /// A TYJob: its turn, its share of the cluster, its places, and the rating of each node for the pods without one.
    #[command(visible_alias = "jobs", alias = "tyjob", alias = "tyj")]
    Job(NamedObject),
}

/// Arguments of `baton explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// What is to be explained; none with --what-if.
    #[command(subcommand)]
    pub subject: Option<ExplainSubject>,
    /// A pod that does not exist.
    #[command(flatten)]
    pub what_if: WhatIfArgs,
    /// What all subjects share.
    #[command(flatten)]
    pub common: Common,
}

/// `explain pod/NAME` as `explain pod NAME`.
pub fn split_names(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    const KINDS: [&str; 10] = ["pod", "pods", "po", "gang", "gangs", "job", "jobs", "node", "nodes", "no"];
    let mut words: Vec<OsString> = words.into_iter().collect();
    if words.get(1).is_none_or(|word| word != "explain") {
        return words;
    }
    // The first word that is a kind, with its name or without. A file may lie in a folder of such a name.
    let is_file = |at: usize| words[at - 1].to_str().is_some_and(|before| ["-f", "--filename"].contains(&before));
    let subject = words.iter().enumerate().skip(2).filter(|(at, _)| !is_file(*at)).find_map(|(at, word)| {
        let (kind, name) = word.to_str().map(|text| text.split_once('/').unwrap_or((text, "")))?;
        KINDS.contains(&kind).then(|| (at, [OsString::from(kind), OsString::from(name)]))
    });
    if let Some((at, parts)) = subject.filter(|(_, [_, name])| !name.is_empty()) {
        words.splice(at..=at, parts);
    }
    words
}

/// Requests the answer and prints it.
pub async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let common = &args.common;
    let printed = match &args.subject {
        Some(_) if args.what_if.is_asked() => {
            let text = "--what-if judges the pod of the file: name no other object";
            return Err(UsageError(text.to_owned()).into());
        }
        _ if args.what_if.is_asked() => what_if::run(&args.what_if, common).await?,
        Some(ExplainSubject::Pod(pod)) if pod.what_if.is_asked() => what_if::run(&pod.what_if, common).await?,
        Some(ExplainSubject::Pod(pod)) => pod::run(pod, common).await?,
        Some(ExplainSubject::Gang(gang)) => {
            common.answer(("gang", "GangExplanation"), gang, "/gangs", gang::text).await?
        }
        Some(ExplainSubject::Node(node)) => node::run(node, common).await?,
        Some(ExplainSubject::Job(job)) => common.answer(("job", "JobExplanation"), job, "/jobs", job::text).await?,
        None => {
            let text = "nothing to explain: `baton explain pod namespace/name`, `baton explain gang namespace/name`, \
                        `baton explain job namespace/name`, `baton explain node name`, or `baton explain --what-if -f pod.yaml`";
            return Err(UsageError(text.to_owned()).into());
        }
    };
    say(printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_with_a_name_is_two_words_and_a_file_of_such_a_folder_is_one() {
        let split = |line: &str| split_names(line.split(' ').map(OsString::from)).join(OsString::from(" ").as_os_str());
        for (line, words) in [
            ("baton explain pod/ml/a", "baton explain pod ml/a"),
            ("baton explain -n ml no/n1", "baton explain -n ml no n1"),
            ("baton explain --what-if -f node/pods/a.yaml", "baton explain --what-if -f node/pods/a.yaml"),
            ("baton explain --what-if --filename pod/a.yaml", "baton explain --what-if --filename pod/a.yaml"),
            ("baton get pod/a", "baton get pod/a"),
        ] {
            assert_eq!(split(line), words);
        }
    }
}
