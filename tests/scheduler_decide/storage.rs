//! Storage that CSI drivers publish: claims go where there is enough, and wait where there is none.

use baton::contract::PodKey;
use baton::contract::hint::{LabelSelector, Operator, Requirement};
use baton::decide::scheduler::PodState;
use baton::decide::world::{CapacityFacts, WorldEvent};

use crate::env::Env;
use crate::volumes::cluster;

const DRIVER: &str = "csi.example.com";

impl Env {
    fn driver(&mut self, counts: bool) {
        self.event(WorldEvent::Driver(DRIVER.into(), counts));
        self.settle();
    }

    /// What the driver can still make of class `local` in a zone.
    fn capacity(&mut self, zone: &str, gibibytes: i64) {
        let nodes = LabelSelector { match_labels: [("zone".to_owned(), zone.to_owned())].into(), ..Default::default() };
        let facts = CapacityFacts::new("local", gibibytes << 30, nodes);
        self.event(WorldEvent::Capacity(PodKey::new("csi", zone), Some(facts)));
        self.settle();
    }

    fn tries(&mut self, pod: &str) -> u32 {
        let now = self.moment();
        self.engine.explain(&PodKey::new("ml", pod), now).unwrap().attempts
    }
}

#[test]
fn a_claim_goes_only_where_its_driver_says_that_there_is_storage_enough_and_waits_for_some() {
    let mut env = cluster();
    env.class("local", true, &[]);
    env.driver(true);
    env.capacity("a", 5);
    env.claim("data", 10, |_| {});
    env.pod_with_claims("p", &["data"]);
    assert_eq!(env.selected("data"), None);
    let said = "0/2 nodes: 2 have too little free storage of class local for claim data";
    assert_eq!(env.conditions["p"], said);
    let tries = env.tries("p");
    env.capacity("a", 4);
    env.capacity("b", 3);
    assert_eq!(env.tries("p"), tries + 1, "less is no news, some where there was none is");
    env.event(WorldEvent::Capacity(PodKey::new("csi", "b"), None));
    env.settle();
    assert_eq!(env.tries("p"), tries + 1);
    env.capacity("b", 10);
    assert_eq!(env.selected("data"), Some("b"), "exactly enough is enough");
}

#[test]
fn what_a_driver_publishes_counts_only_if_it_says_so() {
    for (counts, node) in [(false, Some("a")), (true, None)] {
        let mut env = cluster();
        env.class("local", true, &[]);
        env.driver(counts);
        env.claim("data", 10, |_| {});
        env.pod_with_claims("p", &["data"]);
        assert_eq!(env.selected("data"), node, "no capacity is published, {counts}");
    }
    let mut env = cluster();
    env.class("local", true, &[]);
    env.driver(true);
    env.claim("data", 10, |_| {});
    env.pod_with_claims("p", &["data"]);
    assert_eq!(env.selected("data"), None);
    env.driver(false);
    assert_eq!(env.selected("data"), Some("a"), "whoever waited for it is looked at again");
}

#[test]
fn a_claim_that_gets_a_volume_that_is_there_or_names_no_size_asks_for_no_storage() {
    let mut env = cluster();
    env.class("local", true, &[]);
    env.driver(true);
    env.volume("disk", 20, "b");
    env.claim("data", 10, |_| {});
    env.pod_with_claims("p", &["data"]);
    assert_eq!(env.promised("disk"), Some("data"));
    env.claim("any", 0, |_| {});
    env.pod_with_claims("q", &["any"]);
    assert!(env.selected("any").is_some());
}

#[test]
fn storage_of_another_class_or_of_nodes_with_other_labels_is_of_no_use_and_selectors_hold_whole() {
    let mut env = cluster();
    env.class("local", true, &[]);
    env.driver(true);
    let put = |env: &mut Env, name: &str, class: &str, nodes: LabelSelector| {
        let facts = CapacityFacts::new(class, 100 << 30, nodes);
        env.event(WorldEvent::Capacity(PodKey::new("csi", name), Some(facts)));
        env.settle();
    };
    put(&mut env, "other", "another", LabelSelector::default());
    let both = [("zone".to_owned(), "b".to_owned()), ("disk".to_owned(), "ssd".to_owned())].into();
    put(&mut env, "both", "local", LabelSelector { match_labels: both, ..Default::default() });
    env.claim("data", 10, |_| {});
    env.pod_with_claims("p", &["data"]);
    assert_eq!(env.selected("data"), None);
    let not_a = Requirement { key: "zone".into(), operator: Operator::NotIn, values: vec!["a".into()] };
    put(&mut env, "not-a", "local", LabelSelector { match_expressions: vec![not_a], ..Default::default() });
    assert_eq!(env.selected("data"), Some("b"));
}

#[test]
fn a_claim_for_which_a_node_is_selected_needs_storage_there_too() {
    let mut env = cluster();
    env.class("local", true, &[]);
    env.driver(true);
    env.capacity("b", 100);
    env.claim("data", 10, |facts| facts.selected_node = Some("a".into()));
    env.pod_with_claims("p", &["data"]);
    assert_eq!(env.node_of("p"), None);
    assert!(env.conditions["p"].contains("1 have too little free storage of class local"), "{}", env.conditions["p"]);
    env.capacity("a", 10);
    assert_eq!(env.state("p"), PodState::Preparing);
}
