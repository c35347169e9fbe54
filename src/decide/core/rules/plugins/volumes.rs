//! `VolumeBinding`: claims must be there, and their volumes reachable from the node; claims that wait for their first consumer
//! are bound to a volume, or have one made, for the node that is chosen.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::rules::{Claimed, Filter, Outcome, Plugin, PreBind, PreFilter, Reads, Reserve, Slots, View};
use crate::core::{Effect, Effects};
use crate::help::Help;
use crate::world::capacity::Storage;
use crate::world::spec::{Labels, VolumeUse};
use crate::world::volume::{Provision, VolumePlan};
use crate::world::{ClaimFacts, ClassFacts, Node, NodeId, Pod, PodId, VolumeFacts, Wake};
use baton_contract::PodKey;

/// The rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeBinding {
    /// Claims that are not bound by then are given up. 600 s, as in kube-scheduler.
    pub bind_timeout: Duration,
}

impl Default for VolumeBinding {
    fn default() -> Self {
        Self { bind_timeout: Duration::from_secs(600) }
    }
}

const NAME: &str = "VolumeBinding";
const WAKE: Wake = Wake::VOLUME.or(Wake::NODE_ADDED).or(Wake::NODE_CHANGED).or(Wake::POD_FREED);

/// What is planned on each node that fits.
#[derive(Default)]
struct Plans(BTreeMap<NodeId, VolumePlan>);

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, pod: &Pod, _: &Slots) -> Reads {
        if pod.facts.spec.volumes.is_empty() { Reads::Nothing } else { Reads::World }
    }
}

impl PreFilter for VolumeBinding {
    fn pre_filter(&self, view: View<'_>, pod: &Pod, slots: &mut Slots) -> Outcome {
        if pod.facts.spec.volumes.is_empty() {
            return Outcome::Fit;
        }
        match sort(view, pod) {
            Ok(claims) => slots.put(claims),
            Err(no) => return no,
        }
        Outcome::Fit
    }
}

impl Filter for VolumeBinding {
    fn filter(&self, view: View<'_>, pod: &Pod, (id, node): (NodeId, &Node), slots: &mut Slots) -> Outcome {
        let (Some(claims), Some(facts)) = (slots.get::<Claims>(), &node.facts) else { return Outcome::Fit };
        let never = |text: String| Outcome::never(NAME, text, WAKE);
        if let Some(claim) = &claims.taken {
            return Outcome::unfit(NAME, format!("claim {claim} is in use by its one pod"), Wake::POD_FREED);
        }
        for (volume, zoned) in &claims.bound {
            if !volume.reaches(&facts.labels) {
                return Outcome::never(NAME, "volume node affinity", WAKE).helped_by(Help::Reach);
            }
            if *zoned && !in_zone(&volume.labels, &facts.labels) {
                return Outcome::never(NAME, "volume in another zone", WAKE).helped_by(Help::Reach);
            }
        }
        let mut plan = VolumePlan::default();
        for claim in &claims.waiting {
            let name = &claim.key.name;
            let is_full = || claim.storage.as_ref().is_some_and(|storage| !storage.is_near(&facts.labels));
            let full = || {
                let text = format!("have too little free storage of class {} for claim {name}", claim.class_name);
                never(text).helped_by(Help::Storage)
            };
            let provision = || Provision { claim: (&**name).into(), seen: claim.facts.selected_node.is_some() };
            match &claim.node {
                Some(chosen) if *chosen == node.name => {
                    if !claim.class.provisions_at(&facts.labels) {
                        return never(format!("storage class {} makes no volumes there", claim.class_name));
                    }
                    if is_full() {
                        return full();
                    }
                    plan.provision.push(provision());
                    continue;
                }
                Some(chosen) => return never(format!("the volume of claim {name} is made for node {chosen}")),
                None => {}
            }
            if let Some(volume) = match_volume(view, pod.id, claim, node, &plan.bind) {
                plan.bind.push(((&**name).into(), volume.into()));
            } else if claim.class.provisions_at(&facts.labels) {
                if is_full() {
                    return full();
                }
                plan.provision.push(provision());
            } else if claim.class.provisions {
                return never(format!("storage class {} makes no volumes there", claim.class_name));
            } else {
                return never(format!("have no free volume for claim {name}")).helped_by(Help::Volume);
            }
        }
        if !claims.waiting.is_empty() {
            slots.entry::<Plans>().0.insert(id, plan);
        }
        Outcome::Fit
    }
}

impl Reserve for VolumeBinding {
    fn reserve(&self, _: View<'_>, _: &Pod, node: NodeId, slots: &mut Slots, claimed: &mut Claimed) -> Outcome {
        claimed.claim_volumes(slots.get::<Plans>().and_then(|plans| plans.0.get(&node)).cloned());
        Outcome::Fit
    }
}

/// Without news, it is looked again.
const AGAIN: Duration = Duration::from_secs(5);

/// How far a claim is.
enum ClaimProgress {
    Done,
    Waits,
    Failed(String),
}

impl PreBind for VolumeBinding {
    fn pre_bind(&self, view: View<'_>, pod: &Pod, node: NodeId, since: Duration, effects: &mut Effects) -> Outcome {
        let Some(plan) = view.world.volumes().plan_of(pod.id) else { return Outcome::Fit };
        let mut waiting = Vec::new();
        let bindings = plan.bind.iter().map(|(claim, volume)| (claim, bind(view, pod, claim, volume, node, effects)));
        let mut all: Vec<(&Box<str>, ClaimProgress)> = bindings.collect();
        for made in &plan.provision {
            all.push((&made.claim, provision(view, pod, made, node, effects)));
        }
        for (claim, progress) in all {
            match progress {
                ClaimProgress::Done => {}
                ClaimProgress::Waits => waiting.push(&**claim),
                ClaimProgress::Failed(why) => return Outcome::unfit(NAME, why, Wake::VOLUME),
            }
        }
        if waiting.is_empty() {
            return Outcome::Fit;
        }
        let text = format!("waits for the volume of claim {}", waiting.join(", "));
        let limit = self.bind_timeout;
        if view.now >= since + limit {
            let text = format!("{text} for {} s, too long: see what its provisioner says", limit.as_secs());
            return Outcome::unfit(NAME, text, Wake::VOLUME);
        }
        Outcome::wait_until((since + limit).min(view.now + AGAIN), NAME, text, Wake::VOLUME)
    }
}

/// A claim that gets a volume that is there.
fn bind(view: View<'_>, pod: &Pod, claim: &str, volume: &str, node: NodeId, effects: &mut Effects) -> ClaimProgress {
    let key = PodKey::new(&pod.key().namespace, claim);
    let facts = match claim_of(view, &key) {
        Ok(facts) => facts,
        Err(why) => return ClaimProgress::Failed(why),
    };
    if facts.complete {
        return reachable(view, &key, facts, node);
    }
    let Some(found) = view.world.volumes().volume(volume).filter(|found| !found.deleting) else {
        return ClaimProgress::Failed(format!("volume {volume}, chosen for claim {claim}, is gone"));
    };
    match &found.claim {
        // The volume controller sees the promise and binds the claim.
        Some(_) if found.is_for(&key, &facts.uid) => {}
        Some((other, _)) => {
            return ClaimProgress::Failed(format!("volume {volume}, chosen for claim {claim}, went to claim {other}"));
        }
        None => effects.push(Effect::BindVolume {
            volume: volume.into(),
            version: found.version.clone(),
            claim: key,
            uid: facts.uid.clone(),
        }),
    }
    ClaimProgress::Waits
}

/// A claim whose volume is made for the node.
fn provision(view: View<'_>, pod: &Pod, made: &Provision, node: NodeId, effects: &mut Effects) -> ClaimProgress {
    let key = PodKey::new(&pod.key().namespace, &made.claim);
    let facts = match claim_of(view, &key) {
        Ok(facts) => facts,
        Err(why) => return ClaimProgress::Failed(why),
    };
    if facts.complete {
        return reachable(view, &key, facts, node);
    }
    let name = view.world.node(node).map_or("", |node| &node.name);
    match facts.selected_node.as_deref() {
        Some(selected) if selected == name => ClaimProgress::Waits,
        Some(selected) => {
            ClaimProgress::Failed(format!("the volume of claim {} is made for node {selected}", made.claim))
        }
        // The annotation was there and is not any more: that is how a provisioner says no.
        None if made.seen => ClaimProgress::Failed(format!(
            "the provisioner could not make a volume for claim {} on node {name}",
            made.claim
        )),
        None => {
            let version = facts.version.clone();
            effects.push(Effect::SelectNode { claim: key, version, node: name.into() });
            ClaimProgress::Waits
        }
    }
}

fn claim_of<'a>(view: View<'a>, key: &PodKey) -> Result<&'a ClaimFacts, String> {
    match view.world.volumes().claim(key) {
        None => Err(format!("claim {} is gone", key.name)),
        Some(facts) if facts.deleting => Err(format!("claim {} is being deleted", key.name)),
        Some(facts) => Ok(facts),
    }
}

/// A bound claim: its volume must be reachable from the node.
fn reachable(view: View<'_>, key: &PodKey, facts: &ClaimFacts, node: NodeId) -> ClaimProgress {
    let Some(volume) = facts.volume.as_deref() else { return ClaimProgress::Waits };
    // The claim may be shown bound before its new volume is shown at all.
    let Some(found) = view.world.volumes().volume(volume) else { return ClaimProgress::Waits };
    let here = view.world.node(node).and_then(|node| node.facts.as_ref());
    match here {
        Some(facts) if found.reaches(&facts.labels) => ClaimProgress::Done,
        _ => ClaimProgress::Failed(format!(
            "volume {volume} of claim {} cannot be reached from the chosen node",
            key.name
        )),
    }
}

/// The claims of one pod.
#[derive(Default)]
struct Claims {
    /// Volumes of bound claims; `true` where the pod names the claim, so that the volume's zone labels count.
    pub bound: Vec<(VolumeFacts, bool)>,
    /// Claims that wait for their first consumer, the smallest first.
    pub waiting: Vec<Waiting>,
    /// A claim for one pod only that another pod has. Where that leaves, there is room.
    pub taken: Option<Box<str>>,
}

/// A claim that waits for its first consumer.
struct Waiting {
    pub key: PodKey,
    pub facts: ClaimFacts,
    pub class_name: Box<str>,
    pub class: ClassFacts,
    /// Its volume is made for this node, or will be: no other one will do.
    pub node: Option<Box<str>>,
    /// Where its driver has storage enough; `None` where it publishes none.
    pub storage: Option<Storage>,
}

/// Sorts the pod's claims; the error says why no node will do.
fn sort(view: View<'_>, pod: &Pod) -> Result<Claims, Outcome> {
    let mut claims = Claims::default();
    for used in &pod.facts.spec.volumes {
        let name = used.claim();
        let key = PodKey::new(&pod.key().namespace, name);
        let helped = |text: String, help| Err(Outcome::never(NAME, text, Wake::VOLUME).helped_by(help));
        let never = |text| helped(text, Help::Rule);
        let claim = usable_claim(view, pod, used, &key)?;
        if claim.single_pod && is_taken(view, pod, name) {
            claims.taken = Some(name.into());
        }
        let volume = claim.volume.as_deref();
        if let Some(volume) = volume.filter(|_| claim.complete) {
            let Some(facts) = view.world.volumes().volume(volume) else {
                return never(format!("volume {volume} of claim {name} does not exist"));
            };
            claims.bound.push((facts.clone(), matches!(used, VolumeUse::Claim(_))));
            continue;
        }
        let class_name = claim.class.as_deref().filter(|class| !class.is_empty());
        let class = class_name.and_then(|class| view.world.volumes().class(class));
        let (Some(class_name), Some(class), None) = (class_name, class, volume) else {
            return match (class_name, class, volume) {
                (Some(class), None, None) => helped(
                    format!("claim {name} is not bound to a volume, and its storage class {class} does not exist"),
                    Help::StorageClass,
                ),
                _ => never(format!("claim {name} is not bound to a volume")),
            };
        };
        if !class.waits {
            return never(format!("claim {name} is not bound to a volume"));
        }
        let mut node = claim.selected_node.clone();
        // Another pod on its way to its node uses the claim too: where that goes, the volume goes.
        match view.world.planned_for(&key, pod.id) {
            Some((_, Some(volume))) => {
                claims.bound.extend(view.world.volumes().volume(volume).map(|facts| (facts.clone(), false)));
                continue;
            }
            Some((at, None)) if node.is_none() => node = view.world.node(at).map(|node| node.name.clone()),
            _ => {}
        }
        let (facts, class) = (claim.clone(), class.clone());
        let storage = view.world.volumes().storage_for(class_name, claim.request);
        claims.waiting.push(Waiting { key, facts, class_name: class_name.into(), class, node, storage });
    }
    claims.waiting.sort_by(|a, b| a.facts.request.cmp(&b.facts.request).then_with(|| a.key.cmp(&b.key)));
    claims.waiting.dedup_by(|a, b| a.key == b.key);
    Ok(claims)
}

/// The claim of one of the pod's volumes, if the pod can ever use it.
fn usable_claim<'a>(view: View<'a>, pod: &Pod, used: &VolumeUse, key: &PodKey) -> Result<&'a ClaimFacts, Outcome> {
    let name = used.claim();
    let never = |text: String| Outcome::never(NAME, text, Wake::VOLUME);
    let Some(claim) = view.world.volumes().claim(key) else {
        let text = match used {
            VolumeUse::Claim(_) => format!("claim {name} does not exist"),
            VolumeUse::Ephemeral(_) => format!("claim {name} of an ephemeral volume has not been made yet"),
        };
        return Err(never(text).helped_by(Help::Claim));
    };
    let is_own = claim.owner.as_deref() == Some(pod.facts.handoff.pod.uid.as_str());
    if matches!(used, VolumeUse::Ephemeral(_)) && !is_own {
        let text = format!("claim {name} was not made for this pod's ephemeral volume, whose claim has that name");
        return Err(never(text));
    }
    if claim.deleting {
        return Err(never(format!("claim {name} is being deleted")));
    }
    if claim.lost {
        let volume = claim.volume.as_deref().unwrap_or_default();
        return Err(never(format!("claim {name} is lost: its volume {volume} is gone")));
    }
    Ok(claim)
}

fn is_taken(view: View<'_>, pod: &Pod, claim: &str) -> bool {
    let uses = |other: &&Pod| {
        other.id != pod.id
            && other.node().and_then(|at| view.world.node(at)).is_some_and(|node| node.pods.contains(&other.id))
            && other.key().namespace == pod.key().namespace
            && other.facts.spec.volumes.iter().any(|used| used.claim() == claim)
    };
    view.world.pods().any(|other| uses(&other))
}

/// The volume for `claim` on `node`; `taken` are those that other claims of the same pod get.
fn match_volume<'a>(
    view: View<'a>,
    pod: PodId,
    claim: &'a Waiting,
    node: &Node,
    taken: &[(Box<str>, Box<str>)],
) -> Option<&'a str> {
    let labels = &node.facts.as_ref()?.labels;
    let facts = &claim.facts;
    // The controller binds no volume of another VolumeAttributesClass, not even one that is promised.
    let alike = |volume: &VolumeFacts| volume.block == facts.block && volume.attributes == facts.attributes;
    let fits = |volume: &VolumeFacts| !volume.deleting && alike(volume) && volume.capacity >= facts.request;
    let mut open = view
        .world
        .volumes()
        .of_class(&claim.class_name)
        .filter(|(name, volume)| fits(volume) && taken.iter().all(|(_, other)| **other != **name));
    // Made for this claim and promised to it: no other volume is looked at, here or on nodes that it does not reach.
    if let Some((name, volume)) = open.find(|(_, volume)| volume.is_for(&claim.key, &facts.uid)) {
        return volume.reaches(labels).then_some(name);
    }
    let mut best: Option<(&str, &VolumeFacts)> = None;
    for (name, volume) in view.world.volumes().of_class(&claim.class_name) {
        let selected = facts.selector.as_ref().is_none_or(|selector| selector.matches(&volume.labels));
        let free = volume.available
            && volume.claim.is_none()
            && taken.iter().all(|(_, other)| **other != *name)
            && !view.world.volumes().is_promised(name, pod);
        let serves = fits(volume) && volume.modes.cover(facts.modes) && volume.reaches(labels);
        if serves && free && selected && best.is_none_or(|(_, best)| volume.capacity < best.capacity) {
            best = Some((name, volume));
        }
    }
    best.map(|(name, _)| name)
}

/// Labels that name a place, and the stable spelling of each.
const PLACES: [(&str, &str); 4] = [
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
];

/// Each such label of a volume must name the node's place: the node's label of that key, or for a beta one of the volume the
/// node's stable one. Several places are separated by `__`; a value with an empty part says nothing. A node without any such
/// label is not judged. As kube-scheduler's VolumeZone.
fn in_zone(volume: &Labels, node: &Labels) -> bool {
    if PLACES.iter().all(|(key, _)| !node.contains_key(*key)) {
        return true;
    }
    PLACES.iter().all(|(key, stable)| {
        let Some(value) = volume.get(*key) else { return true };
        let places: Vec<&str> = value.split("__").map(str::trim).collect();
        if places.contains(&"") {
            return true;
        }
        node.get(*key).or_else(|| node.get(*stable)).is_some_and(|have| places.contains(&have.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONE: &str = "topology.kubernetes.io/zone";
    const BETA: &str = "failure-domain.beta.kubernetes.io/zone";
    const REGION: &str = "topology.kubernetes.io/region";

    fn labels(all: &[(&str, &str)]) -> Labels {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn volumes_are_where_each_of_their_labels_says_so() {
        for (volume, node, there) in [
            (&[(ZONE, "a")][..], &[(ZONE, "a")][..], true),
            (&[(ZONE, "a")], &[(ZONE, "b")], false),
            (&[(ZONE, "a")], &[], true),
            (&[(ZONE, "a")], &[(REGION, "r")], false),
            (&[], &[(ZONE, "b")], true),
            (&[(ZONE, "a__b")], &[(ZONE, "b")], true),
            (&[(BETA, "a")], &[(ZONE, "a")], true),
            (&[(BETA, "a")], &[(BETA, "a"), (ZONE, "b")], true),
            (&[(ZONE, "a")], &[(BETA, "a")], false),
            (&[(ZONE, "a"), (BETA, "b")], &[(ZONE, "a")], false),
            (&[(ZONE, "a"), (BETA, "b")], &[(ZONE, "a"), (BETA, "b")], true),
            (&[(ZONE, "a__")], &[(ZONE, "b")], true),
            (&[(ZONE, "")], &[(ZONE, "b")], true),
            (&[(ZONE, "a"), (REGION, "r")], &[(ZONE, "a"), (REGION, "s")], false),
        ] {
            assert_eq!(in_zone(&labels(volume), &labels(node)), there, "{volume:?} on {node:?}");
        }
    }
}
