//! The claims of one pod: which are bound, and which wait for its node.

use crate::contract::PodKey;
use crate::decide::help::Help;
use crate::decide::scheduler::rules::{Outcome, View};
use crate::decide::world::capacity::Storage;
use crate::decide::world::spec::VolumeUse;
use crate::decide::world::{ClaimFacts, ClassFacts, Pod, VolumeFacts, Wake};

use super::rule::NAME;

/// The claims of one pod.
#[derive(Default)]
pub(super) struct Claims {
    /// Volumes of bound claims; `true` where the pod names the claim, so that the volume's zone labels count.
    pub bound: Vec<(VolumeFacts, bool)>,
    /// Claims that wait for their first consumer, the smallest first.
    pub waiting: Vec<Waiting>,
    /// A claim for one pod only that another pod has. Where that leaves, there is room.
    pub taken: Option<Box<str>>,
}

/// A claim that waits for its first consumer.
pub(super) struct Waiting {
    pub key: PodKey,
    pub facts: ClaimFacts,
    pub class_name: Box<str>,
    pub class: ClassFacts,
    /// Its volume is made for this node, or will be: no other one will do.
    pub node: Option<Box<str>>,
    /// Where its driver has storage enough; `None` where nobody says.
    pub storage: Option<Storage>,
}

/// Sorts the pod's claims; the error says why no node will do.
pub(super) fn sort(view: View<'_>, pod: &Pod) -> Result<Claims, Outcome> {
    let mut claims = Claims::default();
    for used in &pod.facts.spec.volumes {
        let name = used.claim();
        let key = PodKey::new(&pod.key().namespace, name);
        let helped = |text: String, help| Err(Outcome::never(NAME, text, Wake::VOLUME).helped_by(help));
        let never = |text| helped(text, Help::Rule);
        let Some(claim) = view.world.claim(&key) else {
            let text = match used {
                VolumeUse::Claim(_) => format!("claim {name} does not exist"),
                VolumeUse::Ephemeral(_) => format!("claim {name} of an ephemeral volume has not been made yet"),
            };
            return helped(text, Help::Claim);
        };
        let is_own = claim.owner.as_deref() == Some(pod.facts.handoff.pod.uid.as_str());
        if matches!(used, VolumeUse::Ephemeral(_)) && !is_own {
            return never(format!("claim {name} was not made for this pod's ephemeral volume: it is in its way"));
        }
        if claim.deleting {
            return never(format!("claim {name} is being deleted"));
        }
        if claim.lost {
            let volume = claim.volume.as_deref().unwrap_or_default();
            return never(format!("claim {name} is lost: its volume {volume} is gone"));
        }
        if claim.single_pod && is_taken(view, pod, name) {
            claims.taken = Some(name.into());
        }
        let volume = claim.volume.as_deref();
        if let Some(volume) = volume.filter(|_| claim.complete) {
            let Some(facts) = view.world.volume(volume) else {
                return never(format!("volume {volume} of claim {name} does not exist"));
            };
            claims.bound.push((facts.clone(), matches!(used, VolumeUse::Claim(_))));
            continue;
        }
        let class_name = claim.class.as_deref().filter(|class| !class.is_empty());
        let class = class_name.and_then(|class| view.world.storage_class(class));
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
                claims.bound.extend(view.world.volume(volume).map(|facts| (facts.clone(), false)));
                continue;
            }
            Some((at, None)) if node.is_none() => node = view.world.node(at).map(|node| node.name.clone()),
            _ => {}
        }
        let (facts, class) = (claim.clone(), class.clone());
        let storage = view.world.storage_for(class_name, claim.request);
        claims.waiting.push(Waiting { key, facts, class_name: class_name.into(), class, node, storage });
    }
    claims.waiting.sort_by(|a, b| a.facts.request.cmp(&b.facts.request).then_with(|| a.key.cmp(&b.key)));
    claims.waiting.dedup_by(|a, b| a.key == b.key);
    Ok(claims)
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
