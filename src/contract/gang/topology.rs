//! In which part of the cluster the members of a gang are to be gathered, in the three ways to say it; and the layers of a cluster.
//!
//! A *layer* is a label of nodes, and nodes with the same value of it are one *domain*: one rack, one NVLink domain, one switch.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::key;
use super::value::{BadValue, asks};

/// Most layers of one gang, and of a cluster.
pub(super) const MOST: usize = 16;

/// Koordinator's name of the layer whose domains are single nodes.
pub const NODE_LAYER: &str = "NodeTopologyLayer";
/// Koordinator's name of the layer that is the whole cluster.
pub const CLUSTER_LAYER: &str = "ClusterTopologyLayer";

/// What a gang asks for: each entry is the name of a layer or a label of nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct TopologySpec {
    /// All members run in one domain of each, or none runs.
    pub required: BTreeSet<Box<str>>,
    /// All members run in one domain of each where that is possible.
    pub preferred: BTreeSet<Box<str>>,
}

impl TopologySpec {
    /// It asks for nothing.
    pub fn is_empty(&self) -> bool {
        self.required.is_empty() && self.preferred.is_empty()
    }

    /// Reads Koordinator's annotation; an empty one asks for nothing.
    pub fn parse(key: &'static str, text: &str) -> Result<Option<Self>, BadValue> {
        if matches!(text.trim(), "" | "{}" | "null") {
            return Ok(None);
        }
        let bad = |text: &str, rule: &'static str| BadValue::new(key, text, rule);
        let read: Value = serde_json::from_str(text)
            .map_err(|_| bad(text, "is no JSON; expected {\"gatherStrategy\": [{\"layer\", \"strategy\"}]}"))?;
        let fields = read.as_object().ok_or_else(|| bad(text, "is no JSON object with a gatherStrategy"))?;
        if let Some((field, _)) = fields.iter().find(|(field, value)| *field != "gatherStrategy" && !value.is_null()) {
            return Err(bad(field, "is not honoured"));
        }
        let rules = match &read["gatherStrategy"] {
            Value::Null => return Ok(None),
            Value::Array(rules) => rules,
            other => return Err(bad(&other.to_string(), "is no list; gatherStrategy is a list of {layer, strategy}")),
        };
        if rules.len() > MOST {
            return Err(bad(text, "has more than 16 rules"));
        }
        let mut spec = Self::default();
        for rule in rules {
            spec.rule(rule, &bad)?;
        }
        Ok((!spec.is_empty()).then_some(spec))
    }

    fn rule(&mut self, rule: &Value, bad: &dyn Fn(&str, &'static str) -> BadValue) -> Result<(), BadValue> {
        let shown = rule.to_string();
        for (field, value) in rule.as_object().ok_or_else(|| bad(&shown, "is no rule; expected {layer, strategy}"))? {
            let known = match &**field {
                "layer" | "strategy" => true,
                // How many pods a domain takes, where they are spread over several.
                "podCountMultiple" => value.is_null() || matches!(value.as_i64(), Some(0 | 1)),
                _ => value.is_null(),
            };
            if !known {
                return Err(bad(&format!("{field}: {value}"), "is not honoured"));
            }
        }
        let layer = rule["layer"].as_str().filter(|layer| is_layer(layer));
        let layer = layer.ok_or_else(|| bad(&shown, "names no layer"))?;
        let (into, other) = match rule["strategy"].as_str() {
            Some("MustGather") => (&mut self.required, &self.preferred),
            Some("PreferGather") => (&mut self.preferred, &self.required),
            _ => return Err(bad(&shown, "has no strategy; expected MustGather or PreferGather")),
        };
        if other.contains(layer) {
            return Err(bad(layer, "is both a MustGather and a PreferGather"));
        }
        into.insert(layer.into());
        Ok(())
    }

    /// Reads the two keys of Baton: a layer or a label each.
    pub fn short(required: Option<&str>, preferred: Option<&str>) -> Result<Option<Self>, BadValue> {
        let read = |key: &'static str, text: Option<&str>| match text.map(str::trim) {
            None => Ok(None),
            Some(layer) if is_layer(layer) => Ok(Some(Box::from(layer))),
            Some(other) => Err(BadValue::new(key, other, "is neither a layer nor a label of nodes")),
        };
        let (required, preferred) =
            (read(key::REQUIRED_TOPOLOGY, required)?, read(key::PREFERRED_TOPOLOGY, preferred)?);
        let preferred = preferred.filter(|layer| required.as_ref() != Some(layer));
        let spec = Self { required: required.into_iter().collect(), preferred: preferred.into_iter().collect() };
        Ok((!spec.is_empty()).then_some(spec))
    }

    /// Reads `schedulingConstraints` of a PodGroup of `scheduling.k8s.io`; the error is the part that is not honoured.
    pub fn native(constraints: &Value) -> Result<Option<Self>, &Value> {
        let mut spec = Self::default();
        for (field, value) in constraints.as_object().into_iter().flatten() {
            match (&**field, value) {
                (_, Value::Null) => {}
                ("topology", Value::Array(list)) if list.len() <= MOST => {
                    for entry in list {
                        let alone = entry.as_object().is_some_and(|fields| fields.len() == 1);
                        let key = entry["key"].as_str().filter(|key| alone && is_layer(key));
                        spec.required.insert(key.ok_or(entry)?.into());
                    }
                }
                (_, empty) if !asks(empty) => {}
                _ => return Err(value),
            }
        }
        let known = constraints.is_null() || constraints.is_object();
        if known { Ok((!spec.is_empty()).then_some(spec)) } else { Err(constraints) }
    }
}

impl fmt::Display for TopologySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.required.iter().map(|layer| format!("must gather in one {layer}"));
        let named = named.chain(self.preferred.iter().map(|layer| format!("prefers one {layer}")));
        f.write_str(&named.collect::<Vec<_>>().join(", "))
    }
}

/// Reads a member's rank.
pub fn parse_rank(key: &'static str, text: &str) -> Result<u32, BadValue> {
    text.trim().parse().map_err(|_| BadValue::new(key, text, "is no rank; expected an integer of 0 or more"))
}

/// As long as a label's key may be, and of its characters; names of layers are such words too.
pub(super) fn is_layer(text: &str) -> bool {
    (1..=317).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte))
        && text.matches('/').count() <= 1
}

/// One layer of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyLayer {
    /// As a gang may call it; the label where it has no other name.
    pub name: Box<str>,
    /// The label of nodes; several with commas between them, of which the first that a node has counts.
    pub label: Box<str>,
}

impl TopologyLayer {
    /// Zone and NVLink domain, whose labels clouds and NVIDIA's GPU feature discovery set.
    pub fn defaults() -> Vec<Self> {
        let layer = |label: &str| Self { name: label.into(), label: label.into() };
        ["topology.kubernetes.io/zone", "nvidia.com/gpu.clique"].map(layer).into()
    }
}

impl FromStr for TopologyLayer {
    type Err = String;

    /// `example.com/rack`, or with a name `RackLayer=example.com/rack`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, label) = text.split_once('=').unwrap_or((text, text));
        let (name, label) = (name.trim(), label.trim());
        if is_layer(name) && is_layer(label) {
            return Ok(Self { name: name.into(), label: label.into() });
        }
        Err(format!("{text:?} is no layer: expected a label of nodes, or NAME=LABEL"))
    }
}

impl fmt::Display for TopologyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name == self.label { f.write_str(&self.label) } else { write!(f, "{}={}", self.name, self.label) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(required: &[&str], preferred: &[&str]) -> TopologySpec {
        let set = |layers: &[&str]| layers.iter().map(|layer| Box::from(*layer)).collect();
        TopologySpec { required: set(required), preferred: set(preferred) }
    }

    #[test]
    fn koordinators_rules_are_read_as_published() {
        let read = |text: &str| TopologySpec::parse(key::NETWORK_TOPOLOGY_SPEC, text);
        let published = r#"{
            "gatherStrategy": [
                {"layer": "AcceleratorLayer", "strategy": "PreferGather"},
                {"layer": "BlockLayer", "strategy": "PreferGather"},
                {"layer": "SpineLayer", "strategy": "MustGather"}
            ]
        }"#;
        assert_eq!(read(published), Ok(Some(spec(&["SpineLayer"], &["AcceleratorLayer", "BlockLayer"]))));
        for nothing in ["", " ", "{}", "null", r#"{"gatherStrategy": []}"#, r#"{"gatherStrategy": null}"#] {
            assert_eq!(read(nothing), Ok(None), "{nothing}");
        }
        let one = r#"{"gatherStrategy": [{"layer": "b", "strategy": "MustGather", "podCountMultiple": 1}]}"#;
        assert_eq!(read(one), Ok(Some(spec(&["b"], &[]))));
        for (bad, named) in [
            ("MustGather", "is no JSON"),
            ("[]", "is no JSON object"),
            (r#"{"gatherStrategy": {}}"#, "is no list"),
            (r#"{"gatherStrategy": ["b"]}"#, "\"\\\"b\\\"\" is no rule"),
            (r#"{"gatherStrategy": [{"strategy": "MustGather"}]}"#, "names no layer"),
            (r#"{"gatherStrategy": [{"layer": "a b", "strategy": "MustGather"}]}"#, "names no layer"),
            (
                r#"{"gatherStrategy": [{"layer": "b", "strategy": "mustGather"}]}"#,
                "expected MustGather or PreferGather",
            ),
            (r#"{"gatherStrategy": [{"layer": "b"}]}"#, "expected MustGather or PreferGather"),
            (
                r#"{"gatherStrategy": [{"layer": "b", "strategy": "MustGather", "podCountMultiple": 8}]}"#,
                "\"podCountMultiple: 8\" is not honoured",
            ),
            (
                r#"{"gatherStrategy": [{"layer": "b", "strategy": "MustGather"}, {"layer": "b", "strategy": "PreferGather"}]}"#,
                "\"b\" is both",
            ),
            (r#"{"scatterStrategy": []}"#, "\"scatterStrategy\" is not honoured"),
        ] {
            let said = read(bad).unwrap_err().to_string();
            assert!(said.contains(named) && said.starts_with(key::NETWORK_TOPOLOGY_SPEC), "{bad}: {said}");
        }
    }

    #[test]
    fn kubernetes_constraints_and_the_short_keys_are_read() {
        let native = |value: Value| TopologySpec::native(&value).map_err(Value::to_string);
        assert_eq!(
            native(json!({"topology": [{"key": "example.com/rack"}]})),
            Ok(Some(spec(&["example.com/rack"], &[])))
        );
        for nothing in [json!(null), json!({}), json!({"topology": []}), json!({"topology": null, "later": null})] {
            assert_eq!(native(nothing.clone()), Ok(None), "{nothing}");
        }
        for bad in [
            json!({"topology": [{"key": ""}]}),
            json!({"topology": [{"key": "a", "mode": "Spread"}]}),
            json!({"topology": [{}]}),
            json!({"topology": "rack"}),
            json!({"dra": [{"name": "x"}]}),
            json!("rack"),
        ] {
            assert!(native(bad.clone()).is_err(), "{bad}");
        }
        assert_eq!(TopologySpec::short(Some("rack"), Some("clique")), Ok(Some(spec(&["rack"], &["clique"]))));
        assert_eq!(TopologySpec::short(Some("rack"), Some("rack")), Ok(Some(spec(&["rack"], &[]))));
        assert_eq!(TopologySpec::short(None, None), Ok(None));
        let said = TopologySpec::short(Some(" "), None).unwrap_err().to_string();
        assert_eq!(said, "baton.io/required-topology: \"\" is neither a layer nor a label of nodes");
        let said = TopologySpec::short(None, Some("a rack")).unwrap_err().to_string();
        assert_eq!(said, "baton.io/preferred-topology: \"a rack\" is neither a layer nor a label of nodes");
    }

    #[test]
    fn a_layer_is_a_label_with_or_without_a_name() {
        let read = |text: &str| text.parse::<TopologyLayer>();
        let named = read("RackLayer=example.com/rack").unwrap();
        assert_eq!(
            (&*named.name, &*named.label, named.to_string()),
            ("RackLayer", "example.com/rack", "RackLayer=example.com/rack".to_owned())
        );
        assert_eq!(read("example.com/rack").unwrap().to_string(), "example.com/rack");
        for bad in ["", "=", "a=", "=b", "a b", "a/b/c"] {
            assert!(read(bad).unwrap_err().contains("is no layer"), "{bad}");
        }
    }
}
