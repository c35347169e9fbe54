//! Which available volume a claim gets on a node, as kube-scheduler chooses: the smallest that will do.

use crate::decide::framework::View;
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
    let fits = |volume: &VolumeFacts| {
        !volume.deleting
            && volume.block == facts.block
            && volume.capacity >= facts.request
            && volume.modes.cover(facts.modes)
            && volume.reaches(&node.name, labels)
    };
    let mut best: Option<(&str, &VolumeFacts)> = None;
    for (name, volume) in view.world.volumes_of(&claim.class_name) {
        if taken.iter().any(|(_, other)| **other == *name) || !fits(volume) {
            continue;
        }
        // Promised to this claim by whoever made it: no other one is looked at.
        if volume.is_for(&claim.key, &facts.uid) {
            return Some(name);
        }
        let selected = facts.selector.as_ref().is_none_or(|selector| selector.matches(&volume.labels));
        let free = volume.available && volume.claim.is_none() && !view.world.is_promised(name, pod);
        if free && selected && best.is_none_or(|(_, best)| volume.capacity < best.capacity) {
            best = Some((name, volume));
        }
    }
    best.map(|(name, _)| name)
}
