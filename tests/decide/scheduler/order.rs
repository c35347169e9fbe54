//! Room that comes free is offered in the order of the queue: to single pods, groups and TYJobs alike, one piece after the other.
//!
//! Every world is its seed. `ORDER_SEED` runs one world, `ORDER_WORLDS` sets how many are run.

use baton::decide::core::queue::Item as Queued;
use baton::decide::world::Node;

use crate::harness::tyjobs::key as key_of;
use crate::prelude::*;

const GPUS: u32 = 8;

fn ms(count: u32) -> Duration {
    Duration::from_millis(u64::from(count))
}

/// What waits, or runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Gang,
    Job,
}

/// So many pods, all of them needed, with so many GPUs each. It stands at `(-priority, creation)` in the order.
#[derive(Debug, Clone)]
struct Item {
    kind: Kind,
    name: String,
    pods: u32,
    gpus: u32,
    order: (i32, Duration),
    may_preempt: bool,
}

struct Cluster {
    jobs: TestJobs,
    waiting: Vec<Item>,
    running: Vec<Item>,
}

fn gpus(count: u32) -> String {
    count.to_string()
}

impl Cluster {
    fn new(nodes: u32, config: Config) -> Self {
        let mut jobs = TestJobs::with(config);
        jobs.cluster.watchful = false;
        (0..nodes).for_each(|n| _ = jobs.node(&format!("n{n}"), 64, GPUS));
        Self { jobs, waiting: Vec::new(), running: Vec::new() }
    }

    fn facts(&self, name: &str, item: &Item) -> PodFacts {
        let mut facts = pod(name, &[(key::NVIDIA_GPU, &gpus(item.gpus))], self.jobs.cluster.now);
        facts.handoff.created = wall(item.order.1);
        (facts.spec.priority, facts.spec.never_preempts) = (-item.order.0, !item.may_preempt);
        facts
    }

    fn submit(&mut self, item: Item) {
        match item.kind {
            Kind::Single => {
                let facts = self.facts(&item.name, &item);
                self.jobs.cluster.submit(facts);
            }
            Kind::Gang => {
                let keys = gang(&item.name, &item.pods.to_string(), &[]);
                for n in 0..item.pods {
                    let mut facts = self.facts(&format!("{}-{n}", item.name), &item);
                    facts.spec.gang = declared("ml", &keys);
                    self.jobs.cluster.submit(facts);
                }
            }
            Kind::Job => {
                let count = gpus(item.gpus);
                let limits: &[(&str, &str)] = &[(key::NVIDIA_GPU, &count)];
                let workers = item.pods as i32 - 1;
                let mut facts = self.jobs.job(&item.name, limits, (workers, limits));
                facts.created = wall(item.order.1);
                facts.spec.as_mut().unwrap().min_workers = workers.into();
                self.jobs.submit(facts);
            }
        }
        self.waiting.push(item);
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            self.jobs.cluster.settle();
            if self.jobs.cluster.locks.is_empty() {
                break;
            }
            self.jobs.cluster.all_release();
        }
    }

    /// Nodes of the pods of an item that has started.
    fn nodes_of(&self, item: &Item) -> Vec<String> {
        let bound = |name: String| self.jobs.cluster.node_of(&name).map(str::to_owned);
        match item.kind {
            Kind::Single => bound(item.name.clone()).into_iter().collect(),
            Kind::Gang => (0..item.pods).filter_map(|n| bound(format!("{}-{n}", item.name))).collect(),
            Kind::Job => {
                let record = self.jobs.cluster.job_records().get(&key_of(&item.name));
                record
                    .into_iter()
                    .flat_map(|record| record.places.values())
                    .map(|place| place.node.to_string())
                    .collect()
            }
        }
    }

    /// Free GPUs of each node that has no owner: it is kept for none, and nothing is nominated there.
    fn free(&self) -> BTreeMap<String, i64> {
        let world = self.jobs.cluster.world();
        let nominated: Vec<_> = self.jobs.cluster.scheduler.preemption().all().values().map(|of| of.node).collect();
        let open = world.nodes().filter(|(id, node)| node.kept_for.is_none() && !nominated.contains(id));
        open.map(|(_, node)| (node.name.to_string(), free_gpus(node))).collect()
    }

    /// Lets everything happen that one event brings about: no item that waits could start with what is free and what later ones got.
    fn settle_in_order(&mut self, seed: u64) {
        let open = self.free();
        self.settle();
        let mut waiting = std::mem::take(&mut self.waiting);
        let started: Vec<Item> = waiting.extract_if(.., |item| !self.nodes_of(item).is_empty()).collect();
        self.waiting = waiting;
        for item in &self.waiting {
            let mut room = self.free();
            room.retain(|node, _| open.contains_key(node));
            let later: Vec<&Item> = started.iter().filter(|other| other.order > item.order).collect();
            for (node, other) in
                later.iter().flat_map(|other| self.nodes_of(other).into_iter().map(move |node| (node, other)))
            {
                room.entry(node).and_modify(|free| *free += i64::from(other.gpus));
            }
            assert!(later.is_empty() || !item.fits(&room), "seed {seed}: {item:?} waits, {later:?} have started");
        }
        self.running.extend(started);
    }

    /// A pod or job of what runs ends.
    fn end_one(&mut self, dice: &mut Dice) {
        if self.running.is_empty() {
            return;
        }
        let at = dice.below(self.running.len() as u32) as usize;
        let item = &mut self.running[at];
        match item.kind {
            Kind::Job => _ = self.jobs.remove(&item.name),
            Kind::Single => end_pod(&mut self.jobs, &item.name, dice),
            Kind::Gang => {
                item.pods -= 1;
                end_pod(&mut self.jobs, &format!("{}-{}", item.name, item.pods), dice);
            }
        }
        if item.kind != Kind::Gang || item.pods == 0 {
            self.running.swap_remove(at);
        }
    }

    /// Pods that are being deleted go.
    fn deleted_go(&mut self) {
        let is_deleted = |facts: &&PodFacts| facts.handoff.deleting.is_some();
        let deleted: Vec<PodKey> =
            self.jobs.cluster.pods.values().filter(is_deleted).map(|facts| facts.handoff.pod.key.clone()).collect();
        for key in deleted {
            self.jobs.cluster.delete(&key.name);
            self.running.retain(|item| *item.name != *key.name);
        }
    }
}

/// It succeeds, or is deleted: it is marked first, and goes a while later.
fn end_pod(jobs: &mut TestJobs, name: &str, dice: &mut Dice) {
    if dice.below(2) == 0 {
        jobs.cluster.finish(name);
    } else {
        jobs.cluster.change_pod(name, |facts| {
            facts.handoff.deleting = Some(Deletion { at: facts.handoff.created, grace_seconds: 30 });
        });
    }
}

impl Item {
    /// All of its pods have a node: exact, because they are equal.
    fn fits(&self, room: &BTreeMap<String, i64>) -> bool {
        let places: i64 = room.values().map(|free| free / i64::from(self.gpus)).sum();
        places >= i64::from(self.pods)
    }
}

fn free_gpus(node: &Node) -> i64 {
    let all = node.facts.as_ref().map_or(0, |facts| facts.allocatable.scalar(key::NVIDIA_GPU));
    all - node.used.scalar(key::NVIDIA_GPU)
}

/// Items of every kind, priority and age on full nodes, of which parts come free.
fn world(seed: u64) {
    let mut dice = Dice(seed);
    let mut config = Config::default();
    if dice.below(4) == 0 {
        config.earmarks.after = Duration::from_secs(2);
    }
    let nodes = 1 + dice.below(3);
    let mut cluster = Cluster::new(nodes, config);
    let filler = |name: String, gpus, order| Item {
        kind: Kind::Single,
        name,
        pods: 1,
        gpus,
        order: (0, order),
        may_preempt: false,
    };
    let now = cluster.jobs.cluster.now;
    for n in 0..nodes {
        let gpus = dice.pick(&[1, 2, 4, 8]);
        (0..GPUS / gpus).for_each(|k| cluster.submit(filler(format!("filler-{n}-{k}"), gpus, now)));
    }
    cluster.settle_in_order(seed);
    assert_eq!(cluster.waiting.len(), 0, "seed {seed}");
    let preempts = dice.below(5) == 0;
    for n in 0..6 + dice.below(14) {
        match dice.below(9) {
            0..=3 => {
                let kind = dice.pick(&[Kind::Single, Kind::Gang, Kind::Job]);
                let pods = if kind == Kind::Single { 1 } else { 2 + dice.below(2) };
                // The clock of the API server may step back between creations.
                let age = if dice.below(4) == 0 { ms(dice.below(4000)) } else { Duration::ZERO };
                let created = cluster.jobs.cluster.now.saturating_sub(age) + Duration::from_nanos(u64::from(n));
                let priority = if kind == Kind::Job { 0 } else { dice.pick(&[0, 0, 10]) };
                let may_preempt = preempts && kind == Kind::Single;
                let (name, gpus) = (format!("i{:02}", 99 - n), dice.pick(&[1, 2, 4, 8]));
                cluster.submit(Item { kind, name, pods, gpus, order: (-priority, created), may_preempt });
            }
            4 => cluster.deleted_go(),
            5 => {
                let node = format!("n{}", dice.below(nodes));
                cluster.jobs.cluster.change_node(&node, |facts| {
                    facts.labels.insert("turn".into(), n.to_string());
                });
            }
            6 => cluster.jobs.cluster.now += ms(1 + dice.below(1500)),
            _ => cluster.end_one(&mut dice),
        }
        cluster.settle_in_order(seed);
    }
    // Nothing starves.
    for _ in 0..3 {
        cluster.deleted_go();
        cluster.jobs.cluster.later(1);
        cluster.settle();
    }
    let room = cluster.free();
    let starves = |item: &&Item| cluster.nodes_of(item).is_empty() && item.fits(&room);
    assert!(cluster.waiting.iter().find(starves).is_none(), "seed {seed}: {:?} in {room:?}", cluster.waiting);
}

#[test]
fn nothing_starts_with_room_that_an_earlier_item_could_start_with() {
    let of = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = of("ORDER_SEED") {
        return world(seed);
    }
    let worlds = of("ORDER_WORLDS").unwrap_or(1000);
    println!("seeds 1 to {worlds}");
    (1..=worlds).for_each(world);
}

#[test]
fn a_pod_for_which_a_node_is_kept_is_tried_although_one_of_its_template_is_older() {
    let mut config = Config::default();
    (config.earmarks.after, config.earmarks.share) = (Duration::from_secs(5), 100);
    config.earmarks.limit = Duration::from_secs(30);
    let mut cluster = TestScheduler::with(config, DefaultSet::default());
    for node in ["n", "m"] {
        cluster.node(node, GPUS);
        (0..GPUS).for_each(|n| _ = cluster.pod(&format!("{node}-{n}"), ONE));
        cluster.settle();
        while let Some(node) = cluster.locks.keys().next().cloned() {
            cluster.serves(&node);
        }
    }
    for name in ["older", "younger"] {
        cluster.later(1).comes(name, &[(key::NVIDIA_GPU, &gpus(GPUS))]);
    }
    let kept_for = |cluster: &TestScheduler| {
        let item = cluster.scheduler.earmarks().all().first().map(|earmark| earmark.item().clone());
        let name = |item| match item {
            Queued::Pod(id) => cluster.world().pod(id).map(|pod| pod.key().name.to_string()),
            _ => None,
        };
        item.and_then(name)
    };
    // The older one has had the node for as long as it may.
    for _ in 0..600 {
        cluster.wait(1);
        if kept_for(&cluster).as_deref() == Some("younger") {
            break;
        }
    }
    assert_eq!(kept_for(&cluster).as_deref(), Some("younger"));
    let is_kept = |(_, node): &(_, &Node)| node.kept_for.is_some();
    let node = cluster.world().nodes().find(is_kept).map(|(_, node)| node.name.to_string()).unwrap();
    (0..GPUS).for_each(|n| cluster.finish(&format!("{node}-{n}")));
    assert_eq!(cluster.settled().nodes_of(["younger", "older"]), [Some(&*node), None]);
}
