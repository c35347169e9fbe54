//! Before the Binding: claims are bound to their volumes, or the provisioner is told the node, and all of it is awaited.

use std::time::Duration;

use crate::contract::PodKey;
use crate::decide::help::Help;
use crate::decide::scheduler::rules::{Outcome, PreBind, Refusal, View};
use crate::decide::scheduler::{Effect, Effects};
use crate::decide::world::volume::Provision;
use crate::decide::world::{ClaimFacts, NodeId, Pod, Wake};

use super::rule::{NAME, VolumeBinding};

/// Without news, it is looked again.
const AGAIN: Duration = Duration::from_secs(5);

/// How far a claim is.
enum Progress {
    Done,
    Waits,
    Failed(String),
}

impl PreBind for VolumeBinding {
    fn pre_bind(&self, view: View<'_>, pod: &Pod, node: NodeId, since: Duration, effects: &mut Effects) -> Outcome {
        let Some(plan) = view.world.volume_plan(pod.id) else { return Outcome::Fit };
        let mut waiting = Vec::new();
        let bindings = plan.bind.iter().map(|(claim, volume)| (claim, bind(view, pod, claim, volume, node, effects)));
        let mut all: Vec<(&Box<str>, Progress)> = bindings.collect();
        for made in &plan.provision {
            all.push((&made.claim, provision(view, pod, made, node, effects)));
        }
        for (claim, progress) in all {
            match progress {
                Progress::Done => {}
                Progress::Waits => waiting.push(&**claim),
                Progress::Failed(why) => return Outcome::unfit(NAME, why, Wake::VOLUME),
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
        let refusal = Refusal { rule: NAME, text: text.into(), wake: Wake::VOLUME, help: Help::Rule };
        Outcome::WaitUntil((since + limit).min(view.now + AGAIN), refusal)
    }
}

/// A claim that gets a volume that is there.
fn bind(view: View<'_>, pod: &Pod, claim: &str, volume: &str, node: NodeId, effects: &mut Effects) -> Progress {
    let key = PodKey::new(&pod.key().namespace, claim);
    let facts = match claim_of(view, &key) {
        Ok(facts) => facts,
        Err(why) => return Progress::Failed(why),
    };
    if facts.complete {
        return reachable(view, &key, facts, node);
    }
    let Some(found) = view.world.volume(volume).filter(|found| !found.deleting) else {
        return Progress::Failed(format!("volume {volume}, chosen for claim {claim}, is gone"));
    };
    match &found.claim {
        // The volume controller sees the promise and binds the claim.
        Some(_) if found.is_for(&key, &facts.uid) => {}
        Some((other, _)) => {
            return Progress::Failed(format!("volume {volume}, chosen for claim {claim}, went to claim {other}"));
        }
        None => effects.push(Effect::BindVolume {
            volume: volume.into(),
            version: found.version.clone(),
            claim: key,
            uid: facts.uid.clone(),
        }),
    }
    Progress::Waits
}

/// A claim whose volume is made for the node.
fn provision(view: View<'_>, pod: &Pod, made: &Provision, node: NodeId, effects: &mut Effects) -> Progress {
    let key = PodKey::new(&pod.key().namespace, &made.claim);
    let facts = match claim_of(view, &key) {
        Ok(facts) => facts,
        Err(why) => return Progress::Failed(why),
    };
    if facts.complete {
        return reachable(view, &key, facts, node);
    }
    let name = view.world.node(node).map_or("", |node| &node.name);
    match facts.selected_node.as_deref() {
        Some(selected) if selected == name => Progress::Waits,
        Some(selected) => Progress::Failed(format!("the volume of claim {} is made for node {selected}", made.claim)),
        // The annotation was there and is not any more: that is how a provisioner says no.
        None if made.seen => {
            Progress::Failed(format!("the provisioner could not make a volume for claim {} on node {name}", made.claim))
        }
        None => {
            let version = facts.version.clone();
            effects.push(Effect::SelectNode { claim: key, version, node: name.into() });
            Progress::Waits
        }
    }
}

fn claim_of<'a>(view: View<'a>, key: &PodKey) -> Result<&'a ClaimFacts, String> {
    match view.world.claim(key) {
        None => Err(format!("claim {} is gone", key.name)),
        Some(facts) if facts.deleting => Err(format!("claim {} is being deleted", key.name)),
        Some(facts) => Ok(facts),
    }
}

/// A bound claim: its volume must be reachable from the node.
fn reachable(view: View<'_>, key: &PodKey, facts: &ClaimFacts, node: NodeId) -> Progress {
    let Some(volume) = facts.volume.as_deref() else { return Progress::Waits };
    // The claim may be shown bound before its new volume is shown at all.
    let Some(found) = view.world.volume(volume) else { return Progress::Waits };
    let here = view.world.node(node).and_then(|node| node.facts.as_ref());
    match here {
        Some(facts) if found.reaches(&facts.labels) => Progress::Done,
        _ => Progress::Failed(format!("volume {volume} of claim {} cannot be reached from the chosen node", key.name)),
    }
}
