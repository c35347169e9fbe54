//! Whether the admission policies are there and deny.

use std::time::Duration;

use kube::Client;

use super::report::Finding;
use crate::admission::InstalledPolicies;
use baton_runtime::words;

const CHECK: &str = "admission";
const PATIENCE: Duration = Duration::from_secs(5);

/// One line, or one for each policy that is missing or altered.
pub async fn look(client: &Client, namespace: &str, lock_key: &str) -> Vec<Finding> {
    let advice = "apply them again: `baton manifests | kubectl apply --server-side -f -`";
    let unread = |why: String| {
        vec![Finding::warn(CHECK, format!("the policies cannot be read: {why}"), "see the lines permission")]
    };
    let policies = match tokio::time::timeout(PATIENCE, InstalledPolicies::read(client, namespace, lock_key)).await {
        Ok(Ok(policies)) => policies,
        Ok(Err(error)) => return unread(words(&error)),
        Err(_) => return unread(format!("no answer within {} s", PATIENCE.as_secs())),
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
