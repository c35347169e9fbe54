//! The pods that are made.

use std::collections::BTreeMap;

use serde_json::json;

use super::test_job::{TestJob, UID, spec};
use baton_contract::tyjob::keys;

fn env(pod: &serde_json::Value, list: &str, at: usize) -> BTreeMap<String, String> {
    let entries = pod["spec"][list][at]["env"].as_array().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let map: BTreeMap<String, String> =
        entries.iter().map(|entry| (text(&entry["name"]), text(&entry["value"]))).collect();
    assert_eq!(map.len(), entries.len(), "no name twice");
    map
}

#[test]
fn pods_carry_labels_owner_place_environment_and_volumes() {
    let mut job = spec(2);
    job.volumes = vec![json!({ "name": "data", "emptyDir": {} })];
    job.worker_sets[0].template.0 = json!({
        "metadata": { "labels": { "app": "rl" }, "annotations": { "note": "a" } },
        "spec": {
            "initContainers": [{ "name": "fetch", "image": "fetch" }],
            "containers": [{ "name": "main", "image": "actor", "env": [{ "name": "MODE", "value": "$(TYJOB_ROLE)" }] }],
            "volumes": [{ "name": "own", "emptyDir": {} }],
            "futureField": { "kept": true },
        },
    })
    .as_object()
    .cloned()
    .unwrap();
    let test = TestJob::running_with(job);
    let (leader, worker) = (&test.bodies["rl-learner"], &test.bodies["rl-actor-1"]);
    assert_eq!(
        leader["metadata"]["labels"],
        json!({ keys::JOB: "rl", keys::ROLE: "leader", keys::INDEX: "0", keys::ATTEMPT: "0" })
    );
    assert_eq!(
        worker["metadata"]["labels"],
        json!({
            "app": "rl", keys::JOB: "rl", keys::ROLE: "worker", keys::WORKER_SET: "actor", keys::INDEX: "1",
            keys::ATTEMPT: "0",
        })
    );
    assert_eq!(worker["metadata"]["annotations"], json!({ "note": "a", keys::ALLOCATION: "node-1" }));
    let owner = &worker["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"], &owner["kind"]), (&json!(UID), &json!(true), &json!("TYJob")));
    assert_eq!(worker["metadata"]["namespace"], "team-a");
    let pod = &worker["spec"];
    assert_eq!((&pod["schedulerName"], &pod["restartPolicy"]), (&json!("baton-scheduler"), &json!("Never")));
    assert_eq!(pod["futureField"], json!({ "kept": true }));
    assert_eq!(pod["volumes"], json!([{ "name": "own", "emptyDir": {} }, { "name": "data", "emptyDir": {} }]));
    for (list, own) in [("containers", 1), ("initContainers", 0)] {
        let found = env(worker, list, 0);
        assert_eq!(found.len(), 6 + own);
        assert_eq!((found["TYJOB_NAME"].as_str(), found["TYJOB_ROLE"].as_str()), ("rl", "worker"));
        assert_eq!((found["TYJOB_WORKER_SET"].as_str(), found["TYJOB_INDEX"].as_str()), ("actor", "1"));
        assert_eq!((found["TYJOB_NUM_WORKERS"].as_str(), found["TYJOB_LEADER_ADDRESS"].as_str()), ("2", "10.0.0.1"));
    }
    assert_eq!(pod["containers"][0]["env"][6]["name"], "MODE", "the user's come last and may refer to ours");
    let of_leader = env(leader, "containers", 0);
    assert_eq!((of_leader.len(), of_leader["TYJOB_WORKER_SET"].as_str()), (5, ""));
}

#[test]
fn the_users_own_variable_wins_with_a_warning() {
    let mut job = spec(1);
    job.leader.template.0["spec"]["containers"][0]["env"] = json!([{ "name": "TYJOB_ROLE", "value": "boss" }]);
    let mut test = TestJob::new(job);
    test.settle();
    test.place_all();
    test.settle();
    assert_eq!(env(&test.bodies["rl-learner"], "containers", 0)["TYJOB_ROLE"], "boss");
    let reported = test.reported.iter().find(|(reason, _)| *reason == "EnvOverridden").unwrap();
    assert!(reported.1.contains("learner/main") && reported.1.contains("TYJOB_ROLE"), "{}", reported.1);
}

#[test]
fn only_variables_that_the_controller_would_set_are_warned_of() {
    let mut job = spec(1);
    job.leader.template.0["spec"]["containers"][0]["env"] = json!([{ "name": "TYJOB_LEADER_ADDRESS", "value": "me" }]);
    job.volumes = vec![json!({ "name": "data", "emptyDir": {} })];
    job.leader.template.0["spec"]["volumes"] = serde_json::Value::Null;
    let mut test = TestJob::new(job);
    test.settle();
    test.place_all();
    test.settle();
    assert!(!test.reported.iter().any(|(reason, _)| *reason == "EnvOverridden"), "{:?}", test.reported);
    assert_eq!(test.bodies["rl-learner"]["spec"]["volumes"][0]["name"], "data", "null is no list");
}

#[test]
fn the_leaders_own_restart_policy_is_kept() {
    let mut job = spec(1);
    job.leader.template.0["spec"]["restartPolicy"] = "OnFailure".into();
    let test = TestJob::running_with(job);
    assert_eq!(test.bodies["rl-learner"]["spec"]["restartPolicy"], "OnFailure");
}
