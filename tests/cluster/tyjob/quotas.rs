//! TYJobs within what their namespace may use, through the real scheduler and controller; and admission itself, by the simulated API
//! server or a real one. The controller of quotas, which writes their status, is played.

use baton::contract::quota::{Amounts, LimitRangeRules, PodAsk, QuotaRules};
use k8s_openapi::api::core::v1::{LimitRange, ResourceQuota};

use super::placed::every_pod_asks;
use super::verbs::{JobCluster, SOON};
use crate::prelude::*;

/// Makes or changes a quota, and plays its controller.
async fn quota(client: &Client, name: &str, spec: Value, used: Value) {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "default");
    let apply = PatchParams::apply("test").force();
    let object = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec});
    quotas.patch(name, &apply, &Patch::Apply(object)).await.unwrap();
    let status = json!({"status": {"hard": spec["hard"], "used": used}});
    quotas.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// A pod whose one container has these resources.
fn pod(name: &str, resources: Value, more: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "main", "image": "i", "resources": resources}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_and_the_scheduler_count_pods_alike() {
    let server = TestServer::start().await;
    let (pods, ranges): (_, Api<LimitRange>) =
        (server.pods_in("default"), Api::namespaced(server.client.clone(), "default"));
    let all = json!({"requests.nvidia.com/gpu": "3", "limits.cpu": "10", "requests.cpu": "6", "pods": "9"});
    let none = json!({"requests.nvidia.com/gpu": "1", "limits.cpu": "0", "requests.cpu": "0", "pods": "0"});
    quota(&server.client, "all", json!({"hard": all}), none).await;
    let short = json!({"hard": {"pods": "1"}, "scopes": ["Terminating"]});
    quota(&server.client, "short", short, json!({"pods": "0"})).await;
    let item =
        json!({"type": "Container", "max": {"cpu": "4"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "500m"}});
    let range: LimitRange =
        serde_json::from_value(json!({"metadata": {"name": "range"}, "spec": {"limits": [item]}})).unwrap();
    ranges.create(&PostParams::default(), &range).await.unwrap();
    let gpu = |count: &str| json!({"limits": {"nvidia.com/gpu": count}});
    let cases = [
        ("one", gpu("1"), json!({})),
        ("many", gpu("2"), json!({})),
        ("large", json!({"limits": {"cpu": "5"}}), json!({})),
        ("requesting", json!({"requests": {"cpu": "3"}, "limits": {"cpu": "4"}}), json!({})),
        ("limited", json!({"limits": {"cpu": "3"}}), json!({})),
        ("brief", json!({}), json!({"activeDeadlineSeconds": 60})),
        ("brief-too", json!({}), json!({"activeDeadlineSeconds": 60})),
        ("classless", json!({}), json!({"priorityClassName": "gone"})),
        (
            "init",
            json!({}),
            json!({"initContainers": [
            {"name": "init", "image": "i", "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}}]}),
        ),
        ("last", gpu("1"), json!({})),
    ];
    // A real API server takes a moment to know them.
    until("admission knows quotas and limits", SOON, async || {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let refused = |name: &str, resources: Value| (pod(name, resources, json!({})), dry.clone());
        for (pod, dry) in [refused("large", json!({"limits": {"cpu": "5"}})), refused("many", gpu("3"))] {
            pods.create(&dry, &serde_json::from_value(pod).unwrap()).await.err()?;
        }
        Some(())
    })
    .await;
    let mut seen = Vec::new();
    for (name, resources, more) in cases {
        let object = pod(name, resources, more);
        let predicted = predicted(&server.client, &object["spec"]).await;
        let object: Pod = serde_json::from_value(object).unwrap();
        let answer = pods.create(&PostParams::default(), &object).await;
        let said = answer.as_ref().err().map(|error| match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        });
        println!("{name}: {}", said.as_deref().unwrap_or("created"));
        let why = said.as_deref().and_then(|said| said.split_once("is forbidden: ")).map(|(_, why)| why.to_owned());
        if name != "classless" {
            assert_eq!(why.is_some(), said.is_some(), "{said:?}");
            assert_eq!(why, predicted, "{name}");
        }
        seen.push((name, said.is_none()));
    }
    let created: Vec<&str> = seen.iter().filter(|(_, created)| *created).map(|(name, _)| *name).collect();
    assert_eq!(created, ["one", "requesting", "brief", "last"]);
}

/// What the scheduler says of such a pod, by the objects as they are now.
async fn predicted(client: &Client, spec: &Value) -> Option<String> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "default");
    let ranges: Api<LimitRange> = Api::namespaced(client.clone(), "default");
    let mut ask = PodAsk::read(spec).unwrap();
    for range in ranges.list(&Default::default()).await.unwrap() {
        let rules = LimitRangeRules::read(&range);
        rules.fill(&mut ask);
        if let Some(refusal) = rules.refusal(&ask) {
            return Some(refusal);
        }
    }
    let quotas: Vec<QuotaRules> =
        quotas.list(&Default::default()).await.unwrap().iter().map(QuotaRules::read).collect();
    let mut counting = quotas.iter().filter(|quota| quota.counts(&ask));
    counting.find_map(|quota| quota.refusal(&ask).or_else(|| quota.excess(&ask.usage(), &Amounts::new())))
}

fn one_cpu(job: &mut Value) {
    every_pod_asks(job, json!({"cpu": "1"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_within_its_quota_and_no_pod_of_it_is_ever_refused() {
    let cluster = JobCluster::start().await;
    cluster.offer("16").await;
    let cpus = |count: &str| json!({"hard": {"requests.cpu": count}});
    quota(&cluster.client, "cpus", cpus("4"), json!({"requests.cpu": "1"})).await;
    let _daemons = cluster.daemons();
    cluster.submit("rl", one_cpu).await;
    // A leader and both actors: 3 CPUs are left.
    cluster.runs("rl").await;
    cluster.submit("next", one_cpu).await;
    let message = until("the next job waits", SOON, async || {
        let status = cluster.status("next").await;
        status.condition(condition::SCHEDULED).map(|scheduled| scheduled.message.clone())
    })
    .await;
    println!("{message}");
    tells(message, ["next-learner: exceeded quota: cpus, requested: requests.cpu=1"]);
    quota(&cluster.client, "cpus", cpus("6"), json!({"requests.cpu": "4"})).await;
    cluster
        .whole_until("the next job runs in part", "next", async || {
            let status = cluster.status("next").await;
            status.stage == Some(Stage::Running) && status.ready.as_deref() == Some("1/2")
        })
        .await;
    let status = cluster.status("next").await;
    assert_eq!((status.schedule_state, status.allocations.len()), (Some(ScheduleState::ScheduledPartly), 2));
    quota(&cluster.client, "cpus", cpus("7"), json!({"requests.cpu": "6"})).await;
    cluster.runs("next").await;
    for job in ["rl", "next"] {
        let (status, events) = (cluster.status(job).await, cluster.events(job).await);
        assert!(status.condition(condition::POD_REFUSED).is_none(), "{status:?}");
        assert!(!events.iter().any(|reason| reason == "PodRefused"), "{events:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_placed_before_the_scheduler_may_read_quotas() {
    let cluster = JobCluster::start().await;
    cluster.offer("16").await;
    let forbidden = cluster.server().faults().add(FaultRule::on("", "resourcequotas"), Effect::Answer(403, None));
    let _daemons = cluster.daemons();
    cluster.submit("rl", one_cpu).await;
    until("the job waits", SOON, async || {
        let status = cluster.status("rl").await;
        let message = &status.condition(condition::SCHEDULED)?.message;
        message.contains("rl-learner: the scheduler may not read ResourceQuotas").then_some(())
    })
    .await;
    cluster.server().faults().remove(forbidden);
    cluster.runs("rl").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn places_of_a_job_whose_leader_is_not_made_are_given_back_for_a_while() {
    let cluster = JobCluster::start().await;
    cluster.offer("16").await;
    // A pod that is not the job's has the leader's name.
    let foreign: Pod = serde_json::from_value(pod("rl-learner", json!({}), json!({"schedulerName": "other"}))).unwrap();
    cluster.pods().create(&PostParams::default(), &foreign).await.unwrap();
    let scheduler = cluster.scheduler_with(", start_limit: 2s", &[]);
    let _controller = cluster.controller(&[]);
    cluster.submit("rl", one_cpu).await;
    until("the job has places", SOON, async || (cluster.status("rl").await.allocations.len() == 3).then_some(())).await;
    let message = until("the places are given back", SOON, async || {
        let status = cluster.status("rl").await;
        let scheduled = status.condition(condition::SCHEDULED).filter(|scheduled| scheduled.reason == "StartLimit")?;
        status.allocations.is_empty().then(|| scheduled.message.clone())
    })
    .await;
    println!("{message}");
    tells(message, ["pod rl-learner was not made", "tried again in 1 min"]);
    tells(scheduler.get("/jobs/default/rl").await.unwrap(), ["\"class\":\"resting\""]);
    // The owner of the job edits it once the name is free.
    cluster.remove("rl-learner").await;
    cluster.edit("rl", json!({"priority": 6})).await;
    cluster.runs("rl").await;
}
