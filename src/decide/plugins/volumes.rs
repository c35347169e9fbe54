//! `VolumeBinding`: claims must be there and bound, and their volumes reachable from the node (node affinity, zone labels);
//! a claim for one pod only is not shared.

use crate::contract::PodKey;
use crate::decide::framework::{Filter, Outcome, Plugin, PreFilter, Reads, Slots, View};
use crate::decide::world::spec::{Labels, VolumeUse};
use crate::decide::world::{Node, NodeId, Pod, VolumeFacts, Wake};

/// The rule.
pub struct VolumeBinding;

const NAME: &str = "VolumeBinding";
const ZONES: [(&str, &str); 2] = [
    ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
];

/// The volumes of one pod.
#[derive(Default)]
struct Volumes(Vec<VolumeFacts>);

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, pod: &Pod, _: &Slots) -> Reads {
        if pod.facts.spec.volumes.is_empty() { Reads::Node } else { Reads::World }
    }
}

impl PreFilter for VolumeBinding {
    fn pre_filter(&self, view: View<'_>, pod: &Pod, slots: &mut Slots) -> Outcome {
        let mut volumes = Volumes::default();
        for VolumeUse::Claim(name) in &pod.facts.spec.volumes {
            let key = PodKey::new(&pod.key().namespace, name);
            let never = |text: String| Outcome::never(NAME, text, Wake::VOLUME);
            let Some(claim) = view.world.claim(&key) else {
                return never(format!("claim {name} does not exist"));
            };
            if claim.deleting {
                return never(format!("claim {name} is being deleted"));
            }
            let Some(volume) = claim.volume.as_ref().filter(|_| claim.complete) else {
                return never(format!("claim {name} is not bound to a volume"));
            };
            let Some(facts) = view.world.volume(volume) else {
                return never(format!("volume {volume} of claim {name} does not exist"));
            };
            if claim.single_pod && is_taken(view, pod, name) {
                return Outcome::unfit(NAME, format!("claim {name} is in use by its one pod"), Wake::POD_FREED);
            }
            volumes.0.push(facts.clone());
        }
        if !volumes.0.is_empty() {
            slots.put(volumes);
        }
        Outcome::Fit
    }
}

impl Filter for VolumeBinding {
    fn filter(&self, _: View<'_>, _: &Pod, (_, node): (NodeId, &Node), slots: &mut Slots) -> Outcome {
        let (Some(Volumes(volumes)), Some(facts)) = (slots.get::<Volumes>(), &node.facts) else { return Outcome::Fit };
        let wake = Wake::VOLUME.or(Wake::NODE_ADDED).or(Wake::NODE_CHANGED);
        for volume in volumes {
            let reachable = |terms: &Vec<_>| {
                terms.iter().any(|term: &crate::decide::world::spec::NodeTerm| term.matches(&node.name, &facts.labels))
            };
            if !volume.required.as_ref().is_none_or(reachable) {
                return Outcome::never(NAME, "volume node affinity", wake);
            }
            if !in_zone(&volume.labels, &facts.labels) {
                return Outcome::never(NAME, "volume in another zone", wake);
            }
        }
        Outcome::Fit
    }
}

/// Zone and region labels of a volume must be those of the node, in the stable or the beta spelling. A node without any such
/// label is not judged.
fn in_zone(volume: &Labels, node: &Labels) -> bool {
    let spelled =
        |labels: &Labels, (stable, beta): (&str, &str)| labels.get(stable).or_else(|| labels.get(beta)).cloned();
    if ZONES.iter().all(|zone| spelled(node, *zone).is_none()) {
        return true;
    }
    ZONES.iter().all(|zone| match spelled(volume, *zone) {
        None => true,
        Some(wanted) => spelled(node, *zone).is_some_and(|have| wanted.split("__").any(|one| one == have)),
    })
}

fn is_taken(view: View<'_>, pod: &Pod, claim: &str) -> bool {
    let uses = |other: &&Pod| {
        other.id != pod.id
            && other.node().is_some()
            && other.key().namespace == pod.key().namespace
            && other.facts.spec.volumes.iter().any(|VolumeUse::Claim(name)| **name == *claim)
    };
    view.world.pods().any(|other| uses(&other))
}
