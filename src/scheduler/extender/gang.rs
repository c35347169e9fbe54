//! Pods that are scheduled all or none. kube-scheduler asks for one pod at a time, so an extender cannot hold a gang together.

use serde_json::Value;

use crate::contract::gang::key;
use crate::contract::word::words;

/// What becomes of gang pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GangPods {
    /// They fit nowhere, and are told who schedules them.
    #[default]
    Refuse,
    /// They are placed one by one.
    Ignore,
}

words!(GangPods, "refuse" => Self::Refuse, "ignore" => Self::Ignore);

/// Keys that name a pod's gang, as label or annotation.
const KEYS: [&str; 4] = [key::POD_GROUP, key::POD_GROUP_NAME, key::COMMUNITY_POD_GROUP, key::NAME];

/// What makes a `v1.Pod` a member of a gang, in words; `None` for a pod of its own.
pub fn membership(pod: &Value) -> Option<String> {
    let meta = &pod["metadata"];
    for key in KEYS {
        let name = ["labels", "annotations"].into_iter().find_map(|map| meta[map][key].as_str());
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            return Some(format!("{key}={name}"));
        }
    }
    if let Some(group) = pod["spec"]["schedulingGroup"]["podGroupName"].as_str() {
        return Some(format!("spec.schedulingGroup.podGroupName={group}"));
    }
    let owners = meta["ownerReferences"].as_array()?;
    let job = owners.iter().find(|owner| owner["kind"] == "TYJob")?;
    Some(format!("TYJob {}", job["name"].as_str().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_way_to_join_a_gang_is_seen_and_other_labels_are_not() {
        for pod in [
            json!({"metadata": {"labels": {"pod-group.scheduling.sigs.k8s.io": "g"}}}),
            json!({"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}}),
            json!({"metadata": {"annotations": {"gang.scheduling.koordinator.sh/name": "g"}}}),
            json!({"metadata": {"annotations": {"pod-group.scheduling.sigs.k8s.io/name": "g"}}}),
            json!({"spec": {"schedulingGroup": {"podGroupName": "g"}}}),
            json!({"metadata": {"ownerReferences": [{"kind": "TYJob", "name": "g"}]}}),
        ] {
            assert!(membership(&pod).unwrap().ends_with('g'), "{pod}");
        }
        for pod in [json!({}), json!({"metadata": {"labels": {"app": "g"}, "ownerReferences": [{"kind": "Job"}]}})] {
            assert_eq!(membership(&pod), None, "{pod}");
        }
    }

    #[test]
    fn the_words_read_back() {
        for word in [GangPods::Refuse, GangPods::Ignore] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        assert!("maybe".parse::<GangPods>().unwrap_err().to_string().contains("refuse, ignore"));
    }
}
