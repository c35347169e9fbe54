//! PodGroups for the scheduler, of every API that has them: a lenient wire type, its record, and its feed.

use std::borrow::Cow;

use jiff::Timestamp;
use kube::api::{Api, ObjectMeta};
use kube::core::DynamicResourceScope;
use kube::runtime::watcher::Config;
use kube::{Client, Resource};
use serde::Deserialize;
use serde_json::Value;

use super::feed::Feed;
use crate::contract::Quantity;
use crate::contract::gang::{BadValue, GangId, PodGroupApi, PodGroupStatus};
use crate::decide::world::gangs::{Fields, PodGroupFacts, Warning};
use crate::decide::world::{Resources, WorldEvent};

/// A PodGroup as it is on the wire, whatever it says: somebody else's CRD may allow what ours does not.
#[derive(Debug, Clone, Deserialize)]
pub struct RawPodGroup {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec, unread.
    #[serde(default)]
    pub spec: Value,
    /// Status, unread.
    #[serde(default)]
    pub status: Value,
}

impl Resource for RawPodGroup {
    type DynamicType = PodGroupApi;
    type Scope = DynamicResourceScope;

    fn kind(_: &PodGroupApi) -> Cow<'_, str> {
        "PodGroup".into()
    }
    fn group(api: &PodGroupApi) -> Cow<'_, str> {
        api.group().into()
    }
    fn version(api: &PodGroupApi) -> Cow<'_, str> {
        api.version().into()
    }
    fn plural(_: &PodGroupApi) -> Cow<'_, str> {
        "podgroups".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl RawPodGroup {
    /// The scheduler's record; `None` for an object whose name could name no gang, of which no pod can be a member.
    pub fn facts(self, api: PodGroupApi) -> Option<PodGroupFacts> {
        let Self { metadata: meta, spec, status } = self;
        let gang = GangId::new(meta.namespace.as_deref()?, meta.name.as_deref()?).ok()?;
        let (annotated, mut warnings) = Fields::of_pod_group(meta.labels.as_ref(), meta.annotations.as_ref());
        let fields = match api {
            PodGroupApi::Sigs | PodGroupApi::Community => Fields {
                min: count("spec.minMember", &spec["minMember"], &mut warnings),
                wait: spec["scheduleTimeoutSeconds"].as_i64().and_then(PodGroupFacts::wait_seconds),
                ..Fields::default()
            },
            PodGroupApi::Kubernetes => {
                let policy = &spec["schedulingPolicy"];
                let min = count("spec.schedulingPolicy.gang.minCount", &policy["gang"]["minCount"], &mut warnings);
                // Basic scheduling is one by one.
                let min = min.or_else(|| policy["basic"].is_object().then_some(0));
                Fields { min, ..Fields::default() }
            }
        };
        Some(PodGroupFacts {
            uid: meta.uid.unwrap_or_default().into(),
            version: meta.resource_version.unwrap_or_default().into(),
            created: meta.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            annotated,
            spec: fields,
            min_resources: amounts(&spec["minResources"]),
            status: serde_json::from_value::<PodGroupStatus>(status).unwrap_or_default(),
            warnings,
            ..PodGroupFacts::new(api, gang)
        })
    }
}

/// A number of members; nothing where there is none, a warning where there is something else.
fn count(field: &'static str, value: &Value, warnings: &mut Vec<Warning>) -> Option<u32> {
    if value.is_null() {
        return None;
    }
    let read =
        value.as_i64().and_then(|number| i32::try_from(number).ok()).and_then(|number| u32::try_from(number).ok());
    if read.is_none() {
        let bad = BadValue::new(field, &value.to_string(), "is no number of members; expected 0 to 2147483647");
        warnings.push(Warning::Value(bad));
    }
    read
}

fn amounts(value: &Value) -> Resources {
    let all = value.as_object().into_iter().flatten();
    let read = all.filter_map(|(name, amount)| {
        let quantity: Quantity = serde_json::from_value(amount.clone()).ok()?;
        Some((name.as_str(), quantity))
    });
    Resources::of(read)
}

/// The feed of one API; one that is not installed counts as empty until it is.
pub fn pod_groups(client: &Client, api: PodGroupApi, config: Config) -> Feed<RawPodGroup> {
    Feed {
        name: match api {
            PodGroupApi::Sigs => "podgroups.scheduling.sigs.k8s.io",
            PodGroupApi::Community => "podgroups.scheduling.x-k8s.io",
            PodGroupApi::Kubernetes => "podgroups.scheduling.k8s.io",
        },
        api: Api::all_with(client.clone(), &api),
        config,
        optional: true,
        told: Box::new(move |object: RawPodGroup| {
            let facts = object.facts(api)?;
            Some(WorldEvent::PodGroup(Box::new(facts)))
        }),
        gone: Box::new(move |seen| {
            let gang = GangId::new(seen.namespace(), seen.name()).ok()?;
            Some(WorldEvent::PodGroupGone(api, gang))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::gang::{MatchPolicy, Mode};
    use serde_json::json;
    use std::time::Duration;

    fn read(api: PodGroupApi, object: Value) -> PodGroupFacts {
        serde_json::from_value::<RawPodGroup>(object).unwrap().facts(api).unwrap()
    }

    #[test]
    fn the_golden_object_is_read_with_its_annotations_over_its_spec() {
        let golden = serde_json::from_str(include_str!("../../tests/golden/pod-group.json")).unwrap();
        let facts = read(PodGroupApi::Sigs, golden);
        assert_eq!((facts.spec.min, facts.spec.wait), (Some(5), Some(Duration::from_secs(3600))));
        assert_eq!((facts.annotated.mode, facts.annotated.total), (Some(Mode::NonStrict), Some(6)));
        assert_eq!(facts.annotated.policy, Some(MatchPolicy::WaitingAndRunning));
        assert_eq!((facts.min_resources.milli_cpu, facts.min_resources.scalar("nvidia.com/gpu")), (10_000, 8));
        assert!(facts.status.since("GangSatisfied").is_some() && facts.warnings.is_empty());
    }

    #[test]
    fn what_another_crd_lets_through_warns_and_does_not_count() {
        let meta = json!({"namespace": "ml", "name": "g"});
        for bad in [json!(-1), json!(3_000_000_000_i64), json!("three")] {
            let facts = read(
                PodGroupApi::Community,
                json!({"metadata": meta, "spec": {"minMember": bad, "scheduleTimeoutSeconds": 0}, "status": {"phase": "Odd"}}),
            );
            assert_eq!((facts.spec.min, facts.spec.wait), (None, None));
            assert!(facts.warnings[0].to_string().contains("spec.minMember"), "{:?}", facts.warnings);
        }
        let unnamable: RawPodGroup =
            serde_json::from_value(json!({"metadata": {"namespace": "ml", "name": "Gang_A"}})).unwrap();
        assert!(unnamable.facts(PodGroupApi::Sigs).is_none());
    }

    #[test]
    fn kubernetes_own_groups_say_their_minimum_in_their_policy() {
        let of = |policy: Value| {
            let object = json!({"metadata": {"namespace": "ml", "name": "g"}, "spec": {"schedulingPolicy": policy}});
            read(PodGroupApi::Kubernetes, object).spec.min
        };
        assert_eq!(of(json!({"gang": {"minCount": 4}})), Some(4));
        assert_eq!(of(json!({"basic": {}})), Some(0));
        assert_eq!(of(json!({})), None);
    }
}
