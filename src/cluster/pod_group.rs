//! PodGroups of every API that has them: a lenient wire type, its record, and the writes of status and object.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicResourceScope, Request};
use kube::{Client, Resource};
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::status_code;
use baton_contract::Quantity;
use baton_contract::gang::{BadValue, GangId, PodGroupApi, PodGroupStatus, key};
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
        let fields = match api {
            PodGroupApi::Sigs | PodGroupApi::Community => DeclaredFields {
                min: count("spec.minMember", &spec["minMember"], &mut warnings),
                wait: spec["scheduleTimeoutSeconds"].as_i64().and_then(PodGroupFacts::wait_seconds),
                ..DeclaredFields::default()
            },
            PodGroupApi::Kubernetes => {
                let policy = &spec["schedulingPolicy"];
                let min = count("spec.schedulingPolicy.gang.minCount", &policy["gang"]["minCount"], &mut warnings);
                // Basic scheduling is one by one.
                let min = min.or_else(|| policy["basic"].is_object().then_some(0));
                DeclaredFields { min, ..DeclaredFields::default() }
            }
        };
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
