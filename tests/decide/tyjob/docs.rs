//! The examples of the documentation, read as the scheduler reads a cluster's objects, and placed: each where its text says.

use baton::cluster::tyjob::job_facts;
use baton::decide::tyjob::placement::JobSpec;

use crate::prelude::*;

/// Every TYJob among the YAML blocks of a text.
fn jobs_in(text: &str) -> Vec<Value> {
    let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let documents = blocks.flat_map(|block| block.split("\n---\n"));
    let objects = documents.map(|block| serde_saphyr::from_str::<Value>(block).unwrap_or_default());
    objects.filter(|object| object["kind"] == "TYJob").collect()
}

/// Every TYJob of the documentation and of the examples that are applied.
fn all_examples() -> Vec<Value> {
    let example: Value = serde_saphyr::from_str(include_str!("../../../daemonset/examples/tyjob.yaml")).unwrap();
    let mut all = vec![example];
    let docs = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).unwrap();
    let paths = docs.map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    for page in ["/README.md", "/tests/fixtures/tyjob-policies.md"] {
        paths.push((env!("CARGO_MANIFEST_DIR").to_owned() + page).into());
    }
    paths.sort();
    for path in paths {
        all.extend(jobs_in(&std::fs::read_to_string(path).unwrap()));
    }
    all
}

/// A job of the documentation as the controller has taken it up.
fn facts(jobs: &TestJobs, mut object: Value) -> JobFacts {
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    object["metadata"]["namespace"] = "ml".into();
    object["metadata"]["uid"] = format!("uid-{name}").into();
    object["metadata"]["resourceVersion"] = "1".into();
    object["metadata"]["creationTimestamp"] = wall(jobs.cluster.now).to_string().into();
    object["status"] = json!({ "stage": "Pending", "restarts": 0 });
    let facts = job_facts(serde_json::from_value(object).unwrap()).unwrap();
    assert_eq!(facts.stage, Some(Stage::Pending));
    facts
}

fn spec(facts: &JobFacts) -> &JobSpec {
    facts.spec.as_ref().unwrap_or_else(|why| panic!("{:?}: {why}", facts.job))
}

/// The example that asks for this policy, among those whose order is by priority.
fn example_of(policy: BasicPolicy, jobs: &TestJobs) -> JobFacts {
    let named = match policy {
        BasicPolicy::BinPack => "packed",
        BasicPolicy::Gang => "all-or-none",
        BasicPolicy::LeaderFirst => "learner-alone",
        BasicPolicy::MinFragment => "balanced",
        BasicPolicy::JobAffinity => "together",
        BasicPolicy::JobAntiAffinity => "apart",
    };
    let found = all_examples().into_iter().find(|object| object["metadata"]["name"] == named).unwrap();
    let found = facts(jobs, found);
    assert_eq!(spec(&found).basic, policy);
    found
}

fn submit(jobs: &mut TestJobs, facts: JobFacts) -> String {
    let name = facts.job.key.name.to_string();
    jobs.submit(facts).cluster.wait(2);
    name
}

fn submit_example(jobs: &mut TestJobs, policy: BasicPolicy) -> String {
    let job = example_of(policy, jobs);
    submit(jobs, job)
}

impl TestJobs {
    /// A pod of no job on a node.
    fn busy(&mut self, node: &str, cpu: &str, memory: &str) -> &mut Self {
        self.cluster.pod_as(&format!("on-{node}"), &[("cpu", cpu), ("memory", memory)], |facts| {
            facts.handoff.node = Some(node.into());
            facts.handoff.scheduler_name = "other".into();
        });
        self
    }
}

fn node_of_16(jobs: &mut TestJobs, name: &str, cpus: u32, gpus: u32) {
    jobs.node(name, cpus, gpus);
    jobs.cluster.change_node(name, |facts| facts.allocatable.set("memory", Quantity::bytes(16 << 30)));
}

#[test]
fn every_example_is_placed_on_a_cluster_with_room_and_its_pods_start() {
    let examples = all_examples();
    assert!(examples.len() >= 9, "{}", examples.len());
    let mut policies = (BTreeSet::new(), BTreeSet::new());
    for object in examples {
        let mut jobs = TestJobs::on_each(&["a", "b", "c"], 32, 8);
        let job = facts(&jobs, object);
        let (total, spec) = (spec(&job).workers(), spec(&job));
        policies.0.insert(spec.basic);
        policies.1.insert(spec.queue);
        let leader = spec.parts[0].name.clone();
        assert_eq!(&*leader, "learner", "the player knows this name");
        let name = submit(&mut jobs, job);
        assert_eq!(jobs.state(&name), Some(ScheduleState::ScheduledSucceed), "{name}: {}", jobs.message(&name));
        assert_eq!(jobs.places(&name).len() as i64, total + 1, "{name}");
        assert_eq!(jobs.start(&name).checked().cluster.bound() as i64, total + 1, "{name}: every pod is bound");
    }
    assert_eq!((policies.0.len(), policies.1.len()), (6, 2), "an example of each policy: {policies:?}");
}

#[test]
fn the_gang_of_the_documentation_has_every_pod_or_none() {
    let mut jobs = TestJobs::on("a", 1, 1);
    let name = submit_example(&mut jobs, BasicPolicy::Gang);
    assert_eq!(jobs.stand(&name), (Some(ScheduleState::Unscheduled), 0));
    assert_eq!(jobs.node("b", 1, 0).after(2).stand(&name), (Some(ScheduleState::ScheduledSucceed), 3));
}

#[test]
fn the_packed_job_of_the_documentation_leaves_the_free_node_free() {
    let mut jobs = TestJobs::on_each(&["a", "b"], 16, 8);
    jobs.busy("b", "4", "1Gi");
    let name = submit_example(&mut jobs, BasicPolicy::BinPack);
    let places = jobs.places(&name);
    assert!(places.len() == 5 && places.values().all(|node| node == "b"), "{places:?}");
}

#[test]
fn the_documented_leader_has_the_free_node_and_the_workers_the_used_one() {
    let mut jobs = TestJobs::on_each(&["a", "b"], 16, 8);
    jobs.busy("a", "4", "1Gi");
    let name = submit_example(&mut jobs, BasicPolicy::LeaderFirst);
    let places = jobs.places(&name);
    assert_eq!((places.len(), places["learner"].as_str()), (9, "b"));
    assert_eq!(places.values().filter(|node| *node == "a").count(), 8, "{places:?}");
}

#[test]
fn the_balanced_job_of_the_documentation_goes_where_cpu_and_memory_stay_even() {
    let mut jobs = TestJobs::new();
    ["a", "b"].into_iter().for_each(|name| node_of_16(&mut jobs, name, 8, 0));
    jobs.busy("a", "4", "4Gi").busy("b", "2", "6Gi");
    let mut packed = example_of(BasicPolicy::MinFragment, &jobs);
    let name = submit(&mut jobs, packed.clone());
    // The leader: a would be at 6/8 and 6/16, b is at 4/8 and 8/16. The workers: b again, up to 6/8 and 16/16.
    assert_eq!(jobs.places(&name).into_values().collect::<Vec<_>>(), ["b", "b", "b"]);
    jobs.remove(&name);
    packed.spec.as_mut().unwrap().basic = BasicPolicy::BinPack;
    let name = submit(&mut jobs, packed);
    assert_eq!(jobs.places(&name)["learner"], "a", "the fuller node, by another policy");
}

#[test]
fn the_job_of_the_documentation_that_keeps_together_goes_where_all_of_it_fits() {
    let mut jobs = TestJobs::on("a", 3, 0);
    jobs.node("b", 4, 0);
    let name = submit_example(&mut jobs, BasicPolicy::JobAffinity);
    let places = jobs.places(&name);
    assert!(places.len() == 4 && places.values().all(|node| node == "b"), "{places:?}");
}

#[test]
fn the_job_of_the_documentation_that_keeps_apart_has_a_node_for_each_pod() {
    let mut jobs = TestJobs::on_each(&["a", "b", "c", "d"], 4, 0);
    let name = submit_example(&mut jobs, BasicPolicy::JobAntiAffinity);
    let nodes: BTreeSet<String> = jobs.places(&name).into_values().collect();
    assert_eq!(nodes.len(), 4);
}

/// The example of this name, under another one.
fn named(jobs: &TestJobs, name: &str, other: &str, edit: impl FnOnce(&mut Value)) -> JobFacts {
    let mut objects = jobs_in(include_str!("../../../docs/tyjob.md")).into_iter();
    let mut object = objects.find(|object| object["metadata"]["name"] == name).unwrap();
    object["metadata"]["name"] = other.into();
    edit(&mut object);
    facts(jobs, object)
}

#[test]
fn the_fair_job_of_the_documentation_goes_before_an_older_one_with_a_larger_share() {
    let mut jobs = TestJobs::new();
    node_of_16(&mut jobs, "a", 8, 0);
    jobs.cluster.change_node("a", |facts| facts.unschedulable = true);
    let large = |job: &mut Value| {
        let limits = "/spec/workerSets/0/template/spec/containers/0/resources/limits";
        *job.pointer_mut(limits).unwrap() = json!({ "cpu": 1, "memory": "12Gi" });
    };
    let greedy = named(&jobs, "fair", "a-greedy", large);
    let greedy = submit(&mut jobs, greedy);
    let fair = named(&jobs, "fair", "fair", |_| {});
    assert_eq!(spec(&fair).queue, JobQueuePolicy::Drf);
    let fair = submit(&mut jobs, fair);
    // 16 GiB: eight of them for the one, all for the other. Not both.
    jobs.cluster.change_node("a", |facts| facts.unschedulable = false);
    assert_eq!(jobs.after(2).state(&fair), Some(ScheduleState::ScheduledSucceed));
    assert_eq!(jobs.state(&greedy), Some(ScheduleState::Unscheduled));
}

#[test]
fn the_first_job_of_the_documentation_waits_for_one_of_higher_priority() {
    let mut jobs = TestJobs::on("a", 12, 1);
    jobs.cluster.change_node("a", |facts| facts.unschedulable = true);
    let pong = named(&jobs, "pong", "pong", |_| {});
    assert_eq!(spec(&pong).queue, JobQueuePolicy::Priority);
    let pong = submit(&mut jobs, pong);
    let urgent = named(&jobs, "pong", "urgent", |job| job["spec"]["priority"] = 9.into());
    let urgent = submit(&mut jobs, urgent);
    jobs.cluster.change_node("a", |facts| facts.unschedulable = false);
    assert_eq!(jobs.after(2).state(&urgent), Some(ScheduleState::ScheduledSucceed));
    assert_eq!(jobs.state(&pong), Some(ScheduleState::Unscheduled));
}
