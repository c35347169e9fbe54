//! How the ledger follows pods and processes: entries of pods that have left go once nothing of them runs.
//!
//! | state | moved by | effects |
//! | --- | --- | --- |
//! | begun | its time, or news of pods | look at cgroups |
//! | looked | the looks | read live the pods that no watch shows; list PodResources, where an entry may change |
//! | learned | reads and list | mark who has left or is back; look again |
//! | judged | the looks | drop what has gone; write the ledger, then publish |
//!
//! Reads and the list take their time: a call may be served meanwhile, and what follows looks at the ledger again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::hand_off::HandOff;
use super::seen::Facts;
use crate::handoff::leaving::vacated;
use crate::handoff::{CgroupLook, EntryKey, Hold, LedgerEntry, PodNotice, PodResources};
use crate::pod::HandoffPod;
use baton_contract::{EventReason, PodKey, PodRef, PodUid};

/// Between two looks at pods that have left: most have gone within the first seconds.
const LOOK_OFTEN: Duration = Duration::from_millis(200);
/// The same, where nothing can be followed now.
pub const LOOK_SELDOM: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(10);

/// Changes are gathered for this long before the ledger is looked through.
pub const GATHER: Duration = Duration::from_millis(200);

/// What is said of devices that are given back without proof.
const UNSEEN: &str = "the pod's devices are free for other pods: its grace period and a minute have passed since it left. Whether its \
    processes have ended is not known, because its cgroup is not seen on the node (baton doctor, pod-cgroups)";

/// One thing to do. Only the last of several has a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowEffect {
    /// Forget which pods are gone, but for those in the ledger.
    ForgetGone,
    /// Look at the cgroups of these pods. Report: [`FollowReport::Looked`].
    Look(Vec<PodUid>),
    /// Read these live into what is seen; one that is bound to another node is none of this one's. Report: [`FollowReport::Read`].
    Read(BTreeSet<PodKey>),
    /// List the kubelet's pods. Report: [`FollowReport::Listed`].
    List,
    /// Log that the pod's devices are free.
    Free(PodRef, Hold),
    /// Write an event.
    Notice(PodNotice),
    /// Write the ledger to its file. A call that comes before it is written writes it too.
    Write,
    /// The ledger is another one.
    Publish,
    /// Begin again after this time, and where it is `None` when there are news.
    Rest(Option<Duration>),
}

/// What came of an effect.
#[derive(Debug, Clone)]
pub enum FollowReport {
    /// What each look shows.
    Looked(Vec<(PodUid, CgroupLook)>),
    /// Whether every pod was read.
    Read(bool),
    /// What the kubelet lists.
    Listed(PodResources),
}

#[derive(Debug, Default)]
enum RoundState {
    #[default]
    Begun,
    Looked,
    Learned,
}

/// One round of following.
#[derive(Debug, Default)]
pub struct Following {
    state: RoundState,
    /// The API server shows containers of these pods running.
    running: BTreeMap<PodUid, bool>,
    changed: bool,
    asks: bool,
    resources: Option<PodResources>,
}

impl Following {
    /// Begins a round; `of` once it is known what was handed out.
    pub fn begin(&mut self, of: Option<&mut HandOff>, facts: &Facts<'_>) -> Vec<FollowEffect> {
        let seen = facts.seen;
        match of.filter(|_| seen.is_synced() && seen.is_watching()) {
            Some(of) => self.look(of, facts),
            None => vec![FollowEffect::Rest(Some(LOOK_SELDOM))],
        }
    }

    /// The last effect was performed.
    pub fn report(&mut self, report: FollowReport, of: &mut HandOff, facts: &Facts<'_>) -> Vec<FollowEffect> {
        match (report, &self.state) {
            (FollowReport::Looked(looks), state) => {
                let is_first = matches!(state, RoundState::Begun);
                self.looked(&looks, of, facts.mono);
                if is_first { self.compare(of, facts) } else { self.judge(of, facts) }
            }
            (FollowReport::Read(false), _) => vec![FollowEffect::Rest(Some(LOOK_SELDOM))],
            (FollowReport::Read(true), _) if self.asks => vec![FollowEffect::List],
            (FollowReport::Read(true), _) => self.learn(of, facts),
            (FollowReport::Listed(resources), _) => {
                self.resources = Some(resources);
                self.learn(of, facts)
            }
        }
    }

    /// Looks at the cgroups of pods that have left, and of each other pod until its processes are found: what is never found is not
    /// known to be gone.
    fn look(&mut self, of: &HandOff, facts: &Facts<'_>) -> Vec<FollowEffect> {
        let pods = &facts.seen.pods;
        let runs = |uid: &PodUid| pods.by_uid(uid).is_some_and(HandoffPod::any_runs);
        let is_due = |entry: &&LedgerEntry| {
            let uid = &entry.pod.uid;
            entry.leaving().is_some() || pods.has_left(uid) || !of.processes.is_found(uid)
        };
        let due = of.ledger.iter().filter(is_due).map(|entry| entry.pod.uid.clone());
        self.running = due.map(|uid| (uid.clone(), runs(&uid))).collect();
        vec![FollowEffect::Look(self.running.keys().cloned().collect())]
    }

    fn looked(&mut self, looks: &[(PodUid, CgroupLook)], of: &mut HandOff, now: Duration) {
        for (uid, look) in looks {
            let runs = self.running.get(uid).is_some_and(|runs| *runs);
            of.processes.saw(uid, *look, runs, now);
            self.changed |= *look == CgroupLook::Occupied && of.ledger.runs(uid);
        }
    }

    /// Which entries the pods contradict. A pod that the watch does not show, and has not shown deleted, is read live first.
    fn compare(&mut self, of: &HandOff, facts: &Facts<'_>) -> Vec<FollowEffect> {
        self.state = RoundState::Looked;
        let pods = &facts.seen.pods;
        let new = of.ledger.iter().filter(|entry| pods.has_left(&entry.pod.uid) != entry.leaving().is_some());
        let new: Vec<_> = new.collect();
        let gone = new.iter().filter(|entry| pods.by_uid(&entry.pod.uid).is_none() && !pods.is_deleted(&entry.pod.uid));
        let absent: BTreeSet<PodKey> = gone.map(|entry| entry.pod.key.clone()).collect();
        self.asks = !new.is_empty() || vacated(&of.ledger, &of.processes, facts.mono).next().is_some();
        vec![FollowEffect::ForgetGone, FollowEffect::Read(absent)]
    }

    fn learn(&mut self, of: &mut HandOff, facts: &Facts<'_>) -> Vec<FollowEffect> {
        self.state = RoundState::Learned;
        let pods = &facts.seen.pods;
        of.ledger.forget_admissions(pods);
        if let Some(resources) = &self.resources {
            self.changed |= of.ledger.follow(pods, resources, (facts.mono, facts.wall));
        }
        self.look(of, facts)
    }

    /// What has gone is free; then the ledger is written.
    fn judge(&mut self, of: &mut HandOff, facts: &Facts<'_>) -> Vec<FollowEffect> {
        let mut effects = Vec::new();
        // A kubelet that does not answer may want a pod again.
        if self.resources.as_ref().is_some_and(|resources| *resources != PodResources::Silent) {
            effects = drop_vacated(of, facts.mono);
            self.changed |= !effects.is_empty();
        }
        if self.changed {
            effects.extend([FollowEffect::Write, FollowEffect::Publish]);
        }
        of.processes.retain(|uid| of.ledger.holds(uid));
        let latest = of.ledger.iter().filter_map(|entry| Some(entry.leaving()?.since)).max();
        let pause = |latest: Duration| if facts.mono < latest + SOON { LOOK_OFTEN } else { LOOK_SELDOM };
        effects.push(FollowEffect::Rest(latest.map(pause)));
        effects
    }
}

/// Drops the entries whose pods have left and whose processes have gone.
fn drop_vacated(of: &mut HandOff, now: Duration) -> Vec<FollowEffect> {
    let vacated = vacated(&of.ledger, &of.processes, now);
    let vacated: Vec<(EntryKey, PodRef, Hold)> =
        vacated.map(|(entry, hold)| (entry.key(), entry.pod.clone(), hold)).collect();
    vacated.iter().for_each(|(key, ..)| of.ledger.forget(key));
    let pods: BTreeMap<PodRef, Hold> = vacated.into_iter().map(|(_, pod, hold)| (pod, hold)).collect();
    let mut effects = Vec::new();
    for (pod, hold) in pods {
        effects.push(FollowEffect::Free(pod.clone(), hold));
        if hold == Hold::Unseen {
            let notice = PodNotice::new(pod, EventReason::DevicesFreedUnseen, UNSEEN.to_owned());
            effects.push(FollowEffect::Notice(notice));
        }
    }
    effects
}
