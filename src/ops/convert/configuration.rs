//! The fields of a `KubeSchedulerConfiguration`, in all versions from v1beta1 on.

use serde_json::{Value, json};

use super::arguments;
use super::converted::{Converted, Loss};
use super::part::FilePart;
use super::plugins;

const LEASE: &str = "Baton leads by the Lease that its Role names, with kube-scheduler's default times";
const ADDRESS: &str = "Baton has its own addresses (listen, probeListen)";
const TRANSPORT: &str = "Baton's client is another one (concurrency limits its requests)";
const PROFILING: &str = "Baton has no such pages";
const PAUSE: &str = "a pod waits for 1 to 10 seconds after failures, as kube-scheduler has it by default";
const ALL_NODES: &str = "Baton judges every node";

/// What does not change where pods go, with the reason. Most of it belongs to kube-scheduler's process.
const HARMLESS: &[(&str, &str)] = &[
    ("parallelism", "Baton's decisions need one thread"),
    ("percentageOfNodesToScore", ALL_NODES),
    ("profiles[0].percentageOfNodesToScore", ALL_NODES),
    ("podInitialBackoffSeconds", PAUSE),
    ("podMaxBackoffSeconds", PAUSE),
    ("leaderElection.leaderElect", LEASE),
    ("leaderElection.leaseDuration", LEASE),
    ("leaderElection.renewDeadline", LEASE),
    ("leaderElection.retryPeriod", LEASE),
    ("leaderElection.resourceLock", LEASE),
    ("leaderElection.resourceName", LEASE),
    ("leaderElection.resourceNamespace", LEASE),
    ("clientConnection.kubeconfig", "a file where kube-scheduler runs; Baton has a service account (kubeconfig)"),
    ("clientConnection.acceptContentTypes", TRANSPORT),
    ("clientConnection.contentType", TRANSPORT),
    ("clientConnection.qps", TRANSPORT),
    ("clientConnection.burst", TRANSPORT),
    ("enableProfiling", PROFILING),
    ("enableContentionProfiling", PROFILING),
    ("healthzBindAddress", ADDRESS),
    ("metricsBindAddress", ADDRESS),
    ("delayCacheUntilActive", "every replica of Baton follows the cluster, so that it can lead at once"),
];

/// The name of kube-scheduler's own pods.
const THEIRS: &str = "default-scheduler";

pub fn of_configuration(file: &Value, version: &str) -> anyhow::Result<Converted> {
    let mut to = Converted::default();
    fields(&mut to, &FilePart::at("", file), version)?;
    if file["profiles"].is_null() {
        profile(&mut to, &FilePart::at("profiles[0]", &json!({})), version)?;
    }
    Ok(to)
}

fn fields(to: &mut Converted, part: &FilePart<'_>, version: &str) -> anyhow::Result<()> {
    for (_, part) in part.fields()? {
        match &*part.path {
            "apiVersion" | "kind" => {}
            "profiles" => {
                let profiles = part.items()?;
                profile(to, &profiles[0], version)?;
                profiles[1..].iter().for_each(|other| another_profile(to, other));
            }
            "extenders" => part.items()?.iter().for_each(|extender| self::extender(to, extender)),
            path if HARMLESS.iter().any(|(known, _)| known.starts_with(&format!("{path}."))) => {
                fields(to, &part, version)?;
            }
            _ => settled(to, &part),
        }
    }
    Ok(())
}

/// A field that [`HARMLESS`] names, or that no version has.
fn settled(to: &mut Converted, part: &FilePart<'_>) {
    match HARMLESS.iter().find(|(known, _)| *known == part.path) {
        Some((_, why)) => to.lose(Loss::Harmless, part, why),
        None => to.unknown(part),
    }
}

fn profile(to: &mut Converted, profile: &FilePart<'_>, version: &str) -> anyhow::Result<()> {
    let (mut name, mut lists, mut config) = (THEIRS, None, None);
    for (key, part) in profile.fields()? {
        match key {
            "schedulerName" => name = part.text()?,
            "plugins" => lists = Some(part),
            "pluginConfig" => config = Some(part),
            _ => settled(to, &part),
        }
    }
    if name == THEIRS {
        let why = "kube-scheduler's own name; pods ask for Baton by schedulerName: baton-scheduler. With this name \
                   (schedulerName) Baton takes every pod that names no scheduler: stop kube-scheduler first";
        to.lose(Loss::Harmless, format!("{}.schedulerName = {THEIRS}", profile.path), why);
    } else {
        to.key("schedulerName", json!(name));
    }
    let rates = plugins::plugins(to, &profile.path, lists.as_ref(), version)?;
    config.map_or(Ok(()), |config| arguments::arguments(to, &config, rates))
}

fn another_profile(to: &mut Converted, profile: &FilePart<'_>) {
    let name = profile.value["schedulerName"].as_str().unwrap_or(THEIRS);
    let why = "its pods are not served, since one set of plugins is for all pods; a further name in schedulerName \
               serves them by the plugins of profiles[0]";
    to.lose(Loss::Moves, format!("{} ({name})", profile.path), why);
}

fn extender(to: &mut Converted, extender: &FilePart<'_>) {
    let value = extender.value;
    let judges = ["filterVerb", "prioritizeVerb", "bindVerb", "preemptVerb", "managedResources"];
    let loss = if judges.iter().any(|field| !value[field].is_null()) { Loss::Moves } else { Loss::Harmless };
    let url = value["urlPrefix"].as_str().unwrap_or_default();
    to.lose(loss, format!("{} ({url})", extender.path), "Baton calls no extenders");
}
