//! Where devices sit on the PCI fabric.

use std::path::Path;

use baton::hardware::{Bdf, Machine, PciPlace, pci};
use baton::sim::hardware::{NodeSpec, Shape};

use super::bench::Bench;

fn places(machine: &Machine) -> (Vec<&PciPlace>, Vec<&PciPlace>) {
    (machine.gpus.gpus.iter().map(|gpu| &gpu.place).collect(), machine.nics.iter().map(|nic| &nic.place).collect())
}

/// GPUs that share the neighbourhood of each NIC.
fn beside(machine: &Machine) -> Vec<Vec<usize>> {
    let (gpus, nics) = places(machine);
    let near = |nic: &&PciPlace| {
        let here = nic.neighbourhood();
        (0..gpus.len()).filter(|at| here.is_some() && gpus[*at].neighbourhood() == here).collect()
    };
    nics.iter().map(near).collect()
}

#[test]
fn each_nic_is_beside_the_two_gpus_of_its_switch() {
    for shape in [Shape::Hgx, Shape::Nested, Shape::WideDomain] {
        let machine = Bench::new(shape).machine();
        assert_eq!(beside(&machine), [[0, 1], [2, 3], [4, 5], [6, 7]], "{shape:?}");
    }
}

#[test]
fn root_complex_numa_node_and_socket_are_read() {
    let bench = Bench::new(Shape::Hgx);
    let machine = bench.machine();
    let (gpus, _) = places(&machine);
    let complexes: Vec<&str> = gpus.iter().map(|place| place.root_complex.as_deref().unwrap()).collect();
    assert_eq!(complexes[..4], ["pci0000:18", "pci0000:18", "pci0000:3a", "pci0000:3a"]);
    let numa: Vec<Option<u32>> = gpus.iter().map(|place| place.numa_node).collect();
    assert_eq!(numa, [0, 0, 0, 0, 1, 1, 1, 1].map(Some));
    assert_eq!(gpus[7].socket, Some(1));
}

#[test]
fn the_nearest_of_nested_switches_counts() {
    let machine = Bench::new(Shape::Nested).machine();
    let (gpus, _) = places(&machine);
    assert_eq!(gpus[0].root_complex, gpus[2].root_complex);
    assert_eq!(gpus[0].root_port, gpus[2].root_port);
    assert_ne!(gpus[0].switch, gpus[2].switch);
}

#[test]
fn without_configuration_space_the_grandparent_is_the_switch() {
    for shape in [Shape::Hgx, Shape::Nested, Shape::WideDomain, Shape::Pairs, Shape::Grace] {
        let with = Bench::of(NodeSpec::new("node-1").shaped(shape)).machine();
        let without = Bench::of(NodeSpec { config_space: false, ..NodeSpec::new("node-1").shaped(shape) }).machine();
        assert_eq!(places(&with), places(&without), "{shape:?}");
    }
}

#[test]
fn domains_of_five_digits_are_kept() {
    let machine = Bench::new(Shape::WideDomain).machine();
    let first = &machine.gpus.gpus[0];
    assert!(first.bdf.unwrap().to_string().starts_with("10000:"), "{:?}", first.bdf);
    assert_eq!(first.place.root_complex.as_deref(), Some("pci10000:00"));
    assert!(machine.nics[0].bdf.to_string().starts_with("10000:"));
}

#[test]
fn without_a_switch_the_root_port_is_the_neighbourhood() {
    let machine = Bench::new(Shape::Pairs).machine();
    let (gpus, _) = places(&machine);
    assert_eq!(gpus[0].switch, None);
    assert_eq!(gpus[0].neighbourhood(), gpus[0].root_port);
    assert_eq!(beside(&machine), [[0; 0], []], "each device has a root port of its own");
}

#[test]
fn on_grace_gpu_and_nic_meet_only_in_the_numa_node() {
    let machine = Bench::new(Shape::Grace).machine();
    let (gpus, nics) = places(&machine);
    assert!(machine.gpus.gpus.iter().all(|gpu| gpu.memory_bytes.is_none()));
    assert!(nics.iter().all(|nic| gpus.iter().all(|gpu| gpu.root_complex != nic.root_complex)));
    assert_eq!(nics[3].numa_node, gpus[3].numa_node);
}

#[test]
fn an_unknown_numa_node_is_none() {
    let bench = Bench::new(Shape::Single);
    let file = bench.roots().sysfs.join(format!("bus/pci/devices/{}/numa_node", bench.gpu_bdf(0)));
    std::fs::write(file, "-1\n").unwrap();
    let machine = bench.machine();
    assert_eq!((machine.gpus.gpus[0].place.numa_node, machine.gpus.gpus[0].place.socket), (None, None));
}

#[test]
fn a_gpu_that_sysfs_hides_has_no_place_and_is_still_found() {
    let bench = Bench::new(Shape::Hgx);
    std::fs::remove_file(bench.roots().sysfs.join(format!("bus/pci/devices/{}", bench.gpu_bdf(0)))).unwrap();
    let machine = bench.machine();
    assert_eq!(machine.gpus.gpus.len(), 8);
    assert_eq!(machine.gpus.gpus[0].place, PciPlace::default());
}

#[test]
fn ancestors_are_read_from_paths_of_real_machines() {
    let of = |path: &str| {
        let (complex, above) = pci::ancestors(Path::new(path));
        (complex, above.iter().map(Bdf::to_string).collect::<Vec<_>>())
    };
    let some =
        |complex: &str, above: &[&str]| (Some(complex.to_owned()), above.iter().map(ToString::to_string).collect());
    assert_eq!(
        of("devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:08.0/0000:3e:00.0"),
        some("pci0000:3a", &["0000:3a:01.0", "0000:3b:00.0", "0000:3c:08.0"])
    );
    assert_eq!(of("devices/pci0000:00/0000:00:1f.2"), some("pci0000:00", &[]));
    assert_eq!(
        of("devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0"),
        some("pci10000:00", &["10000:00:02.0"]),
        "behind a VMD the domain below it is the fabric"
    );
    assert_eq!(of("devices/platform/soc/pci0008:00/0008:00:00.0/0008:01:00.0"), some("pci0008:00", &["0008:00:00.0"]));
    assert_eq!(of("devices/virtual/net/lo"), (None, vec![]));
}
