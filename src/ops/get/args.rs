//! The command line of `baton get` and what it prints.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::output::{self, Row};
use super::snapshot::{self, Rules, Snapshot};
use super::{gangs, jobs, locks, nodes, pods, queue};
use crate::contract::key;
use crate::decide::explain::QueueReport;
use crate::ops::config::print_yaml;
use crate::ops::leader::{Leader, LeaderArgs};
use crate::ops::live;
use crate::ops::say::say;
use crate::ops::values;
use crate::runtime::clock;

/// What to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Resource {
    /// GPUs and NICs in all, free and unhealthy; node daemon; lock.
    #[value(alias = "node", alias = "no")]
    Nodes,
    /// Pods that ask for devices: node, devices, lock.
    #[value(alias = "pod", alias = "po")]
    Pods,
    /// Node locks: holder, age, state, and what to do.
    #[value(alias = "lock")]
    Locks,
    /// TYJobs: stage, placement, ready workers; wide adds nodes and why.
    #[value(alias = "job", alias = "tyjobs", alias = "tyjob", alias = "tyj")]
    Jobs,
    /// Gangs: members reserved and bound, cycle, attempts and why. Answered by the scheduler.
    #[value(alias = "gang")]
    Gangs,
    /// The scheduler's queue: state, attempts, next try, refusing rules. Answered by the scheduler.
    Queue,
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// The table with more columns.
    Wide,
    /// One JSON object, `{"items":[…]}`.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Arguments of `baton get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// What to list.
    #[arg(value_enum)]
    pub resource: Resource,
    /// Only these: names, or namespace/name; locks go by the name of their node.
    pub names: Vec<String>,
    /// Another format than the table.
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
    /// Namespace of the pods, jobs or gangs to list; else that of the kubeconfig's context. The queue is that of all namespaces.
    #[arg(short, long, value_parser = values::namespace)]
    pub namespace: Option<String>,
    /// Pods, jobs or gangs of every namespace.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Credentials; else KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of Baton's daemons.
    #[arg(long, default_value = "baton-system", value_name = "NAMESPACE", value_parser = values::daemon_namespace)]
    pub agent_namespace: String,
    /// Node annotation of the lock.
    #[arg(long, default_value = key::NODE_LOCK, value_name = "KEY", value_parser = values::annotation_key)]
    pub node_lock_key: String,
    /// As the scheduler has it: a lock of this age is expired.
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = values::duration)]
    pub node_lock_expiry: Duration,
    /// As the scheduler has it: a node daemon whose Lease is this old is stale.
    #[arg(long, default_value = "90s", value_name = "DURATION", value_parser = values::duration)]
    pub agent_stale: Duration,
    /// Where the scheduler is, for gangs and the queue.
    #[command(flatten)]
    pub scheduler: LeaderArgs,
}

impl GetArgs {
    /// The namespace that is listed; `None` for all, which a name with its own namespace needs too.
    fn within(&self) -> Option<&str> {
        let elsewhere = self.names.iter().any(|name| name.contains('/'));
        (!self.all_namespaces && !elsewhere).then_some(self.namespace())
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// A name without namespace is one of the namespace that is listed.
    fn means(&self, row: &impl Row, given: &str) -> bool {
        let elsewhere = row.namespace().is_some_and(|namespace| !self.all_namespaces && namespace != self.namespace());
        row.is(given) && (given.contains('/') || !elsewhere || self.resource == Resource::Queue)
    }

    fn rules(&self) -> Rules {
        Rules { lock_key: self.node_lock_key.clone(), expiry: self.node_lock_expiry, stale: self.agent_stale }
    }
}

/// Reads the cluster and prints.
pub async fn run(mut args: GetArgs) -> anyhow::Result<()> {
    if args.namespace.is_none() && !args.all_namespaces {
        args.namespace = Some(live::namespace(args.kubeconfig.as_deref()).await);
    }
    let kubeconfig = args.kubeconfig.as_deref();
    say(match args.resource {
        Resource::Queue => finish(queue::rows(&Leader::find(&args.scheduler, kubeconfig).await?).await?, &args)?,
        Resource::Gangs => {
            let leader = Leader::find(&args.scheduler, kubeconfig).await?;
            finish(gangs::rows(&leader, args.within()).await?, &args)?
        }
        Resource::Jobs => {
            let jobs = jobs::read(live::connect(kubeconfig).await?).await?;
            finish(jobs::rows(jobs, args.within(), clock::wall()), &args)?
        }
        Resource::Nodes | Resource::Pods | Resource::Locks => {
            let snapshot = snapshot::read(live::connect(kubeconfig).await?, &args.agent_namespace).await?;
            let said = match args.resource {
                Resource::Nodes => queue::report_soon(&args.scheduler, kubeconfig).await,
                _ => QueueReport::default(),
            };
            render(&snapshot, &said, &args)?
        }
    })
}

/// What `baton get` prints of `snapshot`: nodes, pods or locks.
fn render(snapshot: &Snapshot, said: &QueueReport, args: &GetArgs) -> anyhow::Result<String> {
    match args.resource {
        Resource::Nodes => finish(nodes::rows(snapshot, &args.rules(), said), args),
        Resource::Pods => finish(pods::rows(snapshot, args.within(), &args.node_lock_key), args),
        _ => finish(locks::rows(snapshot, &args.rules()), args),
    }
}

fn finish<R: Row + Serialize>(mut rows: Vec<R>, args: &GetArgs) -> anyhow::Result<String> {
    if let Some(missing) = args.names.iter().find(|name| !rows.iter().any(|row| args.means(row, name))) {
        bail!("{} {missing:?} not found; `baton get {}` lists what there is", R::WHAT, R::PLURAL);
    }
    rows.retain(|row| args.names.is_empty() || args.names.iter().any(|name| args.means(row, name)));
    let items = serde_json::json!({ "items": rows });
    Ok(match args.output {
        Some(Output::Json) => serde_json::to_string_pretty(&items)? + "\n",
        Some(Output::Yaml) => print_yaml(&items)?,
        None | Some(Output::Wide) if rows.is_empty() => {
            let none = if args.all_namespaces { R::NONE.split(';').next().unwrap_or_default() } else { R::NONE };
            format!("{}.\n", none.trim_end_matches('.'))
        }
        wide => output::table(&rows, wide == Some(Output::Wide)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::explain::{KeptNode, ReservedDevices};
    use crate::ops::get::snapshot::tests::cluster;
    use clap::Parser;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        get: GetArgs,
    }

    fn printed(line: &str) -> anyhow::Result<String> {
        let line = Line::try_parse_from(line.split(' '))?;
        let kept = vec![KeptNode { node: "node-b".to_owned(), kept_for: "gang ml/big".to_owned() }];
        let reserved = vec![ReservedDevices {
            node: "node-a".to_owned(),
            reserved_for: "TYJob ml/rl".to_owned(),
            devices: [("GPU-a1".to_owned(), 100)].into(),
        }];
        render(&cluster(), &QueueReport { kept, reserved, ..QueueReport::default() }, &line.get)
    }

    #[test]
    fn nodes_say_how_many_devices_are_free_and_whether_the_agent_is_there() {
        let table = printed("nodes").unwrap();
        let node_a = table.lines().find(|line| line.starts_with("node-a")).unwrap();
        assert!(
            node_a.contains("0/2")
                && node_a.contains("1 for TYJob ml/rl")
                && node_a.contains("fresh")
                && node_a.contains("ml/train"),
            "{table}"
        );
        let node_b = table.lines().find(|line| line.starts_with("node-b")).unwrap();
        assert!(node_b.contains("stale") && node_b.contains("gang ml/big"), "{table}");
    }

    #[test]
    fn pods_say_where_they_are_and_what_they_have() {
        assert!(!printed("pods").unwrap().contains("train"), "namespace default has no such pod");
        let table = printed("pods -A -o wide").unwrap();
        let train = table.lines().find(|line| line.contains("train")).unwrap();
        assert!(train.contains("node-a") && train.contains("GPU-a0"), "{table}");
        let json: serde_json::Value = serde_json::from_str(&printed("pods -n ml -o json").unwrap()).unwrap();
        assert_eq!(json["items"][0]["devices"]["gpu"][0], "GPU-a0");
        assert_eq!(json["items"][0]["holdsLock"], true);
    }

    #[test]
    fn locks_say_who_holds_them_and_what_to_do() {
        let yaml = printed("locks node-b -o yaml").unwrap();
        assert!(yaml.contains("state: dangling") && yaml.contains("does not exist"), "{yaml}");
        let table = printed("locks").unwrap();
        assert!(table.contains("malformed") && table.contains("taken over"), "{table}");
    }

    #[test]
    fn a_pod_is_named_alone_in_its_namespace_or_with_its_namespace_anywhere() {
        for line in ["pods ml/train", "pods train -n ml", "pods -A train", "pods -n ml ml/train"] {
            assert!(printed(line).unwrap().contains("train"), "{line}");
        }
        for line in ["pods train", "pods other/train", "pods ml/train train"] {
            assert!(printed(line).unwrap_err().to_string().contains("not found"), "{line}");
        }
    }

    #[test]
    fn a_name_that_is_not_there_is_an_error() {
        assert!(printed("nodes node-z").unwrap_err().to_string().contains("\"node-z\" not found"));
        assert!(printed("chairs").is_err());
    }
}
