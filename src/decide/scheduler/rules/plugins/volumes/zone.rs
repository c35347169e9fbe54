//! Zone and region labels of volumes.

use crate::decide::world::spec::Labels;

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
pub(super) fn in_zone(volume: &Labels, node: &Labels) -> bool {
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
