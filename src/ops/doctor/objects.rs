//! The API server, and this node's objects in it.

use std::fmt::Display;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;

use tokio::time::timeout;

use super::report::Finding;
use crate::live;
use crate::say::remark;
use baton_agent::AgentOptions;
use baton_cluster::agent_lease::LightLease;
use baton_cluster::client::{connect, status_code};
use baton_cluster::device::RawDevice;
use baton_contract::AgentStatus;
use baton_contract::inventory::Device;
use baton_runtime::words;

const PATIENCE: Duration = Duration::from_secs(5);
const ADVICE: &str = "check --kubeconfig (in the cluster: the pod's service account), the network from this node, and the server's certificate";

/// The object of a name, when the API server has one.
pub struct FoundObject<T>(pub Option<T>);

/// The objects that were read. An object that could not be read has a finding.
#[derive(Default)]
pub struct InspectedCluster {
    /// `None` when the API server cannot be reached.
    pub client: Option<Client>,
    pub node: Option<Node>,
    /// Its Device object, when that could be read.
    pub device: Option<FoundObject<Device>>,
    /// The Lease of its agent, likewise.
    pub lease: Option<FoundObject<LightLease>>,
    /// Lines about what could not be read.
    pub findings: Vec<Finding>,
}

pub async fn read(options: &AgentOptions) -> InspectedCluster {
    let mut cluster = InspectedCluster::default();
    let reached = async {
        let client = connect(options.kubeconfig.as_deref()).await.map_err(|error| error.to_string())?;
        let version = within(client.apiserver_version()).await.map_err(|error| error.text)?;
        Ok::<_, String>((client, version))
    };
    let (client, version) = match reached.await {
        Ok(reached) => reached,
        Err(why) => {
            cluster.findings.push(Finding::fail("api-server", why, ADVICE));
            return cluster;
        }
    };
    cluster.findings.push(Finding::ok("api-server", format!("answers, version {}", version.git_version)));
    let name = options.node_name.as_str();
    match within(Api::<Node>::all(client.clone()).get_opt(name)).await {
        Ok(Some(node)) => {
            let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
            let versions =
                info.map(|info| format!(": kubelet {}, {}", info.kubelet_version, info.container_runtime_version));
            cluster.findings.push(Finding::ok("node", format!("{name}{}", versions.unwrap_or_default())));
            cluster.node = Some(node);
        }
        Ok(None) => {
            let advice = "--node-name must be the node's name in the cluster (`kubectl get nodes`); in the DaemonSet it comes from spec.nodeName";
            cluster.findings.push(Finding::fail("node", format!("the cluster has no node {name:?}"), advice));
        }
        Err(error) => cluster.findings.push(unread("node", &format!("node {name}"), &error)),
    }
    match within(Api::<RawDevice>::all(client.clone()).get_opt(name)).await {
        Ok(found) => cluster.device = Some(FoundObject(found.map(|found| found.read().0))),
        Err(error) => cluster.findings.push(unread("device-object", &format!("Device {name}"), &error)),
    }
    let leases = Api::<LightLease>::namespaced(client.clone(), &AgentStatus::lease_namespace(&options.namespace));
    let lease = AgentStatus::lease_name(name);
    match within(leases.get_opt(&lease)).await {
        Ok(found) => {
            if found.is_none() {
                let elsewhere = timeout(PATIENCE, live::elsewhere(client.clone(), &options.namespace)).await;
                elsewhere.ok().flatten().into_iter().for_each(remark);
            }
            cluster.lease = Some(FoundObject(found));
        }
        Err(error) => cluster.findings.push(unread("agent", &format!("Lease {lease}"), &error)),
    }
    cluster.client = Some(client);
    cluster
}

/// A request without a usable answer.
pub struct Unread {
    /// Why.
    pub text: String,
    /// Code of the answer.
    pub code: Option<u16>,
}

/// The answer, if it comes soon.
pub async fn within<T>(ask: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Unread> {
    match tokio::time::timeout(PATIENCE, ask).await {
        Ok(answer) => answer.map_err(|error| Unread { code: status_code(&error), text: words(&error) }),
        Err(_) => Err(Unread { text: format!("no answer within {} s", PATIENCE.as_secs()), code: None }),
    }
}

fn unread(check: &'static str, what: &dyn Display, error: &Unread) -> Finding {
    let advice = match error.code {
        Some(403) => "see the lines permission",
        // A kind that the server does not know answers 404 to everything, which a missing object of a known kind does too.
        _ => "run it again; if this stays, check the API server",
    };
    Finding::fail(check, format!("{what} cannot be read: {}", error.text), advice)
}
