//! The scheduler's metrics in OpenMetrics text.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use baton_decide::core::earmarks::Earmark;
use baton_decide::core::queue::QueueState;
use baton_decide::scheduler::Scheduler;
use baton_decide::tyjob::JobRecord;
use baton_decide::tyjob::placement::JobClass;
use baton_decide::world::World;
use baton_runtime::clock;
use baton_runtime::metrics::{FloatGauge, MetricSet};

/// Nodes by `state`.
type Agents = Family<[(&'static str, &'static str); 1], Gauge>;

/// Counters and gauges; cheap to share.
#[derive(Clone)]
pub struct SchedulerMetrics {
    set: Arc<MetricSet>,
    counters: [Counter; COUNTERS.len()],
    gauges: [Gauge; GAUGES.len()],
    agents: Agents,
    oldest_lock: FloatGauge,
    earmark: FloatGauge,
    pod_waits: Histogram,
    lock_waits: Histogram,
    gang_waits: Histogram,
}

const COUNTERS: [(&str, &str); 16] = [
    ("attempts", "Decisions"),
    ("nodes_judged", "Nodes judged for decisions"),
    ("unschedulable", "Decisions that found no node"),
    ("bound", "Pods bound by this process"),
    ("bind_failures", "Binds that failed for good"),
    ("lock_contended", "Lock writes that found another lock"),
    ("resumed", "Half-done binds that were resumed"),
    ("preempted", "Pods that were evicted to make room"),
    ("gang_attempts", "Attempts of groups of gangs"),
    ("gangs_satisfied", "Groups of gangs that were satisfied"),
    ("gang_timeouts", "Groups of gangs whose wait was over"),
    ("gang_releases", "Groups of gangs that gave back what they held"),
    ("job_rounds", "Rounds over the waiting TYJobs"),
    ("jobs_placed", "Attempts that gave a TYJob places"),
    ("job_places_taken", "Places of TYJobs that their pods have taken over"),
    ("job_places_void", "Places of TYJobs that became void"),
];
const GAUGES: [(&str, &str); 10] = [
    ("leading", "1 while this process leads"),
    ("queue_active", "Pods to be tried"),
    ("queue_backoff", "Pods backing off"),
    ("queue_parked", "Pods waiting for an event"),
    ("in_flight", "Pods with a node that are not bound yet"),
    ("nodes", "Nodes known"),
    ("devices_cordoned", "Devices that people have taken out of use"),
    ("gangs_waiting", "Groups of gangs that wait for a place"),
    ("jobs_waiting", "TYJobs that wait for places"),
    ("job_reservations", "Places of TYJobs that no pod has taken yet"),
];

impl SchedulerMetrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut set = MetricSet::new("baton_scheduler");
        let counters = COUNTERS.map(|(name, help)| set.add(name, help));
        let gauges = GAUGES.map(|(name, help)| set.add(name, help));
        let agents: Agents = set.add("agents", "Nodes known, by the state of their node daemon's Lease");
        for (state, count) in agents_by_lease(&World::default()) {
            agents.get_or_create(&[("state", state)]).set(count);
        }
        let help = "How long the oldest lock of a node has not changed; 0 without a lock";
        let oldest_lock = set.seconds("oldest_lock", help, FloatGauge::default());
        let help = "How long nodes have been kept for the gang or pod that waits for them; 0 without one";
        let earmark = set.seconds("earmark_age", help, FloatGauge::default());
        let mut waits = |name, help, first, length| {
            set.seconds(name, help, Histogram::new(exponential_buckets(first, 2.0, length)))
        };
        // The API server gives creation in whole seconds: 1 s to 2.3 hours.
        let pod_waits = waits("pod_wait", "From the creation of a pod to its bind by this process", 1.0, 14);
        // One write at best: 1 ms to 9 minutes, beyond --node-lock-expiry.
        let help = "From a pod's entry into the queue for its node's lock to the lock";
        let lock_waits = waits("lock_wait", help, 0.001, 20);
        // 0.1 s to 27 minutes.
        let gang_waits = waits("gang_wait", "From the creation of a group of gangs to its satisfaction", 0.1, 15);
        let set = Arc::new(set);
        Self { set, counters, gauges, agents, oldest_lock, earmark, pod_waits, lock_waits, gang_waits }
    }

    /// Takes over what the scheduler counted.
    pub fn update(&self, scheduler: &mut Scheduler) {
        let stats = scheduler.stats();
        let counts = [
            stats.attempts,
            stats.judged,
            stats.unschedulable,
            stats.bound,
            stats.bind_failures,
            stats.contended,
            stats.resumed,
            stats.preempted,
            stats.group_attempts,
            stats.groups_satisfied,
            stats.group_timeouts,
            stats.group_releases,
            stats.job_rounds,
            stats.jobs_placed,
            stats.job_places_taken,
            stats.job_places_void,
        ];
        for (counter, count) in self.counters.iter().zip(counts) {
            counter.inner().store(count, Ordering::Relaxed);
        }
        let (mut active, mut backoff, mut parked) = (0, 0, 0);
        for (_, standing) in scheduler.queue().standings() {
            match standing.state {
                QueueState::Active => active += 1,
                QueueState::BackOff(_) => backoff += 1,
                QueueState::Parked(..) => parked += 1,
                QueueState::Taken => {}
            }
        }
        let records = scheduler.tyjobs().records().values();
        let waiting_jobs = records.clone().filter(|record| record.judged.class == JobClass::Waiting).count();
        let reservations: usize = records.map(JobRecord::reservations).sum();
        let values = [
            i64::from(scheduler.is_leading()),
            active,
            backoff,
            parked,
            scheduler.binder().attempts().len() as i64,
            scheduler.world().nodes().count() as i64,
            scheduler.world().nodes().filter_map(|(_, node)| Some(node.stock.as_ref()?.cordoned() as i64)).sum(),
            scheduler.waiting_groups() as i64,
            waiting_jobs as i64,
            reservations as i64,
        ];
        for (gauge, value) in self.gauges.iter().zip(values) {
            gauge.set(value);
        }
        for (state, count) in agents_by_lease(scheduler.world()) {
            self.agents.get_or_create(&[("state", state)]).set(count);
        }
        let oldest = scheduler.earmarks().all().iter().map(Earmark::since).min();
        let age = oldest.map(|since| clock::mono().saturating_sub(since));
        self.earmark.set(age.unwrap_or_default().as_secs_f64());
        self.oldest_lock.set(oldest_lock(scheduler.world(), clock::mono()).as_secs_f64());
        scheduler.take_pod_waits().into_iter().for_each(|wait| self.pod_waits.observe(wait.as_secs_f64()));
        scheduler.take_lock_waits().into_iter().for_each(|wait| self.lock_waits.observe(wait.as_secs_f64()));
        scheduler.take_group_waits().into_iter().for_each(|wait| self.gang_waits.observe(wait.as_secs_f64()));
    }

    /// The text.
    pub fn print(&self) -> String {
        self.set.print()
    }
}

impl Default for SchedulerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Nodes by their node daemon: alive, silent, never seen.
fn agents_by_lease(world: &World) -> [(&'static str, i64); 3] {
    let mut states = [("fresh", 0), ("stale", 0), ("none", 0)];
    for (_, node) in world.nodes() {
        let state = match &node.agent {
            Some(agent) if agent.live_since.is_some() => 0,
            Some(_) => 1,
            None => 2,
        };
        states[state].1 += 1;
    }
    states
}

/// How long the lock that was seen first has stood.
fn oldest_lock(world: &World, now: Duration) -> Duration {
    let seen = world.locked().filter_map(|id| Some(world.node(id)?.lock.first_seen));
    seen.min().map(|first| now.saturating_sub(first)).unwrap_or_default()
}

#[cfg(test)]
#[path = "../../tests/harness/documented.rs"]
mod documented;

#[cfg(test)]
mod tests {
    use super::*;
    use baton_decide::world::{NodeFacts, WorldEvent};

    #[test]
    fn every_metric_is_documented() {
        super::documented::check(&SchedulerMetrics::new().print(), "baton scheduler");
    }

    #[test]
    fn nodes_are_counted_by_their_daemons_and_the_oldest_lock_is_shown() {
        let at = |seconds| Duration::from_secs(seconds);
        let wall = jiff::Timestamp::UNIX_EPOCH;
        let mut world = World::default();
        for (name, lock) in [("a", None), ("b", Some("locked")), ("c", None)] {
            let facts = NodeFacts { name: name.into(), lock: lock.map(Into::into), ..NodeFacts::default() };
            world.apply(WorldEvent::Node(facts), at(3), wall);
        }
        for (node, renewed) in [("a", wall), ("b", wall - jiff::SignedDuration::from_hours(1))] {
            let (status, version) = (None, "1".into());
            world.apply(WorldEvent::Agent { node: node.into(), status, version, renewed: Some(renewed) }, at(3), wall);
        }
        assert_eq!(agents_by_lease(&world), [("fresh", 1), ("stale", 1), ("none", 1)]);
        assert_eq!(oldest_lock(&world, at(10)), at(7));
        world.apply(WorldEvent::Node(NodeFacts { name: "b".into(), ..NodeFacts::default() }), at(11), wall);
        assert_eq!(oldest_lock(&world, at(12)), Duration::ZERO);
    }
}
