//! Storage that CSI drivers publish: claims go where there is enough, and wait where there is none.

use baton::contract::hint::{LabelSelector, Operator, Requirement};
use baton::decide::world::CapacityFacts;

use super::volumes::with_class;
use crate::prelude::*;

const DRIVER: &str = "csi.example.com";

impl TestScheduler {
    fn driver(&mut self, counts: bool) -> &mut Self {
        self.event(WorldEvent::Driver(DRIVER.into(), counts)).settled()
    }

    /// What the driver can still make of class `local` in a zone.
    fn capacity(&mut self, zone: &str, gibibytes: i64) -> &mut Self {
        let facts = CapacityFacts::new("local", gibibytes << 30, with_label("zone", zone));
        self.event(WorldEvent::Capacity(PodKey::new("csi", zone), Some(facts))).settled()
    }

    fn tries(&mut self, pod: &str) -> u32 {
        self.explain(&PodKey::new("ml", pod)).unwrap().attempts
    }
}

#[test]
fn a_claim_goes_only_where_its_driver_publishes_enough_storage_else_it_waits() {
    let mut cluster = with_class(true);
    cluster.driver(true).capacity("a", 5).claim("data", 10, |_| {}).pod_with_claims("p", &["data"]);
    assert_eq!(cluster.selected("data"), None);
    assert_eq!(cluster.conditions["p"], "0/2 nodes: 2 have too little free storage of class local for claim data");
    let tries = cluster.tries("p");
    cluster.capacity("a", 4).capacity("b", 3);
    assert_eq!(cluster.tries("p"), tries + 1, "less is no news, some where there was none is");
    cluster.event(WorldEvent::Capacity(PodKey::new("csi", "b"), None));
    assert_eq!(cluster.settled().tries("p"), tries + 1);
    assert_eq!(cluster.capacity("b", 10).selected("data"), Some("b"), "exactly enough is enough");
}

#[test]
fn what_a_driver_publishes_counts_only_if_it_says_so() {
    for (counts, node) in [(false, Some("a")), (true, None)] {
        let mut cluster = with_class(true);
        cluster.driver(counts).claim("data", 10, |_| {}).pod_with_claims("p", &["data"]);
        assert_eq!(cluster.selected("data"), node, "no capacity is published, {counts}");
    }
    let mut cluster = with_class(true);
    assert_eq!(cluster.driver(true).claim("data", 10, |_| {}).pod_with_claims("p", &["data"]).selected("data"), None);
    assert_eq!(cluster.driver(false).selected("data"), Some("a"), "the pod that waited for it is tried again");
}

#[test]
fn a_claim_that_gets_a_volume_that_is_there_or_names_no_size_asks_for_no_storage() {
    let mut cluster = with_class(true);
    cluster.driver(true).volume("disk", 20, "b").claim("data", 10, |_| {});
    assert_eq!(cluster.pod_with_claims("p", &["data"]).promised("disk"), Some("data"));
    assert!(cluster.claim("any", 0, |_| {}).pod_with_claims("q", &["any"]).selected("any").is_some());
}

#[test]
fn storage_of_another_class_or_of_nodes_with_other_labels_does_not_count() {
    let mut cluster = with_class(true);
    cluster.driver(true);
    let put = |cluster: &mut TestScheduler, name: &str, class: &str, nodes: LabelSelector| {
        let facts = CapacityFacts::new(class, 100 << 30, nodes);
        cluster.event(WorldEvent::Capacity(PodKey::new("csi", name), Some(facts))).settle();
    };
    put(&mut cluster, "other", "another", LabelSelector::default());
    let both = [("zone".to_owned(), "b".to_owned()), ("disk".to_owned(), "ssd".to_owned())].into();
    put(&mut cluster, "both", "local", LabelSelector { match_labels: both, ..Default::default() });
    assert_eq!(cluster.claim("data", 10, |_| {}).pod_with_claims("p", &["data"]).selected("data"), None);
    let not_a = Requirement { key: "zone".into(), operator: Operator::NotIn, values: vec!["a".into()] };
    put(&mut cluster, "not-a", "local", LabelSelector { match_expressions: vec![not_a], ..Default::default() });
    assert_eq!(cluster.selected("data"), Some("b"));
}

#[test]
fn a_claim_for_which_a_node_is_selected_needs_storage_there_too() {
    let mut cluster = with_class(true);
    cluster.driver(true).capacity("b", 100).claim("data", 10, |facts| facts.selected_node = Some("a".into()));
    assert_eq!(cluster.pod_with_claims("p", &["data"]).node_of("p"), None);
    tells(&cluster.conditions["p"], ["1 has too little free storage of class local"]);
    assert_eq!(cluster.capacity("a", 10).state("p"), PodState::Preparing);
}
