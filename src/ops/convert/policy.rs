//! A `Policy`, kube-scheduler's file before its configuration had a version.

use serde_json::{Value, json};

use super::arguments;
use super::converted::{Converted, Loss};
use super::part::FilePart;
use super::plugins;

/// The priorities of a Policy, by the plugin that has their meaning.
const PRIORITIES: &[(&str, &str)] = &[
    ("LeastRequestedPriority", "NodeResourcesFit"),
    ("MostRequestedPriority", "NodeResourcesFit"),
    ("BalancedResourceAllocation", "NodeResourcesBalancedAllocation"),
    ("InterPodAffinityPriority", "InterPodAffinity"),
    ("NodeAffinityPriority", "NodeAffinity"),
    ("TaintTolerationPriority", "TaintToleration"),
    ("ImageLocalityPriority", "ImageLocality"),
    ("EvenPodsSpreadPriority", "PodTopologySpread"),
];

/// The predicates of a Policy that Baton's rules contain.
const PREDICATES: &str = "GeneralPredicates PodFitsResources PodFitsHostPorts PodFitsPorts HostName MatchNodeSelector \
                          PodToleratesNodeTaints CheckNodeUnschedulable CheckNodeCondition CheckVolumeBinding \
                          NoVolumeZoneConflict MatchInterPodAffinity EvenPodsSpreadPred";

pub fn of_policy(file: &Value) -> anyhow::Result<Converted> {
    let mut to = Converted::default();
    if !file["priorities"].is_array() {
        plugins::plugins(&mut to, "", None, "v1")?;
    }
    for (key, part) in FilePart::at("", file).fields()? {
        match key {
            "apiVersion" | "kind" => {}
            "predicates" => {
                for item in part.items()? {
                    let name = item.value["name"].as_str().unwrap_or_default();
                    if !PREDICATES.split(' ').any(|known| known == name) {
                        let why = "Baton has no such rule; all rules of Baton stay enabled";
                        to.lose(Loss::Moves, format!("predicates {name}"), why);
                    }
                }
            }
            "priorities" => priorities(&mut to, &part)?,
            "hardPodAffinitySymmetricWeight" => {
                to.argument("InterPodAffinity", "hardPodAffinityWeight", part.value.clone());
            }
            "alwaysCheckAllPredicates" => to.lose(Loss::Harmless, part, "Baton names every reason"),
            "extenders" | "extenderConfigs" => to.lose(Loss::Moves, part, "Baton calls no extenders"),
            _ => to.unknown(part),
        }
    }
    Ok(to)
}

fn priorities(to: &mut Converted, part: &FilePart<'_>) -> anyhow::Result<()> {
    let mut scores: Vec<(String, i64)> = Vec::new();
    for item in part.items()? {
        let name = item.value["name"].as_str().unwrap_or_default();
        let path = format!("priorities {name}");
        let ratio = &item.value["argument"]["requestedToCapacityRatioArguments"];
        let plugin = match PRIORITIES.iter().find(|(known, _)| *known == name) {
            _ if ratio.is_object() => "RequestedToCapacityRatio",
            Some((_, plugin)) => plugin,
            None => {
                to.lose(Loss::Moves, path, "Baton has no such score");
                continue;
            }
        };
        if scores.iter().any(|(listed, _)| listed == plugin) {
            to.lose(Loss::Moves, path, format!("{plugin} scores already, by another priority"));
            continue;
        }
        scores.push((plugin.to_owned(), item.value["weight"].as_i64().unwrap_or(1).max(1)));
        if ratio.is_object() {
            for (field, part) in FilePart::at(path, ratio).fields()? {
                arguments::ratio(to, field, &part)?;
            }
        } else if plugin == plugins::FIT {
            let kind = if name == "MostRequestedPriority" { "MostAllocated" } else { "LeastAllocated" };
            to.argument(plugins::FIT, "scoringStrategy", json!({"type": kind}));
        }
    }
    to.scores(&part.path, scores);
    Ok(())
}
