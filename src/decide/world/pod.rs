//! One pod of the world and where it stands.
//!
//! ```text
//!              assume                 confirm (the API shows the node)
//!   waiting ───────────▶ assumed ────────────────────────────────────▶ bound ──▶ ended
//!      ▲                    │                                            ▲         ▲│
//!      │                    │         (its containers run: it goes on) ──┼─────────┼┘
//!      └──────forget────────┘              (deleted or terminal from anywhere) ────┘
//! ```

use std::time::Duration;

use crate::devices::{Exclusive, Held};
use crate::pod::HandoffPod;
use baton_contract::Shared;

use super::spec::PodSpec;
use super::{NodeId, PodId};

/// What a pod's object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// What the hand-off reads.
    pub handoff: HandoffPod,
    /// What placement reads.
    pub spec: Shared<PodSpec>,
    /// Its rank among the members of its gang: pods of one template differ in it.
    pub rank: Option<u32>,
}

/// A pod.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Dense id, never used again.
    pub id: PodId,
    /// Its object.
    pub facts: PodFacts,
    /// Where it stands.
    pub place: Place,
    /// Devices it holds or is about to: from the annotation when bound, from the decision when assumed.
    pub devices: Option<Held>,
    /// Which other pods may be near these devices, as the pod asked when it was placed; later edits change nothing.
    pub exclusive: Exclusive,
    /// When it had its devices and its lock went; `None` where this process did not see it.
    pub served: Option<Served>,
    /// When the grace period of its deletion ends: monotonic, from when this process saw it first. No other clock is asked.
    pub leaves: Option<Duration>,
}

/// The end of a hand-off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Monotonic.
    pub at: Duration,
    /// How long the lock was seen to stand.
    pub held: Duration,
}

/// Where a pod stands. Every pod is exactly one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Without a node.
    Waiting,
    /// This scheduler chose the node and reserves its room; the API does not show it yet.
    Assumed(NodeId),
    /// The API shows this node.
    Bound(NodeId),
    /// Succeeded or Failed: counts for nothing. Where its containers run still, its devices stay held on the node.
    Ended,
}

impl Place {
    /// The node whose room is taken.
    pub fn node(self) -> Option<NodeId> {
        match self {
            Self::Assumed(node) | Self::Bound(node) => Some(node),
            Self::Waiting | Self::Ended => None,
        }
    }
}

impl Pod {
    /// `true` for pods of one template: they ask for the same. Other pods that ask for the same may differ by this.
    pub fn is_of_template(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.facts, &other.facts);
        ours.spec.is_same(&theirs.spec)
            && ours.handoff.containers.is_same(&theirs.handoff.containers)
            && ours.handoff.node == theirs.handoff.node
            && self.key().namespace == other.key().namespace
    }

    /// Equal for waiting pods of one template of one world, for as long as they are in it.
    pub fn alike(&self) -> ([usize; 2], Box<str>) {
        let (spec, containers) = (&self.facts.spec, &self.facts.handoff.containers);
        ([spec.address(), containers.address()], self.key().namespace.clone())
    }

    /// A pod that is in no world: to be judged, not kept.
    pub fn unplaced(id: PodId, facts: PodFacts) -> Self {
        Self {
            id,
            facts,
            place: Place::Waiting,
            devices: None,
            exclusive: Exclusive::default(),
            served: None,
            leaves: None,
        }
    }

    /// This record takes room that the later record `now` does not take: other pods may have it.
    pub fn leaves_room(&self, now: &Self) -> bool {
        let resized = self.facts.spec.requests != now.facts.spec.requests;
        let kept = self.facts.spec.nominated.as_ref().filter(|_| self.place == Place::Waiting);
        if kept.is_some() {
            let still = if now.place == Place::Waiting { &now.facts.spec.nominated } else { &now.facts.handoff.node };
            return kept != still.as_ref();
        }
        self.node().is_some() && (self.node() != now.node() || resized || self.devices != now.devices)
    }

    /// The node whose room this pod takes.
    pub fn node(&self) -> Option<NodeId> {
        self.place.node()
    }

    /// `namespace/name`.
    pub fn key(&self) -> &baton_contract::PodKey {
        &self.facts.handoff.pod.key
    }

    /// `true` when the kubelet would call agents for it.
    pub fn asks_for_devices(&self) -> bool {
        self.facts.handoff.asks_for_devices()
    }
}
