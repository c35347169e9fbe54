//! Which available volume a claim gets on a node, as kube-scheduler chooses: the smallest that will do.

use crate::decide::scheduler::rules::View;
use crate::decide::world::{Node, PodId, VolumeFacts};

use super::claims::Waiting;

/// The volume for `claim` on `node`; `taken` are those that other claims of the same pod get.
pub(super) fn match_volume<'a>(
    view: View<'a>,
    pod: PodId,
    claim: &'a Waiting,
    node: &Node,
    taken: &[(Box<str>, Box<str>)],
) -> Option<&'a str> {
    let labels = &node.facts.as_ref()?.labels;
    let facts = &claim.facts;
    let fits =
        |volume: &VolumeFacts| !volume.deleting && volume.block == facts.block && volume.capacity >= facts.request;
    let mut open = view
        .world
        .volumes_of(&claim.class_name)
        .filter(|(name, volume)| fits(volume) && taken.iter().all(|(_, other)| **other != **name));
    // Promised to this claim by whoever made it: no other one is looked at, here or on nodes that it does not reach.
    if let Some((name, volume)) = open.find(|(_, volume)| volume.is_for(&claim.key, &facts.uid)) {
        return volume.reaches(labels).then_some(name);
    }
    let mut best: Option<(&str, &VolumeFacts)> = None;
    for (name, volume) in view.world.volumes_of(&claim.class_name) {
        let selected = facts.selector.as_ref().is_none_or(|selector| selector.matches(&volume.labels));
        let free = volume.available
            && volume.claim.is_none()
            && taken.iter().all(|(_, other)| **other != *name)
            && !view.world.is_promised(name, pod);
        let serves = fits(volume) && volume.modes.cover(facts.modes) && volume.reaches(labels);
        if serves && free && selected && best.is_none_or(|(_, best)| volume.capacity < best.capacity) {
            best = Some((name, volume));
        }
    }
    best.map(|(name, _)| name)
}
