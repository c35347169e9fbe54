//! Kubernetes' own PodGroup, `scheduling.k8s.io`: what its spec states, and what of it is not honoured. A field that no version had
//! when this was written counts as not honoured too: an API server drops fields that it does not know.

use serde_json::Value;

use super::topology::TopologySpec;
use super::value::{BadValue, asks};

/// What the spec of a PodGroup of `scheduling.k8s.io` states.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NativeSpec {
    /// `schedulingPolicy.gang.minCount`; 0 with `schedulingPolicy.basic`, which is no gang rule.
    pub min: Option<u32>,
    /// `priority`: that of its pods, whatever they state.
    pub priority: Option<i32>,
    /// `preemptionPolicy` is `Never`; `None` where it states none.
    pub never_preempts: Option<bool>,
    /// `schedulingConstraints.topology`.
    pub topology: Option<TopologySpec>,
    /// The first field that is not honoured.
    pub refused: Option<BadValue>,
}

/// Fields that say where the PodGroup comes from, and one that the API server resolves to `priority`.
const ORIGIN: [&str; 3] = ["workloadRef", "podGroupTemplateRef", "priorityClassName"];

impl NativeSpec {
    /// Reads `spec`.
    pub fn read(spec: &Value) -> Self {
        let mut read = Self::default();
        for (field, value) in spec.as_object().into_iter().flatten() {
            match field.as_str() {
                "schedulingPolicy" => read.policy(value),
                "priority" => {
                    read.priority = value.as_i64().and_then(|priority| i32::try_from(priority).ok());
                    read.refuse_unless(value.is_null() || read.priority.is_some(), "spec.priority", value);
                }
                "preemptionPolicy" => {
                    read.never_preempts = value.as_str().map(|policy| policy == "Never");
                    let known = matches!(value.as_str(), Some("" | "Never" | "PreemptLowerPriority"));
                    read.refuse_unless(value.is_null() || known, "spec.preemptionPolicy", value);
                }
                "disruptionMode" => read.refuse_unless(is_one_by_one(value), "spec.disruptionMode", value),
                "schedulingConstraints" => match TopologySpec::native(value) {
                    Ok(topology) => read.topology = topology,
                    Err(part) => read.refuse("spec.schedulingConstraints", part),
                },
                "resourceClaims" => read.refuse_unless(!asks(value), "spec.resourceClaims", value),
                "parentCompositePodGroupName" => {
                    read.refuse_unless(!asks(value), "spec.parentCompositePodGroupName", value);
                }
                known if ORIGIN.contains(&known) => {}
                other => read.refuse_unless(!asks(value), "spec", &Value::from(other)),
            }
        }
        let class = &spec["priorityClassName"];
        read.refuse_unless(read.priority.is_some() || !asks(class), "spec.priorityClassName", class);
        read
    }

    fn policy(&mut self, policy: &Value) {
        const KEY: &str = "spec.schedulingPolicy";
        let (mut gang, mut basic) = (None, false);
        for (field, value) in policy.as_object().into_iter().flatten() {
            let more = value.as_object().into_iter().flatten().filter(|(_, value)| asks(value));
            match field.as_str() {
                "gang" => {
                    let count = &value["minCount"];
                    gang = count.as_i64().and_then(|count| i32::try_from(count).ok()?.try_into().ok());
                    self.refuse_unless(count.is_null() || gang.is_some(), "spec.schedulingPolicy.gang.minCount", count);
                    let mut others = more.filter(|(name, _)| *name != "minCount");
                    self.refuse_unless(others.next().is_none(), "spec.schedulingPolicy.gang", value);
                }
                "basic" => {
                    basic = value.is_object();
                    self.refuse_unless(!asks(value), "spec.schedulingPolicy.basic", value);
                }
                _ => self.refuse_unless(value.is_null(), KEY, policy),
            }
        }
        // Basic scheduling is one by one.
        self.min = gang.or(basic.then_some(0));
    }

    fn refuse_unless(&mut self, honoured: bool, key: &'static str, value: &Value) {
        if !honoured {
            self.refuse(key, value);
        }
    }

    fn refuse(&mut self, key: &'static str, value: &Value) {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.refused.get_or_insert_with(|| BadValue::new(key, &text, "is not honoured"));
    }
}

/// `Pod`, or since v1alpha3 `{single: {}}`, is the default: it allows to evict pods of the group one by one.
fn is_one_by_one(mode: &Value) -> bool {
    match mode {
        Value::Null => true,
        Value::String(word) => word.is_empty() || word == "Pod",
        Value::Object(modes) => modes.iter().all(|(name, value)| name == "single" || value.is_null()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_field_is_honoured_or_named() {
        let honoured = [
            json!(null),
            json!({}),
            json!({"schedulingPolicy": {"gang": {"minCount": 4}}}),
            json!({"schedulingPolicy": {"gang": {"minCount": 4}, "basic": null}}),
            json!({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"single": {}}}),
            json!({"disruptionMode": "Pod", "podGroupTemplateRef": {"workload": {"workloadName": "w"}}}),
            json!({"workloadRef": {"workloadName": "w", "templateName": "t"}, "schedulingConstraints": {"topology": []}}),
            json!({"schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/rack"}], "later": {}}}),
            json!({"priority": -5, "priorityClassName": "low", "preemptionPolicy": "PreemptLowerPriority"}),
            json!({"resourceClaims": [], "parentCompositePodGroupName": null, "later": {}, "priorityClassName": ""}),
        ];
        for spec in honoured {
            assert_eq!(NativeSpec::read(&spec).refused, None, "{spec}");
        }
        for (spec, named) in [
            (json!({"schedulingConstraints": {"topology": [{"key": "a", "mode": "x"}]}}), "spec.schedulingConstraints"),
            (json!({"schedulingConstraints": {"topology": [{"key": ""}]}}), "spec.schedulingConstraints"),
            (json!({"schedulingConstraints": {"spread": [{"key": "a"}]}}), "spec.schedulingConstraints"),
            (json!({"resourceClaims": [{"name": "c"}]}), "spec.resourceClaims"),
            (json!({"parentCompositePodGroupName": "p"}), "spec.parentCompositePodGroupName: \"p\""),
            (json!({"disruptionMode": {"all": {}}}), "spec.disruptionMode"),
            (json!({"disruptionMode": "PodGroup"}), "spec.disruptionMode: \"PodGroup\""),
            (json!({"disruptionMode": 7}), "spec.disruptionMode"),
            (json!({"preemptionPolicy": "Sometimes"}), "spec.preemptionPolicy: \"Sometimes\""),
            (json!({"priority": "high"}), "spec.priority: \"high\""),
            (json!({"priority": 1.5}), "spec.priority: \"1.5\""),
            (json!({"priority": 5_000_000_000_i64}), "spec.priority: \"5000000000\""),
            (json!({"priorityClassName": "high"}), "spec.priorityClassName: \"high\""),
            (json!({"schedulingPolicy": {"gang": {"minCount": -1}}}), "minCount: \"-1\""),
            (json!({"schedulingPolicy": {"gang": {"minCount": "3"}}}), "minCount: \"3\""),
            (json!({"schedulingPolicy": {"gang": {"minCount": 3, "maxCount": 5}}}), "spec.schedulingPolicy.gang"),
            (json!({"schedulingPolicy": {"basic": {"spread": true}}}), "spec.schedulingPolicy.basic"),
            (json!({"schedulingPolicy": {"elastic": {}}}), "spec.schedulingPolicy"),
            (json!({"topologyMode": "rack"}), "spec: \"topologyMode\""),
        ] {
            let refused = NativeSpec::read(&spec).refused.unwrap().to_string();
            assert!(refused.contains(named) && refused.ends_with("is not honoured"), "{spec}: {refused}");
        }
    }

    #[test]
    fn minimum_priority_and_preemption_are_read() {
        let read = NativeSpec::read(&json!({
            "schedulingPolicy": {"gang": {"minCount": 4}}, "priority": 7, "preemptionPolicy": "Never",
        }));
        assert_eq!((read.min, read.priority, read.never_preempts), (Some(4), Some(7), Some(true)));
        let read = NativeSpec::read(&json!({"schedulingPolicy": {"basic": {}}}));
        assert_eq!((read.min, read.priority, read.never_preempts), (Some(0), None, None));
        assert_eq!(NativeSpec::read(&json!({"schedulingPolicy": {"gang": {}}})).min, None);
    }
}
