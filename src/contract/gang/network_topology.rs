//! The layers of a cluster as Koordinator's ClusterNetworkTopology states them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::topology::{CLUSTER_LAYER, MOST, NODE_LAYER, TopologyLayer, is_layer};
use super::value::BadValue;

/// Name of the one object that counts, as for Koordinator.
pub const NETWORK_TOPOLOGY: &str = "default";

/// Reads `spec`: the layers, outermost first. A layer of several labels has the value of the first that a node has.
pub fn layers_of(spec: &Value) -> Result<Vec<TopologyLayer>, BadValue> {
    let bad = |value: &str, rule: String| BadValue::new("spec.networkTopologySpec", value, rule);
    let list = &spec["networkTopologySpec"];
    let entries = list.as_array().filter(|entries| entries.len() <= MOST);
    let entries = entries.ok_or_else(|| bad(&list.to_string(), format!("is no list of at most {MOST} layers")))?;
    let mut stated: BTreeMap<&str, (&str, String)> = BTreeMap::new();
    for entry in entries {
        let name = entry["topologyLayer"].as_str().filter(|name| is_layer(name));
        let name = name.ok_or_else(|| bad(&entry.to_string(), "names no topologyLayer".to_owned()))?;
        let labels: Vec<&str> = entry["labelKey"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let builtin = [CLUSTER_LAYER, NODE_LAYER].contains(&name);
        if !builtin && (!(1..=MOST).contains(&labels.len()) || !labels.iter().all(|label| is_layer(label))) {
            let text = entry["labelKey"].to_string();
            let text = &text[..text.floor_char_boundary(200)];
            return Err(bad(name, format!("has the labelKey {text}; expected labels of nodes, {MOST} at most")));
        }
        let parent = entry["parentTopologyLayer"].as_str().filter(|parent| *parent != CLUSTER_LAYER);
        if name != CLUSTER_LAYER && stated.insert(name, (parent.unwrap_or_default(), labels.join(","))).is_some() {
            return Err(bad(name, "is there twice".to_owned()));
        }
    }
    let unknown = stated.iter().find(|(_, (parent, _))| !parent.is_empty() && !stated.contains_key(parent));
    if let Some((name, (parent, _))) = unknown {
        return Err(bad(name, format!("has the parent {parent:?}, which is no layer")));
    }
    // From the layer without a parent on, each has one child: no layer comes twice.
    let (mut layers, mut passed, mut parent) = (Vec::new(), BTreeSet::new(), "");
    loop {
        let mut children = stated.iter().filter(|(_, (of, _))| *of == parent);
        let Some((name, (_, labels))) = children.next() else { break };
        if let Some((other, _)) = children.next() {
            let below =
                if parent.is_empty() { "have no parent".to_owned() } else { format!("have the parent {parent}") };
            return Err(bad(name, format!("and {other} both {below}; layers follow each other")));
        }
        if parent == NODE_LAYER {
            return Err(bad(name, format!("is below {NODE_LAYER}")));
        }
        if *name != NODE_LAYER {
            layers.push(TopologyLayer { name: (*name).into(), label: labels.as_str().into() });
        }
        passed.insert(*name);
        parent = name;
    }
    match stated.keys().find(|name| !passed.contains(*name)) {
        Some(name) => Err(bad(name, "is among its own parents".to_owned())),
        None => Ok(layers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn layer(name: &str, parent: &str, labels: &[&str]) -> Value {
        json!({"topologyLayer": name, "parentTopologyLayer": parent, "labelKey": labels})
    }

    fn read(entries: &[Value]) -> Result<String, String> {
        let layers = layers_of(&json!({ "networkTopologySpec": entries })).map_err(|bad| bad.to_string())?;
        Ok(layers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_published_object_is_read_from_the_outermost_layer_on() {
        let published = json!({"networkTopologySpec": [
            {"labelKey": ["network.topology.nvidia.com/block"], "parentTopologyLayer": "SpineLayer", "topologyLayer": "BlockLayer"},
            {"labelKey": ["network.topology.nvidia.com/spine"], "topologyLayer": "SpineLayer"},
            {"parentTopologyLayer": "BlockLayer", "topologyLayer": "NodeTopologyLayer"},
        ]});
        let layers = layers_of(&published).unwrap();
        let names: Vec<(&str, &str)> = layers.iter().map(|layer| (&*layer.name, &*layer.label)).collect();
        let expected =
            [("SpineLayer", "network.topology.nvidia.com/spine"), ("BlockLayer", "network.topology.nvidia.com/block")];
        assert_eq!(names, expected);
        assert_eq!(read(&[]), Ok(String::new()));
        assert_eq!(
            read(&[layer("A", CLUSTER_LAYER, &["a", "b/c"]), layer(CLUSTER_LAYER, "", &[])]),
            Ok("A=a,b/c".into())
        );
    }

    #[test]
    fn what_is_no_chain_of_layers_is_named() {
        let (a, b) = (layer("A", "", &["a"]), layer("B", "A", &["b"]));
        let node = |parent| layer(NODE_LAYER, parent, &[]);
        for (entries, said) in [
            (vec![a.clone(), layer("A", "B", &["c"]), b.clone()], "\"A\" is there twice"),
            (vec![a.clone(), layer("B", "", &["b"])], "\"A\" and B both have no parent"),
            (vec![a.clone(), b.clone(), layer("C", "A", &["c"])], "\"B\" and C both have the parent A"),
            (vec![layer("A", "Z", &["a"])], "\"A\" has the parent \"Z\", which is no layer"),
            (vec![layer("A", "B", &["a"]), b.clone()], "\"A\" is among its own parents"),
            (vec![layer("A", "A", &["a"])], "\"A\" is among its own parents"),
            (vec![a.clone(), layer("B", "C", &["b"]), layer("C", "B", &["c"])], "\"B\" is among its own parents"),
            (vec![node(NODE_LAYER)], "\"NodeTopologyLayer\" is among its own parents"),
            (vec![layer("A", "", &[])], "\"A\" has the labelKey []; expected labels of nodes, 16 at most"),
            (vec![layer("A", "", &["a b"])], "\"A\" has the labelKey [\"a b\"]"),
            (vec![json!({"topologyLayer": "A"})], "\"A\" has the labelKey null"),
            (vec![json!({"labelKey": ["a"]})], "names no topologyLayer"),
            (vec![layer("A b", "", &["a"])], "names no topologyLayer"),
            (vec![node(""), layer("A", NODE_LAYER, &["a"])], "\"A\" is below NodeTopologyLayer"),
        ] {
            let refused = read(&entries).unwrap_err();
            assert!(refused.starts_with("spec.networkTopologySpec: ") && refused.contains(said), "{refused}");
        }
        for spec in
            [json!(null), json!({}), json!({"networkTopologySpec": "x"}), json!({"networkTopologySpec": vec![a; 17]})]
        {
            assert!(layers_of(&spec).unwrap_err().to_string().contains("is no list of at most 16 layers"), "{spec}");
        }
    }
}
