//! What an event changed, and what kind of change that is for pods that wait.

use std::time::Duration;

use baton_contract::{PodKey, PodUid};

use super::{NodeId, PodId};

/// Kinds of change, as a set. A refusal names those that may turn it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Wake(u16);

impl Wake {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// A node came.
    pub const NODE_ADDED: Self = Self(1);
    /// Labels, taints or `unschedulable` of a node: its words.
    pub const NODE_CHANGED: Self = Self(1 << 1);
    /// A node offers more of something that is counted.
    pub const NODE_ROOM: Self = Self(1 << 2);
    /// An agent came to life or serves other names.
    pub const AGENT: Self = Self(1 << 3);
    /// A node's inventory.
    pub const DEVICES: Self = Self(1 << 4);
    /// A pod that took room is gone, ended or was forgotten.
    pub const POD_FREED: Self = Self(1 << 5);
    /// A pod was bound, or what rules count of a bound pod changed: its labels, and that it is being deleted.
    pub const POD_PLACED: Self = Self(1 << 6);
    /// Namespaces.
    pub const NAMESPACE: Self = Self(1 << 7);
    /// Volumes and claims, and room for more.
    pub const VOLUME: Self = Self(1 << 8);
    /// What the namespace of a TYJob may use.
    pub const QUOTA: Self = Self(1 << 9);
    /// A node comes, or one that is there takes pods again or offers more.
    pub const NODE: Self =
        Self::NODE_ADDED.or(Self::NODE_CHANGED).or(Self::NODE_ROOM).or(Self::AGENT).or(Self::DEVICES);
    /// Number of kinds.
    pub const KINDS: usize = 10;
    /// All of them.
    pub const ANY: Self = Self((1 << Self::KINDS) - 1);

    /// Both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// `true` when they have a kind in common.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// `true` for no kind.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
    /// Each kind in words that follow "when".
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        const WORDS: [&str; Wake::KINDS] = [
            "a node is added",
            "labels, taints or cordon of a node change",
            "a node offers more",
            "a node daemon becomes ready or serves more",
            "the devices of a node change",
            "a pod leaves its node",
            "a pod is placed",
            "labels of a namespace change",
            "a volume or claim changes, or a driver has more storage",
            "a ResourceQuota or LimitRange changes",
        ];
        self.kinds().map(|kind| WORDS[kind])
    }
    /// The kinds, as numbers below [`Wake::KINDS`].
    pub fn kinds(self) -> impl Iterator<Item = usize> {
        (0..Self::KINDS).filter(move |kind| self.0 & (1 << kind) != 0)
    }
}

/// What one event changed.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// For pods that wait.
    pub wake: Wake,
    /// Pods that appeared, changed or moved.
    pub pods: Vec<PodId>,
    /// Pods that have ended, each once.
    pub ended: Vec<PodId>,
    /// Pods that are gone.
    pub gone: Vec<PodId>,
    /// Pods that held room and hold nothing of it any more: gone or ended, and their processes with them.
    pub left: Vec<PodUid>,
    /// Nodes whose lock, agent, devices or object changed.
    pub nodes: Vec<NodeId>,
    /// Nodes whose daemon has been silent for so long that it is not believed any more.
    pub silent: Vec<NodeId>,
    /// Pods whose node's lock went, since they have their devices, and how long it stood.
    pub served: Vec<(PodId, Duration)>,
    /// TYJobs whose object or pods changed.
    pub jobs: Vec<PodKey>,
    /// Namespaces with TYJobs whose quotas or limits changed, or the classes that admission gives there.
    pub quotas: Vec<Box<str>>,
}
