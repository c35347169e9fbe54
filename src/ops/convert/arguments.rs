//! `pluginConfig` of a profile: the arguments of each plugin.

use std::collections::BTreeSet;

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};

use super::converted::{Converted, Loss};
use super::part::FilePart;
use super::plugins::{FIT, STRATEGIES, counterpart};
use baton_decide::core::rules::plugins::points_of;

const RATIO: &str = "RequestedToCapacityRatio";
const IGNORED: &str = "Baton counts every resource: a pod that asks for one of these goes only to nodes that have it";
const NODES: &str = "Baton looks at every node";
const CLAIMS: &str = "Baton refuses pods with resourceClaims";
const LABELS: &str = "Baton has no such plugin";

/// Arguments that are not carried over, with the reason.
const LOST: &[(&str, Loss, &str)] = &[
    ("NodeResourcesFit.ignoredResources", Loss::Moves, IGNORED),
    ("NodeResourcesFit.ignoredResourceGroups", Loss::Moves, IGNORED),
    (
        "NodeAffinity.addedAffinity",
        Loss::Moves,
        "Baton adds no affinity: give it to the pods, or taint the other nodes",
    ),
    ("PodTopologySpread.defaultConstraints", Loss::Moves, "Baton spreads by the constraints of the pods only"),
    ("VolumeBinding.shape", Loss::Moves, "Baton does not rate nodes by their storage"),
    ("DefaultPreemption.minCandidateNodesPercentage", Loss::Harmless, NODES),
    ("DefaultPreemption.minCandidateNodesAbsolute", Loss::Harmless, NODES),
    ("DynamicResources.filterTimeout", Loss::Harmless, CLAIMS),
    ("DynamicResources.bindingTimeout", Loss::Harmless, CLAIMS),
    ("NodeLabel.presentLabels", Loss::Moves, LABELS),
    ("NodeLabel.absentLabels", Loss::Moves, LABELS),
    ("NodeLabel.presentLabelsPreference", Loss::Moves, LABELS),
    ("NodeLabel.absentLabelsPreference", Loss::Moves, LABELS),
    ("ServiceAffinity.affinityLabels", Loss::Moves, LABELS),
    ("ServiceAffinity.antiAffinityLabelsPreference", Loss::Moves, LABELS),
    (
        "Coscheduling.podGroupBackoffSeconds",
        Loss::Harmless,
        "a gang whose binds are refused waits for 1 to 60 seconds, others wait for room",
    ),
];

/// Converts the arguments. `rates` is kube-scheduler's name of the score that rates resources.
pub fn arguments(to: &mut Converted, config: &FilePart<'_>, rates: &str) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    for item in config.items()? {
        let (mut name, mut args) = (None, None);
        for (key, part) in item.fields()? {
            match key {
                "name" => name = Some(part.text()?),
                "args" => args = Some(part.value),
                _ => to.unknown(&part),
            }
        }
        let name = name.with_context(|| format!("{}: name is missing", item.path))?;
        if !seen.insert(name) {
            bail!("{}: {name} has arguments twice; keep one", item.path);
        }
        let Some(args) = args else { continue };
        for (field, part) in FilePart::at(format!("{} {name}", config.path), args).fields()? {
            if !matches!(field, "apiVersion" | "kind") {
                argument(to, (name, field), &part, rates)?;
            }
        }
    }
    Ok(())
}

fn argument(to: &mut Converted, (name, field): (&str, &str), part: &FilePart<'_>, rates: &str) -> anyhow::Result<()> {
    let rating = |strategy: Value, to: &mut Converted| {
        if rates == name {
            to.argument(FIT, "scoringStrategy", strategy);
        } else {
            to.lose(Loss::Harmless, part, format!("{rates} rates resources by this file"));
        }
    };
    match (name, field) {
        (FIT, "scoringStrategy") => {
            let strategy = strategy(to, part)?;
            rating(strategy, to);
        }
        (_, "resources") if let Some((_, strategy)) = STRATEGIES.iter().find(|(old, _)| *old == name) => {
            let resources = resources(to, part)?;
            rating(json!({"type": strategy, "resources": resources}), to);
        }
        (RATIO, _) => ratio(to, field, part)?,
        ("NodeResourcesBalancedAllocation", "resources") => {
            let resources = resources(to, part)?;
            to.argument(name, field, resources);
        }
        ("InterPodAffinity", "hardPodAffinityWeight" | "ignorePreferredTermsOfExistingPods") => {
            to.argument(name, field, part.value.clone());
        }
        ("VolumeBinding", "bindTimeoutSeconds") => {
            let seconds = part.number()?;
            let taken = seconds.clamp(1, 86_400);
            if taken != seconds {
                to.lose(Loss::Harmless, part, format!("1 to 86400 here, {taken} is taken"));
            }
            to.argument(name, field, json!(taken));
        }
        ("PodTopologySpread", "defaultingType") => match part.text()? {
            "List" => to.lose(Loss::Harmless, part, "Baton spreads by the constraints of the pods only"),
            _ => to.lose(Loss::Moves, part, "Baton spreads by the constraints of the pods only"),
        },
        ("Coscheduling", "permitWaitingTimeSeconds") => match part.number()? {
            seconds @ 1..=604_800 => to.key("gangWaitingTime", json!(format!("{seconds}s"))),
            _ => to.lose(Loss::Harmless, part, "1 to 604800 here (gangWaitingTime)"),
        },
        ("Coscheduling", "defaultTimeout") => to.key("gangWaitingTime", part.value.clone()),
        ("Coscheduling", "defaultMatchPolicy") => to.key("gangMatchPolicy", part.value.clone()),
        _ => match LOST.iter().find(|(known, ..)| known.split_once('.') == Some((name, field))) {
            Some((_, loss, why)) => to.lose(*loss, part, why),
            None if is_known(name) => to.unknown(part),
            None => to.lose(Loss::Harmless, part, "an argument of a plugin that is not carried over"),
        },
    }
    Ok(())
}

fn is_known(name: &str) -> bool {
    !points_of(counterpart(name)).is_empty()
        || LOST.iter().any(|(known, ..)| known.split_once('.').is_some_and(|(plugin, _)| plugin == name))
}

fn strategy(to: &mut Converted, part: &FilePart<'_>) -> anyhow::Result<Value> {
    let (mut kind, mut made, mut shape) = ("LeastAllocated", Map::new(), None);
    for (field, part) in part.fields()? {
        match field {
            "type" => kind = part.text()?,
            "resources" => drop(made.insert(field.to_owned(), resources(to, &part)?)),
            "requestedToCapacityRatio" => shape = Some(part),
            _ => to.unknown(&part),
        }
    }
    match shape {
        Some(shape) if kind == RATIO => drop(made.insert("requestedToCapacityRatio".to_owned(), shape.value.clone())),
        Some(shape) => to.lose(Loss::Harmless, shape, format!("has no meaning with type {kind}")),
        None => {}
    }
    made.insert("type".to_owned(), json!(kind));
    Ok(made.into())
}

/// Weights of resources. One that is named twice counts as often.
fn resources(to: &mut Converted, part: &FilePart<'_>) -> anyhow::Result<Value> {
    let mut resources: Vec<(String, i64)> = Vec::new();
    for (name, weight) in part.weights()? {
        ensure!(weight > 0, "{} {name} = {weight}: expected a weight of 1 or more", part.path);
        match resources.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum = sum.saturating_add(weight),
            None => resources.push((name.to_owned(), weight)),
        }
    }
    let scaled = to.scaled(&part.path, resources);
    Ok(scaled.into_iter().map(|(name, weight)| json!({"name": name, "weight": weight})).collect())
}

/// Shape and resources of the plugin, also in the spelling of early versions.
pub fn ratio(to: &mut Converted, field: &str, part: &FilePart<'_>) -> anyhow::Result<()> {
    match field.to_ascii_lowercase().as_str() {
        "shape" | "functionshape" => to.argument(RATIO, "shape", part.value.clone()),
        "resources" => {
            let resources = resources(to, part)?;
            to.argument(RATIO, "resources", resources);
        }
        "resourcetoweightmap" => {
            let listed: Value =
                part.fields()?.iter().map(|(name, weight)| json!({"name": name, "weight": weight.value})).collect();
            let resources = resources(to, &FilePart::at(part.path.as_str(), &listed))?;
            to.argument(RATIO, "resources", resources);
        }
        _ => to.unknown(part),
    }
    Ok(())
}
