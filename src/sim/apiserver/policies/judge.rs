//! Which policies are in force, and what they say of a write.

use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::Value;

use super::input::Input;
use super::policy::Policy;
use crate::sim::apiserver::auth::User;
use crate::sim::apiserver::core::Core;
use crate::sim::apiserver::failure::Failure;
use crate::sim::apiserver::object::meta;
use crate::sim::apiserver::registry::Resource;
use crate::sim::apiserver::request::Request;
use crate::sim::apiserver::store::Store;

/// API group of policies and bindings; its kinds are never judged.
pub const GROUP: &str = "admissionregistration.k8s.io";
const POLICIES: &str = "admissionregistration.k8s.io/validatingadmissionpolicies";
const BINDINGS: &str = "admissionregistration.k8s.io/validatingadmissionpolicybindings";

/// A write as policies see it.
pub struct Asked<'a> {
    /// The resource of the request.
    pub resource: &'a Resource,
    /// Its subresource, or empty.
    pub subresource: &'a str,
    /// Group, version and kind of the object.
    pub kind: (&'a str, &'a str, &'a str),
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: &'static str,
    /// Namespace, or empty. Of a namespace that is named in the path, its own name.
    pub namespace: &'a str,
    /// Name, or empty where the request gives none.
    pub name: &'a str,
    /// The object as it would be stored, without kind and version; none of a deletion.
    pub object: Option<&'a Value>,
    /// The object as it is; none of a creation.
    pub old: Option<&'a Value>,
    /// Who asks.
    pub user: &'a User,
    /// Whether nothing is to be stored.
    pub dry: bool,
}

impl<'a> Asked<'a> {
    /// What a request asks for, as yet without objects.
    pub fn of(request: &'a Request, resource: &'a Resource, operation: &'static str) -> Self {
        let target = &request.target;
        let namespace = if resource.is("", "namespaces") { &target.name } else { &target.namespace };
        Self {
            resource,
            subresource: &target.subresource,
            kind: (&resource.group, &resource.version, &resource.kind),
            operation,
            namespace,
            name: &target.name,
            object: None,
            old: None,
            user: &request.user,
            dry: request.query.get("dryRun") == Some("All"),
        }
    }

    /// The name that a refusal tells.
    fn shown_name(&self) -> &str {
        let generated = self.object.map(|object| meta(object, "name")).filter(|name| !name.is_empty());
        if self.name.is_empty() { generated.unwrap_or("Unknown") } else { self.name }
    }
}

/// The policies in force, compiled; made again when one of them or of their bindings changed.
#[derive(Default)]
pub struct Policies(ArcSwap<InForce>);

#[derive(Default)]
struct InForce {
    /// Version of the last change that this knows of.
    version: u64,
    policies: Vec<Policy>,
}

impl Policies {
    fn in_force(&self, store: &Store) -> Arc<InForce> {
        let version = store.changed(&[POLICIES, BINDINGS]);
        let known = self.0.load_full();
        if known.version == version {
            return known;
        }
        let all = |collection: &str| store.list(collection, "/", None, None).map(|s| s.items).unwrap_or_default();
        let bindings = all(BINDINGS);
        let policies = all(POLICIES).into_iter().filter_map(|(_, policy)| {
            let name = meta(&policy.value, "name");
            let own = bindings.iter().map(|(_, binding)| &binding.value).filter(|b| b["spec"]["policyName"] == name);
            Policy::read(&policy.value, own)
        });
        let fresh = Arc::new(InForce { version, policies: policies.collect() });
        self.0.store(Arc::clone(&fresh));
        fresh
    }
}

/// Whether any policy is in force.
pub fn any(core: &Core) -> bool {
    !core.policies.in_force(&core.store).policies.is_empty()
}

/// Refuses what a policy denies.
pub fn judge(core: &Core, asked: &Asked<'_>) -> Result<(), Failure> {
    let in_force = core.policies.in_force(&core.store);
    if in_force.policies.is_empty() || asked.kind.0 == GROUP {
        return Ok(());
    }
    let input = Input::new(core, asked);
    for policy in &in_force.policies {
        if !policy.matches.matches(asked, &core.store) {
            continue;
        }
        let Some(binding) = policy.binding(asked, &core.store) else { continue };
        if let Some(denial) = policy.denial(&input) {
            let why = format!(
                "ValidatingAdmissionPolicy '{}' with binding '{binding}' denied request: {}",
                policy.name, denial.message
            );
            return Err(Failure::denied(asked.resource, asked.shown_name(), &denial.reason, &why));
        }
    }
    Ok(())
}
