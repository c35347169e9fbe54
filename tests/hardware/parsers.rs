//! Every parser of this machine's files is total.

use std::path::Path;

use baton::hardware::gpu::GpuScan;
use baton::hardware::nic::PortState;
use baton::hardware::{Bdf, Tree, machine, nodes, pci};
use baton::hardware::{NullProvider, Roots};
use baton::sim::hardware::Shape;
use proptest::prelude::*;

use super::bench::Bench;

#[test]
fn addresses_of_nvml_and_the_kernel_are_the_same_value() {
    let of = |text: &str| text.parse::<Bdf>().unwrap();
    assert_eq!(of("00000000:3B:00.0"), of("0000:3b:00.0"));
    assert_eq!(of("00000000:3B:00.0").to_string(), "0000:3b:00.0");
    assert_eq!(of("00010000:01:1F.7").to_string(), "10000:01:1f.7");
    for bad in
        ["", "3b:00.0", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "+000:3b:00.0", "0000:3b:00.0 ", "000:3b:00.0"]
    {
        assert!(bad.parse::<Bdf>().is_err(), "{bad:?}");
    }
}

#[test]
fn minors_of_mig_are_read_line_by_line() {
    assert_eq!(nodes::mig_minor("gpu0/gi1/access 12"), Some(((0, 1, None), 12)));
    assert_eq!(nodes::mig_minor("gpu7/gi13/ci2/access 1084"), Some(((7, 13, Some(2)), 1084)));
    for other in
        ["config 1", "monitor 2", "gpu0/gi1/ci0/x/access 3", "gpu0/access 3", "gpu0/gi1/access", "gpu-1/gi1/access 3"]
    {
        assert_eq!(nodes::mig_minor(other), None, "{other}");
    }
}

#[test]
fn the_whole_table_of_mig_minors_is_read_though_longer_than_other_files_may_be() {
    let bench = Bench::new(Shape::Single);
    let table = std::fs::metadata(bench.roots().proc.join("driver/nvidia-caps/mig-minors")).unwrap();
    assert!(table.len() > 64 * 1024);
    let minors = nodes::mig_minors(&bench.roots().proc_tree().unwrap(), |minor| minor == 31).unwrap();
    assert_eq!(minors.len(), 15 * 9);
}

#[test]
fn a_port_type_behind_other_capabilities_is_found_and_a_loop_ends() {
    let mut space = [0u8; 256];
    space[0x06] = 0x10;
    space[0x34] = 0x40;
    (space[0x40], space[0x41]) = (0x05, 0x50);
    (space[0x50], space[0x51], space[0x52]) = (0x10, 0, 0x52);
    assert_eq!(pci::port_type(&space), Some(5));
    assert_eq!(pci::port_type(&space[..64]), None, "an unprivileged reader sees 64 bytes");
    (space[0x50], space[0x51]) = (0x09, 0x40);
    assert_eq!(pci::port_type(&space), None);
}

proptest! {
    #[test]
    fn printing_and_reading_an_address_gives_it_back(domain in 0u32..=0xffff_ffff, bus: u8, device in 0u8..32, function in 0u8..8) {
        let bdf = Bdf::new(domain, bus, device, function).unwrap();
        prop_assert_eq!(bdf.to_string().parse::<Bdf>(), Ok(bdf));
        let nvml = format!("{domain:08X}:{bus:02X}:{device:02X}.{function}");
        prop_assert_eq!(nvml.parse::<Bdf>(), Ok(bdf));
    }

    #[test]
    fn no_address_line_or_state_panics(text in "\\PC{0,80}") {
        let _ = text.parse::<Bdf>();
        let _ = nodes::mig_minor(&text);
        let _ = PortState::parse(&text);
        let _ = pci::ancestors(Path::new(&text));
    }

    #[test]
    fn nothing_like_a_mig_line_panics(text in "(gpu|gi|ci|access|/|[0-9]{1,12}| |-){0,12}") {
        let _ = nodes::mig_minor(&text);
    }

    #[test]
    fn no_path_panics(text in "(devices|pci0000:3a|pci:|0000:3b:00\\.0|10000:e1:1f\\.7|/|\\.\\.|é){0,10}") {
        let _ = pci::ancestors(Path::new(&text));
    }

    #[test]
    fn no_configuration_space_panics_or_loops(space in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = pci::port_type(&space);
    }

    #[test]
    fn no_recording_panics(text in "\\PC{0,200}") {
        let _ = serde_json::from_str::<GpuScan>(&text);
    }
}

proptest! {
    // Each case writes files; fewer suffice, because each fills every file of a NIC.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_contents_of_sysfs_files_stop_the_other_devices(contents in proptest::collection::vec(any::<u8>(), 0..200)) {
        let directory = crate::directory::directory();
        let root = directory.path();
        let device = root.join("devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0");
        for (class, name) in [("infiniband", "mlx5_0"), ("infiniband_verbs", "uverbs0"), ("infiniband_mad", "umad0")] {
            let entry = device.join(class).join(name);
            std::fs::create_dir_all(entry.join("ports/1")).unwrap();
            std::fs::create_dir_all(root.join("class").join(class)).unwrap();
            let target = format!("../../devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0/{class}/{name}");
            std::os::unix::fs::symlink(target, root.join("class").join(class).join(name)).unwrap();
            for file in ["ibdev", "node_guid", "fw_ver", "ports/1/state", "ports/1/phys_state", "ports/1/rate", "port"] {
                std::fs::write(entry.join(file), &contents).unwrap();
            }
        }
        std::os::unix::fs::symlink("../../../0000:3b:00.0", device.join("infiniband/mlx5_0/device")).unwrap();
        for file in ["numa_node", "vendor", "device", "config", "../config"] {
            std::fs::write(device.join(file), &contents).unwrap();
        }
        std::fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        std::os::unix::fs::symlink("../../../devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0", root.join("bus/pci/devices/0000:3b:00.0")).unwrap();
        std::fs::create_dir_all(root.join("driver/nvidia-caps")).unwrap();
        std::fs::write(root.join("driver/nvidia-caps/mig-minors"), &contents).unwrap();
        let _ = nodes::mig_minors(&Tree::open(root).unwrap(), |_| true);
        let roots = Roots { sysfs: root.into(), proc: root.into(), dev: root.into(), driver: root.into(), net: None };
        let machine = machine::scan(&roots, &NullProvider).unwrap();
        prop_assert_eq!(machine.nics.len(), 1);
    }
}
