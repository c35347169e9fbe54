//! One bad GPU never stops the others, and a call that hangs stops no other GPU.

use baton::contract::HealthReason;
use baton::decide::health::DeviceCondition;
use baton::hardware::gpu::Fault;
use baton::hardware::provider::Recovery;
use baton::hardware::question::{FailedQuestion, Question};
use baton::hardware::{EventKind, GpuProvider, NvmlError};
use baton::sim::hardware::{NvmlReturn, Shape};

use super::bench::{Bench, CleanProbe, DEADLINE, until};

fn timeout() -> Fault {
    Fault::Timeout(DEADLINE.as_millis() as u64)
}

#[test]
fn a_lost_gpu_is_reported_beside_the_other_seven() {
    let bench = Bench::new(Shape::Hgx);
    bench.node.lose(2).unwrap();
    let scan = bench.scan();
    assert_eq!(scan.gpus.len(), 7);
    assert_eq!(scan.faults.len(), 1);
    assert_eq!((scan.faults[0].index, &scan.faults[0].fault), (Some(2), &Fault::Lost));
}

#[test]
fn a_gpu_lost_after_the_first_scan_keeps_its_name_and_its_place_in_the_inventory() {
    let bench = Bench::new(Shape::Hgx);
    let earlier = bench.machine();
    bench.node.lose(2).unwrap();
    for _ in 0..3 {
        let mut now = bench.machine();
        assert_eq!(now.gpus.faults[0].uuid, Some(bench.uuid(2)));
        let kept = now.keep_silent(&earlier);
        assert_eq!(kept, now.gpus.faults);
        assert_eq!(now.gpus.gpus, earlier.gpus.gpus);
        assert_eq!(now.gpus.level(&bench.uuid(2), &bench.uuid(3)), earlier.gpus.level(&bench.uuid(2), &bench.uuid(3)));
    }
}

#[test]
fn a_lost_gpu_that_comes_back_is_seen_and_heard_without_a_restart() {
    let bench = Bench::scanned(Shape::Hgx);
    bench.node.lose(2).unwrap();
    assert_eq!(bench.scan().faults.len(), 1);
    assert_eq!(bench.probe(2).outcome, Err(Fault::Lost));
    bench.node.find(2).unwrap();
    assert_eq!(bench.probe(2).outcome, Err(Fault::Lost), "NVML remembers until it is started again");
    assert_eq!(bench.scan().gpus.len(), 8);
    assert!(bench.probe(2).is_clean());
    bench.node.xid(2, 31).unwrap();
    bench.event(|event| event.kind == EventKind::Xid(31));
}

#[test]
fn a_gpu_that_needs_a_reset_says_so() {
    let bench = Bench::scanned(Shape::Hgx);
    bench.node.fault(1, NvmlReturn::ResetRequired).unwrap();
    assert_eq!(bench.probe(1).outcome, Err(Fault::ResetRequired));
    assert_eq!(bench.scan().gpus.len(), 7);
    bench.node.fault(1, NvmlReturn::Success).unwrap();
    bench.node.recovery(1, Some(1)).unwrap();
    let probe = bench.probe(1);
    assert_eq!(probe.outcome, Ok(Recovery::Reset));
    assert!(!probe.is_clean());
    bench.node.recovery(1, Some(5)).unwrap();
    assert_eq!(bench.probe(1).outcome, Ok(Recovery::ImexDomain));
    bench.node.recovery(1, None).unwrap();
    assert_eq!(bench.probe(1).outcome, Ok(Recovery::NotReported));
    assert!(bench.probe(1).is_clean());
}

#[test]
fn a_gpu_that_its_fabric_does_not_have_is_found_and_says_what_lacks() {
    let bench = Bench::new(Shape::Hgx);
    assert!(bench.scan().gpus.iter().all(|gpu| gpu.fabric.is_none()), "registered, as the shape is built");
    for (state, status, part) in [(1, 0, "not started"), (2, 0, "in progress"), (3, 999, "status 999")] {
        bench.node.fabric(4, state, status).unwrap();
        let scan = bench.scan();
        assert_eq!(scan.gpus.len(), 8, "it answers");
        assert!(scan.gpus[4].fabric.as_ref().unwrap().contains(part), "{:?}", scan.gpus[4].fabric);
        let fault = bench.probe(4).outcome.unwrap_err();
        assert!(
            fault.reason() == HealthReason::FabricNotReady && fault.to_string().contains("not registered"),
            "{fault}"
        );
        assert!(bench.probe(5).is_clean());
    }
    bench.node.mig(4, &["1g.10gb"]).unwrap();
    assert_eq!(bench.scan().gpus[4].fabric, None, "the parts of a split GPU use no fabric");
    bench.node.unsplit(4).unwrap();
    for state in [0, 3, 4] {
        bench.node.fabric(4, state, 0).unwrap();
        assert_eq!(bench.scan().gpus[4].fabric, None, "{state}");
        assert!(bench.probe(4).is_clean());
    }
}

#[test]
fn a_gpu_that_nvml_does_not_know_is_gone() {
    let bench = Bench::scanned(Shape::Single);
    assert_eq!(bench.provider.probe("GPU-00000000-0000-0000-0000-000000000000").unwrap().outcome, Err(Fault::Gone));
}

#[test]
fn a_call_that_hangs_marks_its_gpu_and_the_others_are_read() {
    let bench = Bench::scanned(Shape::Hgx);
    bench.node.wedge(6).unwrap();
    let scan = bench.scan();
    assert_eq!(scan.gpus.len(), 7);
    assert_eq!((scan.faults[0].uuid.clone(), scan.faults[0].fault.clone()), (Some(bench.uuid(6)), timeout()));
    assert_eq!(bench.provider.hanging(), 1);
    bench.node.release(6).unwrap();
}

#[test]
fn a_gpu_that_hangs_is_not_asked_again_until_the_call_returns() {
    let bench = Bench::scanned(Shape::Hgx);
    bench.node.wedge(6).unwrap();
    for _ in 0..5 {
        assert_eq!(bench.probe(6).outcome, Err(timeout()));
        assert_eq!(bench.scan().gpus.len(), 7);
        assert!(bench.probe(5).is_clean());
    }
    assert_eq!(bench.provider.hanging(), 1, "one thread is lost to one GPU, however often it is asked about");
    bench.node.release(6).unwrap();
    until("the abandoned call returns", || bench.provider.hanging() == 0);
    assert_eq!(bench.scan().gpus.len(), 8);
    assert!(bench.probe(6).is_clean());
}

#[test]
fn after_three_calls_that_hang_none_is_begun_until_one_returns() {
    let bench = Bench::scanned(Shape::Hgx);
    (0..3).for_each(|gpu| bench.node.wedge(gpu).unwrap());
    let error = bench.try_scan().unwrap_err();
    assert_eq!(error, NvmlError::Exhausted(3));
    assert_eq!(bench.provider.probe(&bench.uuid(7)).unwrap_err(), error);
    assert_eq!((bench.try_scan().unwrap_err(), bench.provider.hanging()), (error, 3));
    (0..3).for_each(|gpu| bench.node.release(gpu).unwrap());
    until("the abandoned calls return", || bench.provider.hanging() == 0);
    assert_eq!(bench.scan().gpus.len(), 8);
    assert!(bench.probe(7).is_clean());
}

#[test]
fn a_gpu_that_hangs_at_the_very_first_scan_leaves_the_others_heard() {
    let bench = Bench::new(Shape::Hgx);
    bench.node.wedge(0).unwrap();
    assert_eq!(bench.scan().gpus.len(), 7);
    assert_eq!(bench.provider.listening().len(), 7);
    bench.node.release(0).unwrap();
    until("the abandoned call returns", || bench.provider.hanging() == 0);
    bench.scan();
    assert_eq!(bench.provider.listening().len(), 8);
}

#[test]
fn an_nvml_that_hangs_as_a_whole_is_not_asked_again_until_it_answers() {
    let bench = Bench::new(Shape::Single);
    bench.node.wedge_start().unwrap();
    for _ in 0..4 {
        let errors = [bench.try_scan().unwrap_err(), bench.provider.probe(&bench.uuid(0)).unwrap_err()];
        for error in errors {
            assert!(matches!(&error, NvmlError::Timeout { what, .. } if what == "its own start"), "{error}");
        }
    }
    assert_eq!(bench.provider.hanging(), 1, "one thread is lost, however often it is asked");
    bench.node.release_start().unwrap();
    until("the abandoned start returns", || bench.provider.hanging() == 0);
    assert_eq!(bench.scan().gpus.len(), 1);
}

#[test]
fn nvml_that_fails_as_a_whole_is_started_again_when_it_can() {
    let bench = Bench::scanned(Shape::Pairs);
    bench.node.fail_calls(NvmlReturn::Uninitialized).unwrap();
    assert!(matches!(bench.try_scan().unwrap_err(), NvmlError::Failed { .. }));
    bench.node.fail_calls(NvmlReturn::Success).unwrap();
    assert_eq!(bench.scan().gpus.len(), 4);
    bench.node.xid(3, 62).unwrap();
    bench.event(|event| event.kind == EventKind::Xid(62));
}

#[test]
fn a_removed_gpu_leaves_and_an_added_one_is_heard() {
    let bench = Bench::new(Shape::Hgx);
    let first = bench.machine();
    bench.node.remove(3).unwrap();
    let mut without = bench.machine();
    assert_eq!(without.gpus.gpus.len(), 7);
    assert_eq!(without.gpus.faults, [], "what left the machine is not at fault");
    assert_eq!(without.keep_silent(&first), []);
    bench.node.add(3).unwrap();
    assert_eq!(bench.machine().gpus.gpus, first.gpus.gpus);
    bench.node.xid(3, 63).unwrap();
    assert_eq!(bench.event(|event| event.kind == EventKind::Xid(63)).uuid, Some(bench.uuid(3)));
}

#[test]
fn a_dead_gpu_does_not_restart_nvml_at_every_scan() {
    let bench = Bench::new(Shape::Pairs);
    bench.node.lose(0).unwrap();
    (0..14).for_each(|_| _ = bench.scan());
    let starts = bench.node.nvml_calls().unwrap()["nvmlInit_v2"];
    assert_eq!(starts, 1 + 4, "at first, and after 1, 2, 4 and 8 scans");
    let restarts = bench.events.try_iter().filter(|event| event.kind == EventKind::Listening).count();
    assert_eq!(restarts, 3, "a restart is no news");
}

#[test]
fn every_fault_has_a_reason_in_one_word_and_a_text_that_says_what_to_do() {
    let bdf = "0000:3b:00.0".parse().unwrap();
    let faults = [
        Fault::Lost,
        Fault::ResetRequired,
        Fault::Gone,
        timeout(),
        Fault::Unlisted(bdf),
        Fault::Fabric("x".into()),
        Fault::Unanswered(FailedQuestion { question: Question::Uuid, why: "x".into() }),
    ];
    for fault in faults {
        assert!(fault.reason().word().chars().all(char::is_alphanumeric));
        let told = DeviceCondition::new(fault.reason(), fault.to_string());
        assert!(!told.remedy().is_empty());
        println!("{}: {told}", fault.reason());
    }
    for action in [Recovery::Reset, Recovery::Reboot, Recovery::DrainP2p, Recovery::DrainAndReset, Recovery::Unknown(9)]
    {
        assert!(action.wanted().unwrap().starts_with("the driver asks"));
    }
}
