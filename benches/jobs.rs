//! One round over 1,000 TYJobs of 50 pods on 5,000 nodes: every job is placed, policies and queue policies in turn.

#![allow(clippy::expect_used, clippy::cast_precision_loss, missing_docs)] // a bench is a test

#[allow(dead_code)] // other benches use more of it
mod expect;

use std::collections::BTreeMap;
use std::time::Duration;

use baton::contract::quota::PodAsk;
use baton::contract::tyjob::{BasicPolicy, JobQueuePolicy, Role, Stage};
use baton::contract::{ContainerRequest, PodKey, PodRef, Quantity};
use baton::decide::core::rules::plugins::{DefaultSet, default_plugins};
use baton::decide::pod::{AssignmentText, ContainerKind, HandoffPod, Phase, PodContainer};
use baton::decide::scheduler::{Config, Moment, Scheduler};
use baton::decide::tyjob::placement::{JobFacts, JobIdentity, JobPart, JobSpec};
use baton::decide::world::{NodeFacts, PodFacts, PodSpec, RequestParts, Resources, WorldEvent};
use baton::runtime::clock;
use jiff::Timestamp;

const NODES: usize = 5000;
const JOBS: usize = 1000;
const WORKERS: i32 = 49;
const POLICIES: [BasicPolicy; 6] = [
    BasicPolicy::BinPack,
    BasicPolicy::Gang,
    BasicPolicy::LeaderFirst,
    BasicPolicy::MinFragment,
    BasicPolicy::JobAffinity,
    BasicPolicy::JobAntiAffinity,
];

fn pod(cpu: &str, memory: &str) -> PodFacts {
    let amounts: Vec<(&str, Quantity)> =
        vec![("cpu", cpu.parse().expect("a quantity")), ("memory", memory.parse().expect("a quantity"))];
    let requests = RequestParts {
        containers: vec![(ContainerKind::App, Resources::of(amounts.iter().copied()))],
        ..RequestParts::default()
    };
    let container = PodContainer {
        name: "main".into(),
        kind: ContainerKind::App,
        request: ContainerRequest::judge(amounts),
        running: false,
        started: false,
        lacks_devices: false,
        ended: None,
        dra_backed: vec![],
    };
    let handoff = HandoffPod {
        pod: PodRef::new("ml", "template", "none"),
        node: None,
        scheduler_name: "none".into(),
        phase: Phase::Pending,
        deleting: None,
        grace_seconds: 30,
        scheduled_condition: false,
        resizing: false,
        created: Timestamp::UNIX_EPOCH,
        containers: vec![container].into(),
        assignment: AssignmentText::default(),
    };
    PodFacts { handoff, spec: PodSpec { requests: requests.total(), ..PodSpec::default() }.into(), rank: None }
}

fn job(number: usize) -> JobFacts {
    let queue = if number.is_multiple_of(2) { JobQueuePolicy::Priority } else { JobQueuePolicy::Drf };
    let leader = JobPart {
        role: Role::Leader,
        name: "learner".into(),
        counts: 1,
        ask: PodAsk::default(),
        indexed: false,
        pod: pod("4", "8Gi"),
    };
    let cpu = ["500m", "1", "1500m"][number % 3];
    let worker = JobPart {
        role: Role::Worker,
        name: "actor".into(),
        counts: WORKERS,
        ask: PodAsk::default(),
        indexed: false,
        pod: pod(cpu, "2Gi"),
    };
    JobFacts {
        job: JobIdentity { key: PodKey::new("ml", &format!("job-{number:04}")), uid: format!("uid-{number}").into() },
        version: 1,
        created: Timestamp::UNIX_EPOCH,
        deleting: false,
        stage: Some(Stage::Pending),
        state: None,
        attempt: 0,
        has_address: false,
        ended: BTreeMap::new(),
        allocations: vec![],
        scheduled: None,
        spec: Ok(JobSpec {
            priority: 1 + (number % 10) as i32,
            queue,
            basic: POLICIES[number % POLICIES.len()],
            min_workers: 1,
            topology: Ok(None),
            terminating: false,
            parts: vec![leader, worker],
        }),
    }
}

fn main() {
    let plugins = default_plugins(&DefaultSet::default()).expect("the default set works");
    let mut engine = Scheduler::new(Config::default(), plugins);
    let now = |seconds| Moment { mono: Duration::from_secs(seconds), wall: Timestamp::UNIX_EPOCH };
    for number in 0..NODES {
        let amounts =
            [("cpu", "64"), ("memory", "256Gi")].map(|(name, text)| (name, text.parse().expect("a quantity")));
        let facts = NodeFacts {
            name: format!("node-{number:04}").into(),
            allocatable: Resources::of(amounts).into(),
            max_pods: 110,
            ..NodeFacts::default()
        };
        engine.event(WorldEvent::Node(facts), now(1));
    }
    for number in 0..JOBS {
        engine.event(WorldEvent::Job(Box::new(job(number))), now(1));
    }
    engine.lead(true, now(1));
    let start = clock::mono();
    let mut effects = 0;
    // Jobs are tried one by one: a round takes many calls.
    while effects == 0 || engine.next() == Some(Duration::ZERO) {
        effects += engine.run(now(2)).len();
    }
    let round = clock::mono().saturating_sub(start);
    let placed: usize = engine.tyjobs().records().values().map(|record| record.places.len()).sum();
    println!("{placed} places for {JOBS} jobs on {NODES} nodes in {round:?}, {effects} effects");
    let mut expect = expect::Expect::load("jobs");
    expect.at_most("round_seconds", round.as_secs_f64());
    expect.exactly("places_missing", (JOBS * (1 + WORKERS as usize) - placed) as f64);
    expect.at_most("judged_per_place", engine.stats().judged as f64 / placed.max(1) as f64);
    expect.finish();
}
