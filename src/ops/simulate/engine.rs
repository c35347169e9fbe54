//! The scheduler as it ships, in virtual time, with an API that accepts each Binding at once and a watch that reports it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use baton_contract::gang::{self, Committed, TopologyLayer};
use baton_contract::inventory::{Device, DeviceInfo, DeviceSpec, DeviceStatus};
use baton_contract::{AgentStatus, ContainerRequest, PodRef, Quantity, Shared, key};
use baton_decide::core::rules::Plugins;
use baton_decide::lock::LockMode;
use baton_decide::pod::{AssignmentText, ContainerKind, HandoffPod, Phase, PodContainer};
use baton_decide::scheduler::{BindResult, Config, Effect, EffectResult, Effects, Moment, Scheduler};
use baton_decide::world::gangs::{DeclarationSource, Declared};
use baton_decide::world::mix::free;
use baton_decide::world::spec::{NodeOperator, NodeRequirement, NodeTerm};
use baton_decide::world::{NodeFacts, PodFacts, PodSpec, RequestParts, Resources, WorldEvent, WorldPolicy};
use baton_runtime::clock;

use super::cluster::{GangDomains, OnFailure, PodNumber, Rest, SimulatedCluster};
use super::trace::{Trace, TraceAsk, TraceGang, TraceMachine, WHOLE};

/// Node label of the GPUs' model, as GPU feature discovery names it.
const MODEL: &str = "nvidia.com/gpu.product";
/// Memory of each GPU: shares of compute and memory are alike, so any size will do.
const GPU_BYTES: i64 = 80 << 30;
const SERVED: [&str; 5] = [key::NVIDIA_GPU, key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_SHARED];
/// Longer than any trace: in virtual time no node daemon dies.
const FOR_EVER: Duration = Duration::from_secs(1 << 40);
/// Virtual time begins here, so that times before the first pod exist.
const BEGIN: Duration = Duration::from_secs(1000);

/// A scheduler and the cluster around it.
pub struct Engine {
    scheduler: Scheduler,
    now: Duration,
    /// Places of the machines in the trace, by node name.
    machines: BTreeMap<Box<str>, usize>,
    /// A pod of each request, without a name, and the gang of which it is one.
    templates: Vec<(PodFacts, Option<TraceGang>)>,
    /// Members of gangs in order; a single pod is alone.
    live: BTreeMap<PodNumber, Vec<PodFacts>>,
    domains: BTreeMap<Box<str>, GangDomains>,
    on_failure: OnFailure,
    decisions: Vec<Duration>,
}

impl Engine {
    /// Empty machines, made known in this order, and a scheduler with these rules that leads.
    pub fn new(trace: &Trace, order: &[usize], plugins: Plugins, world: WorldPolicy, on_failure: OnFailure) -> Self {
        let domains = gathered_in(trace, &world.gangs.layers);
        let world = WorldPolicy { agent_stale: FOR_EVER, ..world };
        let config = Config { lock_mode: LockMode::Auto, batch: 1, world, ..Config::default() };
        let mut engine = Self {
            scheduler: Scheduler::new(config, plugins),
            now: BEGIN,
            machines: BTreeMap::new(),
            templates: trace.asks.iter().map(|ask| (template(ask), ask.gang.clone())).collect(),
            live: BTreeMap::new(),
            domains,
            on_failure,
            decisions: Vec::new(),
        };
        for at in order {
            engine.join(*at, &trace.machines[*at]);
        }
        let effects = engine.scheduler.lead(true, engine.moment());
        engine.perform(effects);
        engine
    }

    fn join(&mut self, at: usize, machine: &TraceMachine) {
        // Unlike the machine's own, this name is one that Kubernetes would accept.
        let name: Box<str> = format!("node-{at:06}").into();
        self.machines.insert(name.clone(), at);
        let mut allocatable =
            Resources::of([("cpu", Quantity::millis(machine.milli_cpu)), ("memory", Quantity::bytes(machine.memory))]);
        for resource in SERVED {
            let each = if resource == key::NVIDIA_GPU { 1 } else { key::WHOLE };
            allocatable.set(resource, Quantity::units(i64::from(machine.gpus) * each));
        }
        let mut labels = machine.labels.clone();
        labels.insert(MODEL.to_owned(), machine.model.clone());
        let node = NodeFacts {
            name: name.clone(),
            labels,
            allocatable: allocatable.into(),
            max_pods: i64::from(u32::MAX),
            ..NodeFacts::default()
        };
        self.apply(WorldEvent::Node(node));
        let mut device =
            Device::new(&name, DeviceSpec { devices: (0..machine.gpus).filter_map(|minor| gpu(at, minor)).collect() });
        device.status = Some(DeviceStatus::default());
        self.apply(WorldEvent::Devices(Box::new(device)));
        let status = json!({"version": env!("CARGO_PKG_VERSION"), "registered": SERVED, "identity": "exact"});
        let (status, renewed) = (AgentStatus::parse(&status.to_string()), Some(self.moment().wall));
        self.apply(WorldEvent::Agent { node: name, status, version: "1".into(), renewed });
    }

    fn moment(&self) -> Moment {
        let wall = Timestamp::UNIX_EPOCH.saturating_add(self.now).unwrap_or(Timestamp::MAX);
        Moment { mono: self.now, wall }
    }

    fn apply(&mut self, event: WorldEvent) -> Vec<PodNumber> {
        let effects = self.scheduler.event(event, self.moment());
        self.perform(effects)
    }

    fn pass(&mut self, now: f64) {
        self.now = self.now.max(BEGIN + Duration::from_secs_f64(now));
    }

    /// Decides until nothing is left to decide at this time. Returns the pods that were bound.
    fn run(&mut self) -> Vec<PodNumber> {
        let mut bound = Vec::new();
        while self.scheduler.next().is_some_and(|at| at <= self.now) {
            let (moment, attempts) = (self.moment(), self.scheduler.stats().attempts);
            let started = clock::mono();
            let effects = self.scheduler.run(moment);
            let took = clock::mono().saturating_sub(started);
            if self.scheduler.stats().attempts > attempts {
                self.decisions.push(took);
            }
            bound.extend(self.perform(effects));
        }
        bound
    }

    fn perform(&mut self, effects: Effects) -> Vec<PodNumber> {
        let mut bound = Vec::new();
        for effect in effects {
            match effect {
                Effect::Bind { ticket, pod, node, annotations } => {
                    let Some(number) = number(&pod) else { continue };
                    let Some(members) = self.live.get_mut(&number) else { continue };
                    let Some(facts) = members.iter_mut().find(|member| member.handoff.pod == *pod) else { continue };
                    let text = |key: &str| annotations.get(key).map(Into::into);
                    facts.handoff.node = Some((*node).into());
                    facts.handoff.assignment = AssignmentText {
                        device_allocated: text(key::DEVICE_ALLOCATED),
                        container_devices: text(key::CONTAINER_DEVICES),
                        bind_timestamp: text(key::BIND_TIMESTAMP),
                        committed: annotations.get(key::GANG_COMMITTED).and_then(|text| Committed::parse(text).ok()),
                        ..AssignmentText::default()
                    };
                    let event = WorldEvent::Pod(Box::new(facts.clone()));
                    if members.iter().all(|member| member.handoff.node.is_some()) {
                        bound.push(number);
                        self.note_domains(number);
                    }
                    let more =
                        self.scheduler.report(EffectResult::Bind { ticket, result: BindResult::Done }, self.moment());
                    bound.extend(self.perform(more));
                    bound.extend(self.apply(event));
                }
                Effect::RateMix(sample) => {
                    let tables = Box::new(sample.tables());
                    let more = self.scheduler.report(EffectResult::Tables(tables), self.moment());
                    bound.extend(self.perform(more));
                }
                // Conditions and events, which have no reader here.
                _ => {}
            }
        }
        bound
    }

    fn forget(&mut self, pod: PodNumber) -> Vec<PodNumber> {
        let mut bound = Vec::new();
        for facts in self.live.remove(&pod).into_iter().flatten() {
            let PodRef { key, uid } = facts.handoff.pod;
            bound.extend(self.apply(WorldEvent::PodGone(key, uid)));
        }
        bound
    }

    /// The members of a gang, or a single pod.
    fn pods(&self, pod: PodNumber, ask: usize) -> Vec<PodFacts> {
        let (template, gang) = &self.templates[ask];
        let member = |name: String| {
            let mut facts = template.clone();
            facts.handoff.pod = PodRef::new("trace", &format!("p{name}"), &format!("u{name}"));
            facts.handoff.created = self.moment().wall;
            facts
        };
        let Some(gang) = gang else { return vec![member(pod.to_string())] };
        let declared = declared(&format!("g{pod}"), gang).map(Arc::new);
        let spec: Shared<PodSpec> = PodSpec { gang: declared, ..(*template.spec).clone() }.into();
        let member = |n: u32| PodFacts { spec: spec.clone(), ..member(format!("{pod}-{n}")) };
        (0..gang.members).map(member).collect()
    }

    /// Counts the domains in which the members of a gang run.
    fn note_domains(&mut self, pod: PodNumber) {
        let members = self.live.get(&pod).filter(|members| members.iter().all(|member| member.spec.gang.is_some()));
        let world = self.scheduler.world();
        let node = |member: &PodFacts| world.node(world.node_id(member.handoff.node.as_deref()?)?)?.facts.as_ref();
        let Some(nodes) = members.map(|members| members.iter().filter_map(node).collect::<Vec<_>>()) else { return };
        for (label, domains) in &mut self.domains {
            let values: BTreeSet<_> = nodes.iter().map(|facts| facts.domain(label)).collect();
            domains.gangs += 1;
            domains.domains += values.len() as u64;
        }
    }
}

impl SimulatedCluster for Engine {
    fn arrive(&mut self, now: f64, pod: PodNumber, ask: usize) -> Vec<PodNumber> {
        self.pass(now);
        let pods = self.pods(pod, ask);
        self.live.insert(pod, pods.clone());
        let mut placed = Vec::new();
        for facts in pods {
            placed.extend(self.apply(WorldEvent::Pod(Box::new(facts))));
        }
        placed.extend(self.run());
        if !placed.contains(&pod) && self.on_failure == OnFailure::Drop {
            placed.extend(self.forget(pod));
        }
        placed
    }

    fn end(&mut self, now: f64, pod: PodNumber) -> Vec<PodNumber> {
        self.pass(now);
        let mut placed = self.forget(pod);
        placed.extend(self.run());
        placed
    }

    fn wait(&mut self, until: f64) -> Option<(f64, Vec<PodNumber>)> {
        let until = BEGIN + Duration::from_secs_f64(until);
        let next = self.scheduler.next().filter(|next| *next <= until)?;
        self.now = self.now.max(next);
        Some((self.now.saturating_sub(BEGIN).as_secs_f64(), self.run()))
    }

    fn rests(&self) -> Vec<Rest> {
        let rest = |node: &baton_decide::world::Node| {
            let rests = node.stock.as_ref()?.rests(None);
            let left = free(node, rests.percents(), 0)?;
            let gpus = left.gpus.iter().map(|percent| i64::from(*percent) * WHOLE / key::WHOLE).collect();
            Some(Rest {
                machine: *self.machines.get(&node.name)?,
                milli_cpu: left.milli_cpu,
                memory: left.memory,
                gpus,
            })
        };
        self.scheduler.world().nodes().filter_map(|(_, node)| rest(node)).collect()
    }

    fn decisions(&self) -> &[Duration] {
        &self.decisions
    }

    fn domains(&self) -> BTreeMap<Box<str>, GangDomains> {
        self.domains.clone()
    }
}

fn number(pod: &PodRef) -> Option<PodNumber> {
    pod.key.name.strip_prefix('p')?.split('-').next()?.parse().ok()
}

/// The labels of nodes that are layers or that a gang names, each of which some node has.
fn gathered_in(trace: &Trace, layers: &[TopologyLayer]) -> BTreeMap<Box<str>, GangDomains> {
    let label = |name: &str| layers.iter().find(|layer| *layer.name == *name).map_or(name, |layer| &layer.label).into();
    let gangs = || trace.asks.iter().filter_map(|ask| ask.gang.as_ref());
    let named = gangs().flat_map(|gang| gang.topology.required.iter().chain(&gang.topology.preferred));
    let mut labels: BTreeSet<Box<str>> = named.map(|name| label(name)).collect();
    labels.extend(layers.iter().filter(|_| gangs().next().is_some()).map(|layer| layer.label.clone()));
    let has = |machine: &TraceMachine, label: &str| label.split(',').any(|one| machine.labels.contains_key(one));
    labels.retain(|label| trace.machines.iter().any(|machine| has(machine, label)));
    labels.into_iter().map(|label| (label, GangDomains::default())).collect()
}

/// What a member says of its gang.
fn declared(name: &str, gang: &TraceGang) -> Option<Declared> {
    let stated = [(gang::key::NAME, name.to_owned()), (gang::key::MIN_AVAILABLE, gang.members.to_string())];
    let annotations = stated.map(|(key, value)| (key.to_owned(), value)).into();
    let annotations = Some(&annotations);
    let source = DeclarationSource { namespace: "trace", labels: None, annotations, scheduling_group: None };
    let mut declared = Declared::read(&source, || None)?;
    declared.koordinator.topology = Some(Arc::new(gang.topology.clone())).filter(|topology| !topology.is_empty());
    Some(declared)
}

fn gpu(at: usize, minor: u32) -> Option<DeviceInfo> {
    let whole = key::WHOLE.to_string();
    let resources = json!({key::GPU_CORE: whole, key::GPU_MEMORY: GPU_BYTES.to_string(), key::GPU_MEMORY_RATIO: whole});
    let id = format!("GPU-{at}-{minor}");
    let gpu = json!({"type": "gpu", "id": id, "minor": minor, "health": true, "resources": resources});
    serde_json::from_value(gpu).ok()
}

/// A pod that asks for it. Baton hands out percents: a share is rounded up to the next one.
fn template(ask: &TraceAsk) -> PodFacts {
    let mut limits = vec![("cpu", Quantity::millis(ask.milli_cpu)), ("memory", Quantity::bytes(ask.memory))];
    let count = i64::from(ask.gpus);
    let percent = count * ((ask.milli * key::WHOLE + WHOLE - 1) / WHOLE);
    match (ask.gpus, ask.milli) {
        (0, _) => {}
        (_, WHOLE) => limits.push((key::NVIDIA_GPU, Quantity::units(count))),
        (gpus, _) => {
            if gpus > 1 {
                limits.push((key::GPU_SHARED, Quantity::units(count)));
            }
            limits.push((key::GPU_CORE, Quantity::units(percent)));
            limits.push((key::GPU_MEMORY_RATIO, Quantity::units(percent)));
        }
    }
    let requests = RequestParts {
        containers: vec![(ContainerKind::App, Resources::of(limits.iter().copied()))],
        ..RequestParts::default()
    };
    let container = PodContainer {
        name: "main".into(),
        kind: ContainerKind::App,
        request: ContainerRequest::judge(limits.into_iter().filter(|(name, _)| key::is_device_resource(name))),
        running: false,
        started: false,
        lacks_devices: false,
        ended: None,
        dra_backed: Vec::new(),
    };
    let model = NodeRequirement { key: MODEL.to_owned(), operator: NodeOperator::In, values: ask.models.clone() };
    let node_required = (!ask.models.is_empty() && ask.gpus > 0)
        .then(|| vec![NodeTerm { expressions: vec![model], fields: Vec::new() }]);
    PodFacts {
        handoff: HandoffPod {
            pod: PodRef::new("trace", "", ""),
            node: None,
            scheduler_name: "baton-scheduler".into(),
            phase: Phase::Pending,
            deleting: None,
            grace_seconds: 30,
            scheduled_condition: false,
            resizing: false,
            created: Timestamp::UNIX_EPOCH,
            containers: vec![container].into(),
            assignment: AssignmentText::default(),
        },
        spec: PodSpec { requests: requests.total(), node_required, ..PodSpec::default() }.into(),
        rank: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_contract::gang::TopologySpec;
    use baton_decide::core::rules::plugins::{DefaultSet, Profile, default_plugins};

    /// A cluster of these machines, given by GPUs and model.
    fn engine(machines: &[(u32, &str)], asks: &[TraceAsk], profile: Profile, on_failure: OnFailure) -> Engine {
        let machine = |(at, (gpus, model)): (usize, &(u32, &str))| TraceMachine {
            name: at.to_string(),
            milli_cpu: 64_000,
            memory: 1 << 38,
            gpus: *gpus,
            model: (*model).to_owned(),
            labels: [("rack".to_owned(), format!("r{}", at / 2))].into(),
        };
        let mut trace = Trace::of(String::new(), machines.iter().enumerate().map(machine).collect());
        asks.iter().for_each(|ask| trace.add(ask.clone(), None, 1));
        let mut set = DefaultSet::default();
        set.choice.lists = set.choice.lists.of_profile(profile);
        let order: Vec<usize> = (0..machines.len()).collect();
        Engine::new(&trace, &order, default_plugins(&set).unwrap(), WorldPolicy::default(), on_failure)
    }

    fn ask(gpus: u32, milli: i64, models: &[&str]) -> TraceAsk {
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        TraceAsk { milli_cpu: 1000, memory: 1 << 30, gpus, milli, models, gang: None }
    }

    fn gpus(engine: &Engine) -> Vec<Vec<i64>> {
        engine.rests().into_iter().map(|rest| rest.gpus).collect()
    }

    #[test]
    fn pods_of_every_size_get_devices_and_give_them_back() {
        let asks = [
            ask(1, 1000, &[]),
            ask(1, 255, &["A10"]),
            ask(2, 500, &["T4", "A10"]),
            ask(0, 0, &[]),
            ask(1, 1000, &["B200"]),
        ];
        for profile in [Profile::Binpack, Profile::Utilization] {
            let mut engine = engine(&[(2, "A10"), (4, "T4")], &asks, profile, OnFailure::Drop);
            let placed: Vec<bool> = (0..asks.len()).map(|at| engine.arrive(at as f64, at, at) == [at]).collect();
            assert_eq!(placed, [true, true, true, true, false], "{profile:?}: no node has a B200");
            let left: i64 = gpus(&engine).iter().flatten().sum();
            assert_eq!(left, 6000 - 1000 - 260 - 1000, "{profile:?}: a share is rounded up to a percent");
            (0..asks.len()).for_each(|at| assert!(engine.end(100.0, at).is_empty(), "{profile:?}"));
            assert_eq!(gpus(&engine), [vec![1000; 2], vec![1000; 4]], "{profile:?}");
            assert_eq!(engine.decisions().len(), asks.len());
        }
    }

    #[test]
    fn a_gang_starts_as_a_whole_in_one_rack_or_where_there_is_room() {
        let gang = |required: Option<&str>, preferred: Option<&str>| {
            let topology = TopologySpec::short(required, preferred).unwrap().unwrap_or_default();
            TraceAsk { gang: Some(TraceGang { members: 2, topology }), ..ask(2, 1000, &[]) }
        };
        let asks = [ask(1, 1000, &[]), gang(None, Some("rack")), gang(Some("rack"), None)];
        let mut engine = engine(&[(2, "T4"); 4], &asks, Profile::Binpack, OnFailure::Queue);
        let placed: Vec<bool> = [0, 1, 2].map(|at| engine.arrive(0.0, at, at) == [at]).into();
        assert_eq!(placed, [true, true, false], "a rack is left for the first gang, half a rack for the second");
        assert_eq!(engine.end(60.0, 0), [2]);
        assert_eq!(engine.domains()["rack"], GangDomains { gangs: 2, domains: 2 });
        assert!(engine.end(120.0, 1).is_empty() && engine.end(180.0, 2).is_empty());
        assert_eq!(gpus(&engine), vec![vec![1000; 2]; 4]);
    }

    #[test]
    fn a_pod_that_waits_gets_the_place_of_one_that_ends() {
        let mut engine = engine(&[(1, "T4")], &[ask(1, 1000, &[])], Profile::Binpack, OnFailure::Queue);
        assert_eq!([engine.arrive(0.0, 0, 0), engine.arrive(1.0, 1, 0)], [vec![0], vec![]]);
        while let Some((at, placed)) = engine.wait(3599.0) {
            assert!(placed.is_empty() && at <= 3599.0, "{at}");
        }
        let mut placed = engine.end(3600.0, 0);
        placed.extend(std::iter::from_fn(|| engine.wait(3700.0)).flat_map(|(_, placed)| placed));
        assert_eq!(placed, [1]);
    }
}
