//! `baton drain`: the pods of one device are evicted.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use jiff::Timestamp;
use kube::Client;

use super::args::{CommonArgs, DrainArgs, list};
use super::device::{CordonTarget, HolderPod, notice, until, user};
use crate::say::{remark, say};
use crate::view::plain;
use baton_cluster::client::said;
use baton_cluster::cordon::{Eviction, evict};
use baton_contract::{Cordon, EventReason, PodUid};
use baton_runtime::clock;

/// The pods are looked at, and evictions tried, this often.
const PERIOD: Duration = Duration::from_secs(1);

/// `baton drain`. Without `--yes` it lists.
pub async fn drain(args: DrainArgs) -> anyhow::Result<ExitCode> {
    let DrainArgs { common, yes, force, reason, until: end, timeout } = args;
    let end = end.as_deref().map(until).transpose()?;
    let client = common.access.connect().await?;
    let mut target = CordonTarget::find(client.clone(), &common.device).await?;
    target.check_node().await?;
    let path = target.path();
    if !yes {
        preview(&common, &target).await?;
        return Ok(ExitCode::SUCCESS);
    }
    // First, so that the device is given to no pod in between.
    let cordon = cordon_first(&client, &mut target, reason, end).await?;
    let deadline = clock::mono() + timeout;
    let mut shown = BTreeSet::<PodUid>::new();
    let mut late = BTreeMap::<PodUid, String>::new();
    loop {
        let holders = target.holders(&common.home.namespace).await?;
        if common.output.is_none() {
            let fresh: Vec<HolderPod> =
                holders.iter().filter(|holder| shown.insert(holder.pod.uid.clone())).cloned().collect();
            if !fresh.is_empty() {
                say(format!("Evicting:\n{}", table(&fresh)))?;
            }
        }
        late.retain(|uid, _| holders.iter().any(|holder| holder.pod.uid == *uid));
        if holders.is_empty() {
            break;
        }
        // As `kubectl drain` has it. Those that their controllers make again are left too: people decide first.
        let alone: Vec<HolderPod> = holders.iter().filter(|holder| holder.is_lost()).cloned().collect();
        if !force && !alone.is_empty() {
            bail!(
                "no controller creates {} again, so nothing is evicted; {path} stays cordoned, `baton drain {path} --yes --force` evicts all",
                list(&alone)
            );
        }
        evict_all(&client, &holders, &mut late).await?;
        if clock::mono() >= deadline {
            let why = late.values().next().map(|why| format!(": {why}")).unwrap_or_default();
            bail!(
                "{path} is still held by {} after {}{why}; it stays cordoned, `baton drain {path} --yes` continues",
                list(&holders),
                humantime::format_duration(timeout)
            );
        }
        tokio::time::sleep(PERIOD).await;
    }
    if common.print(&target, Some(&cordon), &[])? {
        return Ok(ExitCode::SUCCESS);
    }
    say(format!("{path} ({}) is free and {}. `baton uncordon {path}` returns it.\n", target.id, cordon.words()))?;
    Ok(ExitCode::SUCCESS)
}

/// Shows what would be evicted, and the command that does it.
async fn preview(common: &CommonArgs, target: &CordonTarget) -> anyhow::Result<()> {
    let path = target.path();
    let holders = target.holders(&common.home.namespace).await?;
    if common.print(target, None, &holders)? {
        return Ok(());
    }
    if holders.is_empty() {
        return say(format!("No pod holds {path}: nothing to evict.\n"));
    }
    say(format!("{}\n{}", table(&holders), warning(&holders)))?;
    let force = if holders.iter().any(HolderPod::is_lost) { " --force" } else { "" };
    say(format!("Nothing is evicted yet: `baton drain {path} --yes{force}` does it.\n"))
}

/// The cordon under which it is drained: one in force stays as it is where no reason is given.
async fn cordon_first(
    client: &Client,
    target: &mut CordonTarget,
    reason: Option<String>,
    until: Option<Timestamp>,
) -> anyhow::Result<Cordon> {
    let given = reason.is_some();
    let cordon = Cordon { reason: reason.unwrap_or_else(|| "drained".to_owned()), until, by: user(client).await };
    if let Some(before) = target.cordoned().filter(|_| !given) {
        return Ok(before);
    }
    target.cordon(&cordon).await?;
    notice(client, target, EventReason::DeviceCordoned, target.sentence(&cordon.words())).await;
    Ok(cordon)
}

/// Asks for the evictions that are not under way. `late`: those that are put off, and why.
async fn evict_all(client: &Client, holders: &[HolderPod], late: &mut BTreeMap<PodUid, String>) -> anyhow::Result<()> {
    for HolderPod { pod, .. } in holders.iter().filter(|holder| !holder.deleting) {
        match evict(client, pod).await {
            Ok(Eviction::Done) => drop(late.remove(&pod.uid)),
            Ok(Eviction::Later(why)) => {
                if late.insert(pod.uid.clone(), why.clone()).is_none() {
                    remark(format_args!("pod {} is not evicted yet: {why}", pod.key));
                }
            }
            Err(error) => return Err(anyhow!("pod {} cannot be evicted: {}", pod.key, said(&error))),
        }
    }
    Ok(())
}

fn table(holders: &[HolderPod]) -> String {
    let row = |holder: &HolderPod| {
        vec![holder.pod.key.to_string(), holder.owner.clone().unwrap_or_else(|| "none".to_owned())]
    };
    plain(&["POD", "CONTROLLER"], holders.iter().map(row))
}

/// What an eviction takes beside the device.
fn warning(holders: &[HolderPod]) -> String {
    let alone: Vec<HolderPod> = holders.iter().filter(|holder| holder.is_lost()).cloned().collect();
    let lost = match alone.as_slice() {
        [] => String::new(),
        alone => format!("Without a controller, and so not created again: {}.\n", list(alone)),
    };
    format!("A pod that is evicted gives all its devices back.\n{lost}")
}
