//! One member of a gang and how members are counted.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::declared::Declared;
use crate::pod::Phase;
use crate::world::{Place, Pod, PodId};
use baton_contract::PodRef;
use baton_contract::gang::Committed;

/// Where a member stands. Every member is exactly one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberState {
    /// Without a node and free to be tried.
    Pending,
    /// A node is reserved or the Binding is under way; the API does not show it yet.
    Reserved,
    /// Has a node, does not run yet.
    Bound,
    /// Has a node, in phase Running.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly, or refused by the kubelet.
    Failed,
    /// Held by a scheduling gate.
    Gated,
    /// Without a node and marked: its gang's wait was over. Never scheduled.
    TimedOut,
    /// Its deletion has been asked for.
    Terminating,
}

impl MemberState {
    /// Of a pod of the world.
    pub fn of(pod: &Pod) -> Self {
        let handoff = &pod.facts.handoff;
        match pod.place {
            // Also where it ends well: one that was told to stop has not done its work.
            _ if handoff.deleting.is_some() => Self::Terminating,
            Place::Ended if handoff.phase == Phase::Succeeded => Self::Succeeded,
            Place::Ended => Self::Failed,
            Place::Bound(_) if handoff.phase == Phase::Running && !pod.facts.spec.unserved => Self::Running,
            Place::Bound(_) => Self::Bound,
            Place::Assumed(_) => Self::Reserved,
            Place::Waiting if pod.facts.spec.gang.as_ref().is_some_and(|declared| declared.timed_out) => Self::TimedOut,
            Place::Waiting if !pod.facts.spec.gates.is_empty() => Self::Gated,
            Place::Waiting => Self::Pending,
        }
    }

    /// Neither ended nor being deleted.
    pub const fn is_live(self) -> bool {
        !matches!(self, Self::Succeeded | Self::Failed | Self::Terminating)
    }

    /// MemberCounts among the gang's children: live, without gate and mark.
    pub const fn is_child(self) -> bool {
        matches!(self, Self::Pending | Self::Reserved | Self::Bound | Self::Running)
    }

    /// Live with a node, reserved or in the API.
    pub const fn has_node(self) -> bool {
        matches!(self, Self::Reserved | Self::Bound | Self::Running)
    }

    /// Has a node in the API and lives.
    pub const fn is_bound(self) -> bool {
        matches!(self, Self::Bound | Self::Running)
    }

    /// Has a node in the API, or had one and has ended.
    pub const fn has_landed(self) -> bool {
        matches!(self, Self::Bound | Self::Running | Self::Succeeded | Self::Failed)
    }
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Id in the world.
    pub pod: PodId,
    /// Key and uid.
    pub identity: PodRef,
    /// Where it stands.
    pub state: MemberState,
    /// `spec.priority`.
    pub priority: i32,
    /// Quality of service: 0 Guaranteed, 1 Burstable, 2 BestEffort.
    pub class: u8,
    /// `spec.schedulerName`.
    pub scheduler: Box<str>,
    /// The commit that bound it.
    pub committed: Option<Committed>,
    /// What it says about the gang.
    pub declared: Arc<Declared>,
}

/// Members by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemberCounts {
    /// [`MemberState::Pending`].
    pub pending: u32,
    /// [`MemberState::Reserved`].
    pub reserved: u32,
    /// [`MemberState::Bound`].
    pub bound: u32,
    /// [`MemberState::Running`].
    pub running: u32,
    /// [`MemberState::Succeeded`].
    pub succeeded: u32,
    /// [`MemberState::Failed`].
    pub failed: u32,
    /// [`MemberState::Gated`].
    pub gated: u32,
    /// [`MemberState::TimedOut`].
    pub timed_out: u32,
    /// [`MemberState::Terminating`].
    pub terminating: u32,
}

impl MemberCounts {
    fn of(&mut self, state: MemberState) -> &mut u32 {
        match state {
            MemberState::Pending => &mut self.pending,
            MemberState::Reserved => &mut self.reserved,
            MemberState::Bound => &mut self.bound,
            MemberState::Running => &mut self.running,
            MemberState::Succeeded => &mut self.succeeded,
            MemberState::Failed => &mut self.failed,
            MemberState::Gated => &mut self.gated,
            MemberState::TimedOut => &mut self.timed_out,
            MemberState::Terminating => &mut self.terminating,
        }
    }

    pub(super) fn enter(&mut self, state: MemberState) {
        *self.of(state) += 1;
    }

    pub(super) fn leave(&mut self, state: MemberState) {
        *self.of(state) -= 1;
    }

    /// `w`: reserved or being bound.
    pub const fn waiting(&self) -> u32 {
        self.reserved
    }

    /// `r`: with a node in the API, living.
    pub const fn placed(&self) -> u32 {
        self.bound + self.running
    }

    /// Children: live, without gate and mark.
    pub const fn children(&self) -> u32 {
        self.pending + self.reserved + self.bound + self.running
    }

    /// Members without a node: free to be tried, gated or marked.
    pub const fn unplaced(&self) -> u32 {
        self.pending + self.gated + self.timed_out
    }
    /// Neither ended nor being deleted.
    pub const fn live(&self) -> u32 {
        self.children() + self.gated + self.timed_out
    }

    /// Every member.
    pub const fn all(&self) -> u32 {
        self.live() + self.succeeded + self.failed + self.terminating
    }
}
