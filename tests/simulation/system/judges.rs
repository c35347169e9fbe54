//! What must hold after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::gang::{Committed, Mode};
use baton::contract::{
    DeviceAllocation, DeviceEntry, DeviceId, DeviceType, Exceptions, LockRead, PodKey, PodRef, PodUid, key,
};
use baton::decide::audit::{Violation as AccountError, check_scheduler};
use baton::decide::core::queue::QueueState;
use baton::decide::handoff::{Ledger, PodNotice};
use baton::decide::lock::{LockMatch, LockPolicy, names};
use baton::decide::pod::{HandoffPod, Phase};
use baton::decide::scheduler::Moment;
use baton::decide::world::{Place, Pod, PodFacts, PodId, Wake};

use super::process::LEADS;
use super::store::Swap;
use super::workload::{GangPlan, ONCE};
use super::{CALM, Candidate, Fault, OURS, START, STORM, System, Violation};
use crate::harness::wall;

/// What the judges remember.
#[derive(Debug, Default)]
pub struct Judges {
    /// When a pod was bound, or ended, last.
    pub moved: Duration,
    /// Pods that were started without the devices that they were assigned.
    without: BTreeSet<PodUid>,
    /// By bound pod: its devices, and how much of each.
    promised: BTreeMap<PodUid, BTreeMap<String, i64>>,
    /// By gang: the commits by which its members were bound, and the members of each.
    commits: BTreeMap<String, BTreeMap<Committed, BTreeSet<PodUid>>>,
    /// Locks that were set by a clock that is wrong.
    strange_locks: BTreeSet<Box<str>>,
    /// By scheduler and group: the members that it was binding when it last decided something.
    under_way: BTreeMap<(usize, String), BTreeMap<PodUid, Option<Committed>>>,
    /// By commit: the members of other commits that were being bound when it was decided. They have counted for it, whatever becomes of
    /// them.
    counted: BTreeMap<Committed, BTreeSet<PodUid>>,
    /// Groups that were satisfied at once.
    satisfied: BTreeSet<String>,
    /// Pods that ran when ledger and checkpoint were both lost, and those that waited for a start when the checkpoint was: which of their
    /// containers has which of their devices is unknown. No other pod is concerned.
    pub in_any_order: BTreeSet<PodUid>,
    /// Pods whose phase another client has written. A scheduler may have taken their devices for free.
    pub foreign: BTreeSet<PodUid>,
    /// Pods whose devices a daemon has taken for free without proof: that their processes may run on is documented.
    pub unseen: BTreeSet<PodUid>,
    /// Containers of pods that had left when ledger and checkpoint were without them: what they use is unknown.
    pub unknown: BTreeSet<(PodUid, Box<str>)>,
    /// Pods all of whose calls were answered.
    pub served: BTreeSet<PodUid>,
    /// What TYJobs have been through.
    pub jobs: super::job_judges::JobRecords,
}

impl Judges {
    /// All members of a group are made again.
    pub fn group_again(&mut self, group: &[String]) {
        self.commits.remove(&group.join(" "));
    }
}

fn promise(pod: &HandoffPod) -> BTreeMap<String, i64> {
    devices_of(pod.assignment.device_allocated.as_deref())
}

/// The devices that an annotation names, and how much of each.
fn devices_of(text: Option<&str>) -> BTreeMap<String, i64> {
    let text = text.filter(|text| !text.is_empty());
    let allocation = text.and_then(|text| DeviceAllocation::parse(text).ok()).unwrap_or_default();
    let amounts = [(DeviceType::Gpu, key::GPU_CORE), (DeviceType::Rdma, key::RDMA)];
    let of = |(kind, name): (DeviceType, &'static str)| {
        let entries = allocation.of(&kind).to_vec();
        let amount =
            move |entry: &DeviceEntry| if entry.resources.contains_key(name) { entry.amount(name) } else { key::WHOLE };
        entries.into_iter().map(move |entry| (entry.id.to_string(), amount(&entry)))
    };
    amounts.into_iter().flat_map(of).collect()
}

/// What two leaders have sent has arrived by then.
const TWO_LEAD: Duration = Duration::from_secs(60);
/// What a former leader has sent has arrived by then, and its followers know.
const IN_FLIGHT: Duration = Duration::from_secs(30);
const GANG: &str = "no pod of a gang is bound before its group is satisfied";

impl System {
    pub fn violates(&mut self, judge: &'static str, what: String) {
        let step = self.history.steps;
        self.violation.get_or_insert(Violation { judge, what, step });
    }

    pub fn moved(&mut self) {
        self.judges.moved = self.now;
    }

    /// A pod was bound: no device is promised twice, and no pod of a gang or TYJob comes before the whole.
    pub fn judge_bound(&mut self, at: usize, key: &PodKey) {
        self.moved();
        let Some(facts) = self.store.pod(key) else { return };
        let pod = facts.handoff.clone();
        let claim = facts.spec.job.clone();
        self.judges.promised.insert(pod.pod.uid.clone(), promise(&pod));
        self.judge_gang(at, &pod);
        if let Some(claim) = claim {
            self.judge_place(&pod, &claim);
        }
        let node = pod.node.as_deref().unwrap_or_default();
        // What its daemon says that a pod holds in truth is what counts of it.
        let excepted = self.store.excepted(node);
        let mut sums: BTreeMap<String, (i64, Vec<String>)> = BTreeMap::new();
        let live = |pod: &&HandoffPod| pod.node.as_deref() == Some(node) && !pod.phase.is_terminal();
        for other in self.store.pods().map(|facts| &facts.handoff).filter(live) {
            let has_nothing = self.judges.without.contains(&other.pod.uid);
            let is_hostile = self.jobs.hostile.contains(&other.pod.uid);
            let is_foreign = self.judges.foreign.contains(&other.pod.uid);
            let counts_not = has_nothing || is_hostile || is_foreign || excepted.contains(&other.pod.uid);
            if other.pod.uid != pod.pod.uid && counts_not {
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

    /// A member of a gang was bound: with those that were bound before or are being bound, its commit is enough for every gang of the
    /// group. Where that was so once, the policy may let members come alone.
    fn judge_gang(&mut self, at: usize, pod: &HandoffPod) {
        let Some(plan) = self.jobs.gang_of(&pod.pod) else { return };
        let group = plan.group.join(" ");
        let wanted: u32 = plan.group.iter().filter_map(|gang| self.jobs.gangs.get(gang)).map(|gang| gang.min).sum();
        // By a clock that is ahead, pods that come later seem older than what was satisfied before them.
        let was_wrong = self.faults.counts.contains_key(&Fault::ClockSkew);
        if plan.policy == ONCE && (was_wrong || self.judges.satisfied.contains(&group)) {
            return;
        }
        let commits = self.judges.commits.entry(group.clone()).or_default();
        let was_satisfied = !commits.is_empty();
        let Some(commit) = &pod.assignment.committed else {
            if !was_satisfied {
                self.violates(GANG, format!("{} has no commit, and group {group} wants {wanted}", pod.pod.key));
            }
            return;
        };
        commits.entry(*commit).or_default().insert(pod.pod.uid.clone());
        let own = &commits[commit];
        let before = commits.iter().filter(|(other, _)| *other != commit).flat_map(|(_, pods)| pods);
        // Members beyond the minimum have a commit of their own, and may be bound before those of the first.
        let under_way = self.judges.under_way.get(&(at, group)).into_iter().flatten();
        let beside = under_way.filter(|(_, other)| other.is_some_and(|other| other != *commit)).map(|(uid, _)| uid);
        // The number that a commit states is without them, even where they join it later.
        let counted = self.judges.counted.get(commit).into_iter().flatten();
        let others: BTreeSet<_> = before.chain(beside).filter(|uid| !own.contains(*uid)).chain(counted).collect();
        let others = others.len() as u32;
        if commit.members + others < wanted {
            let what = format!("{}: {} members and {others} others, of {wanted}", pod.pod.key, commit.members);
            self.violates(GANG, what);
        }
    }

    /// Which groups a scheduler is binding whole.
    pub fn watch_commits(&mut self, at: usize) {
        let scheduler = self.schedulers[at].scheduler();
        if !scheduler.is_leading() {
            return; // what it has sent may still arrive
        }
        // While a member lives, or has succeeded and its Job makes one pod after the other, the group is the one that was satisfied; pods
        // that come later are of a new generation. The store says so: what this scheduler has seen may be older.
        let lives = |facts: &&PodFacts| {
            let (pod, plan) = (&facts.handoff, self.jobs.gang_of(&facts.handoff.pod));
            let goes_on = || pod.phase == Phase::Succeeded && plan.is_some_and(GangPlan::is_made_one_by_one);
            pod.deleting.is_none() && (!pod.phase.is_terminal() || goes_on())
        };
        let live = self.store.pods().filter(lives).filter_map(|facts| self.jobs.gang_of(&facts.handoff.pod));
        let live: BTreeSet<String> = live.map(|plan| plan.group.join(" ")).collect();
        self.judges.satisfied.retain(|group| live.contains(group));
        self.judges.under_way.retain(|(of, _), _| *of != at);
        let mut decided = BTreeMap::new();
        for id in scheduler.gangs().committed() {
            let Some(pod) = scheduler.world().pod(id).map(|pod| &pod.facts.handoff.pod) else { continue };
            let Some(plan) = self.jobs.gang_of(pod) else { continue };
            let group = plan.group.join(" ");
            let members = self.judges.under_way.entry((at, group.clone())).or_default();
            let attempt = scheduler.binder().attempts().get(&id).map(|attempt| &attempt.annotations);
            let annotations = attempt.or_else(|| scheduler.reservations().get(id).map(|held| &held.annotations));
            let commit = annotations.and_then(|all| Committed::parse(all.get(key::GANG_COMMITTED)?).ok());
            members.insert(pod.uid.clone(), commit);
            decided.extend(commit.map(|commit| (commit, group.clone())));
            let wanted = plan.group.iter().filter_map(|gang| self.jobs.gangs.get(gang)).map(|gang| gang.min).sum();
            if members.len() as u32 >= wanted {
                self.judges.satisfied.insert(group);
            }
        }
        for (commit, group) in decided {
            let members = self.judges.under_way.get(&(at, group)).into_iter().flatten();
            let others = members.filter(|(_, other)| other.is_some_and(|other| other != commit));
            let others = || others.map(|(uid, _)| uid.clone()).collect();
            self.judges.counted.entry(commit).or_insert_with(others);
        }
    }

    /// What a scheduler was shown to be cordoned takes no further pod. `before`: pods that were being bound before this turn.
    pub fn judge_cordons(&mut self, at: usize, before: &BTreeSet<PodId>) {
        let scheduler = &self.schedulers[at];
        let attempts = scheduler.scheduler().binder().attempts().iter().filter(|(id, _)| !before.contains(id));
        let found = attempts.filter_map(|(_, attempt)| {
            let cordoned = scheduler.cordoned(&attempt.node_name)?;
            let devices = devices_of(attempt.annotations.get(key::DEVICE_ALLOCATED));
            let device = cordoned.devices.iter().find(|id| devices.contains_key(*id));
            let on = device.cloned().or_else(|| cordoned.node.then(|| attempt.node_name.to_string()))?;
            Some(format!("scheduler {at} gives {on} to {}", attempt.pod.key))
        });
        if let Some(what) = found.into_iter().next() {
            self.violates("what is cordoned takes no further pod", what);
        }
    }

    /// A pod is not placed while an older one of its template waits for room. One whose bind is resumed has its room already, and
    /// one for which a node is kept has it first: `before`. Pods for which room is made each wait for their own.
    pub fn judge_order(&mut self, at: usize, before: &BTreeSet<PodId>) {
        let scheduler = self.schedulers[at].scheduler();
        let (world, queue) = (scheduler.world(), scheduler.queue());
        let attempts = scheduler.binder().attempts().iter();
        let new = attempts.filter(|(id, attempt)| !before.contains(id) && attempt.lock_value.is_none());
        let single = |pod: &&Pod| {
            let spec = &pod.facts.spec;
            spec.gang.is_none() && spec.job.is_none() && scheduler.preemption().get(pod.id).is_none()
        };
        let created = |pod: &Pod| self.store.of(&pod.facts.handoff.pod).map(|facts| facts.handoff.created);
        let found = new.filter_map(|(id, _)| world.pod(*id)).filter(single).find_map(|placed| {
            let waits = |pod: &&Pod| pod.place == Place::Waiting && pod.is_of_template(placed);
            let parked = |pod: &&Pod| matches!(queue.state(pod.id), Some(QueueState::Parked(..)));
            let mut waiting = world.pods().filter(waits).filter(single).filter(parked);
            let first =
                waiting.find(|pod| created(pod).zip(created(placed)).is_some_and(|(one, other)| one < other))?;
            let state = queue.state(first.id);
            Some(format!("scheduler {at} places {} before {}, which is {state:?}", placed.key(), first.key()))
        });
        if let Some(what) = found {
            self.violates("room goes to the oldest pod of a template", what);
        }
    }

    /// A single pod that is parked for lack of room fits nowhere once its scheduler has nothing to try: room that comes free wakes what it
    /// may help. Of pods of one template the first is judged.
    pub fn judge_parked(&mut self, at: usize) {
        let moment = self.moment(at);
        let scheduler = self.schedulers[at].scheduler();
        let (world, queue) = (scheduler.world(), scheduler.queue());
        // What a forged assignment names and no inventory lists counts as a device that has failed: its node is counted by devices alone.
        let is_forged = |pod: &Pod| pod.node().is_some() && self.jobs.hostile.contains(&pod.facts.handoff.pod.uid);
        if queue.next() == Some(Duration::ZERO) || world.pods().any(is_forged) {
            return;
        }
        let parked = |pod: &&Pod| matches!(queue.state(pod.id), Some(QueueState::Parked(wake, _)) if wake.meets(Wake::POD_FREED));
        let single = |pod: &&Pod| {
            let spec = &pod.facts.spec;
            spec.gang.is_none() && spec.job.is_none() && scheduler.preemption().get(pod.id).is_none()
        };
        let mut judged: Vec<&Pod> = Vec::new();
        for pod in world.pods().filter(parked).filter(single) {
            if judged.iter().all(|other| !pod.is_of_template(other)) {
                judged.push(pod);
            }
        }
        let would = judged.iter().find_map(|pod| {
            let found = scheduler.what_if(pod.facts.clone(), moment);
            found.fits.then(|| (queue.state(pod.id), found))
        });
        if let Some((state, found)) = would {
            let what = format!("scheduler {at}: {} {} {:?}, {state:?}", found.pod, found.headline, found.devices);
            self.violates("a parked pod fits nowhere", what);
        }
    }

    /// No member of a Strict gang waits with a reservation for the others once a scheduler has nothing to do.
    fn judge_strict(&mut self, at: usize) {
        let scheduler = self.schedulers[at].scheduler();
        let holds = scheduler.world().gangs().gangs().find_map(|gang| {
            let is_strict = self.jobs.gangs.get(gang.id().name()).is_some_and(|plan| plan.is_strict);
            if !is_strict || gang.config().mode != Mode::Strict {
                return None;
            }
            let held = gang.members().find(|member| {
                let attempt = scheduler.binder().attempts().contains_key(&member.pod);
                !attempt && scheduler.reservations().get(member.pod).is_some()
            })?;
            Some(format!("scheduler {at} keeps {} for gang {}", held.identity.key, gang.id()))
        });
        if let Some(what) = holds {
            self.violates("a Strict gang holds nothing at rest", what);
        }
    }

    /// The accounts of a scheduler against a recount, and whether it has lost or doubled a pod.
    pub fn audit(&mut self, at: usize) {
        let mut found = check_scheduler(self.schedulers[at].scheduler(), OURS);
        // Two leaders may reserve the same device. What is bound is judged when it is.
        let two = self.faults.two_lead.is_some_and(|at| self.now < at + TWO_LEAD);
        // What was sent before this one began to lead may arrive after it.
        let is_new = self.schedulers[at].leads_since.is_some_and(|since| self.now < since + IN_FLIGHT);
        // What a daemon says that a pod holds may be more than it has, where a ledger was rebuilt: of a pod that it does not know yet, or
        // of one whose kubelet and annotation name different devices.
        let world = self.schedulers[at].scheduler().world();
        let is_counted_twice = world.mentioned().any(|(_, node)| !node.exceptions.is_empty());
        let is_excused = is_counted_twice || !self.judges.without.is_empty() || !self.jobs.hostile.is_empty();
        // A pod that came back may have to share what was given away while it counted as ended.
        let is_excused = is_excused || self.has_come_back(at);
        let waits = |of: &str, id: &DeviceId| self.waits_for(at, of, id);
        found.retain(|violation| match violation {
            // Its daemon said so, and a pod after it was given them. A daemon that loses its ledger takes it for served, and refuses
            // the later one. A forged assignment is one more.
            AccountError::DeviceTwice { .. } if is_excused => false,
            // A pod that waits for a lock or for others does not keep what it cannot get.
            AccountError::DeviceTwice { node, device, .. } if two || is_new => waits(node, device),
            _ => true,
        });
        if !found.is_empty() {
            let holders = self.holders_of(at, &found);
            self.violates("the accounts equal a recount", format!("scheduler {at}: {found:?}, {holders:?}"));
        }
        if self.schedulers[at].scheduler().is_leading() {
            self.judge_strict(at);
            self.judge_places(at);
            self.judge_parked(at);
        }
    }

    /// What pods hold on the devices that are counted twice, as this scheduler knows it.
    fn holders_of(&self, at: usize, found: &[AccountError]) -> Vec<String> {
        let world = self.schedulers[at].scheduler().world();
        let twice = |of: &str, id: &DeviceId| {
            let is = |error: &AccountError| matches!(error, AccountError::DeviceTwice { node, device, .. } if **node == *of && device == id);
            found.iter().any(is)
        };
        let on_node = world.pods().filter_map(|pod| Some((pod, world.node(pod.node()?)?)));
        let held = on_node.flat_map(|(pod, node)| {
            let devices = node.holding(pod).into_iter().flat_map(|held| held.devices());
            let devices = devices.filter(|entry| twice(&node.name, &entry.id));
            devices.map(move |entry| format!("{} {:?} {:?}", pod.facts.handoff.pod.uid, pod.place, entry.amounts))
        });
        held.collect()
    }

    /// By what this scheduler has been shown, a pod lives whose phase another client has written.
    fn has_come_back(&self, at: usize) -> bool {
        let mut pods = self.schedulers[at].scheduler().world().pods();
        pods.any(|pod| pod.node().is_some() && self.judges.foreign.contains(&pod.facts.handoff.pod.uid))
    }

    /// A scheduler keeps a device of a node for a pod for which no request is under way.
    fn waits_for(&self, at: usize, node: &str, device: &DeviceId) -> bool {
        let scheduler = self.schedulers[at].scheduler();
        scheduler.world().pods().any(|pod| {
            let attempt = scheduler.binder().attempts().get(&pod.id);
            let waits = attempt.map(|attempt| {
                attempt.phase.due().is_some() && attempt.may_arrive.is_none() && attempt.trouble.is_none()
            });
            let held = pod.devices.iter().flat_map(|held| held.devices());
            let on = |id| scheduler.world().node(id).is_some_and(|of| *of.name == *node);
            matches!(pod.place, Place::Assumed(id) if on(id))
                && waits.unwrap_or_else(|| scheduler.reservations().get(pod.id).is_some())
                && held.into_iter().any(|held| held.id == *device)
        })
    }

    /// A call was answered, or a container starts: with devices of its pod.
    pub fn judge_devices<'a>(
        &mut self,
        node: usize,
        pod: &PodRef,
        container: &str,
        mut devices: impl Iterator<Item = (&'a String, i64)>,
    ) {
        if self.jobs.hostile.contains(&pod.uid) || self.judges.unseen.contains(&pod.uid) {
            return;
        }
        let promised = self.judges.promised.get(&pod.uid).cloned().unwrap_or_default();
        if let Some((id, amount)) = devices.find(|(id, amount)| promised.get(*id).is_none_or(|most| amount > most)) {
            let what = format!("n{node}: {}, {container} has {amount} % of {id}, promised are {promised:?}", pod.key);
            self.violates("a container is given devices of its pod", what);
        }
    }

    /// No device of a node is used by processes of two pods, whatever the API server says of them.
    pub fn judge_processes(&mut self, node: usize) {
        let mut sums: BTreeMap<&str, (i64, BTreeSet<&PodUid>)> = BTreeMap::new();
        for (uid, runs) in &self.machines[node].kubelet.runtime {
            if self.judges.unseen.contains(uid) {
                continue;
            }
            for (container, device, amount) in &runs.devices {
                if self.judges.unknown.contains(&(uid.clone(), container.clone())) {
                    continue;
                }
                let sum = sums.entry(device).or_default();
                sum.0 += amount;
                sum.1.insert(uid);
            }
        }
        let twice = sums.into_iter().find(|(_, (sum, pods))| *sum > key::WHOLE && pods.len() > 1);
        if let Some(what) = twice.map(|(device, (sum, pods))| format!("{sum} % of {device}: {pods:?}")) {
            self.violates("no device is used by processes of two pods beyond what it has", what);
        }
    }

    /// No device of a node is with two pods that have not left, as the kubelet and the runtime have it.
    pub fn judge_held(&mut self, node: usize) {
        let mut sums: BTreeMap<String, (i64, BTreeSet<PodUid>)> = BTreeMap::new();
        let live = self.store.pods().map(|facts| &facts.handoff).filter(|pod| !pod.phase.is_terminal());
        let live: BTreeSet<&PodUid> = live.map(|pod| &pod.pod.uid).collect();
        let counts = |uid: &PodUid| live.contains(uid) && !self.judges.foreign.contains(uid);
        for (uid, devices) in self.machines[node].kubelet.held().into_iter().filter(|(uid, _)| counts(uid)) {
            for (_, device, amount) in devices {
                let sum = sums.entry(device).or_default();
                sum.0 += amount;
                sum.1.insert(uid.clone());
            }
        }
        let unknown = |pods: &BTreeSet<PodUid>| pods.len() == 1 && pods.is_subset(&self.judges.in_any_order);
        let twice = |(_, (sum, pods)): &(String, (i64, BTreeSet<PodUid>))| *sum > key::WHOLE && !unknown(pods);
        if let Some((device, (sum, pods))) = sums.into_iter().find(twice) {
            self.violates("no device is served twice", format!("{sum} % of {device}: {pods:?}"));
        }
    }

    /// A pod's containers start.
    pub fn watch_start(&mut self, pod: &PodUid, has_devices: bool) {
        let promised = self.judges.promised.get(pod).is_some_and(|promised| !promised.is_empty());
        if promised && !has_devices {
            self.judges.without.insert(pod.clone());
        }
    }

    /// A Lease was won: no other process leads by it, unless it was deleted while that one led, and this one had just started.
    pub fn judge_leader(&mut self, who: Candidate) {
        let of_schedulers = matches!(who, Candidate::Scheduler(_));
        let two = self.faults.two_lead.filter(|_| of_schedulers);
        if two.is_some_and(|at| self.now < at + LEADS) {
            return;
        }
        let all = if of_schedulers { [0, 1].map(Candidate::Scheduler) } else { [0, 1].map(Candidate::Controller) };
        let now = self.now;
        let leads = |candidate: &Candidate| {
            let process = self.process(*candidate);
            process.is_up && process.lease.leads(now)
        };
        if all.iter().all(leads) {
            self.violates("at most one process leads by a Lease", format!("{} leads beside the other", who.words()));
        }
    }

    /// A lock was set, taken over or removed: only the value that was seen goes, and not while its holder still needs it. `scheduler`:
    /// which one did it; a node daemon else.
    pub fn judge_swap(&mut self, swap: &Swap, before: &LockRead, scheduler: Option<usize>) {
        let may_be_wrong = scheduler.is_some_and(|at| self.schedulers[at].process.may_be_wrong(self.now));
        if may_be_wrong && let Some(new) = &swap.new {
            self.judges.strange_locks.insert(new.clone());
        }
        if before.raw() != swap.old.as_deref() && before.raw() != swap.new.as_deref() {
            let what = format!("{}: {:?} stood there, not {:?}", swap.node, before.raw(), swap.old);
            return self.violates("a lock has one owner", what);
        }
        let LockRead::Held { value, .. } = before else { return };
        // By a clock that is wrong a fresh lock has expired: its holder fails, and nothing is given twice.
        let is_strange = before.raw().is_some_and(|raw| self.judges.strange_locks.contains(raw));
        if may_be_wrong || is_strange || !self.jobs.hostile.is_empty() {
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
        // A bind may take it over once the expiry is over: the holder keeps its devices, and a late call of it is judged by the new lock.
        let stood = Duration::try_from(wall(self.now).duration_since(value.time)).unwrap_or_default();
        if swap.new.is_some() && stood >= LockPolicy::default().expiry {
            return self.history.sometimes("a bind takes over the expired lock of a pod that waits");
        }
        if !self.has_its_devices(at, &holder) {
            let what = format!("{}: the lock of {} has gone, which waits for its devices", swap.node, holder.pod.key);
            self.violates("a lock stands until its holder is served", what);
        }
    }

    /// By the ledger, the kubelet or the runtime; or the kubelet has refused it.
    fn has_its_devices(&self, node: usize, pod: &HandoffPod) -> bool {
        let machine = &self.machines[node];
        let ledger = machine.daemon.as_ref().and_then(|daemon| daemon.ledger());
        // A daemon that is killed has sent its release before.
        self.judges.served.contains(&pod.pod.uid)
            || ledger.is_some_and(|ledger| ledger.fully_served(pod, &machine.inventory))
            || pod.expected_calls(|name| machine.inventory.registers(name)).next().is_none()
            || machine.kubelet.is_settled(pod)
    }

    /// What a node daemon says of pods whose annotation is not the truth: every one that it has served otherwise.
    pub fn judge_exceptions(&mut self, node: usize, said: &Exceptions) {
        let ledger = self.machines[node].daemon.as_ref().and_then(|daemon| daemon.ledger());
        let without = said.iter().filter(|(_, held)| held.is_empty()).map(|(uid, _)| uid);
        let mut served = without.filter(|uid| ledger.is_some_and(|ledger| ledger.holds(uid)));
        if let Some(uid) = served.next() {
            let what = format!("n{node}: {uid}");
            return self.violates("a pod with an entry is not said to run without its devices", what);
        }
        let found = self.machines[node].kubelet.runtime.iter().find(|(uid, runs)| {
            let Some(pod) = self.shown_to(node, uid).filter(|pod| !pod.phase.is_terminal()) else { return false };
            let named = promise(&pod);
            let served = self.served_by(node, uid).unwrap_or_default();
            let differs = |(_, id, _): &(Box<str>, String, i64)| served.contains(id) && !named.contains_key(id);
            runs.devices.iter().any(differs) && !said.contains_key(*uid)
        });
        if let Some(pod) = found.map(|(_, runs)| runs.pod.key.to_string()) {
            self.violates("a daemon says which annotations are not the truth", format!("n{node} is silent of {pod}"));
        }
    }

    /// In the calm: kubelet, ledger and assignment of what runs agree, or the difference is reported.
    pub fn judge_agreement(&mut self, node: usize, reported: &BTreeSet<PodUid>) {
        if self.now < START + STORM + Duration::from_secs(60) {
            return;
        }
        let mut found = None;
        for (uid, runs) in &self.machines[node].kubelet.runtime {
            let has: BTreeSet<String> = runs.devices.iter().map(|(_, id, _)| id.clone()).collect();
            let promised: BTreeSet<String> =
                self.judges.promised.get(uid).into_iter().flat_map(BTreeMap::keys).cloned().collect();
            let served = self.served_by(node, uid).unwrap_or_default();
            let is_known = self.store.of(&runs.pod).is_some_and(|facts| facts.handoff.phase == Phase::Running);
            let is_excused = reported.contains(uid) || self.jobs.hostile.contains(uid);
            if is_known && (!has.is_subset(&promised) || !has.is_subset(&served)) && !is_excused {
                found = Some(format!(
                    "n{node}: {} has {has:?}, promised are {promised:?}, served {served:?}",
                    runs.pod.key
                ));
            }
        }
        if let Some(what) = found {
            self.violates("kubelet, ledger and assignment agree, or the difference is reported", what);
        }
    }

    /// At the end: everything that could run has run, no lock stands, and nothing is held.
    pub fn judge_end(&mut self) {
        let mut open: Vec<String> = self.jobs.open().map(|pod| self.state_of(pod)).collect();
        open.extend(self.jobs.open_tyjobs().map(|name| self.state_of_job(name)));
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
            let held = scheduler.world().pods().filter(|pod| matches!(pod.place, Place::Assumed(_)));
            let held: Vec<String> = held.map(|pod| pod.key().to_string()).collect();
            if scheduler.is_leading() && !held.is_empty() {
                self.violates("nothing is held at rest", format!("scheduler {at} keeps room for {}", held.join(", ")));
            }
            self.judge_known(at);
            self.audit(at);
        }
        for node in 0..self.machines.len() {
            let ledger = self.machines[node].daemon.as_ref().and_then(|daemon| daemon.ledger());
            let is_over = |pod: &PodRef| self.store.of(pod).is_none_or(|facts| facts.handoff.phase.is_terminal());
            let left = ledger.into_iter().flat_map(Ledger::iter).find(|entry| is_over(&entry.pod));
            if let Some(left) = left.map(|entry| entry.pod.key.to_string()) {
                self.violates("a ledger holds nothing of pods that have ended", format!("n{node}: {left}"));
            }
        }
    }

    /// At rest a leader knows the pods that there are, and no others.
    fn judge_known(&mut self, at: usize) {
        let scheduler = self.schedulers[at].scheduler();
        let uid = |facts: &PodFacts| facts.handoff.pod.uid.clone();
        let known: BTreeSet<PodUid> = scheduler.world().pods().map(|pod| uid(&pod.facts)).collect();
        let differ: Vec<PodUid> = known.symmetric_difference(&self.store.pods().map(uid).collect()).cloned().collect();
        if scheduler.is_leading() && !differ.is_empty() {
            self.violates("a leader knows the pods that there are", format!("scheduler {at}: {differ:?}"));
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
