//! A pod's life, step by step.

use serde_json::json;

use super::*;
use crate::kubelet::instance::{Exit, Instance};

fn pod(policy: &str) -> Pod {
    serde_json::from_value(json!({"spec": {
        "restartPolicy": policy,
        "initContainers": [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}],
        "containers": [{"name": "a"}, {"name": "b"}],
    }}))
    .unwrap()
}

/// A sandbox with containers that run (`None`) or ended with a code at second 1.
fn sandbox(containers: &[(&str, Option<i32>)]) -> Sandbox {
    let mut sandbox = Sandbox { ready: true, ..Sandbox::default() };
    for (name, code) in containers {
        let exit = code.map(|code| Exit { at: Duration::from_secs(1), code, reason: "x" });
        let instance = Instance { exit, ..Instance::default() };
        sandbox.containers.insert((*name).to_owned(), instance);
        sandbox.started_here.insert((*name).to_owned());
    }
    sandbox
}

fn step(policy: &str, sandbox: Option<&Sandbox>) -> Actions {
    next(&pod(policy), sandbox, &BackOffs::default(), 1.0, Duration::from_secs(2))
}

#[test]
fn a_new_pod_gets_a_sandbox_and_its_first_init_container() {
    let actions = step("Never", None);
    assert!(actions.make_sandbox);
    assert_eq!(actions.start, ["init"]);
}

#[test]
fn nothing_starts_beside_a_running_init_container() {
    assert_eq!(step("Never", Some(&sandbox(&[("init", None)]))), Actions::default());
}

#[test]
fn a_sidecar_starts_after_the_init_container_and_the_apps_after_the_sidecar() {
    assert_eq!(step("Never", Some(&sandbox(&[("init", Some(0))]))).start, ["side"]);
    assert_eq!(step("Never", Some(&sandbox(&[("init", Some(0)), ("side", None)]))).start, ["a", "b"]);
}

#[test]
fn a_failed_init_container_ends_a_pod_that_never_restarts() {
    assert!(step("Never", Some(&sandbox(&[("init", Some(1))]))).over);
    assert_eq!(step("OnFailure", Some(&sandbox(&[("init", Some(1))]))).start, ["init"]);
}

#[test]
fn a_pod_is_over_when_its_apps_are_although_the_sidecar_runs() {
    let ended = sandbox(&[("init", Some(0)), ("side", None), ("a", Some(0)), ("b", Some(1))]);
    assert!(step("Never", Some(&ended)).over);
    assert_eq!(step("OnFailure", Some(&ended)).start, ["b"]);
    assert_eq!(step("Always", Some(&ended)).start, ["a", "b"]);
}

#[test]
fn a_second_restart_waits_for_its_back_off() {
    let mut back_offs = BackOffs::default();
    back_offs.restarted("a", Duration::ZERO, Duration::ZERO, &Periods::default());
    let crashed = sandbox(&[("init", Some(0)), ("side", None), ("a", Some(1)), ("b", None)]);
    let actions = next(&pod("Always"), Some(&crashed), &back_offs, 1.0, Duration::from_secs(2));
    assert_eq!(actions.back_off, [("a".to_owned(), Duration::from_secs(10))]);
    assert_eq!(actions.retry_at, Some(Duration::from_secs(11)));
    let actions = next(&pod("Always"), Some(&crashed), &back_offs, 1.0, Duration::from_secs(11));
    assert_eq!(actions.start, ["a"]);
}

#[test]
fn a_back_off_doubles_to_five_minutes_and_begins_again_after_a_run_of_ten() {
    let (mut back_offs, periods, mut now) = (BackOffs::default(), Periods::default(), Duration::ZERO);
    let lengths = [1, 1, 1, 1, 1, 1, 1, 601, 1].map(|runs| {
        let ended = now + Duration::from_secs(runs);
        let waits = back_offs.length("a", ended).unwrap_or_default();
        now = ended + waits;
        back_offs.restarted("a", ended, now, &periods);
        waits.as_secs()
    });
    assert_eq!(lengths, [0, 10, 20, 40, 80, 160, 300, 0, 10], "the first restart is at once");
}

#[test]
fn a_sandbox_lost_in_a_reboot_is_made_again_unless_the_pod_never_restarts() {
    let mut lost = sandbox(&[("init", Some(0)), ("side", Some(255)), ("a", Some(255)), ("b", Some(255))]);
    lost.ready = false;
    let actions = step("Always", Some(&lost));
    assert!(actions.make_sandbox);
    assert_eq!(actions.start, ["init"]);
    assert!(step("Never", Some(&lost)).over);
}
