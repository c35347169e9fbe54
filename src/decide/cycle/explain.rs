//! Why a pod is where it is: judged afresh on the live world, nothing is written.

use serde::Serialize;

use crate::contract::PodKey;
use crate::decide::framework::{Outcome, Slots, View};
use crate::decide::queue::QueueState;
use crate::decide::world::{Place, PodId};

use super::choose::{Choice, choose, judge};
use super::engine::Engine;
use super::flight::Stage;
use super::settings::Moment;

/// The answer for one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub pod: String,
    /// `active`, `backOff`, `parked`, `waitingForLock`, `locking`, `binding`, `bound`, `ended` or `foreign`.
    pub state: &'static str,
    /// The node, chosen or bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What the condition says now.
    pub message: String,
    /// What each node says to the pod while it waits.
    pub nodes: Vec<NodeVerdict>,
    /// Generation of the world that was judged.
    pub generation: u64,
}

/// One node's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeVerdict {
    /// Node.
    pub node: String,
    /// It fits.
    pub fits: bool,
    /// The rule that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<&'static str>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Each device in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
}

impl Engine {
    /// Explains the pod of that name; `None` when there is none.
    pub fn explain(&self, key: &PodKey, now: Moment) -> Option<Explanation> {
        let pod = self.world.pod_by_key(key)?;
        let view = View { world: &self.world, now: now.mono };
        let mut explanation = Explanation {
            pod: key.to_string(),
            state: self.state_word(pod.id, pod.place),
            node: pod.node().and_then(|id| self.world.node(id)).map(|node| node.name.to_string()),
            message: String::new(),
            nodes: Vec::new(),
            generation: self.world.generation(),
        };
        if pod.place != Place::Waiting {
            return Some(explanation);
        }
        explanation.message = match choose(view, &self.plugins, pod, None).0 {
            Choice::Nowhere(diagnosis) => {
                let message = diagnosis.message();
                if diagnosis.is_final() {
                    explanation.message = message;
                    return Some(explanation);
                }
                message
            }
            Choice::WaitUntil(_, refusal) => refusal.text.into_owned(),
            Choice::Fault(text) => text.into_owned(),
            Choice::Node(node, _) => {
                let name = self.world.node(node).map_or("", |node| &node.name);
                format!("would go to {name}")
            }
        };
        let mut slots = Slots::default();
        for plugin in &self.plugins.enabled().pre_filter {
            plugin.pre_filter(view, pod, &mut slots);
        }
        for (id, node) in self.world.nodes() {
            let outcome = judge(view, &self.plugins, pod, (id, node), &mut slots);
            let fits = outcome.is_fit();
            let (rule, reason) = match outcome {
                Outcome::Fit => (None, None),
                Outcome::Unfit(no) | Outcome::Never(no) | Outcome::WaitUntil(_, no) => {
                    (Some(no.rule), Some(no.text.into_owned()))
                }
                Outcome::Fault(text) => (None, Some(text.into_owned())),
            };
            let devices = match (&node.stock, pod.asks_for_devices()) {
                (Some(stock), true) => stock.describe(),
                _ => Vec::new(),
            };
            explanation.nodes.push(NodeVerdict { node: node.name.to_string(), fits, rule, reason, devices });
        }
        Some(explanation)
    }

    fn state_word(&self, id: PodId, place: Place) -> &'static str {
        if let Some(flight) = self.flights.get(&id) {
            return match flight.stage {
                Stage::Preparing => "preparing",
                Stage::Line => "waitingForLock",
                Stage::Locking(_) => "locking",
                Stage::Binding(_) | Stage::BindAgain | Stage::Reading | Stage::ReadAgain => "binding",
            };
        }
        if self.holds.contains_key(&id) {
            return "held";
        }
        match (place, self.queue.state(id)) {
            (Place::Bound(_) | Place::Assumed(_), _) => "bound",
            (Place::Ended, _) => "ended",
            (Place::Waiting, Some(QueueState::Active(_) | QueueState::Taken)) => "active",
            (Place::Waiting, Some(QueueState::BackOff(_))) => "backOff",
            (Place::Waiting, Some(QueueState::Parked(..))) => "parked",
            (Place::Waiting, None) => "foreign",
        }
    }
}
