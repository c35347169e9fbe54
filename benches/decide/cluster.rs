//! A cluster of plain values around one engine: Bindings succeed at once and the watch tells of them.

use std::time::Duration;

use baton::contract::gang::Committed;
use baton::contract::{AgentStatus, Identity, PodKey, Quantity, Shared, key};
use baton::decide::core::rules::Annotations;
use baton::decide::core::rules::plugins::{DefaultSet, Profile, default_plugins};
use baton::decide::lock::LockMode;
use baton::decide::pod::AssignmentText;
use baton::decide::scheduler::{
    BindResult, Config, Effect, EffectResult, Effects, Moment, NodeSearch, Scheduler, Ticket,
};
use baton::decide::world::{NodeFacts, PodFacts, Resources, WorldEvent};
use baton::runtime::clock;

use crate::values::{gpu_device, pod, wall};

pub const GPUS: u32 = 8;
const SERVED: [&str; 5] = [key::NVIDIA_GPU, key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_SHARED];

/// What the pods of a stream ask for, beside the percent of GPUs that it comes to.
pub struct Ask {
    pub limits: &'static [(&'static str, &'static str)],
    pub percent: u64,
}

const fn ask(limits: &'static [(&'static str, &'static str)], percent: u64) -> Ask {
    Ask { limits, percent }
}

pub const MIXED: [Ask; 5] = [
    ask(&[(key::NVIDIA_GPU, "1"), ("cpu", "8"), ("memory", "64Gi")], 100),
    ask(&[(key::NVIDIA_GPU, "2"), ("cpu", "16"), ("memory", "128Gi")], 200),
    ask(&[(key::NVIDIA_GPU, "4"), ("cpu", "32"), ("memory", "256Gi")], 400),
    ask(&[(key::NVIDIA_GPU, "8"), ("cpu", "64"), ("memory", "512Gi")], 800),
    ask(&[(key::GPU_CORE, "25"), (key::GPU_MEMORY_RATIO, "25"), ("cpu", "2"), ("memory", "16Gi")], 25),
];

pub struct Cluster {
    pub engine: Scheduler,
    pub nodes: usize,
    now: Duration,
    serial: u64,
    /// Bound pods and the percent of GPUs they hold.
    pub bound: Vec<(PodFacts, u64)>,
    pub percent: u64,
    seed: u64,
}

/// One decision.
pub struct Decision {
    pub took: Duration,
    pub judged: u64,
    pub bound: bool,
}

impl Cluster {
    pub fn new(nodes: usize, search: NodeSearch) -> Self {
        Self::of_profile(nodes, search, Profile::Binpack)
    }

    /// With the scores of a profile.
    pub fn of_profile(nodes: usize, search: NodeSearch, profile: Profile) -> Self {
        let mut set = DefaultSet::default();
        set.choice.lists = set.choice.lists.of_profile(profile);
        let config = Config { lock_mode: LockMode::Auto, batch: 1, search, ..Config::default() };
        let engine = Scheduler::new(config, default_plugins(&set).unwrap());
        let now = Duration::from_secs(1000);
        let mut cluster = Self { engine, nodes, now, serial: 0, bound: vec![], percent: 0, seed: 7 };
        for at in 0..nodes {
            cluster.node(at);
        }
        cluster
    }

    pub fn lead(&mut self) {
        let effects = self.engine.lead(true, self.moment());
        self.rate(&effects);
    }

    fn node(&mut self, at: usize) {
        let name = node_name(at);
        let mut allocatable = Resources::of([("cpu", Quantity::units(128)), ("memory", Quantity::bytes(2 << 40))]);
        for resource in SERVED {
            let units = if resource == key::NVIDIA_GPU { 1 } else { 100 };
            allocatable.set(resource, Quantity::units(i64::from(GPUS) * units));
        }
        let labels = [
            ("kubernetes.io/hostname", name.clone()),
            ("kubernetes.io/arch", "amd64".to_owned()),
            ("node.kubernetes.io/instance-type", "gpu-8".to_owned()),
            ("topology.kubernetes.io/zone", format!("zone-{}", at % 3)),
        ];
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let name: Box<str> = name.into();
        self.apply(WorldEvent::Node(NodeFacts {
            name: name.clone(),
            labels,
            allocatable: allocatable.into(),
            max_pods: 110,
            ..NodeFacts::default()
        }));
        self.apply(WorldEvent::Devices(Box::new(gpu_device(&name, GPUS))));
        let registered = SERVED.iter().map(|name| (*name).to_owned()).collect();
        let status = Some(AgentStatus {
            version: "1".into(),
            registered,
            identity: Identity::Exact,
            lockless: None,
            exceptions: None,
            lock: None,
            too_many_exceptions: false,
            ended: false,
            unreleased: None,
            leaving: [].into(),
            pod_metrics: false,
        });
        let renewed = Some(wall(self.now));
        self.apply(WorldEvent::Agent { node: name, status, version: "1".into(), renewed });
    }

    pub fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    pub fn moment(&self) -> Moment {
        Moment { mono: self.now, wall: wall(self.now) }
    }

    pub fn apply(&mut self, event: WorldEvent) {
        let effects = self.engine.event(event, self.moment());
        self.rate(&effects);
    }

    /// Makes the tables that are asked for.
    fn rate(&mut self, effects: &Effects) {
        for effect in effects {
            let Effect::RateMix(sample) = effect else { continue };
            self.engine.report(EffectResult::Tables(Box::new(sample.tables())), self.moment());
        }
    }

    pub fn random(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % below
    }

    /// Submits a pod and times what the engine does until its Binding is on the way.
    pub fn decide(&mut self, ask: &Ask) -> Decision {
        self.decide_by(ask, Scheduler::run)
    }

    /// As [`Cluster::decide`]; `run` is what runs the engine.
    pub fn decide_by(&mut self, ask: &Ask, run: impl FnOnce(&mut Scheduler, Moment) -> Effects) -> Decision {
        self.serial += 1;
        self.now += Duration::from_millis(1);
        let mut facts = pod(&format!("job-{}", self.serial), ask.limits, self.now);
        facts.spec.labels = [("app".to_owned(), "train".to_owned())].into();
        self.apply(WorldEvent::Pod(Box::new(facts.clone())));
        let (now, judged) = (self.moment(), self.engine.stats().judged);
        let started = clock::now().mono;
        let effects = run(&mut self.engine, now);
        let took = clock::now().mono.saturating_sub(started);
        let judged = self.engine.stats().judged - judged;
        let mut bound = false;
        self.rate(&effects);
        for effect in effects {
            let Effect::Bind { ticket, node, annotations, .. } = effect else { continue };
            bound = true;
            self.bind(&mut facts, ticket, &node, annotations);
        }
        if bound {
            self.bound.push((facts, ask.percent));
            self.percent += ask.percent;
        } else {
            self.apply(gone(&facts));
        }
        Decision { took, judged, bound }
    }

    /// The API server takes a Binding, and the watch shows the pod with its assignment.
    pub fn bind(&mut self, facts: &mut PodFacts, ticket: Ticket, node: &str, annotations: Shared<Annotations>) {
        let text = |key: &str| annotations.get(key).map(Into::into);
        facts.handoff.node = Some(node.into());
        facts.handoff.assignment = AssignmentText {
            device_allocated: text(key::DEVICE_ALLOCATED),
            container_devices: text(key::CONTAINER_DEVICES),
            bind_timestamp: text(key::BIND_TIMESTAMP),
            committed: annotations.get(key::GANG_COMMITTED).and_then(|text| Committed::parse(text).ok()),
            ..AssignmentText::default()
        };
        self.engine.report(EffectResult::Bind { ticket, result: BindResult::Done }, self.moment());
        self.apply(WorldEvent::Pod(Box::new(facts.clone())));
    }

    /// Half of every node's GPUs are taken, by pods that another scheduler bound.
    pub fn fill_half(&mut self) {
        self.fill(|_| &[(0, 1), (1, 1), (2, 2)]);
    }

    /// Half of all GPUs are taken: of four nodes one is full, one is empty, and two are half full.
    pub fn fill_unevenly(&mut self) {
        self.fill(|at| match at % 4 {
            0 => &[(0, 1), (1, 1), (2, 2), (4, 2), (6, 2)],
            1 => &[],
            _ => &[(0, 1), (1, 1), (2, 2)],
        });
    }

    /// All GPUs are taken, each by a pod.
    pub fn fill_whole(&mut self) {
        self.fill(|_| &[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)]);
    }

    /// Takes GPUs of each node: the first minor of a pod, and how many, one or two.
    fn fill(&mut self, taken: impl Fn(usize) -> &'static [(u64, u64)]) {
        for at in 0..self.nodes {
            let node = node_name(at);
            for &(minor, slice) in taken(at) {
                self.serial += 1;
                let limits: &[(&str, &str)] = &[(key::NVIDIA_GPU, if slice == 1 { "1" } else { "2" }), ("cpu", "8")];
                let mut facts = pod(&format!("early-{}", self.serial), limits, self.now);
                let gpus: Vec<String> = (minor..minor + slice)
                    .map(|minor| {
                        format!(
                            r#"{{"minor":{minor},"id":"GPU-{node}-{minor}","resources":{{"{}":"100","{}":"{}","{}":"100"}}}}"#,
                            key::GPU_CORE,
                            key::GPU_MEMORY,
                            80u64 << 30,
                            key::GPU_MEMORY_RATIO
                        )
                    })
                    .collect();
                facts.handoff.node = Some(node.as_str().into());
                facts.handoff.assignment.device_allocated = Some(format!(r#"{{"gpu":[{}]}}"#, gpus.join(",")).into());
                self.apply(WorldEvent::Pod(Box::new(facts.clone())));
                self.percent += 100 * slice;
                self.bound.push((facts, 100 * slice));
            }
        }
    }

    /// A random pod ends.
    pub fn end_one(&mut self) {
        let at = self.random(self.bound.len());
        let (facts, percent) = self.bound.swap_remove(at);
        self.percent -= percent;
        self.apply(gone(&facts));
    }

    /// Share of all GPUs that pods hold, in percent.
    pub fn full(&self) -> u64 {
        self.percent / (self.nodes as u64 * u64::from(GPUS))
    }
}

fn gone(facts: &PodFacts) -> WorldEvent {
    let PodKey { namespace, name } = facts.handoff.pod.key.clone();
    WorldEvent::PodGone(PodKey { namespace, name }, facts.handoff.pod.uid.clone())
}

pub fn node_name(at: usize) -> String {
    format!("gpu-node-{at:05}")
}
