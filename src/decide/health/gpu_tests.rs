//! Tests of GPU health, in the words of the node's operator.

use proptest::prelude::*;

use super::*;

const CLEAN: Observation = Observation::Clean { stated: true };

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn lost() -> Observation {
    Observation::Bad { reason: HealthReason::Lost, message: "fell off the bus".into() }
}

fn node(table: &[(u64, XidAction)]) -> GpuHealth {
    let mut health =
        GpuHealth::new(XidPolicy::new(table.iter().copied().collect(), None, None), RecoveryRule::default());
    health.retain(["GPU-a", "GPU-b"]);
    health
}

fn xid(health: &mut GpuHealth, uuid: &str, xid: u64, now: u64) -> EventJudgement {
    health.event(Some(uuid), None, xid, s(now))
}

#[test]
fn an_xid_takes_its_gpu_out_and_no_other() {
    let mut health = node(&[]);
    let seen = xid(&mut health, "GPU-a", 79, 5);
    assert_eq!((seen.action, seen.changes.len()), (XidAction::Unhealthy, 1));
    let GpuStatus::Unhealthy { cause, since } = health.status("GPU-a", None) else { panic!("healthy") };
    assert_eq!((cause.reason(), cause.xid(), since), (HealthReason::Xid, Some(79), s(5)));
    assert!(health.status("GPU-b", None).is_healthy());
    assert_eq!(health.ailing().collect::<Vec<_>>(), ["GPU-a"]);
}

#[test]
fn an_ignored_or_warned_xid_changes_nothing_and_is_reported() {
    let mut health = node(&[(94, XidAction::Warn)]);
    for (code, action) in [(13, XidAction::Ignore), (94, XidAction::Warn)] {
        let seen = xid(&mut health, "GPU-a", code, 1);
        assert_eq!((seen.action, seen.changes.len()), (action, 0));
    }
    assert!(health.status("GPU-a", None).is_healthy());
}

#[test]
fn an_event_without_a_gpu_concerns_them_all() {
    let mut health = node(&[]);
    let seen = health.event(None, Some("MIG-1"), 79, s(1));
    assert_eq!(seen.changes.len(), 2);
    assert!(seen.changes.iter().all(|change| change.instance.is_none()));
}

#[test]
fn an_event_on_an_instance_spares_its_siblings_and_one_on_the_gpu_spares_none() {
    let mut health = node(&[]);
    health.event(Some("GPU-a"), Some("MIG-1"), 94, s(1));
    assert!(!health.status("GPU-a", Some("MIG-1")).is_healthy());
    assert!(health.status("GPU-a", Some("MIG-2")).is_healthy());
    assert!(health.status("GPU-a", None).is_healthy());
    xid(&mut health, "GPU-a", 79, 2);
    assert!(!health.status("GPU-a", Some("MIG-2")).is_healthy());
}

#[test]
fn three_clean_probes_over_a_minute_bring_a_gpu_back() {
    let mut health = node(&[]);
    xid(&mut health, "GPU-a", 79, 0);
    assert_eq!(health.observe("GPU-a", &CLEAN, s(10)), []);
    assert_eq!(health.observe("GPU-a", &CLEAN, s(40)), []);
    assert_eq!(health.observe("GPU-a", &CLEAN, s(69)), [], "three probes, 59 s");
    let back = health.observe("GPU-a", &CLEAN, s(70));
    assert_eq!(back, [HealthChange { uuid: "GPU-a".into(), instance: None, status: GpuStatus::Healthy }]);
    assert!(health.status("GPU-a", None).is_healthy());
    assert_eq!(health.ailing().count(), 0);
}

#[test]
fn a_minute_with_two_probes_is_not_enough() {
    let mut health = node(&[]);
    xid(&mut health, "GPU-a", 79, 0);
    health.observe("GPU-a", &CLEAN, s(1));
    assert_eq!(health.observe("GPU-a", &CLEAN, s(100)), []);
    assert_eq!(health.observe("GPU-a", &CLEAN, s(101)).len(), 1);
}

#[test]
fn a_bad_probe_or_another_xid_starts_the_count_again() {
    for again in [true, false] {
        let mut health = node(&[]);
        xid(&mut health, "GPU-a", 79, 0);
        health.observe("GPU-a", &CLEAN, s(10));
        health.observe("GPU-a", &CLEAN, s(40));
        if again {
            assert_eq!(xid(&mut health, "GPU-a", 74, 50).changes, [], "it is out already");
        } else {
            assert_eq!(health.observe("GPU-a", &lost(), s(50)), []);
        }
        for at in [71, 100, 130] {
            assert_eq!(health.observe("GPU-a", &CLEAN, s(at)), [], "{at}");
        }
        assert_eq!(health.observe("GPU-a", &CLEAN, s(131)).len(), 1);
    }
}

#[test]
fn a_lost_gpu_is_out_at_the_first_bad_probe() {
    let mut health = node(&[]);
    let changes = health.observe("GPU-b", &lost(), s(3));
    assert_eq!(changes.len(), 1);
    let GpuStatus::Unhealthy { cause, .. } = &changes[0].status else { panic!("healthy") };
    assert_eq!((cause.reason(), cause.to_string().as_str()), (HealthReason::Lost, "fell off the bus"));
}

#[test]
fn a_pending_recovery_action_keeps_a_gpu_out() {
    let mut health = node(&[]);
    let wants = Observation::Wants("the driver asks for a reset".into());
    assert_eq!(health.observe("GPU-a", &wants, s(0)).len(), 1);
    for at in [10, 50, 100, 150] {
        assert_eq!(health.observe("GPU-a", &wants, s(at)), []);
    }
    assert!(!health.status("GPU-a", None).is_healthy());
}

#[test]
fn a_needed_reset_ends_only_when_the_driver_states_that_nothing_is_pending() {
    let mut health = node(&[(48, XidAction::NeedsReset)]);
    xid(&mut health, "GPU-a", 48, 0);
    let silent = Observation::Clean { stated: false };
    for at in [0, 50, 100, 150] {
        assert_eq!(health.observe("GPU-a", &silent, s(at)), []);
    }
    assert_eq!(health.observe("GPU-a", &CLEAN, s(151)).len(), 1);
}

#[test]
fn an_xid_that_a_reset_mends_needs_one_although_the_gpu_answers_probes() {
    let silent = Observation::Clean { stated: false };
    for (code, comes_back) in [(48, false), (62, false), (119, false), (63, true), (74, true), (94, true)] {
        let mut health = node(&[]);
        xid(&mut health, "GPU-a", code, 0);
        for at in [0, 50, 100, 150] {
            health.observe("GPU-a", &silent, s(at));
        }
        assert_eq!(health.status("GPU-a", None).is_healthy(), comes_back, "XID {code}");
        // A reset needs the daemon to be off: the next one asks again.
        let mut next = node(&[]);
        next.recall(&health.ailments(), s(200));
        for at in [200, 230, 260] {
            next.observe("GPU-a", &silent, s(at));
        }
        assert!(next.status("GPU-a", None).is_healthy(), "XID {code}");
    }
}

#[test]
fn a_needed_reboot_never_ends_in_this_boot() {
    let mut health = node(&[(79, XidAction::NeedsReboot)]);
    xid(&mut health, "GPU-a", 79, 0);
    for at in 0..1000 {
        assert_eq!(health.observe("GPU-a", &CLEAN, s(at)), []);
    }
}

#[test]
fn the_worst_cause_is_kept_and_the_time_is_that_of_the_first() {
    let mut health = node(&[(79, XidAction::NeedsReboot)]);
    xid(&mut health, "GPU-a", 62, 1);
    assert_eq!(xid(&mut health, "GPU-a", 79, 2).changes.len(), 1, "a worse cause is reported");
    assert_eq!(xid(&mut health, "GPU-a", 62, 3).changes, []);
    let GpuStatus::Unhealthy { cause, since } = health.status("GPU-a", None) else { panic!("healthy") };
    assert_eq!((cause.reason(), since), (HealthReason::XidNeedsReboot, s(1)));
}

#[test]
fn a_gpu_that_left_is_unhealthy_and_one_that_came_back_starts_healthy() {
    let mut health = node(&[]);
    xid(&mut health, "GPU-a", 79, 1);
    health.retain(["GPU-b"]);
    assert!(!health.status("GPU-a", None).is_healthy());
    assert_eq!(xid(&mut health, "GPU-a", 79, 2).changes, []);
    assert_eq!(health.observe("GPU-a", &CLEAN, s(3)), []);
    health.retain(["GPU-a", "GPU-b"]);
    assert!(health.status("GPU-a", None).is_healthy());
}

#[test]
fn a_rescan_keeps_what_is_out_of_service_out() {
    let mut health = node(&[]);
    xid(&mut health, "GPU-a", 79, 1);
    health.retain(["GPU-a", "GPU-b", "GPU-c"]);
    assert!(!health.status("GPU-a", None).is_healthy());
    assert!(health.status("GPU-c", None).is_healthy());
}

#[derive(Clone, Debug)]
enum Step {
    Xid(u64),
    Clean,
    Lost,
}

proptest! {
    /// Whatever happens: a change always tells a difference, and a GPU comes back only after three clean probes in a row
    /// that span a minute.
    #[test]
    fn a_gpu_comes_back_only_by_the_rule(
        steps in proptest::collection::vec(
            (0u64..40, prop_oneof![Just(Step::Clean), Just(Step::Clean), (10u64..100).prop_map(Step::Xid), Just(Step::Lost)]),
            0..60,
        )
    ) {
        let mut health = node(&[]);
        let (mut now, mut clean) = (0, Vec::new());
        for (wait, step) in steps {
            now += wait;
            let status_before = health.status("GPU-a", None);
            let before = status_before.is_healthy();
            match step {
                Step::Clean => clean.push(now),
                Step::Lost => clean.clear(),
                Step::Xid(code) if health.policy.action(code) >= XidAction::Unhealthy => clean.clear(),
                Step::Xid(_) => {}
            }
            let changes = match step {
                Step::Xid(code) => xid(&mut health, "GPU-a", code, now).changes,
                Step::Clean => health.observe("GPU-a", &CLEAN, s(now)),
                Step::Lost => health.observe("GPU-a", &lost(), s(now)),
            };
            let after = health.status("GPU-a", None).is_healthy();
            prop_assert_eq!(status_before != health.status("GPU-a", None), !changes.is_empty());
            if after && !before {
                prop_assert!(clean.len() >= 3 && clean[clean.len() - 1] - clean[0] >= 60);
            }
            if !after {
                prop_assert!(clean.len() < 3 || clean[clean.len() - 1] - clean[0] < 60);
            }
        }
    }
}

#[test]
fn what_an_agent_before_knew_keeps_a_gpu_out_as_if_it_had_been_seen_here() {
    let mut health = node(&[(95, XidAction::NeedsReboot), (48, XidAction::NeedsReset)]);
    xid(&mut health, "GPU-a", 95, 0);
    xid(&mut health, "GPU-b", 48, 0);
    health.observe("GPU-b", &lost(), s(1));
    let known = health.ailments();
    assert_eq!(known.iter().map(|ailment| ailment.xid).collect::<Vec<_>>(), [95, 48]);
    let mut next = node(&[(95, XidAction::NeedsReboot), (48, XidAction::NeedsReset)]);
    next.recall(&known, s(0));
    assert_eq!(next.ailments(), known);
    let clean = Observation::Clean { stated: false };
    for second in [0, 30, 60] {
        next.observe("GPU-a", &clean, s(second));
        next.observe("GPU-b", &clean, s(second));
    }
    assert!(!next.status("GPU-a", None).is_healthy(), "only a reboot mends it");
    assert!(next.status("GPU-b", None).is_healthy(), "a driver that cannot tell of a reset leaves it to the restart");
    let mut tolerant = node(&[(95, XidAction::Ignore), (48, XidAction::Ignore)]);
    assert!(tolerant.recall(&known, s(0)).is_empty(), "today's policy counts");
    let mut other = node(&[]);
    other.retain(["GPU-c"]);
    assert!(other.recall(&known, s(0)).is_empty());
}

#[test]
fn a_new_mig_device_starts_healthy_whatever_the_one_before_it_had() {
    let mut health = node(&[]);
    health.event(Some("GPU-a"), Some("MIG-1"), 94, s(1));
    health.event(Some("GPU-b"), Some("MIG-3"), 94, s(1));
    health.retain_instances(|gpu, mig| (gpu, mig) == ("GPU-b", "MIG-3"));
    assert!(health.status("GPU-a", Some("MIG-1")).is_healthy());
    assert!(health.status("GPU-a", Some("MIG-2")).is_healthy());
    assert_eq!(health.ailing().collect::<Vec<_>>(), ["GPU-b"]);
}

#[test]
fn an_xid_is_told_although_a_probe_came_before_it() {
    let mut health = node(&[]);
    health.observe("GPU-a", &lost(), s(1));
    assert_eq!(xid(&mut health, "GPU-a", 79, 2).changes.len(), 1);
    health.observe("GPU-a", &lost(), s(3));
    let GpuStatus::Unhealthy { cause, .. } = health.status("GPU-a", None) else { panic!("healthy") };
    assert_eq!(cause.xid(), Some(79));
    assert_eq!(health.ailments().len(), 1, "an agent after this one knows");
}
