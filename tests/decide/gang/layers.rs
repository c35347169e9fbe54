//! Layers that an object states, in place of the configured ones.

use baton::contract::gang::layers_of;

use super::gathered::{RACK, REQUIRED, SPEC, ZONE, cluster, must, rule};
use crate::prelude::*;

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
    gangs.places_of("g", RACK)
}

#[test]
fn layers_that_an_object_states_count_at_once_and_until_it_is_gone() {
    let mut gangs = cluster(&["a 3 rack=r1 zone=z1", "b 2 rack=r2 zone=z2", "c 2 rack=r3 zone=z2"]);
    // By the configuration RackLayer is a rack, by the object it is a zone.
    gangs.members("g", 4, &gang("g", "4", &[(SPEC, &rule(&[("RackLayer", "MustGather")]))]));
    assert_eq!(gangs.after(1).count("g"), 0);
    tells(gangs.condition("g-0"), ["gathered in one example.com/rack"]);
    state(&mut gangs, &[("RackLayer", &[ZONE])]);
    assert_eq!((gangs.after(1).count("g"), gangs.places_of("g", ZONE).len(), racks(&gangs).len()), (4, 1, 2));
    gangs.cluster.event(WorldEvent::Layers(None));
    gangs.members("h", 4, &gang("h", "4", &[(SPEC, &rule(&[("RackLayer", "MustGather")]))]));
    tells(gangs.after(1).condition("h-0"), ["gathered in one example.com/rack"]);
}

#[test]
fn a_layer_of_two_labels_has_the_value_of_the_first_that_a_node_has() {
    for asked in ["Block", "old", RACK] {
        let mut gangs = cluster(&["a 1 rack=r1", "b 1", "c 1 rack=r2", "d 1 rack=r3"]);
        gangs.labelled("b", "old=r1").labelled("d", "old=r1");
        state(&mut gangs, &[("Block", &[RACK, "old"])]);
        gangs.members("g", 2, &gang("g", "2", &[(REQUIRED, asked)])).wait(1);
        let at: BTreeSet<&str> = ["g-0", "g-1"].iter().filter_map(|name| gangs.cluster.node_of(name)).collect();
        assert_eq!(at, ["a", "b"].into(), "{asked}: {}", gangs.condition("g-0"));
    }
}

/// Racks of another pool, or cordoned ones, are free: they are no place, and hide none.
#[test]
fn victims_leave_where_the_gang_may_be_however_much_is_free_elsewhere() {
    for elsewhere in ["pool", "taint", "cordon"] {
        let mut gangs = cluster(&[]);
        (0..2).for_each(|n| _ = gangs.node_by(&format!("a{n} 1 rack=r{n} pool=x")));
        gangs.low_ones(2);
        for n in 0..20 {
            gangs.node_by(&format!("b{n} 2 rack=other-{n} pool={}", if elsewhere == "pool" { "y" } else { "x" }));
            gangs.cluster.change_node(&format!("b{n}"), |facts| match elsewhere {
                "taint" => {
                    facts.taints =
                        [Taint { key: "other".into(), value: String::new(), effect: TaintEffect::NoSchedule }].into()
                }
                "cordon" => facts.unschedulable = true,
                _ => {}
            });
        }
        gangs.in_pool_with(("g-0", 9), "x", &must("g", "1"));
        assert_eq!(gangs.settled().cluster.evicted.len(), 1, "{elsewhere}: {}", gangs.condition("g-0"));
        let said = gangs.condition("g-0");
        assert!(elsewhere != "pool" || said.contains("in example.com/rack=r"), "{said}");
    }
}
