//! RDMA NICs from sysfs.

use std::os::unix::fs::symlink;

use baton::hardware::nic::{PciFunction, PortState};
use baton::hardware::{Bdf, Machine, NicInfo, NullProvider, Roots, machine, rdma};
use baton::sim::hardware::{NodeSpec, Shape};

use super::bench::Bench;
use crate::fixtures::{ACTIVE, DOWN, NicTree};

fn vfs(count: u32) -> Bench {
    Bench::of(NodeSpec { vfs_per_nic: count, ..NodeSpec::new("node-1") })
}

#[test]
fn four_nics_are_found_by_pci_address_with_all_that_sysfs_tells() {
    let bench = Bench::new(Shape::Hgx);
    let machine = bench.machine();
    assert_eq!(machine.nic_faults, []);
    let bdfs: Vec<Bdf> = machine.nics.iter().map(|nic| nic.bdf).collect();
    assert_eq!(bdfs, (0..4).map(|nic| bench.nic_bdf(nic)).collect::<Vec<_>>());
    for (at, nic) in machine.nics.iter().enumerate() {
        assert_eq!(nic.ibdev, format!("mlx5_{at}"));
        assert_eq!(nic.firmware.as_deref(), Some("28.39.1002"));
        assert_eq!(nic.pci_id, Some((0x15b3, 0x1021)));
        assert!(nic.node_guid.as_deref().unwrap().starts_with("0c42:a103:"));
        assert_eq!(nic.function, PciFunction::Physical { vfs: vec![] });
        assert_eq!(nic.netdevs, [format!("ibs{at}")]);
        assert_eq!(nic.ports.len(), 1);
        assert_eq!(nic.ports[0].state, PortState::Active);
        assert_eq!(nic.ports[0].phys_state.as_deref(), Some("LinkUp"));
        assert_eq!(nic.ports[0].link_layer.as_deref(), Some("InfiniBand"));
        assert_eq!(nic.ports[0].rate.as_deref(), Some("400 Gb/sec (4X NDR)"));
        let chars: Vec<String> = nic.chars.all().map(|path| path.display().to_string()).collect();
        let own = ["uverbs", "rdma_cm", "umad", "issm"].map(|name| match name {
            "rdma_cm" => "/dev/infiniband/rdma_cm".to_owned(),
            name => format!("/dev/infiniband/{name}{at}"),
        });
        assert_eq!(chars, own);
    }
}

#[test]
fn virtual_functions_know_their_physical_one_and_it_them() {
    let bench = vfs(9);
    let machine = bench.machine();
    assert_eq!(machine.nics.len(), 4 * 10);
    let pf = &machine.nics[0];
    let PciFunction::Physical { vfs } = &pf.function else { panic!("{:?}", pf.function) };
    let after: Vec<Bdf> = machine.nics[1..10].iter().map(|nic| nic.bdf).collect();
    assert_eq!(*vfs, after, "virtfn10 does not come before virtfn2");
    for vf in &machine.nics[1..10] {
        assert!(vf.is_vf());
        assert_eq!(vf.function, PciFunction::Virtual { pf: pf.bdf });
        assert_eq!(vf.place, pf.place, "a virtual function sits where its physical one does");
    }
}

#[test]
fn a_renamed_nic_is_the_same_nic() {
    let bench = Bench::new(Shape::Hgx);
    let before = bench.machine();
    bench.node.rename_nic(2, "rocep152s0").unwrap();
    let after = bench.machine();
    assert_eq!(after.nics[2].ibdev, "rocep152s0");
    let mut renamed = before.nics[2].clone();
    renamed.ibdev = "rocep152s0".to_owned();
    assert_eq!(after.nics[2], renamed, "address, place in the order and character devices stay");
    let ports = rdma::ports(&bench.roots().sysfs_tree().unwrap(), bench.nic_bdf(2)).unwrap();
    assert_eq!(ports, after.nics[2].ports);
}

#[test]
fn port_states_follow_the_link() {
    let bench = Bench::new(Shape::Hgx);
    let sysfs = bench.roots().sysfs_tree().unwrap();
    let state = || rdma::ports(&sysfs, bench.nic_bdf(1)).unwrap()[0].state;
    assert_eq!(state(), PortState::Active);
    bench.node.port_down(1).unwrap();
    assert_eq!(state(), PortState::Down);
    assert_eq!(bench.machine().nics[1].ports[0].state, PortState::Down);
    assert_eq!(bench.machine().nics[0].ports[0].state, PortState::Active);
    bench.node.port_up(1).unwrap();
    assert_eq!(state(), PortState::Active);
}

#[test]
fn missing_optional_devices_are_left_out_and_missing_required_ones_are_named() {
    let bench = Bench::new(Shape::Hgx);
    for name in ["umad0", "issm0", "uverbs1"] {
        std::fs::remove_file(bench.roots().dev.join("infiniband").join(name)).unwrap();
    }
    let machine = bench.machine();
    assert!(machine.nics[0].chars.missing().is_empty());
    assert_eq!(machine.nics[0].chars.all().count(), 2);
    assert_eq!(machine.nics[1].chars.missing(), ["uverbs"]);
    std::fs::remove_file(bench.roots().dev.join("infiniband/rdma_cm")).unwrap();
    assert_eq!(bench.machine().nics[1].chars.missing(), ["uverbs", "rdma_cm"]);
}

#[test]
fn an_unreadable_entry_is_reported_and_the_others_work() {
    let bench = Bench::new(Shape::Hgx);
    let nic = bench.roots().sysfs.join("class/infiniband/mlx5_1").canonicalize().unwrap();
    std::fs::remove_dir_all(nic.join("ports")).unwrap();
    let machine = bench.machine();
    assert_eq!(machine.nics.len(), 3);
    assert_eq!(machine.nic_faults.len(), 1);
    let fault = &machine.nic_faults[0];
    assert_eq!((fault.ibdev.as_str(), fault.bdf), ("mlx5_1", Some(bench.nic_bdf(1))));
    assert!(fault.reason.contains("ports"), "{}", fault.reason);
}

#[test]
fn an_entry_without_a_pci_device_is_reported_and_a_software_device_is_not() {
    let bench = Bench::new(Shape::Hgx);
    let sysfs = bench.roots().sysfs;
    std::fs::create_dir_all(sysfs.join("devices/virtual/infiniband/rxe0/ports/1")).unwrap();
    symlink("../../devices/virtual/infiniband/rxe0", sysfs.join("class/infiniband/rxe0")).unwrap();
    std::fs::create_dir_all(sysfs.join("devices/platform/odd/infiniband/odd0/ports/1")).unwrap();
    symlink("../..", sysfs.join("devices/platform/odd/infiniband/odd0/device")).unwrap();
    symlink("../../devices/platform/odd/infiniband/odd0", sysfs.join("class/infiniband/odd0")).unwrap();
    let machine = bench.machine();
    assert_eq!(machine.nics.len(), 4);
    assert_eq!(machine.nic_faults.len(), 1);
    assert_eq!(machine.nic_faults[0].ibdev, "odd0");
}

#[test]
fn a_scalable_function_is_neither_a_nic_nor_a_fault() {
    let root = crate::directory::directory();
    let tree = NicTree::as_reported(root.path());
    let (nics, faults) = rdma::scan(&baton::hardware::Tree::open(&tree.path("sys")).unwrap(), None);
    assert_eq!(faults, []);
    let is_there = |name: &str| nics.iter().any(|nic| nic.ibdev == name);
    assert_eq!((is_there("mlx5_bond_0"), is_there("mlx5_9")), (true, false));
}

#[test]
fn a_machine_without_rdma_has_no_nics_and_no_faults() {
    let bench = Bench::new(Shape::Single);
    std::fs::remove_dir_all(bench.roots().sysfs.join("class")).unwrap();
    let machine = bench.machine();
    assert_eq!((machine.nics.len(), machine.nic_faults.len()), (0, 0));
}

#[test]
fn a_nic_lent_to_a_container_stays_in_the_inventory() {
    let bench = Bench::new(Shape::Hgx);
    let earlier = bench.machine();
    bench.node.lend_nic(1).unwrap();
    let mut now = bench.machine();
    assert_eq!(now.nics.len(), 3);
    let lent = bench.nic_bdf(1);
    let function =
        rdma::by_function(&bench.roots().sysfs_tree().unwrap(), bench.roots().dev_tree().ok().as_ref(), lent);
    now.add_unseen(&earlier, function);
    let known = |machine: &Machine| machine.nics.iter().map(|nic| (nic.ibdev.clone(), nic.chars.clone())).collect();
    let names: [Vec<_>; 2] = [known(&now), known(&earlier)];
    assert_eq!((&names[0], now.nics[1].ports.len()), (&names[1], 0), "what cannot be seen now is not known");
    bench.node.return_nic(1).unwrap();
    assert_eq!(bench.machine().nics, earlier.nics);
    // One that has died has no device nodes, whichever NIC has its number now.
    bench.node.unregister_nic(0).unwrap();
    bench.node.unregister_nic(1).unwrap();
    bench.node.register_nic(1).unwrap();
    let (sysfs, dev) = (bench.roots().sysfs_tree().unwrap(), bench.roots().dev_tree().ok());
    let dead = rdma::by_function(&sysfs, dev.as_ref(), bench.nic_bdf(0)).unwrap();
    let next = bench.machine().nics.into_iter().find(|nic| nic.bdf == lent).unwrap();
    assert_eq!((dead.chars.uverbs, next.chars.uverbs), (None, earlier.nics[0].chars.uverbs.clone()));
}

#[test]
fn a_nic_that_was_lent_before_it_was_ever_seen_is_known_by_its_pci_function() {
    let bench = vfs(2);
    let seen = bench.machine();
    let at = seen.nics.iter().position(NicInfo::is_vf).unwrap();
    for (lent, of) in [(0, "a physical function"), (at, "a virtual one")] {
        let before = &seen.nics[lent];
        bench.node.lend_nic(lent).unwrap();
        let sysfs = bench.roots().sysfs_tree().unwrap();
        let function = rdma::by_function(&sysfs, bench.roots().dev_tree().ok().as_ref(), before.bdf).unwrap();
        assert_eq!(
            (function.bdf, &function.function, &function.place),
            (before.bdf, &before.function, &before.place),
            "{of}"
        );
        assert_eq!((&function.chars, function.pci_id), (&before.chars, before.pci_id), "{of}");
        assert!(function.ports.is_empty());
        let mut now = bench.machine();
        now.add_unseen(&Machine::default(), [function]);
        let order = |machine: &Machine| machine.nics.iter().map(|nic| nic.bdf).collect::<Vec<_>>();
        assert_eq!(order(&now), order(&seen), "{of}");
        bench.node.return_nic(lent).unwrap();
    }
    assert!(rdma::by_function(&bench.roots().sysfs_tree().unwrap(), None, "0000:ff:1f.7".parse().unwrap()).is_none());
}

#[test]
fn a_class_entry_without_a_device_link_is_found_by_its_own_path() {
    let bench = Bench::new(Shape::Hgx);
    let whole = bench.machine();
    for nic in &whole.nics {
        std::fs::remove_file(bench.roots().sysfs.join("class/infiniband").join(&nic.ibdev).join("device")).unwrap();
    }
    assert_eq!(bench.machine().nics, whole.nics);
    let sysfs = bench.roots().sysfs_tree().unwrap();
    std::fs::remove_dir_all(bench.roots().sysfs.join("bus")).unwrap();
    assert_eq!(rdma::ports(&sysfs, whole.nics[1].bdf).unwrap(), whole.nics[1].ports);
}

#[test]
fn nics_are_served_where_the_tree_has_the_class_but_no_pci_bus() {
    let bench = Bench::new(Shape::Hgx);
    let whole = bench.machine();
    std::fs::remove_dir_all(bench.node.sysfs_root().join("bus")).unwrap();
    let tree = baton::hardware::tree::Tree::open(&bench.node.sysfs_root()).unwrap();
    let (nics, faults) = rdma::scan(&tree, None);
    assert_eq!(faults, []);
    let places =
        |nics: &[baton::hardware::NicInfo]| nics.iter().map(|nic| (nic.bdf, nic.place.clone())).collect::<Vec<_>>();
    assert_eq!(places(&nics), places(&whole.nics));
    for nic in &nics {
        assert_eq!(rdma::ports(&tree, nic.bdf).unwrap(), nic.ports);
    }
}

/// A machine with one NIC for each interface `NAME`, and the interface of the default route that goes over each.
fn carried(lay: impl Fn(&NicTree)) -> (Vec<(String, Option<String>)>, Option<String>) {
    let root = crate::directory::directory();
    let tree = NicTree::as_reported(root.path());
    lay(&tree);
    let roots = Roots {
        sysfs: tree.path("sys"),
        proc: tree.path("proc"),
        dev: tree.path("dev"),
        driver: root.path().into(),
        net: None,
    };
    let machine = machine::scan(&roots, &NullProvider).unwrap();
    let carry = machine.nics.iter().filter(|nic| nic.carries.is_some());
    (carry.map(|nic| (nic.ibdev.clone(), nic.carries.clone())).collect(), machine.routes_unknown)
}

#[test]
fn the_nic_under_the_default_route_is_found_whatever_lies_between() {
    type Lay = fn(&NicTree);
    type Routes = &'static [(&'static str, u32)];
    type Case = (&'static str, Lay, Routes, Routes, &'static [(&'static str, &'static str)]);
    let bond: Lay = |tree| tree.above("bond0", true, &["ens3f0np0", "ens3f1np1"]);
    let cases: [Case; 12] = [
        ("the NIC itself", |_| (), &[("eno1", 100)], &[], &[("irdma0", "eno1")]),
        ("a bond", bond, &[("bond0", 0)], &[], &[("mlx5_bond_0", "bond0")]),
        (
            "a VLAN on a bond, in a bridge",
            |tree| {
                tree.above("bond0", true, &["ens3f0np0", "ens3f1np1"]);
                tree.above("bond0.7", false, &["bond0"]);
                tree.above("br0", true, &["bond0.7"]);
            },
            &[("br0", 0)],
            &[],
            &[("mlx5_bond_0", "br0")],
        ),
        (
            "a bridge of Open vSwitch",
            |tree| {
                tree.above("ovs-system", true, &["eno1", "ens9f0"]);
                tree.above("br-ex", false, &[]);
                tree.write("sys/class/net/br-ex/address", "0c:42:a1:00:00:01");
                tree.write("sys/class/net/eno1/address", "0c:42:a1:00:00:01");
                tree.write("sys/class/net/ens9f0/address", "0c:42:a1:00:00:02");
            },
            &[("br-ex", 48)],
            &[],
            &[("irdma0", "br-ex")],
        ),
        (
            "a bond that the RDMA device names",
            |tree| {
                tree.above("bond1", true, &["ens3f1np1"]);
                tree.write("sys/class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0", "bond1");
            },
            &[("bond1", 0)],
            &[],
            &[("mlx5_bond_0", "bond1")],
        ),
        ("the least metric", bond, &[("bond0", 200), ("eno1", 100), ("ibp1", 101)], &[], &[("irdma0", "eno1")]),
        ("equal metrics", bond, &[("bond0", 5), ("eno1", 5)], &[], &[("mlx5_bond_0", "bond0"), ("irdma0", "eno1")]),
        ("IPv6 alone", |_| (), &[], &[("eno1", 1024), ("ibp0", 2048)], &[("irdma0", "eno1")]),
        ("IPv6 beside IPv4", |_| (), &[("eno1", 100)], &[("ibp0", 1)], &[("irdma0", "eno1")]),
        ("a function", |_| (), &[("ens9f0v0", 100)], &[], &[("mlx5_21", "ens9f0v0")]),
        ("an interface without RDMA", |tree| tree.above("eth0", false, &[]), &[("eth0", 0)], &[], &[]),
        ("no default route", |_| (), &[], &[], &[]),
    ];
    for (what, lay, ipv4, ipv6, expected) in cases {
        let found = carried(|tree| {
            lay(tree);
            tree.routes(ipv4, ipv6);
        });
        let expected: Vec<_> =
            expected.iter().map(|(nic, route)| ((*nic).to_owned(), Some((*route).to_owned()))).collect();
        assert_eq!(found, (expected, None), "{what}");
    }
}

#[test]
fn tables_that_cannot_be_read_or_are_of_another_namespace_are_unknown() {
    let (carry, why) = carried(|_| ());
    assert!(carry.is_empty() && why.unwrap().starts_with("the host's routing tables cannot be read: route"));
    // A container's own procfs beside the host's sysfs, both with an eth0.
    let (carry, why) = carried(|tree| {
        tree.above("eth0", true, &["eno1"]);
        tree.routes(&[("eth0", 0)], &[]);
        tree.write("proc/1/net/dev", "Inter-|\n face |\n    lo: 0\n  eth0: 0");
    });
    let why = why.unwrap();
    assert!(carry.is_empty() && why.contains("another network namespace") && why.contains("interface ibp0"), "{why}");
    // A tree that was recorded without the list of interfaces.
    let (carry, why) = carried(|tree| {
        tree.routes(&[("eno1", 0)], &[]);
        std::fs::remove_file(tree.path("proc/1/net/dev")).unwrap();
    });
    assert_eq!((carry.len(), why), (1, None));
}

#[test]
fn ports_of_an_uplink_in_switchdev_mode_are_its_own_alone_and_unknown_numa_stays_so() {
    let root = crate::directory::directory();
    let tree = NicTree::as_reported(root.path());
    let read = || rdma::scan(&baton::hardware::Tree::open(&tree.path("sys")).unwrap(), None).0;
    let states = |name: &str| -> Vec<PortState> {
        let nics = read();
        let nic = nics.iter().find(|nic| nic.ibdev == name).unwrap();
        assert_eq!(rdma::ports(&baton::hardware::Tree::open(&tree.path("sys")).unwrap(), nic.bdf).unwrap(), nic.ports);
        nic.ports.iter().map(|port| port.state).collect()
    };
    assert_eq!(states("rdma_uplink"), [PortState::Down], "the others stand for functions");
    // One function: two ports, as a card of two ports has them.
    tree.write("sys/class/infiniband/irdma0/ports/2/state", ACTIVE);
    tree.set_port("irdma0", 1, DOWN);
    assert_eq!(states("irdma0"), [PortState::Down, PortState::Active]);
    tree.write("sys/class/net/eno1/phys_switch_id", "5c2f8e000345c0ec");
    assert_eq!(states("irdma0"), [PortState::Down]);
    let nics = read();
    let of = |name: &str| nics.iter().find(|nic| nic.ibdev == name).unwrap();
    assert_eq!((of("rdma_uplink").place.numa_node, of("mlx5_7").place.numa_node), (None, Some(1)));
    assert_eq!((of("irdma0").driver.as_deref(), of("mlx5_21").driver.as_deref()), (Some("ice"), Some("mlx5_core")));
}
