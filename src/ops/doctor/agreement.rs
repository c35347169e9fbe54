//! Whether the leading scheduler and this node's daemon lock the node alike, and which side to change.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube::{Client, ResourceExt};

use super::objects::{FoundObject, within};
use super::report::Finding;
use crate::admission::InstalledPolicies;
use baton_agent::AgentOptions;
use baton_cluster::agent_lease::LightLease;
use baton_contract::{LockWord, key};

const CHECK: &str = "node-lock";
/// The scheduler's Lease, as it is named by default.
const LEASE: &str = "baton-scheduler";

pub async fn look(client: &Client, options: &AgentOptions, lease: Option<&FoundObject<LightLease>>) -> Finding {
    // What the daemon that runs says goes before what this command was given.
    let said = lease.and_then(|FoundObject(lease)| lease.as_ref()?.status()?.lock);
    let ours = said.unwrap_or_else(|| LockWord::new(&options.node_lock_key, options.node_lock_format));
    let name = format!("Lease {}/{LEASE}", options.namespace);
    let leases = Api::<Lease>::namespaced(client.clone(), &options.namespace);
    let unknown = |why: String| {
        Finding::warn(
            CHECK,
            format!("this node is locked by {ours}; {why}"),
            "compare it with the scheduler's configuration: both must have the same",
        )
    };
    let leader = match within(leases.get_opt(LEASE)).await {
        Ok(Some(leader)) => leader,
        Ok(None) => {
            return Finding::ok(
                CHECK,
                format!("this node is locked by {ours}; no scheduler leads by {name} to compare it with"),
            );
        }
        Err(error) => return unknown(format!("{name} cannot be read: {}", error.text)),
    };
    let Some(theirs) = leader.annotations().get(key::SCHEDULER).and_then(|text| LockWord::read(text)) else {
        return Finding::ok(
            CHECK,
            format!("locked by {ours}; the scheduler is of a version that does not say how it locks"),
        );
    };
    if theirs == ours {
        return Finding::ok(CHECK, format!("scheduler and daemon agree: {ours}"));
    }
    if theirs.key == ours.key {
        return Finding::warn(
            CHECK,
            format!("the daemon has {ours}, the scheduler {theirs}: pods are served, since every format is read"),
            format!("change the node daemon so that both say the same: start it with {theirs}"),
        );
    }
    // The policies were installed with one of the keys.
    let protects = within(InstalledPolicies::read(client, &options.namespace, &ours.key)).await;
    let daemon_is_right = matches!(protects, Ok(InstalledPolicies::InForce));
    let advice = if daemon_is_right {
        format!("change the scheduler: the admission policies protect the daemon's key. Start it with {ours}")
    } else {
        format!("change the node daemon: start it with {theirs}, or without these flags where they are the defaults")
    };
    Finding::fail(
        CHECK,
        format!("AgentConfig: the daemon has {ours}, the scheduler {theirs}: it sends no pod with devices here"),
        advice,
    )
}
