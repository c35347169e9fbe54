//! `plugins` of a profile: which of Baton's rules and scores kube-scheduler runs by the file.

use std::collections::BTreeMap;

use serde_json::json;

use super::converted::{Converted, Loss};
use super::part::FilePart;
use baton_decide::core::rules::plugins::{Point, is_stock, names_at, points_of};

/// kube-scheduler's extension points, `multiPoint` included.
pub const POINTS: &str = "multiPoint preEnqueue queueSort preFilter filter postFilter preScore score reserve permit preBind bind \
                      postBind placementGenerate placementScore podGroupPostFilter";

/// Points whose lists are carried over. The other points of a rule go with these.
const CARRIED: [Point; 4] = [Point::QueueSort, Point::Filter, Point::PostFilter, Point::Score];

/// What Baton has by other means: what it means to enable and to disable it, and why.
const BUILT_IN: &[(&str, Loss, Loss, &str)] = &[
    ("Coscheduling", Loss::Harmless, Loss::Harmless, "gangs are built in"),
    ("GangScheduling", Loss::Harmless, Loss::Moves, "gangs are built in (schedulingGroup)"),
    ("DefaultBinder", Loss::Harmless, Loss::Harmless, "lock and Binding are built in"),
    ("SchedulingGates", Loss::Harmless, Loss::Harmless, "gates are always honoured"),
    ("DynamicResources", Loss::Moves, Loss::Moves, "Baton refuses pods with resourceClaims"),
    ("VolumeZone", Loss::Harmless, Loss::Moves, "VolumeBinding looks at the zones"),
    ("VolumeRestrictions", Loss::Moves, Loss::Moves, "VolumeBinding looks at ReadWriteOncePod only"),
];

/// Why other points are not carried over.
const ALONG: &str = "goes with filter and score of its plugin";

/// The scores of v1beta1 that are strategies of one plugin today.
pub const STRATEGIES: [(&str, &str); 2] =
    [("NodeResourcesLeastAllocated", "LeastAllocated"), ("NodeResourcesMostAllocated", "MostAllocated")];
/// That plugin.
pub const FIT: &str = "NodeResourcesFit";

/// What a file says of one extension point.
#[derive(Default)]
struct AskedPlugins<'a> {
    enabled: Vec<(&'a str, i64)>,
    disabled: Vec<&'a str>,
}

impl<'a> AskedPlugins<'a> {
    fn read(to: &mut Converted, part: &FilePart<'a>) -> anyhow::Result<Self> {
        let mut asked = Self::default();
        for (key, list) in part.fields()? {
            let named = || -> anyhow::Result<_> {
                Ok(list.weights()?.into_iter().map(|(name, weight)| (ours(name), weight)).collect::<Vec<_>>())
            };
            match key {
                "enabled" => asked.enabled = named()?,
                "disabled" => asked.disabled = named()?.into_iter().map(|(name, _)| name).collect(),
                _ => to.unknown(&list),
            }
        }
        Ok(asked)
    }

    fn drops(&self, name: &str) -> bool {
        self.disabled.iter().any(|dropped| *dropped == "*" || *dropped == name)
    }

    fn weight(&self, name: &str) -> Option<i64> {
        self.enabled.iter().rev().find(|(enabled, _)| *enabled == name).map(|(_, weight)| *weight)
    }
}

/// kube-scheduler and its plugins spell one name in another way.
fn ours(name: &str) -> &str {
    if name == "QOSSort" { "QoSSort" } else { name }
}

/// Baton's plugin with the meaning of kube-scheduler's.
pub fn counterpart(name: &str) -> &str {
    if STRATEGIES.iter().any(|(old, _)| *old == name) { FIT } else { name }
}

/// kube-scheduler's default plugins at a point, those that Baton has.
fn defaults(point: Point, version: &str) -> Vec<(&'static str, i64)> {
    match point {
        Point::QueueSort => vec![("PrioritySort", 1)],
        Point::Filter => names_at(point).filter(|name| is_stock(name) == Some(true)).map(|name| (name, 1)).collect(),
        Point::PostFilter => vec![("DefaultPreemption", 1)],
        _ => {
            let early = version.ends_with("v1beta1") || version.ends_with("v1beta2");
            let (taints, affinity) = if early { (1, 1) } else { (3, 2) };
            let fit = if version.ends_with("v1beta1") { STRATEGIES[0].0 } else { FIT };
            vec![
                ("TaintToleration", taints),
                ("NodeAffinity", affinity),
                (fit, 1),
                ("PodTopologySpread", 2),
                ("InterPodAffinity", affinity),
                ("NodeResourcesBalancedAllocation", 1),
                ("ImageLocality", 1),
            ]
        }
    }
}

/// What kube-scheduler runs at a point: what is said there counts before `multiPoint`, what is enabled before what is disabled.
fn effective<'a>(
    defaults: Vec<(&'a str, i64)>,
    multi: &AskedPlugins<'a>,
    own: &AskedPlugins<'a>,
) -> Vec<(&'a str, i64)> {
    let mut list: Vec<(&str, i64)> = defaults.into_iter().filter(|(name, _)| !multi.drops(name)).collect();
    for (names, dropped) in [(multi, own.disabled.as_slice()), (own, &[])] {
        for (name, _) in &names.enabled {
            let weight = names.weight(name).unwrap_or(1);
            match list.iter_mut().find(|(listed, _)| listed == name) {
                Some(listed) => listed.1 = weight,
                None => list.push((name, weight)),
            }
        }
        list.retain(|(name, _)| !dropped.iter().any(|dropped| *dropped == "*" || dropped == name));
    }
    list
}

/// Converts the lists. Returns kube-scheduler's name of the score that rates resources.
pub fn plugins<'a>(
    to: &mut Converted,
    profile: &str,
    part: Option<&FilePart<'a>>,
    version: &str,
) -> anyhow::Result<&'a str> {
    let mut asked: BTreeMap<&str, AskedPlugins<'_>> = BTreeMap::new();
    for (key, set) in part.map(FilePart::fields).transpose()?.unwrap_or_default() {
        if POINTS.split(' ').any(|point| point == key) {
            let read = AskedPlugins::read(to, &set)?;
            read.enabled.iter().for_each(|(name, _)| enabled(to, &set, key, name));
            read.disabled.iter().for_each(|name| disabled(to, &set, key, name, version));
            asked.insert(key, read);
        } else {
            to.unknown(&set);
        }
    }
    let multi = asked.remove("multiPoint").unwrap_or_default();
    let at = |point: Point| {
        let none = AskedPlugins::default();
        effective(defaults(point, version), &multi, asked.get(point.key()).unwrap_or(&none))
    };
    let sorts = at(Point::QueueSort);
    // An order besides the default one takes its place.
    to.queue_sort = names_at(Point::QueueSort).filter(|name| sorts.iter().any(|(sort, _)| sort == name)).last();
    for point in [Point::Filter, Point::PostFilter] {
        let kept = at(point);
        for (name, _) in defaults(point, version) {
            if !kept.iter().any(|(kept, _)| *kept == name) {
                to.off.entry(point).or_default().insert(name);
            }
        }
    }
    Ok(scores(to, &format!("{profile}.plugins.score"), at(Point::Score)))
}

fn scores<'a>(to: &mut Converted, path: &str, asked: Vec<(&'a str, i64)>) -> &'a str {
    let mut scores: Vec<(&str, i64)> = Vec::new();
    for (name, weight) in
        asked.into_iter().filter(|(name, _)| names_at(Point::Score).any(|known| known == counterpart(name)))
    {
        if weight < 0 {
            to.lose(Loss::Moves, format!("{path} {name} = {weight}"), "Baton has no weights below 1");
            continue;
        }
        let Some(other) = scores.iter_mut().find(|(known, _)| counterpart(known) == counterpart(name)) else {
            scores.push((name, weight));
            continue;
        };
        let lighter = if other.1 < weight { std::mem::replace(other, (name, weight)) } else { (name, weight) };
        let why = format!("Baton rates resources once, by {}, which weighs more", other.0);
        to.lose(Loss::Moves, format!("{path} {} = {}", lighter.0, lighter.1), why);
    }
    let rates = scores.iter().map(|(name, _)| *name).find(|name| counterpart(name) == FIT).unwrap_or(FIT);
    if let Some((_, strategy)) = STRATEGIES.iter().find(|(old, _)| *old == rates) {
        to.argument(FIT, "scoringStrategy", json!({"type": strategy}));
    }
    to.scores(path, scores.into_iter().map(|(name, weight)| (counterpart(name).to_owned(), weight)).collect());
    rates
}

fn enabled(to: &mut Converted, set: &FilePart<'_>, key: &str, name: &str) {
    let what = format!("{}.enabled {name}", set.path);
    if let Some((_, loss, _, why)) = BUILT_IN.iter().find(|(known, ..)| *known == name) {
        return to.lose(*loss, what, why);
    }
    let points = points_of(counterpart(name));
    if points.is_empty() {
        to.lose(Loss::Moves, what, "Baton has no such plugin");
    } else if !is_carried(key) {
        to.lose(Loss::Harmless, what, ALONG);
    } else if key != "multiPoint" && !points.contains(&key) {
        to.lose(Loss::Moves, what, format!("Baton has this plugin at {} only", points.join(", ")));
    }
}

fn disabled(to: &mut Converted, set: &FilePart<'_>, key: &str, name: &str, version: &str) {
    let what = format!("{}.disabled {name}", set.path);
    if let Some((_, _, loss, why)) = BUILT_IN.iter().find(|(known, ..)| *known == name) {
        return to.lose(*loss, what, why);
    }
    let is_default = |point: &Point| {
        (key == "multiPoint" || point.key() == key)
            && (name == "*" || defaults(*point, version).iter().any(|(default, _)| *default == name))
    };
    if key == "podGroupPostFilter" && matches!(name, "*" | "DefaultPreemption") {
        to.lose(Loss::Moves, what, "Baton preempts for gangs as for pods");
    } else if matches!(key, "preFilter" | "preScore" | "reserve" | "preBind") {
        to.lose(Loss::Harmless, what, ALONG);
    } else if !CARRIED.iter().any(is_default) {
        to.lose(Loss::Harmless, what, "nothing to disable here");
    }
}

fn is_carried(key: &str) -> bool {
    key == "multiPoint" || CARRIED.iter().any(|point| point.key() == key)
}
