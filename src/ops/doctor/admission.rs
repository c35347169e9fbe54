//! Whether the admission policies are there and deny.

use kube::Client;

use super::objects::within;
use super::report::Finding;
use crate::admission::InstalledPolicies;

const CHECK: &str = "admission";

/// One line, or one for each policy that is missing or altered.
pub async fn look(client: &Client, namespace: &str, lock_key: &str) -> Vec<Finding> {
    let advice = "apply them again: `baton manifests | kubectl apply --server-side -f -`";
    let policies = match within(InstalledPolicies::read(client, namespace, lock_key)).await {
        Ok(policies) => policies,
        Err(error) => {
            let found = format!("the policies cannot be read: {}", error.text);
            return vec![Finding::warn(CHECK, found, "see the lines permission")];
        }
    };
    if policies == InstalledPolicies::InForce {
        return vec![Finding::ok(CHECK, "every admission policy is as it was installed")];
    }
    let is_broken = policies.broken() > 0;
    policies.words().into_iter().map(|text| Finding::bad(is_broken, CHECK, text, advice)).collect()
}
