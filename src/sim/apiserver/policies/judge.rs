//! Which policies are in force, and what they say of a write.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::asked::Asked;
use super::input::Input;
use super::policy::Policy;
use crate::apiserver::auth::Users;
use crate::apiserver::failure::Failure;
use crate::apiserver::object::meta;
use crate::apiserver::store::Store;

/// API group of policies and bindings; its kinds are never judged.
pub const GROUP: &str = "admissionregistration.k8s.io";
const POLICIES: &str = "admissionregistration.k8s.io/validatingadmissionpolicies";
const BINDINGS: &str = "admissionregistration.k8s.io/validatingadmissionpolicybindings";

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

    /// Whether any policy is in force.
    pub fn any(&self, store: &Store) -> bool {
        !self.in_force(store).policies.is_empty()
    }

    /// Refuses what a policy denies.
    pub fn judge(&self, users: &Arc<Users>, store: &Arc<Store>, asked: &Asked<'_>) -> Result<(), Failure> {
        let in_force = self.in_force(store);
        if in_force.policies.is_empty() || asked.kind.0 == GROUP {
            return Ok(());
        }
        let input = Input::new(users, store, asked);
        for policy in &in_force.policies {
            if !policy.matches.matches(asked, store) {
                continue;
            }
            let Some(binding) = policy.binding(asked, store) else { continue };
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
}
