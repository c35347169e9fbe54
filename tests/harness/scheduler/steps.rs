//! Steps of a test: something happens to the cluster, and the scheduler does all that it can do at that time.

use std::time::Duration;

use baton::contract::PodRef;
use baton::contract::inventory::Device;
use baton::decide::scheduler::RequestId;
use baton::decide::tyjob::placement::PriorityClassFacts;
use baton::decide::world::{PodFacts, WorldEvent};

use super::{TestScheduler, gpu_device, pod};

impl TestScheduler {
    /// A cluster of one node.
    pub fn on(node: &str, gpus: u32) -> Self {
        let mut cluster = Self::new();
        cluster.node(node, gpus);
        cluster
    }

    /// Nodes of so many GPUs each.
    pub fn on_each(nodes: &[&str], gpus: u32) -> Self {
        let mut cluster = Self::new();
        nodes.iter().for_each(|node| _ = cluster.node(node, gpus));
        cluster
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

    /// So much time passes, and nothing runs meanwhile.
    pub fn later(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        self
    }

    /// Whether requests stay unanswered from now on; see [`TestScheduler::deliver`].
    pub fn hold(&mut self, hold: bool) -> &mut Self {
        self.hold = hold;
        self
    }

    pub fn run_once(&mut self) -> &mut Self {
        let effects = self.scheduler.run(self.moment());
        self.perform(effects)
    }

    /// Another scheduler requests the bind of a pod to a node, to be answered within ten seconds.
    pub fn requests(&mut self, id: u64, pod: &PodRef, node: &str) -> &mut Self {
        let effects = self.scheduler.request_bind(RequestId(id), pod, node, Duration::from_secs(10), self.moment());
        self.perform(effects)
    }

    pub fn priority_class(&mut self, name: &str, value: i32) -> &mut Self {
        let class = PriorityClassFacts { value, default: false, never_preempts: false };
        self.event(WorldEvent::PriorityClass(name.into(), class))
    }

    pub fn loses_node(&mut self, name: &str) -> &mut Self {
        self.nodes.remove(name);
        self.event(WorldEvent::NodeGone(name.into()))
    }

    /// As [`TestScheduler::pod`], of a pod with more to it. The scheduler has not seen to it yet.
    pub fn pod_as(&mut self, name: &str, limits: &[(&str, &str)], change: impl FnOnce(&mut PodFacts)) -> &mut Self {
        let mut facts = pod(name, limits, self.now);
        change(&mut facts);
        self.submit(facts)
    }

    pub fn comes(&mut self, name: &str, limits: &[(&str, &str)]) -> &mut Self {
        self.pod(name, limits).settled()
    }

    pub fn comes_as(&mut self, name: &str, limits: &[(&str, &str)], change: impl FnOnce(&mut PodFacts)) -> &mut Self {
        self.pod_as(name, limits, change).settled()
    }

    pub fn enters(&mut self, facts: PodFacts) -> &mut Self {
        self.submit(facts).settled()
    }

    pub fn goes(&mut self, name: &str) -> &mut Self {
        self.delete(name).settled()
    }

    /// The pod succeeds.
    pub fn ends(&mut self, name: &str) -> &mut Self {
        self.finish(name);
        self.settled()
    }

    /// The agent has served the pod that holds the lock.
    pub fn serves(&mut self, node: &str) -> &mut Self {
        self.agent_releases(node).settled()
    }

    /// The agents have served every pod that holds a lock. The scheduler has not seen to it yet.
    pub fn all_release(&mut self) {
        let locked: Vec<String> = self.locks.keys().cloned().collect();
        locked.iter().for_each(|node| _ = self.agent_releases(node));
    }

    /// The node's daemon publishes GPUs that differ from what it has at first.
    pub fn device(&mut self, node: &str, gpus: u32, change: impl FnOnce(&mut Device)) -> &mut Self {
        let mut device = gpu_device(node, gpus);
        change(&mut device);
        self.event(WorldEvent::Devices(Box::new(device)))
    }
}
