//! The life of one PreStartContainer call: it waits until no other pod's processes use the container's devices.
//!
//! | state | moved by | effects |
//! | --- | --- | --- |
//! | waits | its time | look at the cgroup of the pod that has the ids: without one it is not the pod that starts; |
//! | | | look at the cgroups of those who may use a device; |
//! | | one still does | wait, after 2 s with an event; **refuse** after 20 s, and the kubelet tries again |
//! | | none does | **let it start** |

use std::collections::BTreeSet;
use std::time::Duration;

use super::hand_off::HandOff;
use super::seen::Facts;
use crate::handoff::leaving::held_start;
use crate::handoff::{CgroupLook, Hold, LedgerEntry, PodNotice};
use crate::world::still_used;
use baton_contract::{DeviceId, EventReason, PodUid};

/// A start is refused after waiting for so long: the kubelet gives up after 30 s.
const GATE: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What waits longer is reported.
const SAID: Duration = Duration::from_secs(2);

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartEffect {
    /// Look at the cgroups of these pods, and report at once: [`Starting::looked`].
    Look(Vec<PodUid>),
    /// Write an event for the pod, where it is known.
    Waits {
        /// The text, for people.
        why: String,
        /// The event.
        notice: Option<PodNotice>,
    },
    /// Nothing is in its way.
    Start,
    /// Look again after this time: [`Starting::look`].
    Wait(Duration),
    /// Answer with an error: the kubelet tries again.
    Refuse(String),
}

/// One PreStartContainer call.
#[derive(Debug)]
pub struct Starting {
    resource: Box<str>,
    ids: Vec<String>,
    began: Duration,
    reported: bool,
    looked: BTreeSet<PodUid>,
    users: Vec<PodUid>,
}

impl Starting {
    /// A call on the socket of `resource` that began at `began` (monotonic).
    pub fn new(resource: &str, ids: Vec<String>, began: Duration) -> Self {
        let (looked, users) = (BTreeSet::new(), Vec::new());
        Self { resource: resource.into(), ids, began, reported: false, looked, users }
    }

    /// Those who may use its devices, as far as is known.
    pub fn users(&self) -> &[PodUid] {
        &self.users
    }

    /// Looks; `of` once it is known what was handed out.
    pub fn look(&mut self, of: Option<&HandOff>, facts: &Facts<'_>) -> Vec<StartEffect> {
        self.looked.clear();
        let Some(of) = of else {
            let why = format!("{}: the ledger is not known yet; the start is tried again", self.resource);
            return vec![StartEffect::Refuse(why)];
        };
        self.judge(of, facts)
    }

    /// What the looks show.
    pub fn looked(&mut self, looks: &[(PodUid, CgroupLook)], of: &mut HandOff, facts: &Facts<'_>) -> Vec<StartEffect> {
        for (uid, look) in looks {
            of.processes.saw(uid, *look, false, facts.mono);
        }
        self.judge(of, facts)
    }

    /// In the usual case the cgroup of the starting pod alone has to be looked at. Each look shows pods that are gone, until one is not
    /// or none is left. Looks of a time before this one prove nothing: the pod may have started since.
    fn judge(&mut self, of: &HandOff, facts: &Facts<'_>) -> Vec<StartEffect> {
        let (ledger, processes) = (&of.ledger, &of.processes);
        let gone = |entry: &LedgerEntry| {
            self.looked.contains(&entry.pod.uid) && processes.hold(entry, facts.mono) != Hold::Held
        };
        // Of a pod that the kubelet alone has assigned, a static one say, the cgroup has another name.
        let has_cgroup = |entry: &LedgerEntry| match processes.has_cgroup(&entry.pod.uid) {
            _ if !self.looked.contains(&entry.pod.uid) => Some(false),
            Some(false) if !entry.assigned => None,
            has => has,
        };
        let held = held_start(&self.resource, &self.ids, ledger, facts.inventory, gone, has_cgroup);
        let Some(held) = held else { return vec![StartEffect::Start] };
        let new: Vec<PodUid> = held.users.iter().filter(|uid| self.looked.insert((*uid).clone())).cloned().collect();
        self.users.clone_from(&held.users);
        if !new.is_empty() {
            return vec![StartEffect::Look(new)];
        }
        // Shares that wait themselves are no reason.
        let users = held.users.iter().filter_map(|uid| ledger.of_pod(uid).next());
        let Some(user) = users.max_by_key(|entry| entry.leaving().is_some()) else { return vec![StartEffect::Start] };
        let why = why_held(&held.device, user, processes.has_cgroup(&user.pod.uid));
        let waited = facts.mono.saturating_sub(self.began);
        let mut effects = Vec::new();
        if waited >= SAID && !std::mem::replace(&mut self.reported, true) {
            let notice = held.pod.map(|pod| PodNotice::new(pod, EventReason::DevicesStillUsed, why.clone()));
            effects.push(StartEffect::Waits { why: why.clone(), notice });
        }
        effects.push(if waited >= GATE { StartEffect::Refuse(why) } else { StartEffect::Wait(LOOK_AGAIN) });
        effects
    }
}

/// What a pod's owner reads while its container waits.
fn why_held(device: &DeviceId, user: &LedgerEntry, has_cgroup: Option<bool>) -> String {
    let pod = &user.pod.key;
    match user.left() {
        Some(left) => format!("{device} is {}: the container starts once they have ended", still_used(&left)),
        None if has_cgroup == Some(false) => {
            format!(
                "{device} is given to {pod}, of which nothing is here yet: the container is an earlier pod's of this name"
            )
        }
        None => format!("{device} is used by processes of {pod}: the container starts once they have ended"),
    }
}
