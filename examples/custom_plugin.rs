//! A scheduler with three rules of its own on top of Baton's. It takes the flags, environment and file of `baton scheduler`:
//!
//! ```sh
//! cargo run --example custom_plugin -- --kubeconfig ~/.kube/config --scheduler-name pool-scheduler
//! ```
//!
//! Rules are functions of what they are given: they read no clock, no file and no cluster, so that the same pod on the same cluster
//! gets the same answer, and a new leader decides as the old one did. They see what Baton keeps of objects: of pods and nodes the
//! labels, not the annotations. `docs/plugins.md` explains every extension point.

use std::process::ExitCode;
use std::time::Duration;

use baton::decide::core::rules::points::stretch;
use baton::decide::core::rules::{
    Extension, Filter, NodeScore, Outcome, Permit, Plugin, Plugins, Reads, Score, Slots, View,
};
use baton::decide::world::{Node, NodeId, Pod, Wake};

/// Label of pods and nodes: a pod that names a pool goes to nodes of that pool only.
const POOL: &str = "example.com/pool";
/// Label of nodes: what a GPU hour costs there. A node without it counts as free.
const PRICE: &str = "example.com/price";
/// Label of pods: `wanted` keeps the pod from its node until it reads `given`; `refused` sends it away.
const APPROVAL: &str = "example.com/approval";

fn main() -> ExitCode {
    // One rule may run at several points. Baton's own rules run before: Pools is asked about nodes that have room and devices.
    let pools = Extension::new(Pools).filter();
    // Scores are 0 to 100 times the weight. Baton's weigh 13 in all: with 20, the price decides.
    let prices = Extension::new(Prices).score(20);
    let approval = Extension::new(Approval).permit();
    baton::ops::scheduler(&Plugins::default().with(pools).with(prices).with(approval))
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.facts.spec.labels.get(key).map(String::as_str)
}

fn node_label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.facts.as_ref()?.labels.get(key).map(String::as_str)
}

/// Filter: keeps pods within their pool.
struct Pools;

impl Plugin for Pools {
    fn name(&self) -> &'static str {
        "Pools"
    }

    /// A pod without the label is no concern of this rule: it is not asked, and Baton may reuse answers from pods like it. For the
    /// others the default would do as well: the answer depends on a label, and those are not what makes two pods alike.
    fn reads(&self, pod: &Pod, _: &Slots) -> Reads {
        if label(pod, POOL).is_some() { Reads::World } else { Reads::Nothing }
    }
}

impl Filter for Pools {
    fn filter(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> Outcome {
        let wanted = label(pod, POOL);
        if wanted.is_none() || wanted == node_label(node, POOL) {
            return Outcome::Fit;
        }
        // `never`: evicting pods does not help, so preemption leaves this node alone. The text is counted over nodes: "3 nodes are in
        // another pool". The pod is tried again when a node comes or changes its labels, and whenever the pod itself changes.
        Outcome::never(self.name(), "are in another pool", Wake::NODE_ADDED.or(Wake::NODE_CHANGED))
    }
}

/// Score: prefers cheap nodes.
struct Prices;

impl Plugin for Prices {
    fn name(&self) -> &'static str {
        "Prices"
    }

    /// The rating follows from the node alone, so it is kept until that changes.
    fn reads(&self, _: &Pod, _: &Slots) -> Reads {
        Reads::Node
    }
}

impl Score for Prices {
    fn score(&self, _: View<'_>, _: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> i64 {
        -node_label(node, PRICE).and_then(|price| price.parse::<i64>().ok()).unwrap_or(0)
    }

    /// The dearest node gets 0, the cheapest 100.
    fn normalize(&self, _: View<'_>, _: &Pod, scores: &mut [NodeScore]) {
        stretch(scores);
    }
}

/// Permit: holds the chosen devices until they are approved.
struct Approval;

impl Plugin for Approval {
    fn name(&self) -> &'static str {
        "Approval"
    }
}

impl Permit for Approval {
    /// Asked when node and devices are reserved and nothing is written yet. While the answer is to wait, no other pod gets them.
    fn permit(&self, view: View<'_>, pod: &Pod, _: NodeId, _: &mut Slots) -> Outcome {
        match label(pod, APPROVAL) {
            None | Some("given") => Outcome::Fit,
            // Gives the devices back. Only a change of the pod makes it try again.
            Some("refused") => Outcome::never(self.name(), "its approval was refused", Wake::NONE),
            // `view.now` is the only clock.
            Some(_) => {
                let again = view.now + Duration::from_secs(1);
                Outcome::wait_until(again, self.name(), "waits for approval", Wake::NONE)
            }
        }
    }
}
