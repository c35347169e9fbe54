//! Reading a live cluster, page by page, with errors that say what to do.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use kube::Client;
use kube::api::{Api, ListParams, ObjectMeta};

use super::say::remark;
use super::values;
use baton_cluster::agent_lease::LightLease;
use baton_cluster::client::{self, status_code};
use baton_cluster::device::RawDevice;
use baton_contract::{AgentStatus, LEASE_PREFIX};

/// Which cluster, and whose rights.
#[derive(Debug, Clone, Default, Args)]
pub struct Access {
    /// Credentials; else KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long, value_name = "FILE", global = true, value_hint = clap::ValueHint::FilePath)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; else its current one.
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
}

/// Where Baton is in the cluster.
#[derive(Debug, Clone, Args)]
pub struct Home {
    /// Namespace of Baton's daemons.
    #[arg(
        long = "baton-namespace", aliases = ["agent-namespace", "scheduler-namespace"], env = "BATON_NAMESPACE",
        default_value = "baton-system", value_name = "NAMESPACE", value_parser = values::daemon_namespace, global = true,
        overrides_with = "baton_namespace", id = "baton_namespace"
    )]
    pub namespace: String,
}

impl Access {
    pub async fn connect(&self) -> anyhow::Result<Client> {
        Ok(client::connect_to(self.file().as_deref(), self.context.as_deref()).await?)
    }

    /// The namespace that the context names, as kubectl has it; else `default`.
    pub async fn namespace(&self) -> String {
        client::namespace(self.file().as_deref(), self.context.as_deref()).await
    }

    /// An empty variable counts as unset, as kubectl has it.
    fn file(&self) -> Option<PathBuf> {
        let variable = std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()).map(PathBuf::from);
        self.kubeconfig.clone().or(variable)
    }
}

/// The Device objects as they are on the wire: one with words that cannot be read hides no other one.
pub async fn devices(client: Client) -> anyhow::Result<Vec<RawDevice>> {
    all(Api::<RawDevice>::all(client), "devices")
        .await
        .map_err(|error| or_unknown("devices.scheduling.koordinator.sh", error))
}

/// The error of a list, or what to do where the API server does not know the kind.
pub fn or_unknown(kind: &str, error: anyhow::Error) -> anyhow::Error {
    if error.downcast_ref::<kube::Error>().and_then(status_code) == Some(404) {
        return anyhow!(
            "the cluster does not know {kind}: install the CRD with `baton crds | kubectl apply --server-side -f -`"
        );
    }
    error
}

/// The Leases of the node daemons by name, of daemons in `namespace`. An error where the daemons are in another one: what is free could
/// not be said.
pub async fn agent_leases(client: Client, namespace: &str) -> anyhow::Result<BTreeMap<String, LightLease>> {
    let api = Api::<LightLease>::namespaced(client.clone(), &AgentStatus::lease_namespace(namespace));
    let leases = all(api, "leases").await?;
    if leases.is_empty()
        && let Some(elsewhere) = elsewhere(client, namespace).await
    {
        bail!("{elsewhere}");
    }
    let named = leases.into_iter().map(|lease| (lease.metadata.name.clone().unwrap_or_default(), lease));
    Ok(named.collect())
}

/// Where the node daemons are, when there are none of `namespace`, as far as this user may look.
pub async fn elsewhere(client: Client, namespace: &str) -> Option<String> {
    let here = Api::<LightLease>::namespaced(client.clone(), &AgentStatus::lease_namespace(namespace));
    let here = here.list_metadata(&ListParams::default().limit(1)).await.ok()?;
    if !here.items.is_empty() {
        return None;
    }
    let all = Api::<LightLease>::all(client).list_metadata(&ListParams::default()).await.ok()?;
    daemons_elsewhere(namespace, all.iter().map(|lease| &lease.metadata))
}

/// Where the node daemons are, when there are none of `namespace`. `leases`: those of the whole cluster.
fn daemons_elsewhere<'a>(namespace: &str, leases: impl Iterator<Item = &'a ObjectMeta>) -> Option<String> {
    let mut found = BTreeMap::<&str, usize>::new();
    let daemons = leases.filter(|meta| meta.name.as_deref().is_some_and(|name| name.starts_with(LEASE_PREFIX)));
    for within in daemons.filter_map(|meta| AgentStatus::namespace_of_leases(meta.namespace.as_deref()?)) {
        *found.entry(within).or_default() += 1;
    }
    let there: Vec<String> = found.iter().map(|(within, count)| format!("{count} in {within}")).collect();
    let are = if found.values().sum::<usize>() == 1 { "is" } else { "are" };
    let there = there.join(", ");
    let (first, _) = found.first_key_value()?;
    Some(format!(
        "no node daemon in namespace {namespace}; there {are} {there}: give --baton-namespace {first}, or set BATON_NAMESPACE"
    ))
}

/// Every object, `what` in messages.
pub async fn all<K>(api: Api<K>, what: &str) -> anyhow::Result<Vec<K>>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let read = AtomicUsize::new(0);
    let reading = async {
        let mut items = Vec::new();
        let mut next = None;
        loop {
            let page = ListParams { limit: Some(500), continue_token: next, ..ListParams::default() };
            let list = api.list(&page).await.map_err(|error| cannot(&format!("list {what}"), error))?;
            items.extend(list.items);
            read.store(items.len(), Ordering::Relaxed);
            next = list.metadata.continue_.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(items);
            }
        }
    };
    patiently(reading, || format!("reading {what}: {} so far", read.load(Ordering::Relaxed))).await
}

/// What gives a user the rights of most commands: outside of `baton-system`, names of ClusterRoles end in the namespace.
pub const LACKS_RIGHTS: &str = "this user may not: an administrator's `kubectl create clusterrolebinding NAME --clusterrole=baton-operator --user=USER` gives the rights \
                                of get, audit, cordon and drain (baton-operator-NAMESPACE where Baton is not in baton-system; docs/operate.md)";

/// After a refusal the user needs rights; without an answer the server has to be found.
pub fn cannot(what: &str, error: kube::Error) -> anyhow::Error {
    hinted(what, LACKS_RIGHTS, error)
}

/// The same of a request that takes no right outside of the daemons' `namespace`.
pub fn cannot_in(namespace: &str, what: &str, error: kube::Error) -> anyhow::Error {
    let hint = format!(
        "this user may not: an administrator's `kubectl -n {namespace} create rolebinding NAME --role=baton-operator --user=USER` gives the rights to ask the daemons"
    );
    hinted(what, &hint, error)
}

fn hinted(what: &str, lacks_rights: &str, error: kube::Error) -> anyhow::Error {
    let hint = match status_code(&error) {
        Some(401) => "the API server does not accept these credentials",
        Some(403) => lacks_rights,
        Some(_) => "the API server refuses",
        None if matches!(error, kube::Error::SerdeError(_)) => "an object there cannot be read",
        None => "is the API server reachable?",
    };
    anyhow::Error::from(error).context(format!("cannot {what}; {hint}"))
}

/// Waits for `work`, and says on standard error what it waits for when that takes longer than a person expects.
pub async fn patiently<T>(work: impl Future<Output = T>, what: impl Fn() -> String) -> T {
    let mut work = std::pin::pin!(work);
    let mut silence = Duration::from_secs(1);
    loop {
        match tokio::time::timeout(silence, work.as_mut()).await {
            Ok(done) => return done,
            Err(_) => remark(what()),
        }
        silence = Duration::from_secs(5);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_of_another_namespace_are_found() {
        let lease = |namespace: &str, name: &str| ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let leases = [
            lease("gpu-nodes", "baton-agent-a"),
            lease("gpu-nodes", "baton-agent-b"),
            lease("kube-node-lease", "a"),
            lease("gpu-nodes", "another"),
        ];
        let found = daemons_elsewhere("foo", leases.iter()).unwrap();
        assert!(found.starts_with("no node daemon in namespace foo; there are 2 in gpu:"), "{found}");
        assert_eq!(daemons_elsewhere("foo", leases[2..].iter()), None);
    }
}
