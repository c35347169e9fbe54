//! Volumes, claims and storage classes at the border: their records, and the writes that claims need before their pod is bound.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use serde_json::json;

use super::spec_part as part;
use baton_contract::{PodKey, Quantity};
use baton_decide::world::{AccessModes, CapacityFacts, ClaimFacts, ClassFacts, VolumeFacts};

/// The older way to name the class.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The claim's volume is known on both sides.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// For which node the volume of a claim is made.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Makes no volumes.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

fn bytes(amount: Option<&Amount>) -> i64 {
    amount.and_then(|amount| amount.0.parse::<Quantity>().ok()).map_or(0, Quantity::value)
}

fn modes(words: Option<&Vec<String>>) -> AccessModes {
    AccessModes::of(words.into_iter().flatten().map(String::as_str))
}

/// A persistent volume.
pub fn volume_facts(volume: &PersistentVolume) -> VolumeFacts {
    let (meta, spec) = (&volume.metadata, volume.spec.clone().unwrap_or_default());
    let affinity = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let claim = spec.claim_ref.as_ref().map(|claim| {
        let word = |text: &Option<String>| text.clone().unwrap_or_default();
        (PodKey::new(&word(&claim.namespace), &word(&claim.name)), word(&claim.uid).into())
    });
    VolumeFacts {
        required: affinity.map(|selector| selector.node_selector_terms.iter().map(part::node_term).collect()),
        labels: meta.labels.clone().unwrap_or_default(),
        class: annotation(meta, BETA_CLASS).or(spec.storage_class_name.as_deref()).map(Into::into),
        attributes: spec.volume_attributes_class_name.clone().unwrap_or_default().into(),
        capacity: bytes(spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"))),
        modes: modes(spec.access_modes.as_ref()),
        block: spec.volume_mode.as_deref() == Some("Block"),
        claim,
        available: volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available"),
        deleting: meta.deletion_timestamp.is_some(),
        version: meta.resource_version.clone().unwrap_or_default().into(),
    }
}

/// A claim and its key.
pub fn claim_facts(claim: &PersistentVolumeClaim) -> (PodKey, ClaimFacts) {
    let (meta, spec) = (&claim.metadata, claim.spec.clone().unwrap_or_default());
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let facts = ClaimFacts {
        uid: meta.uid.clone().unwrap_or_default().into(),
        volume: spec.volume_name.as_deref().filter(|name| !name.is_empty()).map(Into::into),
        complete: annotation(meta, BIND_COMPLETED).is_some(),
        lost: claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost"),
        class: annotation(meta, BETA_CLASS).or(spec.storage_class_name.as_deref()).map(Into::into),
        attributes: spec.volume_attributes_class_name.clone().unwrap_or_default().into(),
        deleting: meta.deletion_timestamp.is_some(),
        single_pod: spec.access_modes.iter().flatten().any(|mode| mode == "ReadWriteOncePod"),
        modes: modes(spec.access_modes.as_ref()),
        block: spec.volume_mode.as_deref() == Some("Block"),
        request: bytes(requests.and_then(|requests| requests.get("storage"))),
        selector: spec.selector.as_ref().map(part::selector),
        selected_node: annotation(meta, SELECTED_NODE).filter(|node| !node.is_empty()).map(Into::into),
        owner: owner.map(|owner| owner.uid.as_str().into()),
        version: meta.resource_version.clone().unwrap_or_default().into(),
    };
    (PodKey::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default()), facts)
}

/// A storage class.
pub fn class_facts(class: &StorageClass) -> ClassFacts {
    let topologies = class.allowed_topologies.iter().flatten().map(|term| {
        let labels = term.match_label_expressions.iter().flatten();
        labels
            .map(|label| (label.key.as_str().into(), label.values.iter().map(|v| v.as_str().into()).collect()))
            .collect()
    });
    ClassFacts {
        waits: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
        provisions: !matches!(class.provisioner.as_str(), "" | NO_PROVISIONER),
        provisioner: class.provisioner.as_str().into(),
        topologies: topologies.collect(),
    }
}

/// Whether the capacity that a CSI driver publishes counts.
pub(super) fn driver_counts(driver: &CSIDriver) -> bool {
    driver.spec.storage_capacity == Some(true)
}

/// What a driver can still make; `None` when that is nothing, or no node is said to reach it.
pub fn capacity_facts(capacity: &CSIStorageCapacity) -> Option<CapacityFacts> {
    // The largest volume says more than all that is left.
    let limit = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref())?;
    let nodes = part::selector(capacity.node_topology.as_ref()?);
    Some(CapacityFacts::new(&capacity.storage_class_name, bytes(Some(limit)), nodes)).filter(|facts| facts.limit > 0)
}

/// Patches claims and volumes. One request each; a changed object refuses it.
#[derive(Clone)]
pub struct Volumes(Client);

impl Volumes {
    /// Patches by this client.
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// Selects the node for which the provisioner makes the claim's volume; 409 when the claim is no longer at `version`.
    pub async fn select_node(&self, claim: &PodKey, version: &str, node: &str) -> Result<(), kube::Error> {
        let patch = json!({"metadata": {"resourceVersion": version, "annotations": {SELECTED_NODE: node}}});
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.0.clone(), &claim.namespace);
        claims.patch_metadata(&claim.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    /// Binds the volume to the claim of this uid, as kube-scheduler does; 409 when the volume is not at `version` any more.
    pub async fn bind(&self, volume: &str, version: &str, claim: &PodKey, uid: &str) -> Result<(), kube::Error> {
        let reference = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace, "name": claim.name, "uid": uid,
        });
        let patch = json!({
            "metadata": {"resourceVersion": version, "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
            "spec": {"claimRef": reference},
        });
        let volumes: Api<PersistentVolume> = Api::all(self.0.clone());
        volumes.patch_metadata(volume, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }
}
