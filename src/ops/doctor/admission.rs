//! Whether the admission policies are there and deny.

use kube::Client;

use super::objects::within;
use super::report::Finding;
use crate::admission::InstalledPolicies;

const CHECK: &str = "admission";

/// One line, or one for each policy that is missing or altered.
pub async fn look(client: &Client, namespace: &str, lock_key: &str) -> Vec<Finding> {
    let advice = "apply them again: `baton manifests | kubectl apply --server-side -f -`";
    let unread = |why: String| {
        vec![Finding::warn(CHECK, format!("the policies cannot be read: {why}"), "see the lines permission")]
    };
    let policies = match within(InstalledPolicies::read(client, namespace, lock_key)).await {
        Ok(policies) => policies,
        Err(error) => return unread(error.text),
    };
    match &policies {
        InstalledPolicies::InForce => vec![Finding::ok(CHECK, "every admission policy is as it was installed")],
        InstalledPolicies::Absent | InstalledPolicies::Unsupported => {
            policies.words().into_iter().map(|text| Finding::warn(CHECK, text, advice)).collect()
        }
        InstalledPolicies::Broken(_) => {
            policies.words().into_iter().map(|text| Finding::fail(CHECK, text, advice)).collect()
        }
    }
}
