//! Who wants what: jobs of one pod or of the members of a gang, each made again until it has succeeded or its user has deleted it,
//! TYJobs, and what tenants and operators do beside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use baton::contract::gang::{GangId, PodGroupApi};
use baton::contract::tyjob::{Stage, TyJob};
use baton::contract::{ContainerRequest, PodKey, PodRef, PodUid, Quantity, key};
use baton::decide::pod::{AssignmentText, ContainerKind, Phase, PodContainer};
use baton::decide::world::gangs::PodGroupFacts;
use baton::decide::world::{PodFacts, PodSpec, RequestParts, Resources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::faults::Mend;
use super::leader::SchedulerProcess;
use super::machine::MIG;
use super::{Happening, START, System};
use crate::harness::gangs::{G, P, declared, owned_by};
use crate::harness::{pod, wall};

/// All have come by then.
const COMING: Duration = Duration::from_secs(400);
/// Pods of a Node that is gone for as long are removed.
const ORPHANED: Duration = Duration::from_secs(40);
/// A Job makes a pod again after so long.
const JOB_BACK_OFF: Duration = Duration::from_secs(10);
/// A scheduler that began to lead has judged all gangs.
const SETTLED: Duration = Duration::from_secs(10);

/// A pod that its kubelet refused, for the tally of what was seen.
pub const FAILED: &str = "a pod fails, and is made again";

type Limits = &'static [(&'static str, &'static str)];

/// What the containers of a pod ask for.
#[derive(Debug, Clone, Copy)]
struct Shape(&'static [(ContainerKind, Limits)]);

use ContainerKind::{App, Init, Sidecar};

const ONE: Limits = &[(key::NVIDIA_GPU, "1")];
const TWO: Limits = &[(key::NVIDIA_GPU, "2")];
const HALF: Limits = &[(key::GPU_CORE, "50"), (key::GPU_MEMORY_RATIO, "50")];
const PART: Limits = &[(key::GPU_CORE, "30"), (key::GPU_MEMORY_RATIO, "40")];
const JOINT: Limits = &[(key::NVIDIA_GPU, "1"), (key::RDMA, "100")];
const CPU: Limits = &[("cpu", "2")];
const SLICE: Limits = &[(MIG, "1")];

const SHAPES: [Shape; 11] = [
    Shape(&[(App, ONE)]),
    Shape(&[(App, TWO)]),
    Shape(&[(App, HALF)]),
    Shape(&[(App, PART)]),
    Shape(&[(App, JOINT)]),
    Shape(&[(App, ONE), (App, ONE)]),
    Shape(&[(Init, ONE), (App, ONE)]),
    Shape(&[(Sidecar, ONE), (App, ONE)]),
    Shape(&[(App, HALF), (App, PART)]),
    Shape(&[(App, CPU)]),
    Shape(&[(App, SLICE)]),
];

/// How a gang is declared.
#[derive(Debug, Clone, Copy)]
enum Dialect {
    Koordinator,
    /// A PodGroup object, which may come after its pods.
    Community,
    Ack,
}

/// A gang, as its pods say it.
#[derive(Debug)]
pub struct GangPlan {
    pub min: u32,
    keys: Vec<(String, String)>,
    /// All gangs of its group, itself included.
    pub group: Vec<String>,
    pub is_strict: bool,
    pub policy: &'static str,
    /// Jobs that have made its pods one after the other: another one makes them where the whole group is made again.
    jobs: u32,
}

/// The policy by which a member that is made again counts with those that run or have succeeded.
pub const ONE_BY_ONE: &str = "waiting-running-succeed";
pub const ONCE: &str = "once-satisfied";

/// One pod that a user wants.
#[derive(Debug)]
struct Job {
    shape: Shape,
    priority: i32,
    gang: Option<String>,
    lasts: Duration,
    pod: PodRef,
    is_over: bool,
    /// Its pod goes because the whole group is made again.
    leaves: bool,
}

/// One TYJob that a user wants.
#[derive(Debug)]
struct TyPlan {
    lasts: Duration,
    members: usize,
    is_deleted: bool,
    is_over: bool,
}

/// All that is wanted.
#[derive(Debug, Default)]
pub struct Workload {
    pub came: u32,
    jobs: BTreeMap<String, Job>,
    pub gangs: BTreeMap<String, GangPlan>,
    tyjobs: BTreeMap<String, TyPlan>,
    made: u64,
    /// Pods that a scheduler deleted.
    pub evicted: BTreeSet<PodUid>,
    /// Pods whose tenants have touched what is not theirs: promises hold for the others.
    pub hostile: BTreeSet<PodUid>,
    /// Pods that were made again.
    pub again: u64,
    pinned: u32,
    /// Pods that their owners leave as they are for a while, although they have failed.
    kept: BTreeMap<PodUid, Duration>,
}

impl Workload {
    /// How long the containers of a pod run.
    pub fn lifetime(&self, pod: &PodRef) -> Duration {
        if let Some(job) = self.jobs.get(&*pod.key.name) {
            return job.lasts;
        }
        let (job, member) = pod.key.name.split_once('-').unwrap_or((&pod.key.name, ""));
        let Some(plan) = self.tyjobs.get(job) else { return Duration::ZERO };
        match member {
            "learner" => plan.lasts,
            // One worker ends its work before the leader does.
            "actor-0" => plan.lasts / 2,
            _ => plan.lasts * 100,
        }
    }

    /// Jobs that have not come to their end.
    pub fn open(&self) -> impl Iterator<Item = &PodRef> {
        self.jobs.values().filter(|job| !job.is_over).map(|job| &job.pod)
    }

    /// TYJobs that have not.
    pub fn open_tyjobs(&self) -> impl Iterator<Item = &String> {
        self.tyjobs.iter().filter(|(_, plan)| !plan.is_over).map(|(name, _)| name)
    }

    /// The pod of a job of one.
    pub fn is_alone(&self, pod: &PodRef) -> bool {
        self.jobs.get(&*pod.key.name).is_some_and(|job| job.gang.is_none() && job.pod.uid == pod.uid)
    }

    pub fn keep(&mut self, pod: &PodRef, until: Duration) {
        self.kept.insert(pod.uid.clone(), until);
    }

    pub fn is_over(&self) -> bool {
        self.open().next().is_none() && self.open_tyjobs().next().is_none()
    }

    /// The next pod of a name.
    pub fn next_pod(&mut self, name: &str) -> PodRef {
        self.made += 1;
        PodRef::new("ml", name, &format!("uid-{name}-{}", self.made))
    }

    /// The gang of a pod, by the name of its job.
    pub fn gang_of(&self, pod: &PodRef) -> Option<&GangPlan> {
        self.gangs.get(self.jobs.get(&*pod.key.name)?.gang.as_ref()?)
    }
}

fn quantities(limits: Limits) -> Vec<(&'static str, Quantity)> {
    limits.iter().map(|(name, amount)| (*name, amount.parse().unwrap())).collect()
}

fn facts(job: &Job, plan: Option<&GangPlan>, now: Duration) -> PodFacts {
    let mut facts = pod(&job.pod.key.name, &[], now);
    let containers = job.shape.0.iter().enumerate().map(|(at, (kind, limits))| PodContainer {
        name: format!("c{at}").into(),
        kind: *kind,
        request: ContainerRequest::judge(quantities(limits)),
        running: false,
        started: false,
        lacks_devices: false,
        ended: None,
        dra_backed: vec![],
    });
    facts.handoff.containers = containers.collect::<Vec<_>>().into();
    facts.handoff.pod = job.pod.clone();
    facts.handoff.created = wall(now);
    let parts = job.shape.0.iter().map(|(kind, limits)| (*kind, Resources::of(quantities(limits))));
    let requests = RequestParts { containers: parts.collect(), ..RequestParts::default() };
    let gang = plan.and_then(|plan| declared("ml", &plan.keys));
    let spec = PodSpec { requests: requests.total(), priority: job.priority, gang, ..PodSpec::default() };
    facts.spec = spec.into();
    if let (Some(plan), Some(gang)) = (plan, &job.gang) {
        owned_by(&mut facts, "Job", "batch/v1", &format!("uid-{gang}-{}", plan.jobs));
    }
    facts
}

impl GangPlan {
    fn new(dialect: Dialect, name: &str, min: u32, (policy, mode): (&'static str, &str), group: &[String]) -> Self {
        let listed: Vec<String> = group.iter().map(|gang| format!("\"ml/{gang}\"")).collect();
        let listed = format!("[{}]", listed.join(","));
        let (prefix, names) = match dialect {
            Dialect::Koordinator => (G, vec![(format!("{G}name"), name), (format!("{G}min-available"), "")]),
            Dialect::Community => (G, vec![("label:scheduling.x-k8s.io/pod-group".to_owned(), name)]),
            Dialect::Ack => ("", vec![(format!("label:{P}/name"), name), (format!("label:{P}/min-available"), "")]),
        };
        let mut keys: Vec<(String, String)> = names
            .into_iter()
            .map(|(key, value)| (key, if value.is_empty() { min.to_string() } else { value.to_owned() }))
            .collect();
        let prefix = if prefix.is_empty() { format!("{P}/") } else { prefix.to_owned() };
        keys.push((format!("{prefix}match-policy"), policy.to_owned()));
        if group.len() > 1 {
            keys.push((format!("{prefix}groups"), listed));
        }
        if !matches!(dialect, Dialect::Ack) {
            keys.push((format!("{G}mode"), mode.to_owned()));
            keys.push((format!("{G}waiting-time"), "90s".to_owned()));
        }
        let is_strict = mode == "Strict" || matches!(dialect, Dialect::Ack);
        Self { min, keys, group: group.to_vec(), is_strict, policy, jobs: 1 }
    }

    /// A member that fails is made again by itself, and goes with those that live or have succeeded. By any other policy the owner of a
    /// gang makes all of its group again, and so do the owners of a group of gangs together.
    pub fn is_made_one_by_one(&self) -> bool {
        self.policy == ONE_BY_ONE || self.policy == ONCE && self.group.len() == 1
    }
}

impl System {
    /// The next pods come, and one goes.
    pub fn next_work(&mut self) {
        let most = (COMING.as_millis() as u32 * 2 / self.plan.pods.max(1)).max(2);
        let pause = Duration::from_millis(u64::from(1 + self.work.below(most)));
        if self.jobs.came < self.plan.pods {
            self.comes();
            self.after(pause.min(Duration::from_secs(20)), Happening::Work);
        } else {
            self.after(Duration::from_secs(3), Happening::Work);
        }
        let storm = self.now < START + super::STORM;
        if storm && self.work.below(100) < 8 {
            self.user_deletes();
        }
        if storm && self.work.below(100) < 4 {
            let (node, name) = self.some_node();
            self.store.change_node(&name, |facts| facts.unschedulable = true);
            self.after(Duration::from_secs(30), Happening::Mend(Mend::Cordon(node)));
        }
        if storm && self.work.below(100) < 3 {
            let (node, name) = self.some_node();
            let ids = self.machines[node].whole();
            let id = ids[self.work.below(ids.len() as u32) as usize].clone();
            self.store.cordon_devices(&name, Some(json!({ id.to_string(): { "reason": "fan" } }).to_string()));
            self.note(|| format!("{id} of {name} is cordoned"));
            self.after(Duration::from_secs(40), Happening::Mend(Mend::DeviceCordon(node)));
        }
        if storm && self.plan.hostile && self.work.below(100) < 5 {
            self.tenant_forges();
        }
    }

    /// What ended otherwise than wanted is made again about a second later.
    pub fn owners_work(&mut self) {
        let pause = self.soon(300, 1700);
        self.after(pause, Happening::Owners);
        self.make_again();
        self.end_tyjobs();
        self.collect_garbage();
    }

    fn some_node(&mut self) -> (usize, Box<str>) {
        let node = self.work.below(self.machines.len() as u32) as usize;
        (node, self.machines[node].name.clone())
    }

    fn comes(&mut self) {
        let lasts = Duration::from_secs(u64::from(3 + self.work.below(60)));
        let priority = if self.work.below(6) == 0 { 100 } else { 0 };
        match self.work.below(100) {
            0..13 => self.gangs_come(lasts, priority),
            13..20 => self.tyjob_comes(lasts),
            _ => {
                // Only where a node has parts of GPUs is one asked for.
                let shapes = SHAPES.len() as u32 - u32::from(!self.machines[0].inventory.registers(MIG));
                let shape = SHAPES[self.work.below(shapes) as usize];
                self.submit(shape, priority, None, lasts);
            }
        }
    }

    /// A gang, or a group of two.
    fn gangs_come(&mut self, lasts: Duration, priority: i32) {
        let count = if self.work.below(3) == 0 { 2 } else { 1 };
        let dialect = self.work.pick(&[Dialect::Koordinator, Dialect::Community, Dialect::Ack]);
        let policies = [ONE_BY_ONE, ONE_BY_ONE, ONE_BY_ONE, ONCE, "only-waiting", "waiting-and-running"];
        let policy = self.work.pick(&policies);
        let mode = if self.work.below(4) == 0 { "NonStrict" } else { "Strict" };
        let from = self.jobs.gangs.len();
        let group: Vec<String> = (from..from + count).map(|at| format!("g{at}")).collect();
        for name in &group {
            let members = 2 + self.work.below(if count == 1 { 2 } else { 1 });
            let min = members - u32::from(policy == ONE_BY_ONE && self.work.below(3) == 0);
            let shape = SHAPES[self.work.pick(&[0, 2, 4, 9])];
            let plan = GangPlan::new(dialect, name, min, (policy, mode), &group);
            let ends_apart = plan.policy == ONCE && plan.is_made_one_by_one();
            self.jobs.gangs.insert(name.clone(), plan);
            if matches!(dialect, Dialect::Community) {
                let late = Duration::from_millis(u64::from(self.work.below(8000)));
                self.after(late, Happening::PodGroup { name: name.clone(), min });
            }
            for at in 0..members {
                // The last one may fail when the others have succeeded.
                let lasts = if ends_apart { lasts * (1 + at) } else { lasts };
                self.submit(shape, priority, Some(name.clone()), lasts);
            }
        }
    }

    pub fn pod_group_comes(&mut self, name: &str, min: u32) {
        let mut facts = PodGroupFacts::new(PodGroupApi::Community, GangId::parse(&format!("ml/{name}")).unwrap());
        (facts.created, facts.uid) = (wall(self.now), format!("uid-{name}").into());
        facts.spec.min = Some(min);
        self.note(|| format!("PodGroup {name} is made"));
        self.store.put_group(facts);
    }

    fn tyjob_comes(&mut self, lasts: Duration) {
        let workers = 1 + self.work.below(3) as usize;
        let min = self.work.below(workers as u32 + 1);
        let policy =
            self.work.pick(&["Gang", "BinPack", "LeaderFirst", "MinFragment", "JobAffinity", "JobAntiAffinity"]);
        let queue = self.work.pick(&["Priority", "DRF"]);
        let shapes = [CPU, HALF, ONE];
        let (leader, worker) = (self.work.pick(&shapes), self.work.pick(&shapes));
        let pod = |limits: Limits| -> Value {
            let limits: BTreeMap<&str, &str> = limits.iter().copied().collect();
            json!({ "spec": { "containers": [{ "name": "c0", "image": "i", "resources": { "limits": limits } }] } })
        };
        let name = format!("t{}", self.jobs.tyjobs.len());
        let spec = json!({
            "leader": { "name": "learner", "template": pod(leader) },
            "workerSets": [{ "name": "actor", "counts": workers, "template": pod(worker) }],
            "minWorkersNum": min,
            // Faults alone do not end a job.
            "restartLimit": 1000,
            "schedulerPolicy": { "jobQueuePolicy": queue, "basicPolicy": policy },
        });
        let mut job = TyJob::new(&name, serde_json::from_value(spec).unwrap());
        let meta = &mut job.metadata;
        (meta.namespace, meta.uid, meta.generation) = (Some("ml".into()), Some(format!("uid-{name}")), Some(1));
        meta.creation_timestamp = Some(Time(wall(self.now)));
        self.note(|| format!("TYJob {name} with {workers} workers, {policy}, is made"));
        self.store.put_job(job);
        self.jobs.came += 1 + workers as u32;
        let members = 1 + workers;
        if self.work.below(5) == 0 {
            // While its first pods are being made.
            let pause = Duration::from_millis(u64::from(self.work.below(4000)));
            self.after(pause, Happening::JobDeleted(name.clone()));
        }
        self.jobs.tyjobs.insert(name, TyPlan { lasts, members, is_deleted: false, is_over: false });
    }

    /// TYJobs that have come to their end, and those that their user has deleted.
    fn end_tyjobs(&mut self) {
        let open: Vec<String> = self.jobs.open_tyjobs().cloned().collect();
        for name in open {
            let key = PodKey::new("ml", &name);
            let job = self.store.job(&key);
            let stage = job.and_then(|job| job.status.as_ref()?.stage);
            let is_left = self.store.pods().any(|pod| pod.spec.job.as_ref().is_some_and(|claim| *claim.name == *name));
            let Some(plan) = self.jobs.tyjobs.get_mut(&name) else { continue };
            if job.is_none() && !plan.is_deleted {
                return self.violates("no TYJob is lost", format!("{name} is gone, and its user has not deleted it"));
            }
            if stage == Some(Stage::Failed) {
                let why = job.and_then(|job| job.status.as_ref()?.message.clone());
                return self.violates("faults alone do not end a TYJob", format!("{name}: {why:?}"));
            }
            let is_over = job.is_none() || stage == Some(Stage::Succeeded);
            if is_over && !is_left && !plan.is_over {
                plan.is_over = true;
                self.moved();
            }
        }
    }

    fn submit(&mut self, shape: Shape, priority: i32, gang: Option<String>, lasts: Duration) {
        self.jobs.came += 1;
        let name = format!("p{}", self.jobs.came);
        let pod = PodRef::new("ml", &name, "");
        self.jobs.jobs.insert(name.clone(), Job { shape, priority, gang, lasts, pod, is_over: false, leaves: false });
        self.make(&name);
    }

    fn make(&mut self, name: &str) {
        let pod = self.jobs.next_pod(name);
        let Some(job) = self.jobs.jobs.get_mut(name) else { return };
        (job.pod, job.leaves) = (pod, false);
        let gang = job.gang.as_ref().and_then(|gang| self.jobs.gangs.get(gang));
        let made = facts(job, gang, self.now);
        let gang = job.gang.clone();
        self.note(|| format!("{name} is made{}", gang.map_or(String::new(), |gang| format!(" for gang {gang}"))));
        self.store.put(made);
    }

    /// What a controller does: a pod that failed, was evicted, or whose gang has waited in vain has a successor of the same name.
    fn make_again(&mut self) {
        let names: Vec<String> =
            self.jobs.jobs.iter().filter(|(_, job)| !job.is_over).map(|(name, _)| name.clone()).collect();
        for name in names {
            let job = &self.jobs.jobs[&name];
            let (pod, leaves) = (job.pod.clone(), job.leaves);
            let plan = job.gang.as_ref().and_then(|gang| self.jobs.gangs.get(gang));
            let counts_alone = leaves || plan.is_none_or(GangPlan::is_made_one_by_one);
            let found = self.store.of(&pod);
            let is_marked = found.is_some_and(|facts| {
                facts.handoff.node.is_none() && facts.spec.gang.as_ref().is_some_and(|gang| gang.timed_out)
            });
            match found.map(|facts| facts.handoff.phase) {
                Some(Phase::Failed) if self.jobs.kept.get(&pod.uid).is_some_and(|until| self.now < *until) => {}
                Some(Phase::Failed) | None if !leaves && self.backs_off(&name) => {}
                Some(Phase::Succeeded) if !leaves => self.jobs.jobs.get_mut(&name).unwrap().is_over = true,
                Some(Phase::Failed | Phase::Succeeded) => {
                    self.history.sometimes(FAILED);
                    self.store.remove(&pod);
                    self.make_next(&name, !counts_alone);
                }
                Some(_) if is_marked => {
                    self.store.remove(&pod);
                    self.make_next(&name, !counts_alone);
                }
                Some(Phase::Pending) if self.came_after_all(&name) => {
                    self.history
                        .sometimes("a member waits that came after all others had ended: the group is made again");
                    self.store.remove(&pod);
                    self.make_next(&name, true);
                }
                Some(Phase::Pending) if self.waits_for_gone(&name) => {
                    self.history
                        .sometimes("a member waits for others that have ended and are gone: the group is made again");
                    self.store.remove(&pod);
                    self.make_next(&name, true);
                }
                None if self.store.pod(&pod.key).is_none() => self.make_next(&name, !counts_alone),
                _ => {}
            }
        }
        let pinned = self.store.pods().map(|pod| &pod.handoff);
        let ended = pinned.filter(|pod| pod.pod.key.name.starts_with('x') && pod.phase.is_terminal());
        let ended: Vec<PodRef> = ended.map(|pod| pod.pod.clone()).collect();
        ended.iter().for_each(|pod| self.store.remove(pod));
    }

    /// A Job waits before it makes a pod again: for a while no member of its gang lives where the others have succeeded.
    fn backs_off(&mut self, name: &str) -> bool {
        let job = &self.jobs.jobs[name];
        let Some(gang) = job.gang.as_ref() else { return false };
        let uid = job.pod.uid.clone();
        let is_once = self.jobs.gangs.get(gang).is_some_and(|plan| plan.policy == ONCE && plan.is_made_one_by_one());
        let mut others =
            self.jobs.jobs.iter().filter(|(other, of)| *other != name && of.gang.as_ref() == Some(gang)).peekable();
        let has_succeeded = |of: &Job| of.is_over && self.store.of(&of.pod).is_some();
        if !is_once || others.peek().is_none() || !others.all(|(_, of)| has_succeeded(of)) {
            return false;
        }
        self.history.sometimes("the last member of a gang is made again when the others have succeeded");
        let until = *self.jobs.kept.entry(uid).or_insert(self.now + JOB_BACK_OFF);
        self.now < until
    }

    /// The pod of a job has no node, and members of its group that had ended have gone with their node: fewer are left than a gang
    /// asks for, so that no scheduler may start the rest. As long as their pods are there, the rest is the scheduler's matter.
    fn waits_for_gone(&self, name: &str) -> bool {
        let job = &self.jobs.jobs[name];
        let waits = self.store.of(&job.pod).is_some_and(|facts| facts.handoff.node.is_none());
        let plan = job.gang.as_ref().and_then(|gang| self.jobs.gangs.get(gang)).filter(|_| waits);
        let is_left = |of: &&Job| !of.is_over || self.store.of(&of.pod).is_some();
        let lacks = |gang: &String| {
            let members = self.jobs.jobs.values().filter(|of| of.gang.as_ref() == Some(gang));
            self.jobs.gangs.get(gang).is_some_and(|plan| (members.filter(is_left).count() as u32) < plan.min)
        };
        plan.is_some_and(|plan| plan.group.iter().any(lacks))
    }

    /// The pod of a job has no node, and all others of its group that had one ended before it came: to a scheduler it is of a new gang
    /// (docs/gang.md).
    fn came_after_all(&self, name: &str) -> bool {
        let job = &self.jobs.jobs[name];
        let Some(pod) = self.store.of(&job.pod).map(|facts| &facts.handoff).filter(|pod| pod.node.is_none()) else {
            return false;
        };
        let Some(plan) = job.gang.as_ref().and_then(|gang| self.jobs.gangs.get(gang)) else { return false };
        let is_of = |of: &Job| of.gang.as_ref().is_some_and(|gang| plan.group.contains(gang));
        let mut others = self.jobs.jobs.iter().filter(|(other, of)| *other != name && is_of(of));
        let has_ended = |of: &Job| {
            let Some(facts) = self.store.of(&of.pod) else { return of.is_over };
            let ended = facts.spec.gang.as_ref().and_then(|said| said.ended);
            facts.handoff.node.is_none() || ended.is_some_and(|ended| ended <= pod.created)
        };
        let starts_anew = |leader: &SchedulerProcess| {
            let world = leader.scheduler().world();
            let shown = world.pod_id(&pod.pod.uid).and_then(|id| world.gangs().gang_of(id));
            leader.leads_since.is_some_and(|since| self.now > since + SETTLED)
                && shown.is_some_and(|gang| !leader.scheduler().gangs().satisfied_once(gang.group()))
        };
        // One that has succeeded beside it proves that its Job goes on.
        let is_proof =
            |(_, of): (&String, &Job)| plan.is_made_one_by_one() && of.is_over && self.store.of(&of.pod).is_some();
        let all_ended = others.clone().all(|(_, of)| has_ended(of)) && others.clone().any(|(_, of)| of.is_over);
        plan.policy == ONCE && all_ended && !others.any(is_proof) && self.schedulers.iter().any(starts_anew)
    }

    /// The next pod of a job; where `whole`, all others of its gang's group too.
    fn make_next(&mut self, name: &str, whole: bool) {
        self.jobs.again += 1;
        let gang = self.jobs.jobs[name].gang.clone();
        let group = gang.and_then(|gang| self.jobs.gangs.get(&gang)).filter(|_| whole);
        if let Some(group) = group.map(|plan| plan.group.clone()) {
            self.note(|| format!("group {} is made again", group.join(" ")));
            self.judges.group_again(&group);
            self.jobs.gangs.iter_mut().filter(|(gang, _)| group.contains(gang)).for_each(|(_, plan)| plan.jobs += 1);
            let is_of = |job: &Job| job.gang.as_ref().is_some_and(|gang| group.contains(gang));
            let mut pods = Vec::new();
            for (_, job) in self.jobs.jobs.iter_mut().filter(|(other, job)| *other != name && is_of(job)) {
                (job.is_over, job.leaves) = (false, true);
                pods.push(job.pod.clone());
            }
            for pod in pods {
                self.store.delete(&pod.key, Some(&pod.uid), wall(self.now));
            }
        }
        self.make(name);
    }

    /// Pods of a Node that is gone go too, and those that a late request made for a TYJob that is gone.
    fn collect_garbage(&mut self) {
        let is_owned = |pod: &&PodFacts| {
            let key = |name: &str| PodKey::new(&pod.handoff.pod.key.namespace, name);
            pod.spec.job.as_ref().is_none_or(|claim| self.store.job(&key(&claim.name)).is_some())
        };
        let left = self.store.pods().filter(|pod| !is_owned(pod) && pod.handoff.deleting.is_none());
        for pod in left.map(|pod| pod.handoff.pod.clone()).collect::<Vec<_>>() {
            self.note(|| format!("{} goes after its TYJob", pod.key));
            self.history.sometimes("a late pod of a TYJob that is gone is collected");
            self.store.delete(&pod.key, Some(&pod.uid), wall(self.now));
        }
        let long_lost = |machine: &&super::machine::Machine| machine.lost.is_some_and(|at| self.now >= at + ORPHANED);
        let lost: BTreeSet<&str> = self.machines.iter().filter(long_lost).map(|machine| &*machine.name).collect();
        let of_lost = |pod: &&PodFacts| pod.handoff.node.as_deref().is_some_and(|node| lost.contains(node));
        let orphans: Vec<PodRef> = self.store.pods().filter(of_lost).map(|pod| pod.handoff.pod.clone()).collect();
        for pod in orphans {
            self.note(|| format!("{} goes with its node", pod.key));
            self.store.remove(&pod);
        }
    }

    /// A user deletes a pod of no gang, where sometimes one of the same name follows, or a TYJob.
    fn user_deletes(&mut self) {
        let tyjobs: Vec<String> = self.jobs.open_tyjobs().cloned().collect();
        if !tyjobs.is_empty() && self.work.below(4) == 0 {
            let name = &tyjobs[self.work.below(tyjobs.len() as u32) as usize];
            return self.tyjob_deleted(name);
        }
        let single = self.jobs.jobs.iter().filter(|(_, job)| !job.is_over && job.gang.is_none());
        let names: Vec<String> = single.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.work.below(names.len() as u32) as usize].clone();
        let stays = self.work.below(2) == 0;
        let key = PodKey::new("ml", &name);
        self.note(|| format!("{name} is deleted by its user"));
        if let Some(job) = self.jobs.jobs.get_mut(&name) {
            job.is_over = !stays;
        }
        self.store.delete(&key, None, wall(self.now));
    }

    pub fn tyjob_deleted(&mut self, name: &str) {
        let Some(plan) = self.jobs.tyjobs.get_mut(name).filter(|plan| !plan.is_over) else { return };
        plan.is_deleted = true;
        self.note(|| format!("TYJob {name} is deleted by its user"));
        self.store.delete_job(&PodKey::new("ml", name), wall(self.now));
    }

    /// A tenant or a stolen node's token writes what is not its own, where no admission policy keeps it from that.
    fn tenant_forges(&mut self) {
        let (node, name) = self.some_node();
        let ids = self.machines[node].whole();
        let id = &ids[self.work.below(ids.len() as u32) as usize];
        let entry = json!({ "gpu": [{ "id": id.to_string(), "minor": 0, "resources": { key::GPU_CORE: "100" } }] });
        let bound: Vec<PodRef> = self
            .store
            .pods()
            .filter(|pod| pod.handoff.node.is_some() && !pod.handoff.phase.is_terminal() && pod.spec.job.is_none())
            .map(|pod| pod.handoff.pod.clone())
            .collect();
        match self.work.below(3) {
            0 if !bound.is_empty() => {
                let pod = &bound[self.work.below(bound.len() as u32) as usize];
                self.note(|| format!("the tenant of {} edits its assignment to {id}", pod.key));
                self.history.sometimes("a tenant edits the assignment of its pod");
                self.jobs.hostile.insert(pod.uid.clone());
                self.store.change(pod, |facts| {
                    facts.handoff.assignment.device_allocated = Some(entry.to_string().into());
                });
            }
            1 if !bound.is_empty() && self.store.lock(&name).raw().is_none() => {
                let pod = &bound[self.work.below(bound.len() as u32) as usize];
                let time = wall(self.now) - jiff::SignedDuration::from_mins(20);
                let lock = format!("{time},{},{},{}", pod.key.namespace, pod.key.name, pod.uid);
                self.note(|| format!("an old lock for {} is forged on {name}", pod.key));
                self.history.sometimes("an old lock that names a running pod is forged");
                self.store.change_node(&name, |node| node.lock = Some(lock.into()));
            }
            _ => {
                self.jobs.pinned += 1;
                let pod = self.jobs.next_pod(&format!("x{}", self.jobs.pinned));
                let job = Job {
                    shape: SHAPES[0],
                    priority: 0,
                    gang: None,
                    lasts: Duration::ZERO,
                    pod: pod.clone(),
                    is_over: true,
                    leaves: false,
                };
                let mut facts = facts(&job, None, self.now);
                facts.handoff.node = Some(name.clone());
                facts.handoff.assignment =
                    AssignmentText { device_allocated: Some(entry.to_string().into()), ..AssignmentText::default() };
                self.note(|| format!("{} is pinned to {name} with a forged assignment", pod.key));
                self.history.sometimes("a pod is pinned to a node with a forged assignment");
                self.jobs.hostile.insert(pod.uid);
                self.store.put(facts);
            }
        }
    }

    /// Pods by how they ended.
    pub fn ended(&self) -> BTreeMap<&'static str, u32> {
        let over = self.jobs.jobs.values().filter(|job| job.is_over);
        let word = |job: &Job| match self.store.of(&job.pod).map(|facts| facts.handoff.phase) {
            Some(Phase::Succeeded) => "succeeded",
            _ => "deleted by its user",
        };
        let mut ended = BTreeMap::new();
        over.for_each(|job| *ended.entry(word(job)).or_default() += 1);
        let of_tyjobs = self.jobs.tyjobs.values().filter(|plan| plan.is_over).map(|plan| plan.members as u32);
        ended.insert("of TYJobs", of_tyjobs.sum());
        ended.insert("made again", self.jobs.again as u32);
        ended
    }
}
