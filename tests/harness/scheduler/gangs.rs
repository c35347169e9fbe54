//! Verbs for gangs: members with declarations as users write them, PodGroups, and what is asserted at every rest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton::contract::gang::key::NETWORK_TOPOLOGY_INDEX;
use baton::contract::gang::{GangId, PodGroupApi};
use baton::contract::{PodKey, PodRef, Quantity};
use baton::decide::core::GangPolicy;
use baton::decide::core::rules::plugins::DefaultSet;
use baton::decide::pod::Phase;
use baton::decide::scheduler::Config;
use baton::decide::world::gangs::{DeclarationSource, Declared, MemberState, Owner, PodGroupFacts};
use baton::decide::world::{PodFacts, WorldEvent};

use super::{TestScheduler, pod, wall};

pub const G: &str = "gang.scheduling.koordinator.sh/";
pub const P: &str = "pod-group.scheduling.sigs.k8s.io";

/// A cluster with gangs. Pods ask for one CPU unless said otherwise.
pub struct TestGangs {
    pub cluster: TestScheduler,
    /// Groups may rest with reservations: some gang is NonStrict.
    pub accumulating: bool,
}

/// Keys of a Koordinator gang: name, minimum, and more without their prefix.
pub fn gang<'a>(name: &'a str, min: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(String, String)> {
    let own = [("name", name), ("min-available", min)];
    let full = |key: &str| if key.contains('/') { key.to_owned() } else { format!("{G}{key}") };
    own.iter().chain(more).map(|(key, value)| (full(key), (*value).to_owned())).collect()
}

impl TestGangs {
    /// One node of this many CPUs.
    pub fn new(cpus: u32) -> Self {
        let mut gangs = Self::with(Config::default());
        gangs.node("n", cpus);
        gangs
    }

    pub fn with(config: Config) -> Self {
        Self { cluster: TestScheduler::with(config, DefaultSet::default()), accumulating: false }
    }

    /// And groups may rest with reservations.
    pub fn accumulating(self) -> Self {
        Self { accumulating: true, ..self }
    }

    /// No node yet, and an operator with this policy.
    pub fn by(policy: GangPolicy) -> Self {
        Self::with(Config { gangs: policy, ..Config::default() })
    }

    /// And members that ask for this gang have come. The scheduler has not seen to them yet.
    pub fn asked(mut self, name: &str, count: usize, min: &str, keys: &[(&str, &str)]) -> Self {
        self.members(name, count, &gang(name, min, keys));
        self
    }

    /// The scheduler starts again, and so long passes.
    pub fn restart(&mut self, seconds: u64) -> &mut Self {
        self.cluster.restart();
        self.after(seconds)
    }

    /// The same, where groups may rest with reservations.
    pub fn holding(cpus: u32) -> Self {
        Self { accumulating: true, ..Self::new(cpus) }
    }

    /// Nodes of so many GPUs, with CPUs for all.
    pub fn with_gpus(nodes: &[(&str, u32)]) -> Self {
        let mut gangs = Self::with(Config::default());
        nodes.iter().for_each(|(node, gpus)| _ = gangs.cluster.node(node, *gpus));
        gangs
    }

    /// Nodes `n0` … of one CPU each, without devices and agent.
    pub fn on_ones(count: usize) -> Self {
        let mut gangs = Self::with(Config::default());
        (0..count).for_each(|n| _ = gangs.plain_node(&format!("n{n}"), 1, "x"));
        gangs
    }

    /// One node without devices and agent.
    pub fn on_plain(node: &str, cpus: u32, pool: &str) -> Self {
        let mut gangs = Self::with(Config::default());
        gangs.plain_node(node, cpus, pool);
        gangs
    }

    pub fn node(&mut self, name: &str, cpus: u32) -> &mut Self {
        self.cluster.node(name, 8);
        self.cluster.change_node(name, |facts| facts.allocatable.set("cpu", Quantity::units(i64::from(cpus))));
        self
    }

    /// A node without devices and agent.
    pub fn plain_node(&mut self, name: &str, cpus: u32, pool: &str) -> &mut Self {
        self.cluster.plain.insert(name.into());
        self.cluster.plain_node(name, 0);
        self.cluster.change_node(name, |facts| {
            facts.allocatable.set("cpu", Quantity::units(i64::from(cpus)));
            let labels = [("pool", pool), ("kubernetes.io/hostname", name)];
            facts.labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        });
        self
    }

    /// `namespace/name`, or a name in `ml`.
    pub fn key(name: &str) -> PodKey {
        let (namespace, name) = name.split_once('/').unwrap_or(("ml", name));
        PodKey::new(namespace, name)
    }

    /// A member of one CPU and this priority.
    pub fn of_priority(&mut self, name: &str, priority: i32, keys: &[(String, String)]) -> &mut Self {
        self.asks_as(name, &[("cpu", "1")], keys, |facts| facts.spec.priority = priority)
    }

    /// Members `<prefix>-0` … of one CPU and this priority.
    pub fn all_of_priority(
        &mut self,
        prefix: &str,
        count: usize,
        priority: i32,
        keys: &[(String, String)],
    ) -> &mut Self {
        (0..count).for_each(|n| _ = self.of_priority(&format!("{prefix}-{n}"), priority, keys));
        self
    }

    /// The pod's keys are edited.
    pub fn restate(&mut self, name: &str, keys: &[(String, String)]) -> &mut Self {
        self.change(name, |facts| facts.spec.gang = declared("ml", keys))
    }

    /// A member that asks for `limits`.
    pub fn asks(&mut self, name: &str, limits: &[(&str, &str)], keys: &[(String, String)]) {
        self.asks_as(name, limits, keys, |_| ());
    }

    /// Members `<prefix>-0` … that each ask for `limits`.
    pub fn all_ask(
        &mut self,
        prefix: &str,
        count: usize,
        limits: &[(&str, &str)],
        keys: &[(String, String)],
    ) -> &mut Self {
        (0..count).for_each(|n| self.asks(&format!("{prefix}-{n}"), limits, keys));
        self
    }

    /// The same as [`TestGangs::asks`], of a pod with more to it.
    pub fn asks_as(
        &mut self,
        name: &str,
        limits: &[(&str, &str)],
        keys: &[(String, String)],
        change: impl FnOnce(&mut PodFacts),
    ) -> &mut Self {
        let mut facts = self.facts(name, limits, keys);
        change(&mut facts);
        self.cluster.submit(facts);
        self
    }

    pub fn facts(&self, name: &str, limits: &[(&str, &str)], keys: &[(String, String)]) -> PodFacts {
        let key = Self::key(name);
        let mut facts = pod(&key.name, limits, self.cluster.now);
        facts.handoff.pod =
            PodRef::new(&key.namespace, &key.name, &format!("uid-{key}-{}", self.cluster.now.as_nanos()));
        facts.spec.gang = declared(&key.namespace, keys);
        let rank = keys.iter().find(|(key, _)| key == NETWORK_TOPOLOGY_INDEX);
        facts.rank = rank.and_then(|(_, text)| text.parse().ok());
        facts
    }

    /// A member that asks for one CPU.
    pub fn member(&mut self, name: &str, keys: &[(String, String)]) {
        self.asks(name, &[("cpu", "1")], keys);
    }

    /// A member that the Job of this uid has made.
    pub fn job_member(&mut self, name: &str, job: &str, keys: &[(String, String)]) -> &mut Self {
        self.asks_as(name, &[("cpu", "1")], keys, |facts| owned_by(facts, "Job", "batch/v1", job))
    }

    /// The containers of a pod end badly.
    pub fn fail(&mut self, name: &str) -> &mut Self {
        let now = self.cluster.now;
        self.change(name, |facts| end(facts, Phase::Failed, now))
    }

    /// Members `<gang>-0` …
    pub fn members(&mut self, prefix: &str, count: usize, keys: &[(String, String)]) -> &mut Self {
        (0..count).for_each(|n| self.member(&format!("{prefix}-{n}"), keys));
        self
    }

    /// Members come, and everything happens that needs no time: see [`TestGangs::settle`].
    pub fn come(&mut self, prefix: &str, count: usize, keys: &[(String, String)]) -> &mut Self {
        self.members(prefix, count, keys).settled()
    }

    pub fn comes(&mut self, name: &str, keys: &[(String, String)]) -> &mut Self {
        self.member(name, keys);
        self.settled()
    }

    pub fn goes(&mut self, name: &str) -> &mut Self {
        self.delete(name);
        self.settled()
    }

    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut PodFacts)) -> &mut Self {
        let key = Self::key(name);
        change(self.cluster.pods.get_mut(&key).unwrap());
        self.cluster.tell_pod(&key);
        self
    }

    pub fn pod_group(&mut self, name: &str, change: impl FnOnce(&mut PodGroupFacts)) -> &mut Self {
        let mut facts = PodGroupFacts::new(PodGroupApi::Sigs, GangId::parse(name).unwrap());
        facts.created = wall(self.cluster.now);
        change(&mut facts);
        self.cluster.pod_groups.insert(facts.gang.clone(), facts.clone());
        self.cluster.event(WorldEvent::PodGroup(Box::new(facts)));
        self
    }

    pub fn pod_group_gone(&mut self, name: &str) -> &mut Self {
        let id = GangId::parse(name).unwrap();
        self.cluster.pod_groups.remove(&id);
        self.cluster.event(WorldEvent::PodGroupGone(PodGroupApi::Sigs, id));
        self
    }

    pub fn delete(&mut self, name: &str) {
        let key = Self::key(name);
        let facts = self.cluster.pods.remove(&key).unwrap();
        self.cluster.event(WorldEvent::PodGone(key, facts.handoff.pod.uid));
    }

    /// Lets everything happen that needs no time, agents serving the bound pods, and checks what holds at every rest.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            self.cluster.settle();
            if self.cluster.locks.is_empty() {
                break;
            }
            self.cluster.all_release();
        }
        self.cluster.audit();
        if !self.accumulating {
            assert!(self.cluster.reservations() == 0, "a Strict group holds nothing at rest");
        }
    }

    pub fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.cluster.now += Duration::from_secs(1);
            if self.cluster.now.as_secs().is_multiple_of(30) {
                self.cluster.beat_all();
            }
            self.settle();
        }
    }

    /// The cluster at rest.
    pub fn settled(&mut self) -> &mut Self {
        self.settle();
        self
    }

    /// The cluster after so many seconds.
    pub fn after(&mut self, seconds: u64) -> &mut Self {
        self.wait(seconds);
        self
    }

    /// Names of bound pods, `namespace/` left out for `ml`.
    pub fn bound(&self) -> Vec<String> {
        let bound = self.cluster.pods.values().filter(|facts| facts.handoff.node.is_some());
        bound
            .map(|facts| {
                let key = &facts.handoff.pod.key;
                if &*key.namespace == "ml" { key.name.to_string() } else { key.to_string() }
            })
            .collect()
    }

    /// How many pods with this prefix are bound.
    pub fn count(&self, prefix: &str) -> usize {
        self.bound().iter().filter(|name| name.starts_with(prefix)).count()
    }

    /// The same of several.
    pub fn counts<const N: usize>(&self, prefixes: [&str; N]) -> [usize; N] {
        prefixes.map(|prefix| self.count(prefix))
    }

    pub fn reserved(&self, name: &str) -> u32 {
        let id = GangId::parse(name).unwrap();
        self.cluster.world().gangs().gang(&id).map_or(0, |gang| gang.counts().reserved)
    }

    /// Bound and reserved members of a gang.
    pub fn stand(&self, name: &str) -> (usize, u32) {
        (self.count(name), self.reserved(&format!("ml/{name}")))
    }

    pub fn state(&self, name: &str) -> MemberState {
        let world = self.cluster.world();
        MemberState::of(world.pod_by_key(&Self::key(name)).unwrap())
    }

    pub fn condition(&self, name: &str) -> &str {
        self.cluster.conditions.get(&*Self::key(name).name).map_or("", String::as_str)
    }

    pub fn reason(&self, name: &str) -> &str {
        self.cluster.reasons.get(&*Self::key(name).name).copied().unwrap_or("")
    }

    pub fn reported(&self, reason: &str) -> usize {
        self.cluster.notices.iter().filter(|(_, found)| *found == reason).count()
    }
}

/// The controller of this uid has made the pod.
pub fn owned_by(facts: &mut PodFacts, kind: &str, api_version: &str, uid: &str) {
    let Some(said) = facts.spec.gang.clone() else { return };
    let owner = Owner { api_version: api_version.into(), kind: kind.into(), name: "web".into(), uid: uid.into() };
    facts.spec.gang = Some(Arc::new(Declared { owner: Some(owner), ..(*said).clone() }));
}

/// The containers of a pod have ended, and its kubelet says so.
pub fn end(facts: &mut PodFacts, phase: Phase, now: Duration) {
    facts.handoff.phase = phase;
    if let Some(said) = &facts.spec.gang {
        facts.spec.gang = Some(Arc::new(Declared { ended: Some(wall(now)), ..(**said).clone() }));
    }
}

/// What a pod with these annotations says. Keys that start with `label:` are labels.
pub fn declared(namespace: &str, keys: &[(String, String)]) -> Option<Arc<Declared>> {
    let mut labels = BTreeMap::new();
    let mut annotations = BTreeMap::new();
    for (key, value) in keys {
        match key.strip_prefix("label:") {
            Some(label) => labels.insert(label.to_owned(), value.clone()),
            None => annotations.insert(key.clone(), value.clone()),
        };
    }
    let source =
        DeclarationSource { namespace, labels: Some(&labels), annotations: Some(&annotations), scheduling_group: None };
    Declared::read(&source, || None).map(Arc::new)
}
