//! Who wants what: jobs of one pod, or of the members of a gang, each made again until it has succeeded or its user has deleted it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::{ContainerRequest, PodKey, PodRef, PodUid, Quantity, key};
use baton::decide::pod::{ContainerKind, Phase, PodContainer};
use baton::decide::world::{PodFacts, PodSpec, RequestParts, Resources};

use super::faults::Mend;
use super::{Happening, START, System};
use crate::harness::gangs::{declared, gang};
use crate::harness::{pod, wall};

/// All have come by then.
const COMING: Duration = Duration::from_secs(400);

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

const SHAPES: [Shape; 10] = [
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
];

/// One pod that somebody wants.
#[derive(Debug)]
struct Job {
    shape: Shape,
    priority: i32,
    gang: Option<(String, u32)>,
    lasts: Duration,
    pod: PodRef,
    is_over: bool,
}

/// All jobs.
#[derive(Debug, Default)]
pub struct Workload {
    pub came: u32,
    jobs: BTreeMap<String, Job>,
    gangs: u32,
    made: u64,
    /// Pods that a scheduler deleted.
    pub evicted: BTreeSet<PodUid>,
    /// Pods that were made again, by why.
    pub again: u64,
}

impl Workload {
    pub fn lifetime(&self, uid: &PodUid) -> Duration {
        self.jobs.values().find(|job| job.pod.uid == *uid).map_or(Duration::ZERO, |job| job.lasts)
    }

    /// Jobs that have not come to their end.
    pub fn open(&self) -> impl Iterator<Item = &PodRef> {
        self.jobs.values().filter(|job| !job.is_over).map(|job| &job.pod)
    }
}

fn facts(job: &Job, now: Duration) -> PodFacts {
    let mut facts = pod(&job.pod.key.name, &[], now);
    let quantities = |limits: Limits| -> Vec<(&str, Quantity)> {
        limits.iter().map(|(name, amount)| (*name, amount.parse().unwrap())).collect()
    };
    let containers = job.shape.0.iter().enumerate().map(|(at, (kind, limits))| PodContainer {
        name: format!("c{at}").into(),
        kind: *kind,
        request: ContainerRequest::judge(quantities(limits)),
        running: false,
        started: false,
        lacks_devices: false,
        dra_backed: vec![],
    });
    facts.handoff.containers = containers.collect::<Vec<_>>().into();
    facts.handoff.pod = job.pod.clone();
    facts.handoff.created = wall(now);
    let parts = job.shape.0.iter().map(|(kind, limits)| (*kind, Resources::of(quantities(limits))));
    let requests = RequestParts { containers: parts.collect(), ..RequestParts::default() };
    let gang = job.gang.as_ref().and_then(|(name, min)| {
        let policy = [("match-policy", "waiting-running-succeed")];
        declared("ml", &gang(name, &min.to_string(), &policy))
    });
    let spec = PodSpec { requests: requests.total(), priority: job.priority, gang, ..PodSpec::default() };
    facts.spec = spec.into();
    facts
}

impl System {
    /// The next pods come, one goes, and what failed is made again.
    pub fn next_work(&mut self) {
        let most = (COMING.as_millis() as u32 * 2 / self.plan.pods.max(1)).max(2);
        let pause = Duration::from_millis(u64::from(1 + self.work.below(most)));
        if self.jobs.came < self.plan.pods {
            self.comes();
            self.after(pause.min(Duration::from_secs(20)), Happening::Work);
        } else {
            self.after(Duration::from_secs(3), Happening::Work);
        }
        self.make_again();
        let storm = self.now < START + super::STORM;
        if storm && self.work.below(100) < 8 {
            self.user_deletes();
        }
        if storm && self.work.below(100) < 4 {
            let node = self.work.below(self.machines.len() as u32) as usize;
            let name = self.machines[node].name.clone();
            self.store.change_node(&name, |facts| facts.unschedulable = true);
            self.after(Duration::from_secs(30), Happening::Mend(Mend::Cordon(node)));
        }
    }

    fn comes(&mut self) {
        let lasts = Duration::from_secs(u64::from(3 + self.work.below(60)));
        let priority = if self.work.below(6) == 0 { 100 } else { 0 };
        if self.work.below(100) < 15 {
            let members = 2 + self.work.below(2);
            let min = if self.work.below(3) == 0 { members - 1 } else { members };
            let shape = SHAPES[self.work.pick(&[0, 2, 4, 9])];
            self.jobs.gangs += 1;
            let name = format!("g{}", self.jobs.gangs);
            for _ in 0..members {
                self.submit(shape, priority, Some((name.clone(), min)), lasts);
            }
        } else {
            let shape = SHAPES[self.work.below(SHAPES.len() as u32) as usize];
            self.submit(shape, priority, None, lasts);
        }
    }

    fn submit(&mut self, shape: Shape, priority: i32, gang: Option<(String, u32)>, lasts: Duration) {
        self.jobs.came += 1;
        let name = format!("p{}", self.jobs.came);
        let pod = PodRef::new("ml", &name, "");
        self.jobs.jobs.insert(name.clone(), Job { shape, priority, gang, lasts, pod, is_over: false });
        self.make(&name);
    }

    fn make(&mut self, name: &str) {
        self.jobs.made += 1;
        let uid = format!("uid-{name}-{}", self.jobs.made);
        let Some(job) = self.jobs.jobs.get_mut(name) else { return };
        job.pod = PodRef::new("ml", name, &uid);
        let made = facts(job, self.now);
        self.note(|| format!("{name} is made"));
        self.store.put(made);
    }

    /// What a controller does: a pod that failed or was evicted has a successor of the same name.
    fn make_again(&mut self) {
        let names: Vec<String> =
            self.jobs.jobs.iter().filter(|(_, job)| !job.is_over).map(|(name, _)| name.clone()).collect();
        for name in names {
            let pod = self.jobs.jobs[&name].pod.clone();
            match self.store.of(&pod).map(|facts| facts.handoff.phase) {
                Some(Phase::Succeeded) => {
                    if let Some(job) = self.jobs.jobs.get_mut(&name) {
                        job.is_over = true;
                    }
                }
                Some(Phase::Failed) => {
                    self.history.sometimes(FAILED);
                    self.store.remove(&pod);
                    self.jobs.again += 1;
                    self.make(&name);
                }
                None if self.store.pod(&pod.key).is_none() => {
                    self.jobs.again += 1;
                    self.make(&name);
                }
                _ => {}
            }
        }
    }

    /// A user deletes a pod of no gang; sometimes one of the same name follows.
    fn user_deletes(&mut self) {
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

    /// Pods by how they ended.
    pub fn ended(&self) -> BTreeMap<&'static str, u32> {
        let over = self.jobs.jobs.values().filter(|job| job.is_over);
        let word = |job: &Job| match self.store.of(&job.pod).map(|facts| facts.handoff.phase) {
            Some(Phase::Succeeded) => "succeeded",
            _ => "deleted by its user",
        };
        let mut ended = BTreeMap::new();
        over.for_each(|job| *ended.entry(word(job)).or_default() += 1);
        ended.insert("made again", self.jobs.again as u32);
        ended
    }
}
