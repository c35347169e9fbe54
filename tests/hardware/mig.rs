//! Split GPUs.

use std::path::PathBuf;

use baton::agent::answer::DeviceTable;
use baton::agent::devices::{DeviceFindings, list};
use baton::agent::options::{AgentOptions, MigStrategy};
use baton::contract::DeviceId;
use baton::hardware::gpu::MigMode;
use baton::hardware::nodes;
use baton::hardware::nvml::profile_name;
use baton::sim::hardware::Shape;
use jiff::Timestamp;

use super::bench::Bench;

const GIB: u64 = 1 << 30;

#[test]
fn instances_are_found_with_profile_ids_and_capabilities() {
    let bench = Bench::new(Shape::Hgx);
    let uuids = bench.node.mig(1, &["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]).unwrap();
    let machine = bench.machine();
    let gpu = &machine.gpus.gpus[1];
    assert_eq!(gpu.mig.mode, MigMode::Enabled);
    let seen: Vec<(String, &str, u32, u32)> = gpu
        .mig
        .instances
        .iter()
        .map(|i| (i.uuid.clone(), i.profile.as_str(), i.gpu_instance, i.compute_instance))
        .collect();
    let expected = [
        (uuids[0].clone(), "3g.40gb", 1, 0),
        (uuids[1].clone(), "2g.20gb", 3, 0),
        (uuids[2].clone(), "1g.10gb", 7, 0),
        (uuids[3].clone(), "1g.10gb", 8, 0),
    ];
    assert_eq!(seen, expected);
    // From the driver's table: 135 capabilities a GPU, nine a GPU instance, the first of them its own.
    let third = &gpu.mig.instances[2];
    assert_eq!((third.gpu_instance_cap, third.compute_instance_cap), (Some(3 + 135 + 63), Some(3 + 135 + 63 + 1)));
    let dev = bench.roots().dev_tree().unwrap();
    let paths = || nodes::mig(&dev, gpu.minor.unwrap(), third);
    let all = ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap201", "/dev/nvidia-caps/nvidia-cap202"];
    assert_eq!(paths(), Ok(all.map(PathBuf::from).into()));
    std::fs::remove_file(bench.node.dev_root().join("nvidia-caps/nvidia-cap202")).unwrap();
    let why = "/dev/nvidia-caps/nvidia-cap202 is missing".to_owned();
    assert_eq!(paths(), Err(why), "a part of them opens no instance");
}

#[test]
fn compute_instances_of_one_gpu_instance_have_their_own_profile() {
    let bench = Bench::new(Shape::Hgx);
    bench.node.mig(0, &["1c.3g.40gb", "1c.3g.40gb"]).unwrap();
    let scan = bench.scan();
    let instances = &scan.gpus[0].mig.instances;
    assert_eq!(instances.len(), 2);
    assert!(instances.iter().all(|i| i.profile == "1c.3g.40gb" && i.gpu_instance == 1));
    assert_eq!((instances[0].compute_instance, instances[1].compute_instance), (0, 1));
}

#[test]
fn a_new_partition_is_seen_live_with_new_uuids() {
    let bench = Bench::scanned(Shape::Hgx);
    let first = bench.node.mig(0, &["1g.10gb"; 7]).unwrap();
    assert_eq!(bench.scan().gpus[0].mig.instances.len(), 7);
    let second = bench.node.mig(0, &["7g.80gb"]).unwrap();
    let scan = bench.scan();
    assert_eq!(scan.gpus[0].mig.instances[0].uuid, second[0]);
    assert!(!first.contains(&second[0]));
    bench.node.mig(0, &[]).unwrap();
    let scan = bench.scan();
    assert_eq!((scan.gpus[0].mig.mode, scan.gpus[0].mig.instances.len()), (MigMode::Enabled, 0));
    bench.node.unsplit(0).unwrap();
    assert_eq!(bench.scan().gpus[0].mig.mode, MigMode::Disabled);
}

#[test]
fn instances_keep_their_numbers_in_nvml_when_one_before_them_is_destroyed() {
    let bench = Bench::new(Shape::Hgx);
    let uuids = bench.node.mig(0, &["3g.40gb", "2g.20gb", "1g.10gb"]).unwrap();
    bench.node.destroy_mig(0, 1).unwrap();
    let scan = bench.scan();
    let slots: Vec<(&str, Option<u32>)> =
        scan.gpus[0].mig.instances.iter().map(|i| (i.uuid.as_str(), i.slot)).collect();
    assert_eq!(slots, [(uuids[0].as_str(), Some(0)), (uuids[2].as_str(), Some(2))]);
    let table = DeviceTable::build(
        &list(
            &bench.machine(),
            &AgentOptions { mig_strategy: MigStrategy::Mixed, ..AgentOptions::default() },
            &DeviceFindings::default(),
            Timestamp::UNIX_EPOCH,
        ),
        None,
        Vec::new(),
    );
    let index = |uuid: &str| table.devices[&DeviceId::parse(uuid).unwrap()].index.clone();
    assert_eq!(
        (index(&uuids[0]), index(&uuids[2])),
        ("0:0".to_owned(), "0:2".to_owned()),
        "as nvidia-smi and NVIDIA's plugin"
    );
}

#[test]
fn one_split_gpu_leaves_the_others_whole() {
    let bench = Bench::new(Shape::Hgx);
    bench.node.mig(5, &["1g.10gb"]).unwrap();
    let scan = bench.scan();
    let split: Vec<usize> = scan.gpus.iter().map(|gpu| gpu.mig.instances.len()).collect();
    assert_eq!(split, [0, 0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn profile_names_are_those_of_nvidia() {
    let h100 = Some(81_559 << 20);
    assert_eq!(profile_name(1, 1, 9_984, h100), "1g.10gb");
    assert_eq!(profile_name(2, 2, 20_096, h100), "2g.20gb");
    assert_eq!(profile_name(3, 3, 40_448, h100), "3g.40gb");
    assert_eq!(profile_name(7, 7, 81_152, h100), "7g.80gb");
    assert_eq!(profile_name(1, 3, 40_448, h100), "1c.3g.40gb");
    let a100 = Some(40 * GIB - 512 * (1 << 20));
    assert_eq!(profile_name(1, 1, 4_864, a100), "1g.5gb");
    assert_eq!(profile_name(1, 1, 0, Some(0)), "1g.0gb");
}
