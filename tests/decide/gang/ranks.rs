//! Members of a gang that is gathered, ordered by their ranks.

use super::gathered::{REQUIRED, ZONE, cluster};
use crate::harness::gangs::gang;

#[test]
fn ranks_follow_the_racks_and_the_nodes_of_a_gang_that_is_gathered() {
    // Members may have labels of their own, and the first may be of another template.
    for (labels, first) in [(false, "1"), (true, "1"), (true, "500m")] {
        let mut gangs =
            cluster(&["a 1 rack=r1 zone=z", "b 1 rack=r2 zone=z", "c 1 rack=r1 zone=z", "d 1 rack=r2 zone=z"]);
        for (n, rank) in [2, 0, 3, 1].into_iter().enumerate() {
            let text = rank.to_string();
            let keys = gang("g", "4", &[(REQUIRED, ZONE), ("network-topology-index", &text)]);
            let cpu = if rank == 0 { first } else { "1" };
            let mut facts = gangs.facts(&format!("g-{n}"), &[("cpu", cpu)], &keys);
            if labels {
                facts.spec.labels = [("index".to_owned(), text)].into();
            }
            gangs.cluster.submit(facts);
        }
        gangs.wait(1);
        let by_rank = ["g-1", "g-3", "g-0", "g-2"].map(|name| gangs.cluster.node_of(name).unwrap_or("").to_owned());
        // By rack, and there by name.
        let place = |node: &String| ["a", "c", "b", "d"].iter().position(|name| name == node);
        assert!(by_rank[1..].is_sorted_by_key(place), "{labels} {first}: {by_rank:?}");
        assert!(first != "1" || by_rank == ["a", "c", "b", "d"], "{labels}: {by_rank:?}");
        assert_eq!(gangs.reported("NotSupported"), 0);
    }
}
