//! The scheduler's metrics in OpenMetrics text.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use baton_contract::{PodKey, key};
use baton_decide::core::earmarks::Earmark;
use baton_decide::core::queue::QueueState;
use baton_decide::explain::{Fleet, namespaces};
use baton_decide::scheduler::{Moment, Scheduler};
use baton_decide::tyjob::JobRecord;
use baton_decide::tyjob::placement::JobClass;
use baton_decide::world::{DeviceState, World};
use baton_runtime::clock;
use baton_runtime::metrics::{FloatGauge, MetricSet, PassingGauge, RequestMetrics, labels};

/// Pods that wait for less are not named.
const LONG_WAIT: Duration = Duration::from_secs(3600);
/// Pods that are named, those that have waited longest: each is a series of its own.
const MOST_PODS: usize = 100;

/// Counters and gauges; cheap to share.
#[derive(Clone)]
pub struct SchedulerMetrics {
    set: Arc<MetricSet>,
    counters: [Counter; COUNTERS.len()],
    gauges: [Gauge; GAUGES.len()],
    daemons: Family<[(&'static str, &'static str); 1], Gauge>,
    devices: PassingGauge,
    largest_free: PassingGauge,
    faults: PassingGauge,
    stuck: PassingGauge,
    namespaces: PassingGauge,
    waits: PassingGauge,
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
const GAUGES: [(&str, &str); 9] = [
    ("leading", "1 while this process leads"),
    ("queue_active", "Pods to be tried"),
    ("queue_backoff", "Pods backing off"),
    ("queue_parked", "Pods waiting for an event"),
    ("in_flight", "Pods with a node that are not bound yet"),
    ("nodes", "Nodes known"),
    ("gangs_waiting", "Groups of gangs that wait for a place"),
    ("jobs_waiting", "TYJobs that wait for places"),
    ("job_reservations", "Places of TYJobs that no pod has taken yet"),
];

impl SchedulerMetrics {
    /// All at zero, beside what the client of the API server counts.
    pub fn new(requests: &RequestMetrics) -> Self {
        let mut set = MetricSet::new("baton_scheduler");
        let counters = COUNTERS.map(|(name, help)| set.add(name, help));
        let gauges = GAUGES.map(|(name, help)| set.add(name, help));
        set.requests(requests);
        let daemons = set.add("daemons", "Nodes known, by the state of their node daemon");
        let help = "Devices by node pool, type and state; reserved ones are held, and free ones off where their node takes no new pods";
        let devices = PassingGauge::of(&mut set, "devices", help);
        let largest_free =
            PassingGauge::of(&mut set, "largest_free_gpus", "Most GPUs that are free on one node of the pool");
        let help = "1 while the daemon of a node with devices does not serve; no series of the other nodes";
        let faults = PassingGauge::of(&mut set, "daemon_fault", help);
        let help = "How long the lock of a node stands, beyond 15 s; no series of the other nodes";
        let stuck = PassingGauge::of_seconds(&mut set, "lock_stuck", help);
        let help = "GPUs that pods of a namespace hold or wait for; shown while a node daemon has --pod-metrics";
        let namespaces = PassingGauge::of(&mut set, "namespace_gpus", help);
        let help = "How long a pod has waited for a node, beyond an hour, the 100 oldest; shown while a node daemon has --pod-metrics";
        let waits_long = PassingGauge::of_seconds(&mut set, "pod_waits", help);
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
        Self {
            set,
            counters,
            gauges,
            daemons,
            devices,
            largest_free,
            faults,
            stuck,
            namespaces,
            waits: waits_long,
            oldest_lock,
            earmark,
            pod_waits,
            lock_waits,
            gang_waits,
        }
    }

    /// Takes over what the scheduler counted, and what its world holds.
    pub fn update(&self, scheduler: &mut Scheduler, now: Moment) {
        let stats = scheduler.stats();
        let counts = [
            stats.attempts,
            stats.judged,
            stats.unschedulable,
            stats.binds.bound,
            stats.binds.failed,
            stats.binds.contended,
            stats.binds.resumed,
            stats.preempted,
            stats.groups.attempts,
            stats.groups.satisfied,
            stats.groups.timeouts,
            stats.groups.releases,
            stats.jobs.rounds,
            stats.jobs.placed,
            stats.jobs.places_taken,
            stats.jobs.places_void,
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
            scheduler.waiting_groups() as i64,
            waiting_jobs as i64,
            reservations as i64,
        ];
        for (gauge, value) in self.gauges.iter().zip(values) {
            gauge.set(value);
        }
        self.show(scheduler, now);
        let oldest = scheduler.earmarks().all().iter().map(Earmark::since).min();
        let age = oldest.map(|since| clock::mono().saturating_sub(since));
        self.earmark.set(age.unwrap_or_default().as_secs_f64());
        self.oldest_lock.set(oldest_lock(scheduler.world(), clock::mono()).as_secs_f64());
        scheduler.take_pod_waits().into_iter().for_each(|wait| self.pod_waits.observe(wait.as_secs_f64()));
        scheduler.take_lock_waits().into_iter().for_each(|wait| self.lock_waits.observe(wait.as_secs_f64()));
        scheduler.take_group_waits().into_iter().for_each(|wait| self.gang_waits.observe(wait.as_secs_f64()));
    }

    fn show(&self, scheduler: &Scheduler, now: Moment) {
        let Fleet { devices, largest_free, daemons, faults, stuck } = scheduler.fleet(now);
        let world = scheduler.world();
        for (state, count) in daemons {
            self.daemons.get_or_create(&[("state", state)]).set(count.into());
        }
        let device = |((pool, kind, state), count): (_, u32)| {
            let state: DeviceState = state;
            (labels([("pool", pool), ("type", kind), ("state", state.word())]), count.into())
        };
        self.devices.show(devices.into_iter().map(device));
        self.largest_free.show(largest_free.into_iter().map(|(pool, free)| (labels([("pool", pool)]), free.into())));
        self.faults.show(faults.into_iter().map(|(node, state)| (labels([("node", node), ("state", state)]), 1.0)));
        self.stuck.show(stuck.into_iter().map(|(node, age)| (labels([("node", node)]), age.as_secs_f64())));
        let named = world.nodes().any(|(_, node)| node.agent_status().is_some_and(|status| status.pod_metrics));
        let (uses, mut waits) = if named { namespaces(world, LONG_WAIT, now.wall) } else { Default::default() };
        let gpus = |percent: i64| percent as f64 / key::WHOLE as f64;
        self.namespaces.show(uses.into_iter().flat_map(|(namespace, of)| {
            let states = [("held", of.held), ("waiting", of.waiting)];
            states.map(|(state, percent)| (labels([("namespace", namespace), ("state", state)]), gpus(percent)))
        }));
        waits.sort_unstable_by(|a, b| b.cmp(a));
        let pod = |(waited, pod): (Duration, &PodKey)| {
            (labels([("namespace", &*pod.namespace), ("pod", &*pod.name)]), waited.as_secs_f64())
        };
        self.waits.show(waits.into_iter().take(MOST_PODS).map(pod));
    }

    /// The text.
    pub fn print(&self) -> String {
        self.set.print()
    }
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
    use baton_decide::core::rules::Plugins;
    use baton_decide::scheduler::Config;
    use baton_decide::world::{NodeFacts, WorldEvent};

    #[test]
    fn every_metric_is_documented() {
        let metrics = SchedulerMetrics::new(&super::documented::requests());
        let now = Moment { mono: Duration::ZERO, wall: jiff::Timestamp::UNIX_EPOCH };
        let mut scheduler = Scheduler::new(Config::default(), Plugins::default());
        let _ = scheduler.event(WorldEvent::Node(NodeFacts { name: "a".into(), ..NodeFacts::default() }), now);
        metrics.show(&scheduler, now);
        let one = |pairs: &[(&'static str, &str)]| {
            [(pairs.iter().map(|(key, value)| (*key, (*value).to_owned())).collect::<Vec<_>>(), 1.0)]
        };
        metrics.devices.show(one(&[("pool", "a"), ("type", "gpu"), ("state", "free")]));
        metrics.largest_free.show(one(&[("pool", "a")]));
        metrics.faults.show(one(&[("node", "a"), ("state", "stale")]));
        metrics.stuck.show(one(&[("node", "a")]));
        metrics.namespaces.show(one(&[("namespace", "ml"), ("state", "held")]));
        metrics.waits.show(one(&[("namespace", "ml"), ("pod", "a")]));
        super::documented::check(&metrics.print(), "baton scheduler");
    }

    #[test]
    fn the_oldest_lock_is_shown_and_a_stuck_one_with_its_node() {
        let at = |seconds| Moment { mono: Duration::from_secs(seconds), wall: jiff::Timestamp::UNIX_EPOCH };
        let metrics = SchedulerMetrics::new(&RequestMetrics::default());
        let mut scheduler = Scheduler::new(Config::default(), Plugins::default());
        let facts =
            |lock: Option<&str>| NodeFacts { name: "b".into(), lock: lock.map(Into::into), ..NodeFacts::default() };
        let oldest = |scheduler: &Scheduler, now| oldest_lock(scheduler.world(), Duration::from_secs(now)).as_secs();
        let _ = scheduler.event(WorldEvent::Node(facts(Some("locked"))), at(3));
        assert_eq!(oldest(&scheduler, 10), 7);
        let stuck = r#"baton_scheduler_lock_stuck_seconds{node="b"} 17.0"#;
        for (now, shown) in [(18, false), (20, true)] {
            metrics.show(&scheduler, at(now));
            assert_eq!(metrics.print().contains(stuck), shown, "{now}\n{}", metrics.print());
        }
        let _ = scheduler.event(WorldEvent::Node(facts(None)), at(21));
        assert_eq!(oldest(&scheduler, 22), 0);
        metrics.show(&scheduler, at(22));
        let printed = metrics.print();
        assert!(!printed.contains("node=\"b\""), "{printed}");
        assert!(printed.contains(r#"baton_scheduler_daemons{state="none"} 1"#), "{printed}");
    }
}
