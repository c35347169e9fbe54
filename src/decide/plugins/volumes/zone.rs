//! Zone and region labels of volumes.

use crate::decide::world::spec::Labels;

const ZONES: [(&str, &str); 2] = [
    ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
];

/// Zone and region labels of a volume must be those of the node, in the stable or the beta spelling. A node without any such
/// label is not judged.
pub(super) fn in_zone(volume: &Labels, node: &Labels) -> bool {
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
