//! GPUs as NVML tells them.

use std::sync::Arc;

use baton::hardware::gpu::{GpuDistance, MigMode};
use baton::hardware::nvml;
use baton::hardware::{GpuProvider, NullProvider, NvmlError, NvmlOptions, NvmlProvider, RecordedProvider};
use baton::sim::hardware::{NodeSpec, NvmlReturn, Shape, VirtualNode};

use super::bench::{self, Bench, CleanProbe};
use crate::skip::skipped;

fn provider(options: NvmlOptions) -> NvmlProvider {
    NvmlProvider::new(options, Arc::new(|_| {}))
}

#[test]
fn eight_gpus_are_found_with_all_that_nvml_tells_about_them() {
    let bench = Bench::new(Shape::Hgx);
    let scan = bench.scan();
    assert_eq!(scan.driver_version, "570.133.20");
    assert_eq!(scan.nvml_version, "12.570.133.20");
    assert_eq!(scan.cuda_version, Some(12_080));
    assert_eq!(scan.faults, []);
    let uuids: Vec<String> = scan.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    assert_eq!(uuids, bench.node.gpu_uuids());
    for (at, gpu) in scan.gpus.iter().enumerate() {
        assert_eq!((gpu.index, gpu.minor, gpu.bdf), (at as u32, Some(at as u32), Some(bench.gpu_bdf(at))));
        assert_eq!(gpu.model.as_deref(), Some("NVIDIA H100 80GB HBM3"));
        assert_eq!(gpu.memory_bytes, Some(81_559 << 20));
        assert_eq!(gpu.compute_capability, Some((9, 0)));
        assert_eq!(gpu.mig.mode, MigMode::Disabled);
    }
}

#[test]
fn two_scans_of_an_unchanged_machine_are_equal() {
    let bench = Bench::new(Shape::Hgx);
    assert_eq!(bench.machine(), bench.machine());
}

#[test]
fn the_same_seed_builds_the_same_machine_and_another_builds_another() {
    let of = |seed| Bench::of(NodeSpec::new("node-1").seeded(seed)).node.gpu_uuids();
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
}

#[test]
fn an_nvswitch_a_bridge_a_full_mesh_and_a_gpu_alone_are_an_nvlink_domain_each() {
    // Sizes of the domains; of the first GPU its peers, and whether it is on a switch.
    for (shape, sizes, peers, switched) in [
        (Shape::Hgx, &[8][..], None, true),
        (Shape::Pairs, &[2, 2], Some(1), false),
        (Shape::Grace, &[4], Some(3), false),
        (Shape::Single, &[1], Some(0), false),
    ] {
        let bench = Bench::new(shape);
        let scan = bench.scan();
        assert_eq!(scan.nvlink_domains().iter().map(Vec::len).collect::<Vec<_>>(), sizes, "{shape:?}");
        assert!(scan.gpus.iter().all(|gpu| gpu.nvlink.switched == switched), "{shape:?}");
        assert!(peers.is_none_or(|peers| scan.gpus[0].nvlink.peers.len() == peers), "{shape:?}");
        if shape == Shape::Pairs {
            assert_eq!(scan.gpus[0].nvlink.peers, [(bench.gpu_bdf(1), 4)]);
        }
    }
}

#[test]
fn distances_between_gpus_follow_the_pci_tree() {
    let level = |shape, a: usize, b: usize| {
        let bench = Bench::new(shape);
        bench.scan().level(&bench.uuid(a), &bench.uuid(b)).unwrap()
    };
    assert_eq!(level(Shape::Hgx, 0, 1), GpuDistance::SingleSwitch);
    assert_eq!(level(Shape::Hgx, 1, 2), GpuDistance::Node);
    assert_eq!(level(Shape::Hgx, 0, 7), GpuDistance::System);
    assert_eq!(level(Shape::Nested, 0, 2), GpuDistance::MultipleSwitches);
    assert_eq!(level(Shape::Pairs, 1, 0), GpuDistance::HostBridge);
}

#[test]
fn topology_is_read_once_and_not_at_every_scan() {
    let bench = Bench::new(Shape::Hgx);
    let topology = || {
        let calls = bench.node.nvml_calls().unwrap();
        let of = |name: &str| calls.get(name).copied().unwrap_or(0);
        (of("nvmlDeviceGetTopologyCommonAncestor"), of("nvmlDeviceGetNvLinkState"))
    };
    bench.scan();
    let first = topology();
    assert_eq!(first.0, 8 * 7 / 2);
    bench.scan();
    assert_eq!(topology(), first);
}

#[test]
fn memory_that_the_driver_does_not_report_is_unknown_and_not_an_error() {
    let bench = Bench::new(Shape::Hgx);
    bench.node.hide_memory(3).unwrap();
    let scan = bench.scan();
    assert_eq!(scan.faults, []);
    assert_eq!(scan.gpus[3].memory_bytes, None);
    assert_eq!(scan.gpus[4].memory_bytes, Some(81_559 << 20));
}

#[test]
fn memory_is_read_from_a_driver_that_has_only_the_first_version_of_the_call() {
    let bench = Bench::new(Shape::Single);
    bench.node.old_memory_call(0).unwrap();
    assert_eq!(bench.scan().gpus[0].memory_bytes, Some(81_559 << 20));
    let calls = bench.node.nvml_calls().unwrap();
    assert_eq!((calls["nvmlDeviceGetMemoryInfo_v2"], calls["nvmlDeviceGetMemoryInfo"]), (1, 1));
}

#[test]
fn every_exported_function_is_counted_by_name() {
    let bench = Bench::scanned(Shape::Hgx);
    let calls = bench.node.nvml_calls().unwrap();
    println!("{calls:#?}");
    assert_eq!(calls["nvmlInit_v2"], 1);
    assert_eq!(calls["nvmlDeviceGetName"], 8);
    assert_eq!(calls["nvmlDeviceRegisterEvents"], 8);
    assert_eq!(calls["nvmlEventSetCreate"], 1);
}

#[test]
fn three_machines_in_one_process_have_three_libraries() {
    let directory = crate::directory::directory();
    let nodes: Vec<VirtualNode> = (0..3)
        .map(|n| {
            VirtualNode::create(directory.path().join(n.to_string()), NodeSpec::new(&format!("node-{n}"))).unwrap()
        })
        .collect();
    let providers: Vec<NvmlProvider> = nodes.iter().map(|node| provider(bench::options(node))).collect();
    nodes[1].lose(0).unwrap();
    for (node, provider) in nodes.iter().zip(&providers) {
        let found: Vec<String> = provider.scan().unwrap().gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let lost = usize::from(node.gpu_uuids() == nodes[1].gpu_uuids());
        assert_eq!(found, node.gpu_uuids()[lost..]);
    }
}

#[test]
fn without_a_library_every_path_tried_is_listed_with_what_to_do() {
    let directory = crate::directory::directory();
    let options = NvmlOptions { driver_root: directory.path().to_owned(), ..NvmlOptions::default() };
    let candidates = nvml::candidates(&options);
    assert_eq!(candidates.len(), 15);
    if real_library_is_present() {
        return skipped("this machine has an NVML library");
    }
    // Places and no libraries: what a container runtime makes where a mount has no source or no place.
    std::fs::create_dir_all(directory.path().join("usr/lib64/libnvidia-ml.so.1")).unwrap();
    std::fs::create_dir_all(directory.path().join("lib64")).unwrap();
    std::fs::write(directory.path().join("lib64/libnvidia-ml.so.1"), "").unwrap();
    let error = provider(options).scan().unwrap_err();
    println!("{error}");
    assert!(error.is_absence());
    let text = error.to_string();
    for path in &candidates {
        assert!(text.contains(&format!("\n  {}: ", path.display())), "{} is not in: {text}", path.display());
    }
    assert!(text.contains("--nvml-library"), "{text}");
    assert!(matches!(error, NvmlError::NoLibrary { tried, .. } if tried.len() == candidates.len()));
    // A GPU that the kernel's driver has needs the library.
    let sysfs = directory.path().join("sys");
    std::fs::create_dir_all(sysfs.join("bus/pci/drivers/nvidia/0000:3b:00.0")).unwrap();
    let options =
        NvmlOptions { driver_root: directory.path().to_owned(), sysfs: Some(sysfs), ..NvmlOptions::default() };
    let error = provider(options).scan().unwrap_err();
    assert!(!error.is_absence() && error.to_string().contains("driver has 1 PCI functions"), "{error}");
}

#[test]
fn a_library_that_cannot_be_loaded_is_not_taken_for_none() {
    let directory = crate::directory::directory();
    let library = directory.path().join("libnvidia-ml.so.1");
    let options = NvmlOptions { library: Some(library.clone()), ..NvmlOptions::default() };
    let absent = provider(options.clone()).scan().unwrap_err();
    assert!(absent.is_absence() && absent.to_string().contains("install the NVIDIA driver"), "{absent}");
    // A download that broke off, a program, and a library that needs a file which this machine lacks.
    let needy = needy(&Bench::new(Shape::Single));
    for contents in [b"\x7fELF".to_vec(), std::fs::read("/proc/self/exe").unwrap(), needy] {
        std::fs::write(&library, contents).unwrap();
        let error = provider(options.clone()).scan().unwrap_err();
        println!("{error}");
        assert!(!error.is_absence(), "{error}");
        assert!(error.to_string().contains("is there and cannot be loaded"), "{error}");
    }
}

/// The virtual library, which needs a C library that no machine has.
fn needy(bench: &Bench) -> Vec<u8> {
    let mut library = std::fs::read(bench.node.nvml_library()).unwrap();
    let name = b"libc.so.6\0";
    let at = library.windows(name.len()).position(|window| window == name).unwrap();
    library[at + 3] = b'q';
    library
}

fn real_library_is_present() -> bool {
    // A driver brings one, wherever the loader finds it.
    ["/dev/nvidiactl", "/usr/lib64/libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"]
        .iter()
        .any(|file| std::path::Path::new(file).exists())
}

#[test]
fn an_explicit_library_is_the_only_one_tried() {
    let options = NvmlOptions { library: Some("/no/such/library.so".into()), ..NvmlOptions::default() };
    let NvmlError::NoLibrary { tried, .. } = provider(options).scan().unwrap_err() else { panic!("another error") };
    assert_eq!(tried.len(), 1);
    assert!(tried[0].error.contains("No such file"), "{}", tried[0].error);
}

#[test]
fn a_library_is_found_below_the_driver_root() {
    let bench = Bench::new(Shape::Single);
    if real_library_is_present() {
        return skipped("this machine has an NVML library");
    }
    let options = NvmlOptions { library: None, ..bench::options(&bench.node) };
    assert_eq!(provider(options).scan().unwrap().gpus.len(), 1);
}

#[test]
fn a_file_that_is_no_library_is_told_apart_from_an_absent_one() {
    let directory = crate::directory::directory();
    let library = directory.path().join("libnvidia-ml.so.1");
    std::fs::write(&library, "not ELF ".repeat(64)).unwrap();
    let options = NvmlOptions { library: Some(library), ..NvmlOptions::default() };
    let text = provider(options).scan().unwrap_err().to_string();
    assert!(text.contains("invalid ELF header") && text.contains("architecture"), "{text}");
}

#[test]
fn version_mismatch_no_permission_and_no_driver_are_told_apart() {
    let bench = Bench::new(Shape::Single);
    let refused = |answer| {
        bench.node.fail_start(answer).unwrap();
        let error = bench.try_scan().unwrap_err();
        println!("{error}");
        error
    };
    assert!(matches!(refused(NvmlReturn::LibRmVersionMismatch), NvmlError::VersionMismatch { .. }));
    assert!(matches!(refused(NvmlReturn::NoPermission), NvmlError::NoPermission { .. }));
    assert!(matches!(refused(NvmlReturn::DriverNotLoaded), NvmlError::DriverNotLoaded { .. }));
    assert!(matches!(refused(NvmlReturn::Unknown), NvmlError::Failed { .. }));
    bench.node.fail_start(NvmlReturn::Success).unwrap();
    assert_eq!(bench.scan().gpus.len(), 1, "the provider starts NVML by itself when it can");
}

#[test]
fn a_machine_without_gpus_is_not_an_error() {
    assert_eq!(NullProvider.scan().unwrap().gpus, []);
    assert!(!NullProvider.probe("GPU-0").unwrap().is_clean());
}

#[test]
fn a_recorded_scan_answers_as_the_machine_did() {
    let bench = Bench::new(Shape::Pairs);
    bench.node.lose(2).unwrap();
    let scan = bench.scan();
    let path = bench.directory.path().join("scan.json");
    std::fs::write(&path, serde_json::to_vec_pretty(&scan).unwrap()).unwrap();
    let recorded = RecordedProvider::new(&path);
    assert_eq!(recorded.scan().unwrap(), scan);
    assert!(recorded.probe(&bench.uuid(0)).unwrap().is_clean());
    assert!(!recorded.probe("GPU-unknown").unwrap().is_clean());
    std::fs::write(&path, "{").unwrap();
    let error = recorded.scan().unwrap_err().to_string();
    assert!(error.contains("scan.json"), "{error}");
}
