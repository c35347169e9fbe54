//! Permit: a held pod keeps its room while it waits, goes on when it may, and gives the room back when it may not. Reserve: what a rule
//! takes for a reservation it gets back.

use std::sync::atomic::{AtomicI64, Ordering};

use baton::decide::core::rules::{Claimed, Extension, Outcome, Permit, Plugin, Plugins, Reserve, Slots, View};
use baton::decide::world::{NodeId, Pod, Wake};

use crate::prelude::*;

/// Says wait until a time, then yes or no.
struct Gate {
    until: Duration,
    then: Outcome,
}

impl Plugin for Gate {
    fn name(&self) -> &'static str {
        "Gate"
    }
}

impl Permit for Gate {
    fn permit(&self, view: View<'_>, _: &Pod, _: NodeId, _: &mut Slots) -> Outcome {
        match Outcome::unfit("Gate", "closed", Wake::VOLUME) {
            Outcome::Unfit(no) if view.now < self.until => Outcome::WaitUntil(self.until, no),
            _ => self.then.clone(),
        }
    }
}

/// A node of one GPU, and a gate for that many seconds.
fn cluster(seconds: u64, then: Outcome) -> TestScheduler {
    let gate = Gate { until: Duration::from_secs(1000 + seconds), then };
    let mut cluster =
        TestScheduler::with_plugins(Config::default(), Plugins::default().with(Extension::new(gate).permit()));
    cluster.node("n", 1);
    cluster
}

#[test]
fn a_pod_that_must_wait_holds_its_room_until_it_is_permitted() {
    let mut cluster = cluster(5, Outcome::Fit);
    cluster.comes("a", ONE);
    assert_eq!((cluster.node_of("a"), cluster.lock_writes, cluster.reservations()), (None, 0, 1));
    cluster.pod("b", ONE);
    assert_eq!(cluster.after(4).bound(), 0, "b does not get what a holds");
    cluster.wait(1);
    assert_eq!((cluster.node_of("a"), cluster.node_of("b"), cluster.reservations()), (Some("n"), None, 0));
}

#[test]
fn a_pod_that_is_refused_after_waiting_gives_its_room_back() {
    let no = Outcome::unfit("Gate", "too late", Wake::VOLUME);
    let mut cluster = cluster(5, no);
    assert_eq!((cluster.pod("a", ONE).after(6).bound(), cluster.reservations()), (0, 0));
    assert_eq!(cluster.conditions["a"], "too late");
    let node = cluster.world().node(cluster.world().node_id("n").unwrap()).unwrap();
    assert!(node.pods.is_empty(), "nothing is held: {:?}", node.pods);
}

#[test]
fn a_held_pod_that_is_deleted_frees_its_room_at_once() {
    let mut cluster = cluster(1_000_000, Outcome::Fit);
    assert!(cluster.comes("a", ONE).goes("a").reservations() == 0);
    cluster.audit();
}

/// Says no to one pod.
struct Bouncer(&'static str);

impl Plugin for Bouncer {
    fn name(&self) -> &'static str {
        "Bouncer"
    }
}

impl Permit for Bouncer {
    fn permit(&self, _: View<'_>, pod: &Pod, _: NodeId, _: &mut Slots) -> Outcome {
        if &*pod.key().name == self.0 { Outcome::unfit("Bouncer", "not you", Wake::VOLUME) } else { Outcome::Fit }
    }
}

#[test]
fn a_member_that_is_not_permitted_takes_its_gang_back_and_a_surplus_one_does_not() {
    for (min, bound) in [("3", 0), ("2", 2)] {
        let plugins = Plugins::default().with(Extension::new(Bouncer("g-1")).permit());
        let mut gangs =
            TestGangs { cluster: TestScheduler::with_plugins(Config::default(), plugins), accumulating: false };
        assert_eq!(gangs.node("n", 8).come("g", 3, &gang("g", min, &[])).count("g"), bound, "min {min}");
        gangs.wait(5);
        assert_eq!((gangs.count("g"), gangs.cluster.bind_attempts()), (bound, 0), "no pod waits for it for ever");
    }
}

/// Counts the reservations that stand.
#[derive(Clone, Default)]
struct Standing(Arc<AtomicI64>);

impl Plugin for Standing {
    fn name(&self) -> &'static str {
        "Standing"
    }
}

impl Reserve for Standing {
    fn reserve(&self, _: View<'_>, _: &Pod, _: NodeId, _: &mut Slots, _: &mut Claimed) -> Outcome {
        self.0.fetch_add(1, Ordering::Relaxed);
        Outcome::Fit
    }
    fn unreserve(&self, _: &Pod, _: NodeId) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_reserve_rule_gets_back_what_pods_on_their_way_took_when_leadership_ends() {
    let standing = Standing::default();
    let rules = Plugins::default().with(Extension::new(standing.clone()).reserve());
    let mut cluster = TestScheduler::with_plugins(Config::default(), rules);
    cluster.node("n", 2).hold(true).pod("a", ONE).comes("b", ONE);
    // One waits for the answer to its lock, the other in the queue for it.
    assert_eq!((standing.0.load(Ordering::Relaxed), cluster.bind_attempts()), (2, 2));
    cluster.step_down();
    assert_eq!((standing.0.load(Ordering::Relaxed), cluster.bind_attempts()), (0, 0));
}
