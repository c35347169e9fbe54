//! Jobs, gangs and single pods compete in one cluster, through the real scheduler and the real controller. Each random case
//! submits some of each at once; at every look nothing is over-committed and no job has started below its minimum, and at rest
//! a gang has its minimum or nothing.

use std::collections::BTreeMap;

use baton::contract::tyjob::{BasicPolicy, Role, ScheduleState, Stage, TyJob, keys};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use super::placed::POLICIES;
use super::verbs::{JobCluster, SOON};
use crate::dice::Dice;
use crate::harness::wait::until;

const NODES: usize = 3;
const CPUS: u32 = 4;
const QUEUES: [&str; 2] = ["Priority", "DRF"];
const GANG: &str = "gang.scheduling.koordinator.sh/";

/// What a case has submitted.
#[derive(Debug, Default)]
struct Case {
    jobs: usize,
    /// Members and minimum, by name.
    gangs: BTreeMap<String, (usize, usize)>,
}

fn limits(cpus: u32) -> Value {
    json!({ "limits": { "cpu": cpus, "memory": "1Gi" } })
}

fn pod(name: &str, cpus: u32, annotations: &Value) -> Pod {
    let pod = json!({
        "metadata": { "name": name, "annotations": annotations },
        "spec": {
            "schedulerName": "baton-scheduler", "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "i", "resources": {
                "limits": { "cpu": cpus.to_string(), "memory": "1Gi" },
            }}],
        },
    });
    serde_json::from_value(pod).unwrap()
}

fn cpus_of(pod: &Pod) -> i64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let amounts = containers.filter_map(|container| container.resources.as_ref()?.requests.as_ref()?.get("cpu"));
    amounts.map(|amount| amount.0.parse::<i64>().unwrap()).sum()
}

fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())
}

/// Bound, or its condition says why not.
fn settled(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    node(pod).is_some() || conditions.any(|found| found.type_ == "PodScheduled" && found.status == "False")
}

impl JobCluster {
    async fn all_pods(&self) -> Vec<Pod> {
        self.pods().list(&ListParams::default()).await.unwrap().items
    }

    async fn all_jobs(&self) -> Vec<TyJob> {
        self.jobs().list(&ListParams::default()).await.unwrap().items
    }

    async fn submit_case(&self, dice: &mut Dice) -> Case {
        let mut case = Case::default();
        for number in 0..3 + dice.below(5) {
            match dice.below(4) {
                0 | 1 => {
                    case.jobs += 1;
                    let workers = 1 + dice.below(4);
                    let (min, policy, queue) = (dice.below(workers + 1), dice.pick(&POLICIES), dice.pick(&QUEUES));
                    let (leader, worker, priority) = (1 + dice.below(3), 1 + dice.below(2), 1 + dice.below(10));
                    self.submit(&format!("j{number}"), |job| {
                        let spec = &mut job["spec"];
                        spec["minWorkersNum"] = min.into();
                        spec["priority"] = priority.into();
                        spec["workerSets"][0]["counts"] = workers.into();
                        spec["schedulerPolicy"] = json!({
                            "basicPolicy": policy,
                            "jobQueuePolicy": queue,
                        });
                        spec["leader"]["template"]["spec"]["containers"][0]["resources"] = limits(leader);
                        spec["workerSets"][0]["template"]["spec"]["containers"][0]["resources"] = limits(worker);
                    })
                    .await;
                }
                2 => {
                    let (name, members) = (format!("g{number}"), 2 + dice.below(4));
                    let (min, cpus) = (1 + dice.below(members), 1 + dice.below(2));
                    let annotations =
                        json!({ format!("{GANG}name"): name, format!("{GANG}min-available"): min.to_string() });
                    for member in 0..members {
                        let pod = pod(&format!("{name}-{member}"), cpus, &annotations);
                        self.pods().create(&PostParams::default(), &pod).await.unwrap();
                    }
                    case.gangs.insert(name, (members as usize, min as usize));
                }
                _ => {
                    let pod = pod(&format!("p{number}"), 1 + dice.below(3), &json!({}));
                    self.pods().create(&PostParams::default(), &pod).await.unwrap();
                }
            }
        }
        case
    }

    /// Kubelets start what is bound.
    async fn play_all(&self, pods: &[Pod]) {
        for (number, pod) in pods.iter().enumerate() {
            self.play_kubelet(number, pod).await;
        }
    }

    /// The case rests: whatever has a place runs there, and the conditions of the others say why not.
    async fn rests(&self, case: &Case) -> bool {
        // Pods first: who is on a node now was placed by what the jobs say now.
        let pods = self.all_pods().await;
        let jobs = self.all_jobs().await;
        self.play_all(&pods).await;
        let mut used: BTreeMap<&str, i64> = BTreeMap::new();
        for pod in &pods {
            if let Some(node) = node(pod) {
                *used.entry(node).or_default() += cpus_of(pod);
            }
        }
        assert!(used.values().all(|used| *used <= i64::from(CPUS)), "over-committed: {used:?}");
        let mut rests = jobs.len() == case.jobs;
        for job in &jobs {
            let status = job.status.clone().unwrap_or_default();
            let placed = |role| status.allocations.iter().filter(|place| place.role == role).count() as i64;
            let name = job.name_any();
            let own = pods.iter().filter(|pod| pod.labels().get(keys::JOB) == Some(&name)).count();
            let min = match job.spec.scheduler_policy.basic_policy {
                BasicPolicy::Gang => job.spec.total_workers(),
                _ => i64::from(job.spec.min_workers_num),
            };
            if own > 0 || matches!(status.stage, Some(Stage::Starting | Stage::Running)) {
                let (leader, workers) = (placed(Role::Leader), placed(Role::Worker));
                assert!(
                    leader == 1 && workers >= min,
                    "{name} has started with {workers} of {min} workers: {status:?}"
                );
            }
            let all = i64::from(status.ready_workers) == placed(Role::Worker);
            rests &= match status.schedule_state {
                None | Some(ScheduleState::ScheduledFailed) => false,
                Some(ScheduleState::Unscheduled) => own == 0,
                Some(_) => status.stage == Some(Stage::Running) && all,
            };
        }
        rests &= pods.iter().all(settled);
        for (gang, (members, min)) in &case.gangs {
            let prefix = format!("{gang}-");
            let bound = pods.iter().filter(|pod| pod.name_any().starts_with(&prefix) && node(pod).is_some()).count();
            // A commit binds one after the other.
            rests &= bound == 0 || bound >= *min;
            assert!(bound <= *members);
        }
        rests
    }

    async fn clear_case(&self) {
        for job in self.all_jobs().await {
            self.jobs().delete(&job.name_any(), &DeleteParams::default()).await.ok();
        }
        for pod in self.all_pods().await.iter().filter(|pod| !pod.labels().contains_key(keys::JOB)) {
            self.remove(&pod.name_any()).await;
        }
        until("everything of the case is gone", SOON, async || {
            let pods = self.all_pods().await;
            self.play_all(&pods).await;
            (pods.is_empty() && self.all_jobs().await.is_empty()).then_some(())
        })
        .await;
    }
}

async fn compete(cases: u64) {
    let first: u64 = std::env::var("BATON_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let (cluster, _scheduler, _controller) = JobCluster::whole(&CPUS.to_string()).await;
    assert_eq!(cluster.nodes().list(&ListParams::default()).await.unwrap().items.len(), NODES);
    let (mut ran, mut waited, mut whole) = (0, 0, 0);
    for seed in first..first + cases {
        let case = cluster.submit_case(&mut Dice(seed)).await;
        let what = format!("the case of seed {seed} (BATON_SEED starts there) rests: {case:?}");
        until(&what, SOON, async || cluster.rests(&case).await.then_some(())).await;
        for job in cluster.all_jobs().await {
            match job.status.and_then(|status| status.schedule_state) {
                Some(ScheduleState::Unscheduled) => waited += 1,
                _ => ran += 1,
            }
        }
        let pods = cluster.all_pods().await;
        whole += case
            .gangs
            .keys()
            .filter(|gang| {
                pods.iter().any(|pod| pod.name_any().starts_with(&format!("{gang}-")) && node(pod).is_some())
            })
            .count();
        cluster.clear_case().await;
    }
    println!("{cases} cases from seed {first}: {ran} jobs ran, {waited} waited, {whole} gangs ran");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_gangs_and_pods_that_compete_never_take_more_than_there_is() {
    compete(8).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a thousand cases through real processes; BATON_JOB_CASES asks for another number"]
async fn a_thousand_cases_of_jobs_gangs_and_pods() {
    compete(std::env::var("BATON_JOB_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1000)).await;
}
