//! One question that NVML does not answer, or answers with what cannot be, costs what it is about: each GPU is still there, once, and
//! the question is named.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use baton::hardware::gpu::{GpuInfo, GpuScan, MigMode};
use baton::hardware::question::{FailedQuestion, Question};
use baton::sim::hardware::{GpuValue, NodeSpec, NvmlReturn, Shape};

use super::bench::Bench;

const EIGHT: usize = 8;
const ILL: usize = 3;

/// Everything that is said of what was not answered.
fn told(scan: &GpuScan) -> String {
    let mut told = String::new();
    for unanswered in scan.gpus.iter().flat_map(|gpu| &gpu.unanswered) {
        let _ = writeln!(told, "{unanswered}");
    }
    scan.faults.iter().for_each(|fault| {
        let _ = writeln!(told, "{} {:?}", fault.fault, fault.bdf);
    });
    told
}

/// Nothing is there twice, and nothing is missing.
#[track_caller]
fn whole(scan: &GpuScan, context: &str) {
    let told = told(scan);
    assert_eq!(scan.count(), EIGHT, "{context}: {told}");
    let unique = |of: &dyn Fn(&GpuInfo) -> Option<String>| {
        let all: Vec<String> = scan.gpus.iter().filter_map(of).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{context}: {all:?}");
    };
    unique(&|gpu| Some(gpu.uuid.clone()));
    unique(&|gpu| gpu.minor.map(|minor| minor.to_string()));
    unique(&|gpu| gpu.bdf.map(|bdf| bdf.to_string()));
    assert!(!told.contains("does not list it"), "{context}: {told}");
}

/// The functions that a scan of GPUs calls about single ones.
fn questions(bench: &Bench) -> Vec<String> {
    let calls = bench.node.nvml_calls().unwrap().into_keys();
    let about_one =
        |name: &String| name.starts_with("nvmlDevice") && !name.contains("Count_v2") && !name.contains("Event");
    calls.filter(about_one).collect()
}

#[test]
fn each_question_that_fails_is_named_and_costs_no_other_gpu_and_no_second_line() {
    let mut tried = BTreeSet::new();
    for split in [false, true] {
        let well = Bench::new(Shape::Hgx);
        if split {
            well.node.mig(ILL, &["3g.40gb", "1g.10gb"]).unwrap();
        }
        well.scan();
        let asked = questions(&well);
        assert!(asked.len() >= if split { 17 } else { 13 }, "{asked:?}");
        for function in asked.into_iter().filter(|function| tried.insert(function.clone())) {
            for answer in [NvmlReturn::Unknown, NvmlReturn::NoPermission] {
                let bench = Bench::new(Shape::Hgx);
                if split {
                    bench.node.mig(ILL, &["3g.40gb", "1g.10gb"]).unwrap();
                }
                bench.node.fail_question(ILL, &function, answer).unwrap();
                let context = format!("{function} answers {answer:?}");
                for _ in 0..2 {
                    let scan = bench.scan();
                    whole(&scan, &context);
                    let told = told(&scan);
                    let stem = function.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches("_v");
                    let by_name = split && function == "nvmlDeviceGetAttributes_v2";
                    assert!(told.contains(stem) || by_name, "{context}: {told}");
                    let others = |gpu: &&GpuInfo| gpu.uuid != bench.uuid(ILL);
                    assert_eq!(scan.gpus.iter().filter(others).count(), EIGHT - 1, "{context}: {told}");
                }
                bench.node.fail_question(ILL, &function, NvmlReturn::Success).unwrap();
                let scan = bench.scan();
                assert_eq!((scan.gpus.len(), told(&scan)), (EIGHT, String::new()), "{context}, and then answers");
            }
        }
    }
}

#[test]
fn a_question_that_fails_on_every_gpu_leaves_eight_with_what_is_known() {
    let of = |function: &str, answer| {
        let bench = Bench::new(Shape::Hgx);
        (0..EIGHT).for_each(|gpu| bench.node.fail_question(gpu, function, answer).unwrap());
        let scan = bench.scan();
        whole(&scan, function);
        assert_eq!((scan.gpus.len(), scan.faults.len()), (EIGHT, 0), "{function}");
        scan
    };
    let minor = of("nvmlDeviceGetMinorNumber", NvmlReturn::NotSupported);
    assert!(minor.gpus.iter().all(|gpu| gpu.minor.is_none() && gpu.nvlink.switched && gpu.model.is_some()));
    let links = of("nvmlDeviceGetNvLinkState", NvmlReturn::Unknown);
    assert!(links.gpus.iter().all(|gpu| !gpu.nvlink.switched && gpu.minor.is_some()));
    assert_eq!(links.pairs.len(), EIGHT * (EIGHT - 1) / 2, "the topology over PCIe was answered");
    let topology = of("nvmlDeviceGetTopologyCommonAncestor", NvmlReturn::NoPermission);
    assert!(topology.pairs.is_empty() && topology.gpus.iter().all(|gpu| gpu.nvlink.switched));
    let place = of("nvmlDeviceGetPciInfo_v3", NvmlReturn::Unknown);
    assert!(place.gpus.iter().all(|gpu| gpu.bdf.is_none() && gpu.memory_bytes.is_some()));
    let mig = of("nvmlDeviceGetMigMode", NvmlReturn::Unknown);
    assert!(mig.gpus.iter().all(|gpu| gpu.mig.mode == MigMode::Unknown));
    let no_mig = of("nvmlDeviceGetMigMode", NvmlReturn::NotSupported);
    assert!(no_mig.gpus.iter().all(|gpu| gpu.mig.mode == MigMode::NotSupported && gpu.unanswered.is_empty()));
    let name = of("nvmlDeviceGetName", NvmlReturn::InsufficientSize);
    let why = |gpu: &GpuInfo| gpu.unanswered.iter().map(|seen: &FailedQuestion| seen.question).collect::<Vec<_>>();
    assert!(name.gpus.iter().all(|gpu| gpu.model.is_none() && why(gpu) == [Question::Model]));
}

#[test]
fn links_that_were_not_answered_are_asked_for_again_and_then_kept() {
    let bench = Bench::new(Shape::Hgx);
    bench.node.fail_question(ILL, "nvmlDeviceGetNvLinkState", NvmlReturn::Unknown).unwrap();
    assert!(!bench.scan().gpus[ILL].nvlink.switched);
    bench.node.fail_question(ILL, "nvmlDeviceGetNvLinkState", NvmlReturn::Success).unwrap();
    assert!(bench.scan().gpus[ILL].nvlink.switched);
    let asked = bench.node.nvml_calls().unwrap()["nvmlDeviceGetNvLinkState"];
    bench.scan();
    assert_eq!(bench.node.nvml_calls().unwrap()["nvmlDeviceGetNvLinkState"], asked);
}

#[test]
fn a_value_that_cannot_be_is_not_known_and_named() {
    let other = |bench: &Bench| {
        let at = bench.node.gpu_addresses()[5];
        GpuValue::Address(at.domain, u32::from(at.bus), u32::from(at.device))
    };
    let of = |value: &dyn Fn(&Bench) -> GpuValue| {
        let bench = Bench::new(Shape::Hgx);
        let value = value(&bench);
        bench.node.answer(ILL, &value).unwrap();
        let scan = bench.scan();
        whole(&scan, &format!("{value:?}"));
        let told = told(&scan);
        assert!(!told.is_empty(), "{value:?} is not named");
        (bench, scan, told)
    };
    for minor in [248, 255, 4096, u32::MAX] {
        let (_, scan, told) = of(&|_| GpuValue::Minor(minor));
        assert!(scan.gpus[ILL].minor.is_none() && told.contains(&minor.to_string()), "{told}");
    }
    let (_, scan, _) = of(&|_| GpuValue::Minor(5));
    assert!(scan.gpus[ILL].minor.is_none() && scan.gpus[5].minor.is_none(), "whose it is cannot be said");
    for uuid in ["", "GPU-", "gpu-1", "GPU-../../etc/passwd", "GPU-\u{7}00000000000"] {
        let (bench, scan, told) = of(&|_| GpuValue::Uuid(uuid.to_owned()));
        assert_eq!((scan.gpus.len(), scan.faults[0].bdf), (7, Some(bench.gpu_bdf(ILL))), "{told}");
    }
    let (bench, scan, told) = of(&|bench| GpuValue::Uuid(bench.uuid(5)));
    assert!(scan.gpus.len() == 6 && scan.faults.len() == 2 && told.contains(&bench.uuid(5)), "{told}");
    for memory in [0, u64::MAX] {
        assert_eq!(of(&|_| GpuValue::Memory(memory)).1.gpus[ILL].memory_bytes, None);
    }
    for (major, minor) in [(0, 0), (u32::MAX, 0), (9, u32::MAX)] {
        assert_eq!(of(&|_| GpuValue::Capability(major, minor)).1.gpus[ILL].compute_capability, None);
    }
    for name in ["", "  "] {
        assert_eq!(of(&|_| GpuValue::Name(name.to_owned())).1.gpus[ILL].model, None);
    }
    let unplaced = |scan: &GpuScan| scan.gpus.iter().filter(|gpu| gpu.bdf.is_none()).count();
    assert_eq!(unplaced(&of(&|_| GpuValue::Address(0, 0, 0)).1), 1);
    assert_eq!(unplaced(&of(&other).1), 2, "one of the two is wrong");
}

#[test]
fn a_numa_node_that_the_machine_does_not_have_is_not_known() {
    for node in ["-1", "57", "x", ""] {
        let bench = Bench::of(NodeSpec::new("numa").shaped(Shape::Hgx));
        let file = bench.node.sysfs_root().join(format!("bus/pci/devices/{}/numa_node", bench.gpu_bdf(0)));
        std::fs::write(file, format!("{node}\n")).unwrap();
        let machine = bench.machine();
        assert_eq!(machine.gpus.gpus[0].place.numa_node, None, "{node}");
        assert!(machine.gpus.gpus[1].place.numa_node.is_some());
    }
}
