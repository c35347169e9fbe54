//! Layers that an object states, in place of the configured ones.

use std::collections::BTreeSet;

use baton::contract::gang::layers_of;
use baton::decide::world::WorldEvent;
use serde_json::json;

use super::gathered::{RACK, REQUIRED, SPEC, ZONE, cluster, label, nodes, places, rule};
use crate::harness::gangs::{TestGangs, gang};

fn state(gangs: &mut TestGangs, layers: &[(&str, &[&str])]) {
    let mut parent = "";
    let mut entries = Vec::new();
    for (name, labels) in layers {
        entries.push(json!({"topologyLayer": name, "parentTopologyLayer": parent, "labelKey": labels}));
        parent = name;
    }
    let layers = layers_of(&json!({ "networkTopologySpec": entries })).unwrap();
    gangs.cluster.event(WorldEvent::Layers(Some(layers.into())));
}

fn racks(gangs: &TestGangs) -> BTreeSet<String> {
    places(gangs, "g", RACK)
}

#[test]
fn layers_that_an_object_states_count_at_once_and_until_it_is_gone() {
    let mut gangs = cluster();
    nodes(&mut gangs, &["a 3 rack=r1 zone=z1", "b 2 rack=r2 zone=z2", "c 2 rack=r3 zone=z2"]);
    // By the configuration RackLayer is a rack, by the object it is a zone.
    gangs.members("g", 4, &gang("g", "4", &[(SPEC, &rule(&[("RackLayer", "MustGather")]))]));
    gangs.wait(1);
    assert_eq!(gangs.count("g"), 0);
    assert!(gangs.condition("g-0").contains("gathered in one example.com/rack"), "{}", gangs.condition("g-0"));
    state(&mut gangs, &[("RackLayer", &[ZONE])]);
    gangs.wait(1);
    assert_eq!((gangs.count("g"), places(&gangs, "g", ZONE).len(), racks(&gangs).len()), (4, 1, 2));
    gangs.cluster.event(WorldEvent::Layers(None));
    gangs.members("h", 4, &gang("h", "4", &[(SPEC, &rule(&[("RackLayer", "MustGather")]))]));
    gangs.wait(1);
    assert!(gangs.condition("h-0").contains("gathered in one example.com/rack"), "{}", gangs.condition("h-0"));
}

#[test]
fn a_layer_of_two_labels_has_the_value_of_the_first_that_a_node_has() {
    for asked in ["Block", "old", RACK] {
        let mut gangs = cluster();
        nodes(&mut gangs, &["a 1 rack=r1", "b 1", "c 1 rack=r2", "d 1 rack=r3"]);
        label(&mut gangs, "b", "old=r1");
        label(&mut gangs, "d", "old=r1");
        state(&mut gangs, &[("Block", &[RACK, "old"])]);
        gangs.members("g", 2, &gang("g", "2", &[(REQUIRED, asked)]));
        gangs.wait(1);
        let at: BTreeSet<&str> = ["g-0", "g-1"].iter().filter_map(|name| gangs.cluster.node_of(name)).collect();
        assert_eq!(at, ["a", "b"].into(), "{asked}: {}", gangs.condition("g-0"));
    }
}
