//! `ImageLocality`: prefers nodes that have the pod's images already. The figures are kube-scheduler's.
//!
//! An image counts with its size, scaled by the part of the nodes that have it, so that one that few have draws no crowd to them.
//! That part changes for all nodes when one of them pulls an image. So a node's rating says only which images it has, which stays
//! true until the node itself changes; what they are worth is looked up when ratings are compared.

use crate::core::rules::{NodeScore, Plugin, Reads, Score, Slots, View};
use crate::world::{Node, NodeId, Pod, World};
use baton_contract::image::ImageName;

/// The rule.
pub struct ImageLocality;

/// As the configuration calls it.
pub const NAME: &str = "ImageLocality";

const MIB: i64 = 1 << 20;
/// Less than this is pulled in no time: it scores 0.
const LEAST: i64 = 23 * MIB;
/// Where the score is 100, for each container.
const MOST: i64 = 1000 * MIB;
/// Images of one pod that are looked at.
const BITS: usize = 62;

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, pod: &Pod, _: &Slots) -> Reads {
        if pod.facts.spec.images.is_empty() { Reads::Nothing } else { Reads::Node }
    }
}

impl Score for ImageLocality {
    /// Which of the pod's images the node has: a bit each.
    fn score(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> i64 {
        let Some(facts) = node.facts.as_ref().filter(|facts| !facts.images.is_empty()) else { return 0 };
        let has = |name: &ImageName| facts.images.binary_search_by_key(name, |(listed, _)| *listed).is_ok();
        let images = pod.facts.spec.images.iter().take(BITS).enumerate();
        images.filter(|(_, name)| has(name)).map(|(at, _)| 1 << at).sum()
    }

    fn normalize(&self, view: View<'_>, pod: &Pod, scores: &mut [NodeScore]) {
        let worth: Vec<i64> = pod.facts.spec.images.iter().take(BITS).map(|name| worth(view.world, *name)).collect();
        let containers = pod.facts.handoff.containers.len();
        for (_, score) in scores {
            let here = worth.iter().enumerate().filter(|(at, _)| *score & (1 << at) != 0);
            *score = rate(here.map(|(_, worth)| worth).sum(), containers);
        }
    }
}

/// Bytes of an image, scaled by the part of the nodes that have it.
fn worth(world: &World, name: ImageName) -> i64 {
    let Some((size, nodes)) = world.image(name) else { return 0 };
    let part = nodes as f64 / world.node_objects() as f64;
    (size as f64 * part) as i64
}

fn rate(sum: i64, containers: usize) -> i64 {
    let most = MOST * containers.max(1) as i64;
    100 * (sum.clamp(LEAST, most) - LEAST) / (most - LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_rises_from_23_mib_to_1000_mib_for_each_container() {
        assert_eq!(
            [0, LEAST, LEAST + MIB, 500 * MIB, MOST, 20 * MOST].map(|sum| rate(sum, 1)),
            [0, 0, 0, 48, 100, 100]
        );
        assert_eq!([MOST, 2 * MOST].map(|sum| rate(sum, 2)), [49, 100]);
    }
}
