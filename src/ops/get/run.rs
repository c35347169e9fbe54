//! What `baton get` prints.

use std::time::Duration;

use anyhow::bail;

use super::args::{GetArgs, Resource};
use super::listing::{Listing, Printer};
use crate::leader::LeaderClient;
use crate::say::{UsageError, remark, say_to_reader};
use crate::view::{self, Follower, Look, NodesView, Snapshot};
use baton_decide::explain::QueueReport;
use baton_runtime::clock;

/// The scheduler is asked again, for --watch.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// What changes with time alone is looked at again, for --watch.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

impl GetArgs {
    /// What `baton get` lists of `snapshot`.
    fn list(&self, snapshot: &Snapshot, said: &QueueReport) -> anyhow::Result<Listing> {
        let rules = self.daemons.rules();
        if let Some(node) = self.node.as_deref().filter(|_| self.resource() != Resource::Jobs) {
            let there = snapshot.nodes.contains_key(node) || snapshot.devices.contains_key(node);
            if !there && !snapshot.pods.values().any(|pod| pod.node.as_deref() == Some(node)) {
                bail!("node {node:?} not found; `baton get nodes` lists what there is");
            }
        }
        match self.resource() {
            resource if self.state.is_some() && resource != Resource::Devices => {
                Err(UsageError("--state selects devices: `baton get devices`".to_owned()).into())
            }
            Resource::Nodes => Listing::of(NodesView::of(snapshot, &rules, said).nodes, self),
            Resource::Devices => {
                let mut rows = NodesView::of(snapshot, &rules, said).devices;
                rows.retain(|row| self.state.is_none_or(|state| row.is_in(state)));
                Listing::of(rows, self)
            }
            Resource::Namespaces => Listing::of(view::namespace_rows(snapshot), self),
            Resource::Pods => Listing::of(view::pod_rows(snapshot, self.within(), &rules), self),
            Resource::Jobs => Listing::of(view::job_rows(snapshot, self.within()), self),
            _ => Listing::of(view::lock_rows(snapshot, &rules, said), self),
        }
    }

    /// What the leading scheduler lists.
    async fn ask(&self, leader: &LeaderClient) -> anyhow::Result<Listing> {
        match self.resource() {
            Resource::Queue => Listing::of(view::queued(leader).await?, self),
            _ => Listing::of(view::gangs(leader, self.within()).await?, self),
        }
    }
}

/// Reads the cluster and prints.
pub async fn run(mut args: GetArgs) -> anyhow::Result<()> {
    if args.namespace.is_none() && !args.all_namespaces {
        args.namespace = Some(args.access.namespace().await);
    }
    let mut printer = Printer::new(&args, Look::of_stdout(!args.no_headers));
    if matches!(args.resource(), Resource::Queue | Resource::Gangs) {
        let mut leader = LeaderClient::find(&args.scheduler, &args.access).await?;
        while say_to_reader(printer.print(&args.ask(&leader).await?)?)? && args.watch {
            tokio::time::sleep(ASK_AGAIN).await;
            while !leader.leads().await {
                match LeaderClient::find(&args.scheduler, &args.access).await {
                    Ok(found) => leader = found,
                    // Until the next one leads.
                    Err(error) => remark(format_args!("{error:#}")),
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }
        return Ok(());
    }
    let client = args.access.connect().await?;
    let of_jobs = args.resource() == Resource::Jobs;
    let mut snapshot = if of_jobs {
        view::read_jobs(client.clone()).await?
    } else {
        view::read_snapshot(client.clone(), &args.scheduler.home.namespace).await?
    };
    let mut leader = None;
    let mut said = async || match args.resource() {
        Resource::Nodes | Resource::Devices | Resource::Locks => {
            view::report_soon(&mut leader, &args.scheduler, &args.access).await
        }
        _ => QueueReport::default(),
    };
    let mut follower = if of_jobs {
        Follower::of_jobs(&client)
    } else {
        Follower::of_cluster(&client, &args.scheduler.home.namespace)
    };
    while say_to_reader(printer.print(&args.list(&snapshot, &said().await)?)?)? && args.watch {
        // Some things change with time alone: a cordon ends, a daemon grows stale.
        let _ = tokio::time::timeout(LOOK_AGAIN, follower.advance(&mut snapshot)).await;
        snapshot.wall = clock::wall();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::snapshot_tests::cluster;
    use baton_decide::explain::{ClosedNode, ReservedDevices};
    use clap::Parser;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        get: GetArgs,
    }

    fn printed(line: &str) -> anyhow::Result<String> {
        let line = Line::try_parse_from(line.split(' '))?;
        let why = "it is kept for gang ml/big".to_owned();
        let closed = vec![ClosedNode { node: "node-a".to_owned(), kind: None, why }];
        let reserved = vec![ReservedDevices {
            node: "node-a".to_owned(),
            reserved_for: "TYJob ml/rl".to_owned(),
            devices: [("GPU-a1".to_owned(), 100)].into(),
        }];
        let said = QueueReport { closed, reserved, ..QueueReport::default() };
        let look = Look { headers: !line.get.no_headers, ..Look::PLAIN };
        Printer::new(&line.get, look).print(&line.get.list(&cluster(), &said)?)
    }

    #[test]
    fn nodes_say_how_many_devices_are_free_and_whether_the_daemon_is_there() {
        let table = printed("nodes").unwrap();
        let node_a = table.lines().find(|line| line.starts_with("node-a")).unwrap();
        assert!(
            node_a.contains("0/2")
                && node_a.contains("1 GPU for TYJob ml/rl")
                && node_a.contains("fresh")
                && node_a.contains("it is kept for gang ml/big")
                && node_a.contains("ml/train"),
            "{table}"
        );
        let node_b = table.lines().find(|line| line.starts_with("node-b")).unwrap();
        assert!(
            node_b.contains("stale") && node_b.contains("of this node has not been heard for over 5 min"),
            "{table}"
        );
    }

    #[test]
    fn what_is_listed_has_a_kind_and_names_that_select_it() {
        let json: serde_json::Value = serde_json::from_str(&printed("pods -A -o json").unwrap()).unwrap();
        assert_eq!((&json["apiVersion"], &json["kind"]), (&"baton.io/v1alpha1".into(), &"PodList".into()));
        assert_eq!(printed("pods -A -o name").unwrap(), "pod/ml/train\n");
        assert_eq!(printed("devices --node node-a -o name").unwrap(), "device/node-a/gpu-0\ndevice/node-a/gpu-1\n");
    }

    #[test]
    fn devices_are_selected_by_their_state() {
        let names = |state: &str| -> Vec<String> {
            let table = printed(&format!("devices --no-headers --state {state}")).unwrap();
            table.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join("/")).collect()
        };
        assert_eq!(names("unhealthy"), ["node-b/gpu-0"]);
        assert_eq!(names("cordoned"), [""; 0]);
        assert_eq!(names("free"), [""; 0], "GPU-a1 is reserved");
        assert!(printed("nodes --state free").unwrap_err().to_string().contains("baton get devices"));
        let wide = printed("devices node-a/gpu-0 -o wide").unwrap();
        assert!(wide.contains("PCI") && wide.contains("INDEX"), "{wide}");
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
    fn a_pod_is_named_alone_in_its_namespace_or_with_its_namespace_anywhere() {
        for line in ["pods ml/train", "pods train -n ml", "pods -A train", "pods -n ml ml/train"] {
            assert!(printed(line).unwrap().contains("train"), "{line}");
        }
        for line in ["pods train", "pods other/train", "pods ml/train train"] {
            assert!(printed(line).unwrap_err().to_string().contains("not found"), "{line}");
        }
    }

    #[test]
    fn a_resource_and_a_name_stand_in_one_word_as_for_kubectl() {
        for line in
            ["pod/ml/train", "pod/train -n ml", "po/train pod/train -n ml", "device/node-a/gpu-0", "dev node-a/gpu-0"]
        {
            assert!(printed(line).unwrap().contains("train"), "{line}");
        }
        assert!(printed("node/node-b").unwrap().lines().count() == 2);
        assert!(printed("chair/node-b").unwrap_err().to_string().contains("chair"));
    }

    #[test]
    fn rows_are_selected_by_node_and_label_and_sorted_by_column_or_field() {
        let names = |line: &str| -> Vec<String> {
            let table = printed(line).unwrap();
            table.lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
        };
        assert_eq!(names("nodes --node node-b --no-headers"), ["node-b"]);
        assert_eq!(names("locks --node node-c"), ["NODE", "node-c"]);
        assert_eq!(names("pods -A --node node-b"), ["No"]);
        assert_eq!(names("nodes --no-headers --sort-by daemon"), ["node-a", "node-c", "node-b"]);
        assert_eq!(names("nodes --no-headers --sort-by .gpu.total"), ["node-c", "node-b", "node-a"]);
        assert_eq!(names("nodes -l zone=a"), ["No"]);
        assert!(printed("nodes --sort-by colour").unwrap_err().to_string().contains("GPUS FREE"));
        assert!(printed("nodes --sort-by .colour").unwrap_err().to_string().contains(".colour"));
        assert!(printed("nodes -l a=(").unwrap_err().to_string().contains("a=("));
    }

    #[test]
    fn while_it_watches_only_what_differs_in_more_than_its_age_is_printed_again() {
        let line = Line::try_parse_from(["nodes", "-w", "-o", "json"]).unwrap();
        let mut printer = Printer::new(&line.get, Look::PLAIN);
        let mut cluster = cluster();
        let mut print =
            |cluster: &Snapshot| printer.print(&line.get.list(cluster, &QueueReport::default()).unwrap()).unwrap();
        assert_eq!(print(&cluster).matches(r#""type":"ADDED""#).count(), 3);
        cluster.wall = "2026-11-21T02:36:10Z".parse().unwrap();
        assert_eq!(print(&cluster), "", "only ages differ");
        cluster.nodes.remove("node-c");
        cluster.leases.clear();
        let text = print(&cluster);
        assert!(text.lines().count() == 3 && text.contains(r#""type":"DELETED""#), "{text}");
    }

    #[test]
    fn a_name_that_is_not_there_is_an_error() {
        for line in ["nodes node-z", "devices --node node-z", "pods -A --node node-z", "locks --node node-z"] {
            assert!(printed(line).unwrap_err().to_string().contains("node \"node-z\" not found"), "{line}");
        }
        assert!(printed("chairs").is_err());
    }
}
