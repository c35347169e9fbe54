//! Rows of the gangs' scenarios with the scheduler's process as it ships, on the simulated API server.

use std::ffi::OsString;

use baton::sim::apiserver::Rule;

use super::gang_verbs::keys;
use super::killed::serve;
use crate::harness::daemon::timings;
use crate::prelude::*;
use crate::scheduler::verbs::until;

const USER: &str = "scheduler";
const TIMEOUT: &str = "gang.scheduling.koordinator.sh/timeout";

/// A cluster and the scheduler's process.
struct Stage {
    cluster: SchedulerCluster,
    scheduler: Daemon,
    _dir: tempfile::TempDir,
}

impl Stage {
    async fn open() -> Self {
        Self::open_with("").await
    }

    /// With a node of so many CPUs.
    async fn with_cpus(cpus: u32, more: &str) -> Self {
        let stage = Self::open_with(more).await;
        stage.cluster.cpus("n1", cpus).await;
        stage
    }

    /// Members `<gang>-0` … are marked as timed out.
    async fn marked(&self, gang: &str, count: usize) {
        for n in 0..count {
            let pod = self.cluster.get(&format!("{gang}-{n}")).await.unwrap();
            assert_eq!(pod.metadata.annotations.unwrap()[TIMEOUT], "true");
        }
    }

    /// With more flags.
    async fn open_with(more: &str) -> Self {
        let cluster = SchedulerCluster::start().await;
        let dir = crate::harness::directory::directory();
        cluster.server().allow(USER, vec![Rule::new("*", "*", "*")]);
        std::fs::write(dir.path().join("kubeconfig"), cluster.server().plain_kubeconfig(USER)).unwrap();
        let words = "--namespace baton-system --listen 127.0.0.1:0 --leader-elect=false";
        let quick = timings(
            "lock_abandoned: 1s, lock_sweep: 200ms, backoff: 100ms, backoff_max: 500ms, gang_condition_pause: 200ms",
        );
        let mut args: Vec<OsString> =
            vec!["scheduler".into(), quick.into(), "--kubeconfig".into(), dir.path().join("kubeconfig").into()];
        args.extend(words.split_whitespace().chain(more.split_whitespace()).map(OsString::from));
        let scheduler = Daemon::start(args, dir.path().join("scheduler.log"));
        Self { cluster, scheduler, _dir: dir }
    }

    async fn get(&self, path: &str) -> String {
        until(&format!("an answer to {path}"), || async {
            self.scheduler.get(path).await.filter(|answer| answer.starts_with("HTTP/1.1 200"))
        })
        .await
    }

    async fn gang(&self, name: &str) -> Value {
        let answer = self.get("/gangs").await;
        let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        body["items"].as_array().unwrap().iter().find(|item| item["name"] == name).cloned().unwrap_or_default()
    }

    /// What `baton …` prints when it asks this scheduler.
    fn baton(&self, args: &[&str]) -> String {
        let url = format!("--admin-url=http://{}", self.scheduler.address("admin HTTP").unwrap());
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_baton")).args(args).arg(url).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A pod by itself has been placed: whatever else could be placed was looked at before.
    async fn sentinel(&self, name: &str) {
        self.cluster.member(name, json!({}), json!({})).await;
        self.cluster.bound(name).await;
    }

    async fn worker(&self, name: &str, gpus: u32, annotations: Value) {
        let limits = if gpus == 0 { json!({"cpu": "1"}) } else { json!({"nvidia.com/gpu": gpus.to_string()}) };
        self.cluster.pod_with(name, limits, annotations).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_needs_five_pods_waits_as_a_whole_and_starts_when_nodes_join() {
    let stage = Stage::open().await;
    let cluster = &stage.cluster;
    for node in ["n1", "n2"] {
        cluster.node_of(node, 2).await;
    }
    let gang =
        json!({"pod-group.scheduling.sigs.k8s.io/name": "job", "pod-group.scheduling.sigs.k8s.io/min-available": "5"});
    stage.worker("job-ps", 0, gang.clone()).await;
    for n in 0..4 {
        stage.worker(&format!("job-{n}"), 2, gang.clone()).await;
    }
    for name in ["job-ps", "job-0", "job-1", "job-2", "job-3"] {
        cluster.waits_with(name, "Unschedulable", "gang ml/job: 0 of 5 placed").await;
    }
    let view = stage.gang("job").await;
    assert_eq!((&view["waitingForBindChildren"], &view["boundChildren"]), (&json!([]), &json!([])), "{view:#}");
    let stop = CancellationToken::new();
    let story = async {
        for node in ["n3", "n4"] {
            cluster.node_of(node, 2).await;
        }
        cluster.all_bound("job", 5).await;
        for node in ["n1", "n2", "n3", "n4"] {
            cluster.unlocked(node).await;
        }
        stop.cancel();
    };
    tokio::join!(story, serve(cluster, &stop));
    let commits: std::collections::BTreeSet<String> = cluster
        .server()
        .objects("", "pods")
        .iter()
        .map(|pod| pod["metadata"]["annotations"][key::GANG_COMMITTED].as_str().unwrap().to_owned())
        .collect();
    assert!(commits.len() == 1 && commits.first().unwrap().ends_with("/5"), "{commits:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gangs_of_a_group_start_together_and_gangs_are_shown_with_their_fields() {
    let stage = Stage::with_cpus(4, "").await;
    let cluster = &stage.cluster;
    let groups = json!({"groups": "[\"ml/a\", \"ml/b\"]"});
    cluster.members("a", 2, 2, groups.clone()).await;
    cluster.waits_with("a-0", "GangIncomplete", "starts together with gang ml/b").await;
    cluster.members("b", 3, 3, groups).await;
    cluster.waits_with("a-0", "Unschedulable", "group ml/a, ml/b; gang ml/a: 0 of 2 placed").await;
    assert!(cluster.bound_of("").await.is_empty());
    let view = stage.gang("b").await;
    let mut fields: Vec<&str> = view.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected = "attempts boundChildren children childrenScheduleRoundMap counts createTime gangGroup holdingSince lastFailure \
                    matchPolicy minRequiredNumber mode name namespace nextTry notCreated pendingChildren resourceSatisfied \
                    scheduleCycle scheduleCycleValid totalChildrenNum waitTime waitingForBindChildren";
    let expected: Vec<&str> = expected.split(' ').collect();
    assert_eq!(fields, expected);
    assert_eq!((&view["gangGroup"], &view["matchPolicy"]), (&json!(["ml/a", "ml/b"]), &json!("once-satisfied")));
    tells(stage.get("/gangs/ml/b").await, ["\"rootCause\":{\"pod\":\"ml/", "\"state\":\"waiting\""]);
    let text = stage.baton(&["explain", "gang", "ml/b"]);
    for part in [
        "Gang ml/b waits for room and holds nothing.",
        "ml/a   0        2",
        "The first pod without a place is ml/",
        "What to do: ",
    ] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    let text = stage.baton(&["get", "gangs", "-n", "ml"]);
    assert!(text.lines().count() == 3 && text.contains("SATISFIED"), "{text}");
    let json: Value = serde_json::from_str(&stage.baton(&["get", "gangs", "b", "-A", "-o", "json"])).unwrap();
    let fields: Vec<&String> = json["items"][0].as_object().unwrap().keys().collect();
    assert_eq!((json["items"].as_array().unwrap().len(), fields.len()), (1, expected.len()), "{json:#}");
    cluster.cpus("n2", 1).await;
    cluster.all_bound("", 5).await;
    until("the metrics", || async {
        let text = stage.get("/metrics").await;
        let all = ["gangs_satisfied_total 1", "gangs_waiting 0", "gang_wait_seconds_count 1", "gang_timeouts_total 0"];
        all.iter().all(|part| text.contains(&format!("baton_scheduler_{part}"))).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_that_waited_too_long_is_marked_and_runs_once_all_its_pods_are_made_again() {
    let stage = Stage::with_cpus(2, "").await;
    let cluster = &stage.cluster;
    let more = json!({"mode": "NonStrict", "waiting-time": "5s"});
    // The first marks cannot be written: they are tried until they are.
    cluster.members("g", 3, 3, more.clone()).await;
    cluster.waits_with("g-0", "GangTimeout", "3 pods are marked").await;
    stage.marked("g", 3).await;
    assert_eq!(stage.gang("g").await["waitingForBindChildren"], json!([]));
    cluster.cpus("n2", 8).await;
    stage.sentinel("lone").await;
    assert!(cluster.bound_of("g").await.is_empty());
    // As a controller does: each is made again when it is gone.
    for n in 0..3 {
        let name = format!("g-{n}");
        cluster.delete(&name).await;
        cluster.member(&name, json!({}), keys("g", 3, &more)).await;
    }
    cluster.all_bound("g", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_that_cannot_be_written_are_tried_until_they_are() {
    let stage = Stage::with_cpus(2, "").await;
    let cluster = &stage.cluster;
    let status = || FaultRule { user: USER.to_owned(), ..FaultRule::on("patch", "pods").below("status") };
    let rule = cluster.server().faults().add(status(), Effect::Answer(500, None));
    cluster.members("g", 3, 3, json!({"mode": "NonStrict", "waiting-time": "500ms"})).await;
    cluster.event("GangTimeout").await;
    // Nothing is held any more, and nothing is tried while it is not known who is marked.
    until("the room is given back", || async {
        (stage.gang("g").await["waitingForBindChildren"] == json!([])).then_some(())
    })
    .await;
    cluster.cpus("n2", 8).await;
    stage.sentinel("lone").await;
    assert!(cluster.bound_of("g").await.is_empty());
    cluster.server().faults().remove(rule);
    cluster.waits_with("g-0", "GangTimeout", "3 pods are marked").await;
    stage.marked("g", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_killed_after_two_of_five_bindings_completes_the_other_three_first() {
    let mut stage = Stage::with_cpus(5, "").await;
    let binding = FaultRule { user: USER.to_owned(), ..FaultRule::on("create", "pods").below("binding").after(2) };
    let rule = stage.cluster.server().faults().add(binding, Effect::Hang);
    stage.cluster.members("g", 5, 5, json!({})).await;
    stage.cluster.all_bound("g", 2).await;
    stage.cluster.fires(rule, 1).await;
    stage.scheduler.kill();
    stage.cluster.server().faults().remove(rule);
    stage.cluster.member("rival", json!({}), json!({})).await;
    stage.scheduler.restart();
    stage.cluster.all_bound("g", 5).await;
    stage.cluster.waits_with("rival", "Unschedulable", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_evict_gang_the_others_of_a_member_that_cannot_be_bound_are_deleted() {
    let stage = Stage::with_cpus(8, "--on-bind-failure evictGang").await;
    let binding = FaultRule { user: USER.to_owned(), ..FaultRule::on("create", "pods").below("binding").times(1) };
    let rule = stage.cluster.server().faults().add(binding, Effect::Answer(422, None));
    stage.cluster.members("g", 3, 3, json!({})).await;
    until("two of three are deleted", || async {
        let pods = stage.cluster.pods().list(&Default::default()).await.unwrap();
        let kept: Vec<String> = pods
            .items
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .filter_map(|pod| pod.metadata.name.clone())
            .collect();
        (kept.len() == 1).then_some(kept)
    })
    .await;
    assert_eq!(stage.cluster.server().faults().fired(rule), 1);
    stage.cluster.event("GangBindFailed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_pending_clock_a_strict_gang_that_holds_nothing_times_out_too() {
    let stage = Stage::with_cpus(2, "--timeout-clock pending").await;
    stage.cluster.members("g", 3, 3, json!({"waiting-time": "1s"})).await;
    for name in ["g-0", "g-1", "g-2"] {
        stage.cluster.waits_with(name, "GangTimeout", "3 pods are marked").await;
    }
    stage.marked("g", 1).await;
}

/// Pods `train-0` … of one CPU that name their gang by `spec.schedulingGroup`.
async fn of_scheduling_group(cluster: &SchedulerCluster, count: usize) {
    for n in 0..count {
        let pod = json!({"metadata": {"name": format!("train-{n}")},
            "spec": {"schedulerName": "baton-scheduler", "automountServiceAccountToken": false,
                "schedulingGroup": {"podGroupName": "train"},
                "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}]}});
        cluster.make(pod).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_scheduling_group_wait_for_its_pod_group_and_start_together() {
    let stage = Stage::with_cpus(2, "").await;
    let cluster = &stage.cluster;
    cluster.pod_group_crd(PodGroupApi::Kubernetes).await;
    of_scheduling_group(cluster, 3).await;
    cluster.waits_with("train-0", "WaitingForPodGroup", "PodGroup ml/train does not exist yet").await;
    let spec = json!({"schedulingPolicy": {"gang": {"minCount": 3}}});
    cluster.pod_group_of(PodGroupApi::Kubernetes, "train", spec).await;
    cluster.waits_with("train-2", "Unschedulable", "gang ml/train: 0 of 3 placed").await;
    let view = stage.gang("train").await;
    assert_eq!((&view["minRequiredNumber"], &view["boundChildren"]), (&json!(3), &json!([])), "{view:#}");
    cluster.cpus("n2", 1).await;
    cluster.all_bound("train", 3).await;
    let object = cluster.pod_groups(PodGroupApi::Kubernetes).get("train").await.unwrap();
    assert_eq!(object.data.get("status").cloned().unwrap_or_default(), Value::Null, "its status is not ours to write");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduling_group_names_nothing_where_the_installation_does_not_read_it() {
    let stage = Stage::with_cpus(2, "--scheduling-group=false").await;
    of_scheduling_group(&stage.cluster, 3).await;
    stage.cluster.all_bound("train", 2).await;
    assert_eq!(stage.gang("train").await, Value::Null);
}
