//! Fields of a TYJob: what the scheduler places and what the controller makes of a job as its user writes it.

use baton::cluster::tyjob::{RawTyJob, job_facts};
use baton::contract::tyjob::{Allocation, TyJob, crd, keys};
use baton::decide::tyjob::stages::{JobEffect, JobView, PodEffect, PodView, step};

use super::{Row, fields, judge, spec_schema};
use crate::prelude::*;

/// The field whose values are placing policies.
const BASIC: &str = "schedulerPolicy.basicPolicy";

const ROWS: &[Row<'_>] = &[
    ("restartLimit", None, "leader 3 as pods, 3 as containers; workers 3 and 3"),
    ("restartLimit", Some("0"), "leader 0 as pods, 0 as containers; workers 0 and 0"),
    ("restartLimit", Some("1"), "leader 1 as pods, 1 as containers; workers 1 and 1"),
    ("volumes", None, "actor-0, actor-1, actor-2, learner"),
    (
        "volumes",
        Some(r#"[{"name":"data","emptyDir":{}}]"#),
        "actor-0 with data, actor-1 with data, actor-2 with data, learner with data",
    ),
    ("leader.name", Some(r#""learner""#), "actor-0, actor-1, actor-2, learner"),
    ("leader.name", Some(r#""boss""#), "actor-0, actor-1, actor-2, boss"),
    (
        "leader.template",
        Some(r#"{"spec":{"containers":[{"name":"main","image":"x"}]}}"#),
        "actor-0, actor-1, actor-2, learner (x, Never)",
    ),
    (
        "leader.template",
        Some(r#"{"spec":{"restartPolicy":"OnFailure","containers":[{"name":"main","image":"y"}]}}"#),
        "actor-0, actor-1, actor-2, learner (y, OnFailure)",
    ),
    (
        "leader.template",
        Some(r#"{"spec":{"restartPolicy":"Always","containers":[{"name":"main","image":"y"}]}}"#),
        "the spec is invalid: spec.leader.template.spec.restartPolicy: Always never ends: expected Never or OnFailure",
    ),
    ("workerSets[].name", Some(r#""actor""#), "actor-0, actor-1, actor-2, learner"),
    ("workerSets[].name", Some(r#""judge""#), "judge-0, judge-1, judge-2, learner"),
    (
        "workerSets[].template",
        Some(r#"{"spec":{"containers":[{"name":"main","image":"x"}]}}"#),
        "actor-0 (x, Never), actor-1 (x, Never), actor-2 (x, Never), learner",
    ),
    (
        "workerSets[].template",
        Some(r#"{"spec":{"restartPolicy":"Always","containers":[{"name":"main","image":"y"}]}}"#),
        "actor-0 (y, Always), actor-1 (y, Always), actor-2 (y, Always), learner",
    ),
    ("workerSets[].counts", None, "actor-0, learner"),
    ("workerSets[].counts", Some("3"), "actor-0, actor-1, actor-2, learner"),
    ("cleanPodPolicy", None, "Succeeded, left: "),
    ("cleanPodPolicy", Some(r#""All""#), "Succeeded, left: "),
    ("cleanPodPolicy", Some(r#""Running""#), "Succeeded, left: actor-0 learner"),
    ("cleanPodPolicy", Some(r#""None""#), "Succeeded, left: actor-0 actor-1 actor-2 learner"),
    ("terminating", None, "Running"),
    ("terminating", Some("true"), "Succeeded"),
    ("minWorkersNum", None, "without a worker Starting, Unscheduled; with one Running, ScheduledPartly"),
    ("minWorkersNum", Some("0"), "without a worker Running, ScheduledPartly; with one Running, ScheduledPartly"),
    ("minWorkersNum", Some("2"), "without a worker Starting, Unscheduled; with one Starting, Unscheduled"),
    ("priority", None, "old 4, new 0"),
    ("priority", Some("4"), "old 4, new 0"),
    ("priority", Some("6"), "old 0, new 4"),
    ("schedulerPolicy.jobQueuePolicy", None, "old 5, new 0"),
    ("schedulerPolicy.jobQueuePolicy", Some(r#""Priority""#), "old 5, new 0"),
    ("schedulerPolicy.jobQueuePolicy", Some(r#""DRF""#), "old 0, new 4"),
    (BASIC, None, "workers and leader on cccbc; room for half: ScheduledPartly"),
    (BASIC, Some(r#""BinPack""#), "workers and leader on cccbc; room for half: ScheduledPartly"),
    (BASIC, Some(r#""Gang""#), "workers and leader on cccbc; room for half: Unscheduled"),
    (BASIC, Some(r#""LeaderFirst""#), "workers and leader on cccca; room for half: ScheduledPartly"),
    (BASIC, Some(r#""MinFragment""#), "workers and leader on bbcbb; room for half: ScheduledPartly"),
    (BASIC, Some(r#""JobAffinity""#), "workers and leader on bbbbb; room for half: ScheduledPartly"),
    (BASIC, Some(r#""JobAntiAffinity""#), "workers and leader on bcaba; room for half: ScheduledPartly"),
];

#[test]
fn each_field_of_a_tyjob_is_seen_in_what_is_decided() {
    let (schema, mut known) = (spec_schema(crd()), BTreeSet::new());
    fields(&schema, "", &["leader.template", "workerSets[].template", "volumes"], &mut known);
    judge("field of a TYJob", ROWS, &known, look);
    for (path, field) in [
        ("/properties/cleanPodPolicy", "cleanPodPolicy"),
        ("/properties/schedulerPolicy/properties/jobQueuePolicy", "schedulerPolicy.jobQueuePolicy"),
        ("/properties/schedulerPolicy/properties/basicPolicy", BASIC),
    ] {
        let values = ROWS.iter().filter(|row| row.0 == field).filter_map(|row| row.1);
        let values: BTreeSet<&str> = values.collect();
        let text = schema.pointer(path).unwrap().to_string();
        assert!(values.iter().all(|value| text.contains(value)), "{field}: {text}");
        let all =
            text.matches("\"const\"").count() + schema.pointer(path).unwrap()["enum"].as_array().map_or(0, Vec::len);
        assert_eq!(values.len(), all, "{field}: a row for each value of {text}");
    }
}

/// A job with one field set.
fn job(name: &str, field: &str, value: Option<&str>) -> Value {
    let pod = |image: &str| {
        json!({ "spec": { "containers": [{
        "name": "main", "image": image, "resources": { "limits": { "cpu": "1", "memory": "1Gi" } },
    }] } })
    };
    let set = json!({ "name": "actor", "template": pod("actor"), "counts": 3 });
    let mut job = json!({
        "apiVersion": keys::API_VERSION, "kind": keys::KIND,
        "metadata": { "name": name, "namespace": "ml", "uid": format!("uid-{name}"), "generation": 1, "resourceVersion": "1" },
        "spec": { "leader": { "name": "learner", "template": pod("learner") }, "workerSets": [set] },
    });
    if field == "workerSets[].counts" {
        job["spec"]["workerSets"][0].as_object_mut().unwrap().remove("counts");
    }
    if let Some(value) = value {
        let path = format!("/spec/{}", field.replace("[]", "/0").replace('.', "/"));
        let (parent, name) = path.rsplit_once('/').unwrap();
        if job.pointer(parent).is_none() {
            job["spec"]["schedulerPolicy"] = json!({});
        }
        job.pointer_mut(parent).unwrap()[name] = serde_json::from_str(value).unwrap();
    }
    job
}

fn look(field: &str, value: Option<&str>) -> String {
    let plain = job("old", "", None);
    let job = |name: &str| job(name, field, value);
    match field {
        "restartLimit" => {
            let times = |pod, how| Play::running(&job("rl")).breaks(pod, how);
            format!(
                "leader {} as pods, {} as containers; workers {} and {}",
                times("rl-learner", false),
                times("rl-learner", true),
                times("rl-actor-0", false),
                times("rl-actor-0", true)
            )
        }
        "volumes"
        | "leader.template"
        | "workerSets[].template"
        | "leader.name"
        | "workerSets[].name"
        | "workerSets[].counts" => Play::running(&job("rl")).made(),
        "cleanPodPolicy" => {
            let mut play = Play::running(&job("rl"));
            play.says("rl-actor-0", json!({ "phase": "Succeeded" }));
            play.says("rl-learner", json!({ "phase": "Succeeded" }));
            play.settle();
            format!("{:?}, left: {}", play.stage(), play.names())
        }
        "terminating" => format!("{:?}", Play::running(&job("rl")).stage()),
        "minWorkersNum" => {
            let stage = |unready: &str| {
                let mut play = Play::new(&job("rl"));
                unready.clone_into(&mut play.unready);
                play.run();
                play.stage()
            };
            let (none, one) = (stage("rl-actor-0 rl-actor-1 rl-actor-2"), stage("rl-actor-1 rl-actor-2"));
            let room = |cpus| placed(&job("rl"), cpus);
            format!("without a worker {none:?}, {}; with one {one:?}, {}", room(1), room(2))
        }
        "priority" => first(&plain, &job("rl")),
        "schedulerPolicy.jobQueuePolicy" => {
            let mut old = job("old");
            old["spec"]["workerSets"][0]["counts"] = 4.into();
            first(&old, &job("rl"))
        }
        BASIC => {
            let mut jobs = TestJobs::uneven();
            let mut larger = job("rl");
            larger["spec"]["workerSets"][0]["counts"] = 4.into();
            submit(&mut jobs, &larger);
            let places: Vec<String> = jobs.places("rl").values().cloned().collect();
            format!("workers and leader on {}; room for half: {}", places.concat(), placed(&job("rl"), 2))
        }
        _ => format!("no test of {field}"),
    }
}

fn submit(jobs: &mut TestJobs, job: &Value) {
    let raw: RawTyJob = serde_json::from_value(job.clone()).unwrap();
    let mut facts = job_facts(raw).unwrap();
    (facts.stage, facts.created) = (Some(Stage::Pending), crate::harness::wall(jobs.cluster.now));
    jobs.submit(facts).cluster.settle();
}

/// What is placed of a job in a cluster with this many CPUs.
fn placed(job: &Value, cpus: u32) -> String {
    let mut jobs = TestJobs::on("n", cpus, 0);
    submit(&mut jobs, job);
    format!("{:?}", jobs.state("rl").unwrap())
}

/// Which of two jobs is placed where there is room for one; the first is older.
fn first(old: &Value, new: &Value) -> String {
    let mut jobs = TestJobs::new();
    submit(&mut jobs, old);
    jobs.cluster.later(1);
    submit(&mut jobs, new);
    jobs.node("n", 5, 0).cluster.wait(3);
    let count = |name: &str| jobs.places(name).len();
    format!("old {}, new {}", count("old"), count("rl"))
}

/// A controller, a scheduler that places everything, and kubelets whose pods are ready at once.
struct Play {
    job: TyJob,
    pods: BTreeMap<String, Value>,
    /// Pods that do not become ready.
    unready: String,
    made: u32,
    bodies: BTreeMap<String, Value>,
}

impl Play {
    fn new(job: &Value) -> Self {
        let (job, unreadable) = TyJob::read(job).unwrap();
        assert_eq!(unreadable, None);
        Self { job, pods: BTreeMap::new(), unready: String::new(), made: 0, bodies: BTreeMap::new() }
    }

    fn running(job: &Value) -> Self {
        let mut play = Self::new(job);
        play.run();
        play
    }

    /// Settles with every member placed.
    fn run(&mut self) {
        self.settle();
        for _ in 0..2 {
            let status = self.job.status.get_or_insert_default();
            let (attempt, spec) = (status.attempt, self.job.spec.clone());
            let members = spec.members("rl").map(|member| Allocation {
                node: "n".to_owned(),
                pod: member.name,
                role: member.role,
                worker_set: member.worker_set.map(str::to_owned),
                index: member.index,
                attempt,
            });
            status.allocations = members.collect();
            status.schedule_state = Some(ScheduleState::ScheduledSucceed);
            self.settle();
        }
    }

    fn settle(&mut self) {
        for _ in 0..50 {
            let view = JobView { job: &self.job, unreadable: None, scheduler_name: "baton-scheduler", trouble: None };
            let view_of = |pod: &Value| serde_json::from_value::<LightPod>(pod.clone()).unwrap().owned().view;
            let pods: Vec<PodView> = self.pods.values().map(view_of).collect();
            let (status, effects) = step(&view, &pods, Timestamp::UNIX_EPOCH);
            let mut busy = self.job.status.as_ref() != Some(&status);
            self.job.status = Some(status);
            for effect in effects {
                busy |= self.perform(effect);
            }
            if !busy {
                return;
            }
        }
        panic!("never settles");
    }

    fn perform(&mut self, effect: JobEffect) -> bool {
        match effect {
            JobEffect::AddFinalizer => self.job.metadata.finalizers = Some(vec![keys::FINALIZER.to_owned()]),
            JobEffect::Pod(PodEffect::Create { name, body }) => {
                self.made += 1;
                self.bodies.insert(name.clone(), body.clone());
                self.pods.insert(name.clone(), body);
                let uid = format!("uid-{}", self.made);
                let pod = self.pods.get_mut(&name).unwrap();
                (pod["metadata"]["uid"], pod["spec"]["nodeName"]) = (uid.into(), "n".into());
                let ready = if self.unready.contains(&name) { "False" } else { "True" };
                let conditions = json!([{ "type": "Ready", "status": ready }]);
                self.says(&name, json!({ "phase": "Running", "podIP": "10.0.0.1", "conditions": conditions }));
            }
            JobEffect::Pod(PodEffect::Delete { name, .. }) => drop(self.pods.remove(&name)),
            _ => return false,
        }
        true
    }

    /// The kubelet's word about a pod.
    fn says(&mut self, pod: &str, status: Value) {
        self.made += 1;
        let pod = self.pods.get_mut(pod).unwrap();
        (pod["status"], pod["metadata"]["resourceVersion"]) = (status, self.made.to_string().into());
    }

    /// A pod, or a container in it, fails again and again: how often it is started again before that is the end.
    fn breaks(&mut self, pod: &str, inside: bool) -> i32 {
        for failure in 1..20 {
            if !self.pods.contains_key(pod) || self.stage() == Stage::Failed {
                break;
            }
            let waits = json!([{ "name": "main", "restartCount": failure - 1, "state": { "waiting": { "reason": "CrashLoopBackOff" } } }]);
            let running = json!({ "phase": "Running", "podIP": "10.0.0.1", "containerStatuses": waits });
            self.says(pod, if inside { running } else { json!({ "phase": "Failed" }) });
            self.settle();
            if self.pods.get(pod).is_some_and(|pod| pod["status"]["phase"] == "Failed") {
                break;
            }
            if self.stage() != Stage::Failed {
                self.run();
            }
        }
        self.job.status.as_ref().unwrap().total_restarts
    }

    fn stage(&self) -> Stage {
        self.job.status.as_ref().and_then(|status| status.stage).unwrap()
    }

    fn names(&self) -> String {
        self.pods.keys().map(|name| &name[3..]).collect::<Vec<_>>().join(" ")
    }

    /// The pods, with image, policy and volumes where they are not as usual.
    fn made(&self) -> String {
        let told = self.bodies.iter().map(|(name, body)| {
            let mut told = name[3..].to_owned();
            let image = &body["spec"]["containers"][0]["image"];
            let policy = &body["spec"]["restartPolicy"];
            if image == "x" || image == "y" {
                told += &format!(" ({}, {})", image.as_str().unwrap(), policy.as_str().unwrap());
            }
            body["spec"]["volumes"]
                .as_array()
                .iter()
                .for_each(|list| told += &format!(" with {}", list[0]["name"].as_str().unwrap()));
            told
        });
        let all = told.collect::<Vec<_>>().join(", ");
        if all.is_empty() { self.job.status.as_ref().unwrap().message.clone().unwrap() } else { all }
    }
}
