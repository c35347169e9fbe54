//! The command lines, and `cordon` and `uncordon`.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::device::{CordonTarget, DeviceName, HolderPod, notice, until, user};
use crate::complete;
use crate::live::{Access, Home};
use crate::say::{Format, UsageError, say};
use crate::values;
use baton_contract::{Cordon, EventReason};

/// Longest reason.
const REASON: usize = 256;

/// What the three commands share; `baton uncordon` takes no more.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// The device: `node-1/gpu-3`, or its id behind the node; `baton get devices` lists them.
    #[arg(value_name = "NODE/DEVICE", value_parser = DeviceName::parse, add = complete::devices())]
    pub device: DeviceName,
    /// Another format than text.
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
    #[command(flatten)]
    pub access: Access,
    #[command(flatten)]
    pub home: Home,
}

#[derive(Debug, Args)]
pub struct CordonArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Why: it is shown with the device.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: String,
    /// When it ends by itself: a span (2h) or a time (2026-11-23T10:00:00Z). Else it lasts until `baton uncordon`.
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub until: Option<String>,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Evict; without it, the pods are only listed.
    #[arg(long)]
    pub yes: bool,
    /// Evict also pods without a controller, which nothing creates again.
    #[arg(long, requires = "yes")]
    pub force: bool,
    /// Why, for the cordon that comes first; one that is in force stays as it is where this is not given.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: Option<String>,
    /// When that cordon ends by itself, as for `baton cordon`.
    #[arg(long, value_name = "WHEN", requires = "reason", allow_hyphen_values = true)]
    pub until: Option<String>,
    /// How long to wait for the pods to be gone.
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = values::duration)]
    pub timeout: Duration,
}

fn reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > REASON || text.contains(char::is_control) {
        return Err(format!("expected one line of 1 to {REASON} characters"));
    }
    Ok(text.to_owned())
}

/// `baton cordon`.
pub async fn cordon(args: CordonArgs) -> anyhow::Result<()> {
    let CordonArgs { common, reason, until: end } = args;
    let end = end.as_deref().map(until).transpose()?;
    let client = common.access.connect().await?;
    let mut target = CordonTarget::find(client.clone(), &common.device).await?;
    target.check_node().await?;
    let cordon = Cordon { reason, until: end, by: user(&client).await };
    let before = target.cordon(&cordon).await?;
    notice(&client, &target, EventReason::DeviceCordoned, target.sentence(&cordon.words())).await;
    let holders = target.holders(&common.home.namespace).await?;
    if common.print(&target, Some(&cordon), &holders)? {
        return Ok(());
    }
    let path = target.path();
    let is = format!("{path} ({}) is {}.\n", target.id, cordon.words());
    let was = before.filter(|before| *before != cordon);
    let was = was.map(|before| format!("It was {}; that is replaced.\n", before.words())).unwrap_or_default();
    let pods = match &holders[..] {
        [] => "No pod holds it, and no new pod gets it.\n".to_owned(),
        pods => format!(
            "No new pod gets it. It is held by {}, which {}; `baton drain {path}` evicts.\n",
            list(pods),
            stay(pods)
        ),
    };
    say(is + &was + &pods)
}

fn stay(pods: &[HolderPod]) -> &'static str {
    if pods.len() == 1 { "stays" } else { "stay" }
}

/// `ml/a, ml/b`.
pub(super) fn list(pods: &[HolderPod]) -> String {
    pods.iter().map(|holder| holder.pod.key.to_string()).collect::<Vec<_>>().join(", ")
}

/// `baton uncordon`.
pub async fn uncordon(common: CommonArgs) -> anyhow::Result<()> {
    let client = common.access.connect().await?;
    let mut target = CordonTarget::find(client.clone(), &common.device).await?;
    let lifted = target.uncordon().await?;
    if let Some(cordon) = &lifted {
        let words = format!("returned by {}; it was {}", user(&client).await, cordon.words());
        notice(&client, &target, EventReason::DeviceUncordoned, target.sentence(&words)).await;
    }
    let path = target.path();
    if let Some(parents) = target.parents_cordon() {
        return Err(UsageError(format!(
            "{path} stays out of use: it is a part of a GPU that is {}; `baton uncordon` that one",
            parents.words()
        ))
        .into());
    }
    if common.print(&target, None, &target.holders(&common.home.namespace).await?)? {
        return Ok(());
    }
    say(match lifted {
        Some(cordon) => format!("{path} takes new pods again; it was {}.\n", cordon.words()),
        None => format!("{path} was not cordoned: nothing is changed.\n"),
    })
}

impl CommonArgs {
    /// `false` where text is wanted.
    pub(super) fn print(
        &self,
        target: &CordonTarget,
        cordon: Option<&Cordon>,
        holders: &[HolderPod],
    ) -> anyhow::Result<bool> {
        let Some(output) = self.output else { return Ok(false) };
        let (node, device, id) = (&self.device.node, &target.name, &target.id);
        let pod =
            |holder: &HolderPod| json!({"pod": holder.pod.key, "uid": holder.pod.uid.as_str(), "owner": holder.owner});
        let pods: Vec<_> = holders.iter().map(pod).collect();
        let printed = json!({"node": node, "device": device, "id": id, "cordon": cordon, "pods": pods});
        say(output.print(&printed)?)?;
        Ok(true)
    }
}
