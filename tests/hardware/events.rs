//! Events, from the driver to the sink.

use baton::hardware::{EventKind, GpuEvent, GpuProvider, NvmlOptions, NvmlProvider};
use baton::sim::hardware::Shape;

use super::bench::{Bench, CleanProbe, PATIENCE};

fn is_xid(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Xid(_))
}

#[test]
fn an_xid_names_its_gpu() {
    let bench = Bench::scanned(Shape::Hgx);
    assert_eq!(bench.provider.listening().len(), 8);
    bench.node.xid(5, 79).unwrap();
    let event = bench.event(|event| is_xid(&event.kind));
    assert_eq!(event.uuid, Some(bench.uuid(5)));
    assert_eq!((event.kind, event.mig), (EventKind::Xid(79), None));
}

#[test]
fn an_xid_on_a_mig_instance_concerns_that_instance_alone() {
    for ecc in [false, true] {
        let bench = Bench::new(Shape::Hgx);
        bench.node.mig(1, &["3g.40gb"]).unwrap();
        bench.scan();
        if ecc {
            // As a driver reports one error: for the whole GPU first, then where it is.
            bench.node.double_bit_ecc(1).unwrap();
        }
        bench.node.xid_on_instance(1, 94, (1, 0)).unwrap();
        let event = bench.event(|event| event.kind != EventKind::Listening);
        let of_instance = (EventKind::Xid(94), Some(bench.uuid(1)), Some((1, 0)));
        assert_eq!((event.kind, event.uuid, event.mig), of_instance, "with an ECC error: {ecc}");
    }
}

#[test]
fn a_burst_of_events_names_every_gpu_and_never_an_older_xid() {
    let bench = Bench::scanned(Shape::Hgx);
    (100..140).for_each(|xid| bench.node.xid(xid as usize % 8, xid).unwrap());
    for xid in 100..140 {
        let event = bench.event(|event| is_xid(&event.kind));
        assert_eq!(event.uuid, Some(bench.uuid(xid as usize % 8)));
        // NVML gives events that wait together the XID that came last.
        assert!(matches!(event.kind, EventKind::Xid(code) if (xid..140).contains(&code)), "{xid}: {event:?}");
    }
}

#[test]
fn an_event_before_the_first_scan_is_not_delivered_later() {
    let bench = Bench::new(Shape::Single);
    bench.node.xid(0, 48).unwrap();
    bench.scan();
    bench.node.xid(0, 79).unwrap();
    assert_eq!(bench.event(|event| is_xid(&event.kind)).kind, EventKind::Xid(79));
}

#[test]
fn a_gpu_without_events_is_named_once_and_the_machine_is_polled() {
    let bench = Bench::new(Shape::Pairs);
    bench.node.deliver_no_events().unwrap();
    bench.scan();
    bench.scan();
    let named: Vec<Option<String>> = bench.events.try_iter().map(|event| event.uuid).collect();
    assert_eq!(named, bench.node.gpu_uuids().into_iter().map(Some).collect::<Vec<_>>());
    assert!(bench.provider.listening().is_empty());
    assert!(bench.probe(0).is_clean());
}

#[test]
fn events_of_the_others_arrive_while_one_gpu_is_lost() {
    let bench = Bench::new(Shape::Hgx);
    bench.node.lose(0).unwrap();
    bench.scan();
    assert_eq!(bench.provider.listening().len(), 7);
    bench.node.xid(4, 74).unwrap();
    assert_eq!(bench.event(|event| is_xid(&event.kind)).uuid, Some(bench.uuid(4)));
}

#[test]
fn an_idle_listener_calls_nvml_only_to_wait() {
    let bench = Bench::scanned(Shape::Hgx);
    let before = bench.node.nvml_calls().unwrap();
    bench.node.xid(0, 13).unwrap();
    bench.event(|event| is_xid(&event.kind));
    let mut after = bench.node.nvml_calls().unwrap();
    // The wait that the event ended may have begun before the first count.
    after.retain(|name, count| before.get(name) != Some(count) && name != "nvmlEventSetWait_v2");
    assert!(after.is_empty(), "{after:?}");
}

#[test]
fn a_library_that_does_not_wait_for_events_is_not_asked_in_a_circle() {
    let bench = Bench::new(Shape::Hgx);
    bench.node.wait_for_no_event().unwrap();
    bench.scan();
    let waits = || bench.node.nvml_calls().unwrap().get("nvmlEventSetWait_v2").copied().unwrap_or(0);
    let (start, before) = (baton_clock(), waits());
    while start.elapsed() < std::time::Duration::from_millis(500) {
        std::thread::yield_now();
    }
    let asked = waits() - before;
    assert!((1..=10).contains(&asked), "{asked} waits in half a second");
    bench.node.xid(2, 79).unwrap();
    assert_eq!(bench.event(|event| is_xid(&event.kind)).uuid, Some(bench.uuid(2)));
}

#[test]
fn a_library_that_only_promises_events_has_its_gpus_polled() {
    let bench = Bench::new(Shape::Pairs);
    bench.node.promise_events_only().unwrap();
    bench.scan();
    let mut silent: Vec<_> =
        (0..4).map(|_| bench.event(|event| matches!(event.kind, EventKind::Silent(_))).uuid.unwrap()).collect();
    silent.sort_unstable();
    let mut all: Vec<String> = (0..4).map(|gpu| bench.uuid(gpu)).collect();
    all.sort_unstable();
    assert_eq!(silent, all);
    assert!(bench.events.try_recv().is_err(), "nothing was lost");
}

#[test]
fn a_set_of_events_that_fails_once_is_asked_for_again_and_gpus_polled_till_then() {
    let bench = Bench::new(Shape::Pairs);
    bench.node.make_no_event_set().unwrap();
    bench.scan();
    let polled = bench.events.try_iter().filter(|event| matches!(event.kind, EventKind::Silent(_))).count();
    assert_eq!((polled, bench.provider.listening().len()), (4, 0));
    bench.node.deliver_events().unwrap();
    bench.scan();
    assert_eq!(bench.provider.listening().len(), 4);
    assert_eq!(bench.events.try_iter().filter(|event| event.kind == EventKind::Listening).count(), 4);
    bench.node.xid(2, 79).unwrap();
    assert_eq!(bench.event(|event| is_xid(&event.kind)).uuid, Some(bench.uuid(2)));
}

#[test]
fn an_xid_of_a_healthy_gpu_does_not_wait_for_a_lost_one() {
    let bench = Bench::new(Shape::Hgx);
    let (sink, events) = std::sync::mpsc::channel();
    let long = NvmlOptions { event_wait: PATIENCE, ..super::bench::options(&bench.node) };
    let provider = NvmlProvider::new(long, std::sync::Arc::new(move |event: GpuEvent| drop(sink.send(event))));
    bench.node.lost_instead_of_waiting().unwrap();
    provider.scan().unwrap();
    let next = |wanted: fn(&EventKind) -> bool| {
        let mut all = std::iter::from_fn(|| events.recv_timeout(PATIENCE).ok());
        all.find(|event| wanted(&event.kind)).expect("the event arrives in time")
    };
    next(|kind| *kind == EventKind::Lost);
    let start = baton_clock();
    bench.node.xid(4, 74).unwrap();
    assert_eq!(next(is_xid).uuid, Some(bench.uuid(4)));
    assert!(start.elapsed() < std::time::Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(
        events.try_iter().all(|event| event.kind != EventKind::Lost),
        "it is reported once in a while, not in a storm"
    );
}

#[test]
fn an_xid_reaches_the_sink_within_ten_milliseconds() {
    let bench = Bench::scanned(Shape::Hgx);
    while bench.events.try_recv().is_ok() {}
    let mut times: Vec<std::time::Duration> = (0..50)
        .map(|n| {
            let start = baton_clock();
            bench.node.xid(n % 8, 79).unwrap();
            bench.events.recv_timeout(PATIENCE).unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("XID to sink: p50 {:?}, max {:?}", times[25], times[49]);
    assert!(times[25] < std::time::Duration::from_millis(10), "{:?}", times[25]);
}

// A measurement, not a decision: the test reads the real clock.
#[allow(clippy::disallowed_methods)]
fn baton_clock() -> std::time::Instant {
    std::time::Instant::now()
}
