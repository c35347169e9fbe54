//! `baton explain pod`: one pod, as the leading scheduler sees it.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::devices::{self, PodHoldings};
use super::output::{Common, named};
use super::verdict::{advice, nodes, refusals, tried_again};
use super::what_if::WhatIfArgs;
use crate::complete;
use crate::view::age;
use baton_contract::PodKey;
use baton_decide::explain::{Explanation, PodState};

/// What wakes a pod that nothing else does.
const OWN_CHANGE: &str = "the pod itself, or its gang, changes";

/// Arguments of `baton explain pod`.
#[derive(Debug, Args)]
pub struct PodArgs {
    /// `namespace/name`, or a name in --namespace.
    #[arg(required_unless_present_any = ["what_if", "file"], conflicts_with_all = ["what_if", "file"], value_name = "NAMESPACE/NAME", add = complete::pods())]
    pub pod: Option<String>,
    /// Namespace of a pod that is given by its name alone; else that of the kubeconfig's context.
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// A pod that does not exist.
    #[command(flatten)]
    pub what_if: WhatIfArgs,
}

pub(super) async fn run(args: &PodArgs, common: &Common) -> anyhow::Result<String> {
    let namespace = common.namespace(args.namespace.as_deref()).await;
    let (namespace, name) = named("pod", args.pod.as_deref().unwrap_or_default(), &namespace)?;
    let leader = common.leader().await?;
    let explanation: Explanation = leader.get(&format!("/explain?pod={namespace}/{name}")).await?;
    let mut answer = PodAnswer { explanation, devices: PodHoldings::default() };
    let node = answer.explanation.node.clone().filter(|_| answer.explanation.state == PodState::Bound);
    if let Some(node) = node.filter(|_| !answer.explanation.devices.is_empty())
        && let Some(snapshot) = devices::of_node(common, &node).await
    {
        let key = PodKey::new(namespace, name);
        answer.devices = devices::held(&snapshot, &key);
        answer.explanation.verdict.advice.extend(answer.devices.advice());
        let calls = devices::calls_made(common, &snapshot, &node, &key).await.transpose();
        answer.devices.calls_unknown = calls.as_ref().err().cloned();
        answer.devices.calls = calls.ok().flatten();
    }
    common.print("PodExplanation", &answer, |answer, wide| text_with(&answer.explanation, &answer.devices, wide))
}

/// The scheduler's answer, and what the objects of its node show of its devices.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodAnswer {
    #[serde(flatten)]
    explanation: Explanation,
    /// Those of a bound pod.
    #[serde(flatten)]
    devices: PodHoldings,
}

/// What `baton explain pod` prints; `wide` adds every node and device.
pub fn text(explanation: &Explanation, wide: bool) -> String {
    text_with(explanation, &PodHoldings::default(), wide)
}

fn text_with(explanation: &Explanation, devices: &PodHoldings, wide: bool) -> String {
    let mut out = String::new();
    let seconds = |seconds| age(Duration::from_secs(seconds));
    let Explanation { pod, state, verdict, .. } = explanation;
    // Where a pod is bound, how far it has come is the first thing to know.
    let is_bound = *state == PodState::Bound && !verdict.message.is_empty();
    let _ = write!(out, "Pod {pod} is {}", if is_bound { verdict.message.as_str() } else { state.words() });
    if devices.broken().next().is_some() {
        out.push_str(", and a device of it is out of service");
    }
    if let Some(queued) = explanation.queued_seconds {
        let times = if explanation.attempts == 1 { "time" } else { "times" };
        let _ = write!(out, "; queued for {}, tried {} {times}", seconds(queued), explanation.attempts);
    }
    out.push_str(".\n");
    if let Some(group) = &explanation.group {
        let _ = writeln!(out, "It starts together with the gang {group}.");
    }
    // Counted reasons are listed one by one.
    let listed_below = verdict.rules.iter().any(|rule| rule.count > 0) && explanation.group.is_none();
    if !verdict.message.is_empty() && !listed_below && !is_bound {
        let _ = writeln!(out, "  {}", verdict.message);
    }
    if let (Some(at), Some(held)) = (explanation.served_at, explanation.lock_held_millis) {
        let node = explanation.node.as_deref().unwrap_or_default();
        let held = if held < 10_000 { format!("{held} ms") } else { age(Duration::from_millis(held)) };
        let _ = writeln!(out, "  served at {at:.0}; the lock of {node} was held for {held}");
    }
    if devices.held.is_empty() && !explanation.devices.is_empty() {
        let _ = writeln!(out, "  devices: {}", explanation.devices.join(", "));
    }
    out.push_str(&devices.text());
    refusals(&mut out, verdict);
    if let Some(room) = verdict.room.as_ref().filter(|_| listed_below) {
        let _ = writeln!(out, "  {room}");
    }
    let (attempts, next) = (u64::from(explanation.attempts), explanation.next_try_seconds);
    let again = match state {
        PodState::Parked if verdict.wakes.is_empty() => tried_again(attempts, &[OWN_CHANGE.to_owned()], None),
        PodState::Parked => tried_again(attempts, &verdict.wakes, next),
        PodState::BackOff => tried_again(attempts, &[], next.or(Some(0))),
        _ => None,
    };
    if let Some(again) = again {
        let _ = writeln!(out, "\n{again}");
    }
    advice(&mut out, verdict);
    if wide {
        nodes(&mut out, verdict);
    }
    out
}
