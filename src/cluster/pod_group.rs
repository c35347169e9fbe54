//! PodGroups of every API that has them: a lenient wire type, its record, and the writes of status and object.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicResourceScope, Request};
use kube::{Client, Resource};
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::status_code;
use baton_contract::Quantity;
use baton_contract::gang::{BadValue, GangId, NativeSpec, PodGroupApi, PodGroupStatus, key};
use baton_decide::scheduler::PodGroupWrite;
use baton_decide::world::Resources;
use baton_decide::world::gangs::{DeclaredFields, Owner, PodGroupFacts, Warning};

/// A PodGroup as it is on the wire, whatever it says: another system's CRD may allow what ours does not.
#[derive(Debug, Clone, Deserialize)]
pub struct RawPodGroup {
    #[serde(deserialize_with = "super::light_meta::read")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl Resource for RawPodGroup {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(api: &ApiResource) -> Cow<'_, str> {
        (&*api.kind).into()
    }
    fn group(api: &ApiResource) -> Cow<'_, str> {
        (&*api.group).into()
    }
    fn version(api: &ApiResource) -> Cow<'_, str> {
        (&*api.version).into()
    }
    fn plural(api: &ApiResource) -> Cow<'_, str> {
        (&*api.plural).into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl RawPodGroup {
    /// The scheduler's record; `None` for an object whose name cannot be that of a gang, so that no pod can be a member of it.
    pub fn facts(self, api: PodGroupApi) -> Option<PodGroupFacts> {
        let Self { metadata: meta, spec, status } = self;
        let gang = GangId::new(meta.namespace.as_deref()?, meta.name.as_deref()?).ok()?;
        let (annotated, mut warnings) = DeclaredFields::of_pod_group(meta.labels.as_ref(), meta.annotations.as_ref());
        let native = match api {
            PodGroupApi::Kubernetes => NativeSpec::read(&spec),
            PodGroupApi::Sigs | PodGroupApi::Community => NativeSpec::default(),
        };
        let fields = match api {
            PodGroupApi::Sigs | PodGroupApi::Community => DeclaredFields {
                // Go leaves 0 out.
                min: match &spec["minMember"] {
                    Value::Null => Some(0),
                    stated => count("spec.minMember", stated, &mut warnings),
                },
                wait: seconds("spec.scheduleTimeoutSeconds", &spec["scheduleTimeoutSeconds"], &mut warnings),
                ..DeclaredFields::default()
            },
            PodGroupApi::Kubernetes => {
                DeclaredFields { min: native.min, topology: native.topology.map(Arc::new), ..DeclaredFields::default() }
            }
        };
        let min_resources = match api {
            PodGroupApi::Sigs | PodGroupApi::Community => amounts(&spec["minResources"], &mut warnings),
            PodGroupApi::Kubernetes => Resources::default(),
        };
        warnings.extend(native.refused.map(Warning::NotHonoured));
        let managed = meta.labels.as_ref().and_then(|labels| labels.get(key::MANAGED_BY));
        let ours = managed.is_some_and(|by| by == key::MANAGED_BY_BATON)
            && meta.owner_references.as_ref().is_none_or(Vec::is_empty);
        Some(PodGroupFacts {
            ours: ours && api == PodGroupApi::Sigs,
            uid: meta.uid.unwrap_or_default().into(),
            version: meta.resource_version.unwrap_or_default().into(),
            created: meta.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            annotated,
            spec: fields,
            min_resources,
            priority: native.priority,
            never_preempts: native.never_preempts,
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

/// A waiting time; nothing where there is none, a warning where there is something else than a number above zero.
fn seconds(field: &'static str, value: &Value, warnings: &mut Vec<Warning>) -> Option<Duration> {
    let read = value.as_i64().and_then(PodGroupFacts::wait_seconds);
    if read.is_none() && !value.is_null() {
        let bad = BadValue::new(field, &value.to_string(), "is no number of seconds above 0");
        warnings.push(Warning::Value(bad));
    }
    read
}

/// Amounts by resource; a warning for each of the first that cannot be read.
fn amounts(value: &Value, warnings: &mut Vec<Warning>) -> Resources {
    /// Their author writes as many as it likes.
    const WARNED: usize = 8;
    /// No cluster has so many kinds of resources.
    const NAMED: usize = 256;
    let mut left = WARNED;
    let mut bad = |text: &str, rule: &'static str| {
        if left > 0 {
            left -= 1;
            warnings.push(Warning::Value(BadValue::new("spec.minResources", text, rule)));
        }
    };
    if !value.is_null() && !value.is_object() {
        bad(&value.to_string(), "is no map of resources");
    }
    let mut read = Resources::default();
    if let Some(all) = value.as_object().filter(|all| all.len() > NAMED) {
        bad(&format!("{} names", all.len()), "names more than 256 resources; the first 256 count");
    }
    for (name, amount) in value.as_object().into_iter().flatten().take(NAMED) {
        match serde_json::from_value::<Quantity>(amount.clone()) {
            Ok(quantity) if quantity >= Quantity::ZERO => read.set(name, quantity),
            Ok(_) => bad(&format!("{name}: {amount}"), "is negative"),
            Err(_) => bad(&format!("{name}: {amount}"), "is no quantity; expected e.g. 8, 500m or 80Gi"),
        }
    }
    read
}

/// Fields of the status that a merge patch must name to take them away.
const FIELDS: [&str; 4] = ["phase", "occupiedBy", "scheduleStartTime", "conditions"];

/// Writes PodGroups.
#[derive(Clone)]
pub struct PodGroups {
    client: Client,
    plain: Arc<Mutex<Plain>>,
}

/// APIs whose CRD declares no status subresource, as Koordinator's own does: their status is a field of the object like any
/// other, and the path of the subresource answers 404.
#[derive(Default)]
struct Plain {
    known: BTreeSet<PodGroupApi>,
    warned: BTreeSet<PodGroupApi>,
}

impl PodGroups {
    /// By this client.
    pub fn new(client: Client) -> Self {
        Self { client, plain: Arc::default() }
    }

    fn plain<T>(&self, access: impl FnOnce(&mut Plain) -> T) -> T {
        access(&mut self.plain.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes a status if the object is still the one that was read; the status as it is stored then.
    pub async fn status(&self, write: &PodGroupWrite) -> Result<PodGroupStatus, kube::Error> {
        let mut status = serde_json::to_value(&write.status).map_err(kube::Error::SerdeError)?;
        for field in FIELDS {
            if status[field].is_null() {
                status[field] = Value::Null;
            }
        }
        let meta = json!({"uid": write.uid, "resourceVersion": write.version});
        let patch = json!({
            "apiVersion": write.api.resource().api_version, "kind": "PodGroup", "metadata": meta, "status": status,
        });
        let groups: Api<RawPodGroup> =
            Api::namespaced_with(self.client.clone(), write.gang.namespace(), &write.api.resource());
        let (name, params, patch) = (write.gang.name(), PatchParams::default(), Patch::Merge(patch));
        let read = |stored: RawPodGroup| stored.facts(write.api).map(|facts| facts.status).unwrap_or_default();
        if self.plain(|plain| plain.known.contains(&write.api)) {
            let stored = read(groups.patch(name, &params, &patch).await?);
            if stored.phase == write.status.phase {
                return Ok(stored);
            }
            // The CRD has got the subresource since: the object's own path leaves the status as it is.
            self.plain(|plain| plain.known.remove(&write.api));
        }
        match groups.patch_status(name, &params, &patch).await {
            Err(error) if status_code(&error) == Some(404) => {
                // Either the object does not exist, and the next request is answered with 404 too, or the path is not served.
                let stored = read(groups.patch(name, &params, &patch).await?);
                let first = self.plain(|plain| {
                    plain.known.insert(write.api);
                    plain.warned.insert(write.api)
                });
                if first {
                    tracing::warn!(
                        api = write.api.group(),
                        "the CRD of PodGroups has no status subresource; the status is written with the object"
                    );
                }
                Ok(stored)
            }
            other => other.map(read),
        }
    }

    /// Makes the PodGroup of a gang; one that exists is left as it is.
    pub async fn make(&self, gang: &GangId, min: u32, owners: &[Owner]) -> Result<(), kube::Error> {
        let api = PodGroupApi::Sigs.resource().api_version;
        let owners: Vec<Value> = owners
            .iter()
            .map(|owner| {
                json!({"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid})
            })
            .collect();
        let object = json!({
            "apiVersion": api,
            "kind": "PodGroup",
            "metadata": {
                "name": gang.name(), "namespace": gang.namespace(),
                "labels": {key::MANAGED_BY: key::MANAGED_BY_BATON}, "ownerReferences": owners,
            },
            "spec": {"minMember": min},
        });
        let path = format!("/apis/{api}/namespaces/{}/podgroups", gang.namespace());
        let bytes = serde_json::to_vec(&object).map_err(kube::Error::SerdeError)?;
        let mut request =
            Request::new(path).create(&PostParams::default(), bytes).map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert("create");
        match self.client.request::<Value>(request).await {
            Err(error) if status_code(&error) == Some(409) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Deletes the PodGroup of a gang if it is still the object that was read; one that is gone or has changed is no error.
    pub async fn remove(&self, gang: &GangId, uid: &str, version: &str) -> Result<(), kube::Error> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let groups: Api<RawPodGroup> =
            Api::namespaced_with(self.client.clone(), gang.namespace(), &PodGroupApi::Sigs.resource());
        match groups.delete(gang.name(), &params).await {
            Err(error) if matches!(status_code(&error), Some(404 | 409)) => Ok(()),
            other => other.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_contract::gang::{MatchPolicy, Mode};

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
    fn each_field_that_cannot_be_used_warns_with_its_value_and_the_others_count() {
        let meta = json!({"namespace": "ml", "name": "g"});
        let of = |spec: Value| {
            let facts = read(PodGroupApi::Sigs, json!({"metadata": meta, "spec": spec}));
            let said: Vec<String> = facts.warnings.iter().map(ToString::to_string).collect();
            assert!(facts.warnings.iter().all(|warning| warning.reason().word() == "GangInvalidValue"), "{said:?}");
            (facts.min_resources.milli_cpu, facts.spec.wait, said)
        };
        let minute = Some(Duration::from_secs(60));
        for spec in [
            json!({}),
            json!({"minResources": null, "scheduleTimeoutSeconds": null}),
            json!({"minResources": {}}),
            json!({"minResources": {"cpu": "8", "memory": 1_000_000, "nvidia.com/gpu": "99999999999999999999999"}}),
        ] {
            assert_eq!(of(spec.clone()).2, Vec::<String>::new(), "{spec}");
        }
        for (amount, rule) in [
            (json!("eight"), "is no quantity"),
            (json!(""), "is no quantity"),
            (json!(" 8"), "is no quantity"),
            (json!("NaN"), "is no quantity"),
            (json!("1e"), "is no quantity"),
            (json!(true), "is no quantity"),
            (json!({}), "is no quantity"),
            (json!(null), "is no quantity"),
            (json!("-1"), "is negative"),
            (json!(-1), "is negative"),
        ] {
            let (cpu, wait, said) =
                of(json!({"minResources": {"cpu": "8", "x.y/z": amount}, "scheduleTimeoutSeconds": 60}));
            assert_eq!((cpu, wait, said.len()), (8_000, minute, 1), "{amount}: {said:?}");
            let named = said[0].starts_with("spec.minResources: \"x.y/z: ") && said[0].contains(rule);
            assert!(named, "{amount}: {}", said[0]);
        }
        let many: serde_json::Map<String, Value> = (0..100).map(|n| (format!("x.y/{n}"), json!("bad"))).collect();
        assert_eq!(of(json!({ "minResources": many })).2.len(), 8, "as many as its author writes");
        for bad in [json!("cpu=8"), json!([]), json!(8)] {
            assert!(of(json!({"minResources": bad})).2[0].contains("is no map of resources"), "{bad}");
        }
        for bad in [json!(0), json!(-1), json!(i64::MIN), json!(1.5), json!("60"), json!(""), json!(u64::MAX)] {
            let (cpu, wait, said) = of(json!({"minResources": {"cpu": "8"}, "scheduleTimeoutSeconds": bad}));
            assert_eq!((cpu, wait, said.len()), (8_000, None, 1), "{bad}: {said:?}");
            assert!(said[0].starts_with("spec.scheduleTimeoutSeconds") && said[0].contains("above 0"), "{}", said[0]);
        }
    }

    #[test]
    fn keys_that_a_pod_group_cannot_state_are_named() {
        let said = |key: &str, value: &str| {
            let meta = json!({"namespace": "ml", "name": "g", "annotations": {key: value}});
            let warnings = read(PodGroupApi::Sigs, json!({"metadata": meta})).warnings;
            warnings.iter().map(|warning| format!("{}: {warning}", warning.reason())).collect::<Vec<_>>().join("|")
        };
        for key in [key::MIN_AVAILABLE, key::WAITING_TIME, key::POD_GROUP_MIN_AVAILABLE, key::NETWORK_TOPOLOGY_INDEX] {
            assert_eq!(
                said(key, "2"),
                format!("GangInvalidValue: {key}: \"2\" is read on pods only; the value is ignored")
            );
        }
        let unsupported = said("scheduling.koordinator.sh/numa-topology-spec", "0");
        assert!(unsupported.starts_with("NotSupported: scheduling.koordinator.sh/numa-topology-spec"), "{unsupported}");
        let unusable = said(key::NETWORK_TOPOLOGY_SPEC, r#"{"gatherStrategy":[{}]}"#);
        assert_eq!(unusable, format!("InvalidGang: {}: \"{{}}\" names no layer", key::NETWORK_TOPOLOGY_SPEC));
        assert_eq!(said(key::MODE, "Strict"), "");
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
