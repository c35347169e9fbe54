//! Selectors, scopes, exclusivity, strategies and partitions.

use baton::contract::hint::TopologyScope;
use baton::decide::devices::score::{rests, topology_fit};
use baton::decide::devices::{Exclusive, Held};

use super::nodes::{
    Limits, Written, ask, gpu, gpu_ids, gpu_minors, machine, mig, nic, nic_minors, object, place, pod, pool_of,
    recounted, wish,
};
use crate::prelude::*;

#[test]
fn a_selector_chooses_devices_by_the_labels_that_the_node_daemon_gives_them() {
    let mut devices = vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0), nic(0, "s", "r", 0), nic(1, "s", "r", 0)];
    devices[1].labels.insert(key::MODEL.into(), "L40S".into());
    devices[2].labels.insert(key::LINK_LAYER.into(), "Ethernet".into());
    devices[3].labels.insert(key::LINK_LAYER.into(), "InfiniBand".into());
    let pool = pool_of(devices);
    let one = |kind: &str, label: &str, value: &str, limits: Limits<'_>| {
        let hint = format!(r#"{{"{kind}":{{"selector":{{"matchLabels":{{"{label}":"{value}"}}}}}}}}"#);
        pick(&pool, &wish(limits, Some(&hint), None))
    };
    assert_eq!(gpu_minors(&pool, &one("gpu", key::MODEL, "L40S", ONE).unwrap()), [1]);
    let none = one("gpu", key::MODEL, "B200", ONE).unwrap_err();
    assert_eq!(none.to_string(), "no healthy GPU matches the hint's selector");
    let nic: Limits<'_> = &[(key::RDMA, "100")];
    assert_eq!(nic_minors(&pool, &one("rdma", key::LINK_LAYER, "InfiniBand", nic).unwrap()), [1]);
    assert!(one("rdma", key::LINK_LAYER, "Token-Ring", nic).is_err());
    // What is said about types of other systems harms nothing.
    let hint = Some(r#"{"gpu":{"requiredTopologyScope":"PCIe"},"fpga":{"allocateStrategy":"Spread"},"xpu":{"x":1}}"#);
    assert!(pick(&pool, &wish(TWO, hint, None)).is_ok());
}

#[test]
fn a_required_scope_confines_the_set() {
    let mut pool = pool_of(machine(2));
    (0..2).for_each(|_| _ = place(&mut pool, &wish(&[("nvidia.com/gpu", "1")], None, None)).unwrap());
    let scoped = |scope: &str, count: &str| {
        let hint = format!(r#"{{"gpu":{{"requiredTopologyScope":"{scope}"}}}}"#);
        pick(&pool, &wish(&[("nvidia.com/gpu", count)], Some(&hint), None))
    };
    assert_eq!(gpu_minors(&pool, &scoped("PCIe", "4").unwrap()), [4, 5, 6, 7]);
    assert_eq!(gpu_minors(&pool, &scoped("PCIe", "2").unwrap()), [2, 3]);
    let reason = scoped("NUMANode", "5").unwrap_err();
    assert_eq!(reason, Reason::Scope { what: "GPUs", scope: TopologyScope::NumaNode, wanted: 5 });
    assert_eq!(reason.to_string(), "no 5 free GPUs within one NUMA node");
    assert_eq!(scoped("Node", "6").unwrap().grant.gpus().count_ones(), 6);
    assert!(scoped("Device", "2").is_err() && scoped("Device", "1").is_ok());
}

#[test]
fn shares_within_one_device_lie_on_one() {
    let pool = pool_of(machine(2));
    let hint = Wishes::parse(Some(r#"{"gpu":{"requiredTopologyScope":"Device"}}"#), None, None).unwrap();
    let two = |amount| pod(&[("a", App, &[(key::GPU, amount)]), ("b", App, &[(key::GPU, amount)])], hint.clone());
    assert_eq!(gpu_minors(&pool, &pick(&pool, &two("50")).unwrap()), [0]);
    assert!(pick(&pool, &two("60")).is_err());
}

#[test]
fn a_device_level_pod_is_alone_on_its_gpu_and_stays_so_after_a_restart() {
    const ALONE: &str = r#"{"gpu":{"exclusivePolicy":"DeviceLevel"}}"#;
    let mut pool = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)]);
    let first = place(&mut pool, &ask(&[(key::GPU, "10")])).unwrap();
    let request = wish(&[(key::GPU, "10")], Some(ALONE), None);
    let alone = place(&mut pool, &request).unwrap();
    assert_eq!(gpu_minors(&pool, &alone), [1], "a pod is on the first");
    assert!(pick(&pool, &ask(&[(key::GPU, "95")])).is_err(), "no pod joins it");
    let reason = pick(&pool, &request).unwrap_err();
    assert_eq!(reason.to_string(), "no GPU that no other pod uses (exclusivePolicy DeviceLevel)");
    let mut restored = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)]);
    restored.take_held(&Held::of(&alone.device_allocated(&pool)), request.shape().wishes.exclusive());
    assert_eq!(gpu_minors(&restored, &pick(&restored, &ask(&[(key::GPU, "10")])).unwrap()), [0]);
    let mut forgetful = pool_of(vec![gpu(0, "s", "r", 0), gpu(1, "s", "r", 0)]);
    forgetful.take_held(&Held::of(&alone.device_allocated(&pool)), Exclusive::default());
    assert_eq!(gpu_minors(&forgetful, &pick(&forgetful, &ask(&[(key::GPU, "10")])).unwrap()), [1]);
    assert!(pick(&recounted(&pool, [&first.grant]), &ask(&[(key::GPU, "95")])).is_ok());
}

#[test]
fn a_pcie_level_pod_is_alone_below_its_switch() {
    const ALONE: &str = r#"{"gpu":{"exclusivePolicy":"PCIeLevel"}}"#;
    let mut pool = pool_of(machine(2));
    place(&mut pool, &ask(&[(key::GPU, "10")])).unwrap();
    let alone = place(&mut pool, &wish(&[("nvidia.com/gpu", "1")], Some(ALONE), None)).unwrap();
    assert_eq!(gpu_minors(&pool, &alone), [4]);
    let others = pick(&pool, &ask(&[("nvidia.com/gpu", "3")])).unwrap();
    assert_eq!(gpu_minors(&pool, &others), [1, 2, 3]);
    assert!(pick(&pool, &ask(&[("nvidia.com/gpu", "4")])).is_err());
    assert_eq!(nic_minors(&pool, &pick(&pool, &ask(&[(key::RDMA, "200")])).unwrap()), [0, 1]);
}

#[test]
fn strategies_change_what_the_amount_counts() {
    let mut pool = pool_of(machine(2));
    let all = |count: &str| wish(&[(key::RDMA, count)], Some(r#"{"rdma":{"allocateStrategy":"ApplyForAll"}}"#), None);
    assert_eq!(nic_minors(&pool, &pick(&pool, &all("10")).unwrap()), [0, 1, 2, 3]);
    let count = wish(&[(key::RDMA, "2")], Some(r#"{"rdma":{"allocateStrategy":"RequestsAsCount"}}"#), None);
    let two = place(&mut pool, &count).unwrap();
    assert_eq!(nic_minors(&pool, &two), [0, 1]);
    assert_eq!(pool.nic_room(0), 99);
    assert!(pick(&pool, &all("100")).is_err(), "two NICs are not all free");
}

#[test]
fn a_partition_table_is_honoured_and_its_absence_refused_only_when_restricted() {
    let with =
        |spec: &str| pod(&[("main", App, &[("nvidia.com/gpu", "2")])], Wishes::parse(None, None, Some(spec)).unwrap());
    let restricted = r#"{"allocatePolicy":"Restricted","ringBusBandwidth":"200G"}"#;
    let plain = pool_of(machine(2));
    let reason = pick(&plain, &with(restricted)).unwrap_err();
    assert_eq!(reason.to_string(), "gpu-partition-spec is Restricted and the node has no GPU partition table");
    assert_eq!(gpu_minors(&plain, &pick(&plain, &with("{}")).unwrap()), [0, 1]);
    let table = r#"{"2":[{"minors":[0,1],"ringBusBandwidth":"100G"},{"minors":[2,5],"ringBusBandwidth":"200G","allocationScore":1},{"minors":[6,7],"ringBusBandwidth":"400G","allocationScore":2}]}"#;
    let mut device = object(machine(2));
    device.metadata.annotations = Some([(key::GPU_PARTITIONS.to_owned(), table.to_owned())].into());
    let (mut pool, skipped) = NodePool::from_device(&device);
    assert_eq!(skipped, []);
    assert_eq!(gpu_minors(&pool, &place(&mut pool.clone(), &with(restricted)).unwrap()), [6, 7]);
    place(&mut pool, &with(restricted)).unwrap();
    assert_eq!(gpu_minors(&pool, &place(&mut pool.clone(), &with(restricted)).unwrap()), [2, 5]);
    place(&mut pool, &with(restricted)).unwrap();
    let reason = pick(&pool, &with(restricted)).unwrap_err();
    assert_eq!(reason.to_string(), "no free GPU partition of 2 in the node's table");
    assert_eq!(gpu_minors(&pool, &pick(&pool, &with("{}")).unwrap()), [0, 1]);
    device.metadata.annotations = Some([(key::GPU_PARTITIONS.to_owned(), "[".to_owned())].into());
    assert!(NodePool::from_device(&device).1[0].to_string().contains(key::GPU_PARTITIONS));
}

#[test]
fn scores_tell_how_well_a_pick_lies_and_what_it_leaves() {
    let mut pool = pool_of(machine(2));
    let four = pick(&pool, &ask(&[("nvidia.com/gpu", "4")])).unwrap();
    let six = pick(&pool, &ask(&[("nvidia.com/gpu", "6")])).unwrap();
    assert_eq!(topology_fit(&pool, &four), 100);
    assert!(topology_fit(&pool, &six) < 100);
    let left = |pool: &NodePool, grant: Option<&Grant>| {
        let mut percents = rests(pool, grant).percents().to_vec();
        percents.sort_unstable();
        percents
    };
    assert_eq!(left(&pool, Some(&four.grant)), [0, 0, 0, 0, 100, 100, 100, 100], "what a pick would leave");
    place(&mut pool, &ask(&[(key::GPU, "30")])).unwrap();
    let share = pick(&pool, &ask(&[(key::GPU, "30")])).unwrap();
    assert_eq!(left(&pool, None), [70, 100, 100, 100, 100, 100, 100, 100]);
    assert_eq!(left(&pool, Some(&share.grant)), [40, 100, 100, 100, 100, 100, 100, 100]);
}

#[test]
fn a_device_of_unknown_place_is_closed_by_its_own_exclusivity() {
    let mut pool = pool_of(vec![gpu(0, "", "", 0)]);
    place(&mut pool, &wish(&[(key::GPU, "30")], Some(r#"{"gpu":{"exclusivePolicy":"PCIeLevel"}}"#), None)).unwrap();
    assert!(place(&mut pool, &ask(&[(key::GPU, "30")])).is_err());
}

#[test]
fn one_gpu_of_unknown_place_lies_below_one_switch_and_two_do_not() {
    let hint = Some(r#"{"gpu":{"requiredTopologyScope":"PCIe"}}"#);
    let pool = pool_of(vec![gpu(0, "", "", 0), gpu(1, "", "", 0)]);
    assert!(pick(&pool, &wish(&[("nvidia.com/gpu", "1")], hint, None)).is_ok());
    assert!(pick(&pool, &wish(&[("nvidia.com/gpu", "2")], hint, None)).is_err());
}

#[test]
fn within_a_required_scope_mig_devices_come_from_the_parent_that_is_cut_into_most() {
    let cut = [("MIG-a", 0, "s0"), ("MIG-b", 0, "s0"), ("MIG-c", 1, "s1")];
    let pool = pool_of(cut.map(|(id, parent, switch)| mig(id, parent, "1g.10gb", switch)).into());
    for scope in ["PCIe", "Device"] {
        let hint = format!(r#"{{"gpu":{{"requiredTopologyScope":"{scope}"}}}}"#);
        let request = wish(&[("nvidia.com/mig-1g.10gb", "1")], Some(&hint), None);
        assert_eq!(gpu_ids(&pool, &pick(&pool, &request).unwrap()), ["MIG-c"], "{scope}");
    }
}

#[test]
fn a_device_whose_numa_node_is_not_known_is_near_none_unless_the_machine_names_none() {
    const ONE_NODE: &str = r#"{"gpu":{"requiredTopologyScope":"NUMANode"}}"#;
    let two_of = |numa: [i32; 3]| {
        let gpus =
            numa.iter().zip(0..).map(|(numa, minor)| gpu(minor, &format!("s{minor}"), &format!("r{minor}"), *numa));
        let pool = pool_of(gpus.collect());
        let found = pick(&pool, &wish(&[("nvidia.com/gpu", "2")], Some(ONE_NODE), None));
        found.ok().map(|plan| gpu_minors(&pool, &plan))
    };
    assert_eq!(two_of([-1, 0, 0]), Some(vec![1, 2]));
    assert_eq!(two_of([-1, 0, 1]), None, "the first may be on either");
    assert_eq!(two_of([-1, -1, 1]), None, "nor are two of them near each other");
    assert_eq!(two_of([-1, -1, -1]), Some(vec![0, 1]), "a machine with one node names none");
}
