//! When a job can never fit: only when that is certain.

use baton::decide::tyjob::placement::{Folded, NodeOffer, PartDemand, unfit};
use baton::decide::world::Resources;

fn amounts(list: &[(&str, &str)]) -> Resources {
    Resources::of(list.iter().map(|(name, amount)| (*name, amount.parse().unwrap())))
}

fn demand(name: &str, list: &[(&str, &str)], counts: i64) -> PartDemand {
    PartDemand { name: name.into(), amounts: Folded::wanted(&amounts(list)), counts }
}

fn offers(nodes: i64) -> Vec<NodeOffer> {
    let amounts = Folded::offered(&amounts(&[("cpu", "8"), ("memory", "64Gi"), ("nvidia.com/gpu", "4")]));
    vec![NodeOffer { amounts, pods: 110, nodes }]
}

#[test]
fn a_pod_that_is_larger_than_every_node_never_fits() {
    let leader = demand("learner", &[("nvidia.com/gpu", "8")], 1);
    let why = unfit(&leader, &[], 0, false, &offers(10)).unwrap();
    assert_eq!(
        why,
        "the leader learner fits on none of 10 nodes, even if empty: it asks for 800 percent of GPU, the most on a node is 400"
    );
    assert_eq!(unfit(&demand("learner", &[("koordinator.sh/gpu", "400")], 1), &[], 0, false, &offers(1)), None);
}

#[test]
fn workers_are_counted_by_how_many_fit_on_empty_nodes() {
    let leader = demand("learner", &[("cpu", "1")], 1);
    let workers = [demand("actor", &[("cpu", "5")], 4)];
    assert!(unfit(&leader, &workers, 4, false, &offers(3)).unwrap().starts_with("3 workers fit on 3 nodes"));
    assert_eq!(unfit(&leader, &workers, 3, false, &offers(3)), None, "the minimum fits");
    assert!(unfit(&leader, &workers, 3, true, &offers(3)).is_some(), "all of a gang are needed");
    assert_eq!(unfit(&leader, &workers, 4, true, &offers(4)), None);
}

#[test]
fn the_sum_of_what_is_needed_is_compared_with_what_all_nodes_have() {
    let leader = demand("learner", &[("cpu", "8")], 1);
    let workers = [demand("large", &[("cpu", "8")], 2), demand("small", &[("cpu", "2")], 4)];
    assert_eq!(unfit(&leader, &workers, 4, false, &offers(2)), None, "the small ones suffice");
    assert!(unfit(&leader, &workers, 5, false, &offers(2)).is_some());
    let nothing = demand("learner", &[], 1);
    assert!(unfit(&nothing, &[], 0, false, &[]).is_some(), "there is no node at all");
    assert!(unfit(&nothing, &[demand("w", &[], 200)], 110, false, &offers(1)).is_some(), "110 pods on a node");
}
