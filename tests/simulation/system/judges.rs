//! What must hold after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::{DeviceAllocation, DeviceType, LockRead, PodKey, PodRef, PodUid, key};
use baton::decide::handoff::PodNotice;
use baton::decide::lock::{LockMatch, names};
use baton::decide::pod::{HandoffPod, Phase};

use super::machine::answered;
use super::store::Swap;
use baton::decide::scheduler::Moment;

use super::{CALM, Fault, START, STORM, System, Violation};
use crate::harness::wall;

/// What the judges remember.
#[derive(Debug, Default)]
pub struct Judges {
    /// When a pod was bound, or ended, last.
    pub moved: Duration,
    /// Some pod has run without the devices that it was assigned.
    pub ran_without: bool,
    /// By bound pod: its devices, and how much of each.
    promised: BTreeMap<PodUid, BTreeMap<String, i64>>,
}

fn promise(pod: &HandoffPod) -> BTreeMap<String, i64> {
    let text = pod.assignment.device_allocated.as_deref().filter(|text| !text.is_empty());
    let allocation = text.and_then(|text| DeviceAllocation::parse(text).ok()).unwrap_or_default();
    let amounts = [(DeviceType::Gpu, key::GPU_CORE), (DeviceType::Rdma, key::RDMA)];
    let of = |(kind, name): (DeviceType, &'static str)| {
        let entries = allocation.of(&kind).to_vec();
        entries.into_iter().map(move |entry| (entry.id.to_string(), entry.amount(name)))
    };
    amounts.into_iter().flat_map(of).collect()
}

impl System {
    pub fn violates(&mut self, judge: &'static str, what: String) {
        let step = self.history.steps;
        self.violation.get_or_insert(Violation { judge, what, step });
    }

    pub fn moved(&mut self) {
        self.judges.moved = self.now;
    }

    /// A pod was bound: no device is promised twice, nobody of a gang comes before the gang.
    pub fn judge_bound(&mut self, key: &PodKey) {
        self.moved();
        let Some(facts) = self.store.pod(key) else { return };
        let pod = facts.handoff.clone();
        let declared = facts.spec.gang.clone();
        self.judges.promised.insert(pod.pod.uid.clone(), promise(&pod));
        if declared.is_some() && pod.assignment.committed.is_none() {
            self.violates("nobody of a gang is bound before it is satisfied", format!("{key} has no commit"));
        }
        let node = pod.node.as_deref().unwrap_or_default();
        // What its daemon says that a pod holds in truth is what counts of it.
        let excepted = self.store.excepted(node);
        let mut sums: BTreeMap<String, (i64, Vec<String>)> = BTreeMap::new();
        let live = |pod: &&HandoffPod| pod.node.as_deref() == Some(node) && !pod.phase.is_terminal();
        for other in self.store.pods().map(|facts| &facts.handoff).filter(live) {
            let runs = self.machines.iter().find_map(|machine| machine.kubelet.runtime.get(&other.pod.uid));
            let has_nothing = runs.is_some_and(|runs| runs.devices.is_empty());
            if other.pod.uid != pod.pod.uid && (has_nothing || excepted.contains(&other.pod.uid)) {
                continue;
            }
            for (device, amount) in promise(other) {
                let sum = sums.entry(device).or_default();
                sum.0 += amount;
                sum.1.push(other.pod.key.name.to_string());
            }
        }
        if let Some((device, (sum, pods))) = sums.into_iter().find(|(_, (sum, _))| *sum > key::WHOLE) {
            self.violates("no device is promised twice", format!("{sum} % of {device} of {node}: {}", pods.join(", ")));
        }
    }

    /// A call was answered: with devices of its pod.
    pub fn judge_answer(&mut self, node: usize, pod: &HandoffPod, container: &str, answer: &[u8]) {
        let promised = self.judges.promised.get(&pod.pod.uid).cloned().unwrap_or_default();
        let beside =
            answered(answer).into_iter().find(|(id, amount)| promised.get(id).is_none_or(|most| amount > most));
        if let Some((id, amount)) = beside {
            let what = format!(
                "n{node}: {}, {container} was given {amount} % of {id}, promised are {promised:?}",
                pod.pod.key
            );
            self.violates("a call is answered with devices of its pod", what);
        }
    }

    /// No device of a node is with two pods, as the kubelet and the runtime have it.
    pub fn judge_held(&mut self, node: usize) {
        let mut sums: BTreeMap<String, (i64, BTreeSet<PodUid>)> = BTreeMap::new();
        for (uid, devices) in self.machines[node].kubelet.held() {
            for (_, device, amount) in devices {
                let sum = sums.entry(device).or_default();
                sum.0 += amount;
                sum.1.insert(uid.clone());
            }
        }
        if let Some((device, (sum, pods))) = sums.into_iter().find(|(_, (sum, _))| *sum > key::WHOLE) {
            self.violates("no device is served twice", format!("{sum} % of {device}: {pods:?}"));
        }
    }

    /// Some pod that was assigned devices runs without any.
    pub fn runs_without_devices(&self) -> bool {
        let promised = |uid: &PodUid| self.judges.promised.get(uid).is_some_and(|promised| !promised.is_empty());
        let mut all = self.machines.iter().flat_map(|machine| &machine.kubelet.runtime);
        all.any(|(uid, runs)| runs.devices.is_empty() && promised(uid))
    }

    /// A lock was set, taken over or removed: only the value that was seen goes, and not while its holder still needs it.
    pub fn judge_swap(&mut self, swap: &Swap, before: &LockRead) {
        if before.raw() != swap.old.as_deref() && before.raw() != swap.new.as_deref() {
            let what = format!("{}: {:?} stood there, not {:?}", swap.node, before.raw(), swap.old);
            return self.violates("a lock has one owner", what);
        }
        let LockRead::Held { value, .. } = before else { return };
        // By a clock that is wrong a fresh lock has expired: its holder fails, and nothing is given twice.
        if self.faults.counts.contains_key(&Fault::ClockSkew) {
            return;
        }
        if swap.new.as_deref() == before.raw() {
            return;
        }
        let holder = self.store.pods().map(|facts| &facts.handoff).find(|pod| names(value, pod) == LockMatch::ThisBind);
        let Some(holder) = holder.filter(|pod| pod.phase == Phase::Pending && pod.deleting.is_none()).cloned() else {
            return;
        };
        let Some(at) = self.machines.iter().position(|machine| holder.node.as_deref() == Some(&*machine.name)) else {
            return;
        };
        if !self.has_its_devices(at, &holder) {
            let what = format!("{}: the lock of {} has gone, which waits for its devices", swap.node, holder.pod.key);
            self.violates("a lock stands until its holder is served", what);
        }
    }

    /// By the ledger, the kubelet or the runtime; or the kubelet has refused it.
    fn has_its_devices(&self, node: usize, pod: &HandoffPod) -> bool {
        let machine = &self.machines[node];
        let ledger = machine.daemon.as_ref().and_then(|daemon| daemon.ledger.as_ref());
        ledger.is_some_and(|ledger| ledger.fully_served(pod, &machine.inventory))
            || pod.expected_calls(|name| machine.inventory.registers(name)).next().is_none()
            || machine.kubelet.is_settled(pod)
    }

    /// A pod is deleted because it holds an expired lock: never one that runs with its devices.
    pub fn judge_fence(&mut self, pod: &PodRef) {
        let runs = self.machines.iter().find_map(|machine| machine.kubelet.runtime.get(&pod.uid));
        if runs.is_some_and(|runs| !runs.devices.is_empty()) {
            self.violates("a pod that runs with its devices is not fenced", pod.key.to_string());
        }
    }

    /// In the calm: kubelet, ledger and assignment of what runs agree, or the difference is told.
    pub fn judge_agreement(&mut self, node: usize, told: &[PodNotice]) {
        if self.now < START + STORM + Duration::from_secs(60) {
            return;
        }
        let told: BTreeSet<&PodUid> = told.iter().map(|notice| &notice.pod.uid).collect();
        let mut found = None;
        for (uid, runs) in &self.machines[node].kubelet.runtime {
            let has: BTreeSet<String> = runs.devices.iter().map(|(_, id, _)| id.clone()).collect();
            let promised: BTreeSet<String> =
                self.judges.promised.get(uid).into_iter().flat_map(BTreeMap::keys).cloned().collect();
            let served = self.served_by(node, uid).unwrap_or_default();
            let is_known = self.store.of(&runs.pod).is_some_and(|facts| facts.handoff.phase == Phase::Running);
            if is_known && (!has.is_subset(&promised) || !has.is_subset(&served)) && !told.contains(uid) {
                found = Some(format!(
                    "n{node}: {} has {has:?}, promised are {promised:?}, served {served:?}",
                    runs.pod.key
                ));
            }
        }
        if let Some(what) = found {
            self.violates("kubelet, ledger and assignment agree, or that is told", what);
        }
    }

    /// At the end: everything that could run has run, no lock stands, and nobody holds anything.
    pub fn judge_end(&mut self) {
        let open: Vec<String> = self.jobs.open().map(|pod| self.state_of(pod)).collect();
        if !open.is_empty() {
            let what = format!("nothing has moved for {CALM:?}: {}", open.join("; "));
            return self.violates("what can run runs", what);
        }
        let locked: Vec<String> =
            self.store.nodes().filter_map(|node| Some(format!("{}: {}", node.name, node.lock.as_deref()?))).collect();
        if !locked.is_empty() {
            return self.violates("every lock ends", locked.join("; "));
        }
        for at in 0..self.schedulers.len() {
            let scheduler = self.schedulers[at].scheduler();
            let held = scheduler.reservations().all().len();
            if scheduler.is_leading() && held > 0 {
                self.violates("nothing is held at rest", format!("scheduler {at} has {held} reservations"));
            }
            self.audit(at);
        }
    }

    fn state_of(&self, pod: &PodRef) -> String {
        match self.store.of(pod).map(|facts| &facts.handoff) {
            None => format!("{} is not there", pod.key.name),
            Some(of) if of.node.is_none() => {
                let leader = self.schedulers.iter().find(|of| of.scheduler().is_leading());
                let moment = Moment { mono: self.now, wall: wall(self.now) };
                let why = leader.and_then(|of| of.scheduler().snapshot().explain(&pod.key, moment));
                format!("{} waits: {why:?}", pod.key.name)
            }
            Some(of) => format!(
                "{} {:?} on {:?}{}",
                pod.key.name,
                of.phase,
                of.node,
                if of.deleting.is_some() { ", deleting" } else { "" }
            ),
        }
    }
}
