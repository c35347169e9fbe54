//! Queue policies: the figures of DRF, folded GPU names, and the mixed order.

use baton::decide::tyjob::placement::{Folded, GPU_PERCENT, PriorityClassFacts, Ranked, Share, dominant_share, order};

use crate::harness::tyjobs::key;
use crate::prelude::*;

fn amounts(list: &[(&str, &str)]) -> Resources {
    Resources::of(list.iter().map(|(name, amount)| (*name, amount.parse().unwrap())))
}

fn demand(pods: &[&[(&str, &str)]]) -> Folded {
    let mut sum = Folded::default();
    pods.iter().for_each(|pod| sum.add(&Folded::wanted(&amounts(pod)), 1));
    sum
}

fn ranked(name: &str, priority: i32, created: i64, queue: JobQueuePolicy, share: Share) -> Ranked {
    let created = Timestamp::from_second(created).unwrap();
    Ranked { key: PodKey::new("ml", name), pod_priority: 0, priority, created, queue, share }
}

fn names(jobs: Vec<Ranked>) -> Vec<String> {
    order(jobs).into_iter().map(|job| job.key.name.to_string()).collect()
}

#[test]
fn the_dominant_shares_of_the_two_jobs_are_two_and_five_tenths_of_memory_and_cpu() {
    let cluster = Folded::offered(&amounts(&[("cpu", "10"), ("memory", "20Gi"), ("nvidia.com/gpu", "0")]));
    let pod: &[(&str, &str)] = &[("cpu", "1"), ("memory", "4Gi")];
    let first = demand(&[pod, pod]);
    let second = demand(&[&[("cpu", "2"), ("memory", "2Gi")], &[("cpu", "3"), ("memory", "2Gi")]]);
    let of = |demand: &Folded| {
        let (share, name) = dominant_share(demand, &cluster);
        (share.to_string(), name.unwrap().to_owned())
    };
    assert_eq!(of(&first), ("0.400".to_owned(), "memory".to_owned()));
    assert_eq!(of(&second), ("0.500".to_owned(), "cpu".to_owned()));
    let drf = |name, demand| ranked(name, 5, 0, JobQueuePolicy::Drf, dominant_share(demand, &cluster).0);
    assert_eq!(names(vec![drf("a-second", &second), drf("b-first", &first)]), ["b-first", "a-second"]);
}

#[test]
fn every_name_of_a_gpu_counts_in_percent_of_one_resource() {
    let wanted = |list: &[(&str, &str)]| Folded::wanted(&amounts(list)).get(GPU_PERCENT);
    assert_eq!(wanted(&[("nvidia.com/gpu", "2")]), 200);
    assert_eq!(wanted(&[("koordinator.sh/gpu", "50")]), 50);
    assert_eq!(wanted(&[("koordinator.sh/gpu-core", "30"), ("koordinator.sh/gpu-memory-ratio", "40")]), 40);
    assert_eq!(wanted(&[("koordinator.sh/gpu.shared", "2"), ("koordinator.sh/gpu-memory-ratio", "60")]), 60);
    assert_eq!(wanted(&[("nvidia.com/gpu", "1"), ("koordinator.sh/gpu", "50")]), 150, "two containers");
    // A node tells the same GPUs under every name that its agent registers.
    let node = amounts(&[
        ("nvidia.com/gpu", "8"),
        ("koordinator.sh/gpu", "800"),
        ("koordinator.sh/gpu-core", "800"),
        ("koordinator.sh/gpu-memory-ratio", "800"),
        ("koordinator.sh/gpu.shared", "800"),
    ]);
    assert_eq!(Folded::offered(&node).get(GPU_PERCENT), 800);
    let job = demand(&[&[("nvidia.com/gpu", "2")]]);
    let (share, name) = dominant_share(&job, &Folded::offered(&node));
    assert_eq!((share.value(), name), (0.25, Some(GPU_PERCENT)));
}

#[test]
fn bytes_of_gpu_memory_count_as_the_part_of_the_gpus_that_they_take() {
    let mut jobs = TestJobs::on("n", 64, 8);
    jobs.cluster.pod_as("busy", &[("cpu", "64")], |facts| facts.handoff.node = Some("n".into()));
    let mut tell = |name: &str, asked: &[(&str, &str)]| {
        let one: Vec<_> = [("cpu", "1")].into_iter().chain(asked.iter().copied()).collect();
        jobs.run(name, &one[..], (1, &one[..]), |spec| spec.queue = JobQueuePolicy::Drf);
    };
    let bytes = |amount| [("koordinator.sh/gpu.shared", "1"), ("koordinator.sh/gpu-memory", amount)];
    // The GPUs have 80 GiB each: 100 of 800 percent. Of the second job 60 percent of compute are more than 20 of memory.
    tell("a-bytes", &bytes("40Gi"));
    tell("b-core", &[("koordinator.sh/gpu-core", "30"), ("koordinator.sh/gpu-memory", "8Gi")]);
    tell("c-percent", &[("koordinator.sh/gpu", "20")]);
    let told = ["a-bytes", "b-core", "c-percent"].map(|name| {
        let told = jobs.cluster.explain_job(&key(name)).unwrap();
        (told.dominant_share, told.dominant_resource, told.turn)
    });
    let of = |share, turn| (share, Some(GPU_PERCENT.to_owned()), Some((turn, 3)));
    assert_eq!(told, [of(0.125, 3), of(0.075, 2), of(0.05, 1)]);
}

#[test]
fn a_resource_that_the_cluster_has_none_of_does_not_count() {
    let cluster = Folded::offered(&amounts(&[("cpu", "10")]));
    let job = demand(&[&[("cpu", "1"), ("nvidia.com/gpu", "8"), ("koordinator.sh/rdma", "100")]]);
    assert_eq!(dominant_share(&job, &cluster).0.to_string(), "0.100");
    assert_eq!(dominant_share(&job, &Folded::default()), (Share::NONE, None));
}

#[test]
fn by_priority_the_higher_goes_first_then_the_older_then_the_name() {
    let job = |name, priority, created| ranked(name, priority, created, JobQueuePolicy::Priority, Share::NONE);
    let jobs = vec![job("d", 5, 10), job("c", 5, 10), job("young", 5, 11), job("low", 1, 0), job("high", 9, 99)];
    assert_eq!(names(jobs), ["high", "c", "d", "young", "low"]);
}

#[test]
fn equal_shares_go_by_priority_then_age_then_name() {
    let job = |name, priority, created| ranked(name, priority, created, JobQueuePolicy::Drf, Share::NONE);
    assert_eq!(
        names(vec![job("b", 5, 1), job("a", 5, 1), job("old", 5, 0), job("high", 6, 9)]),
        ["high", "old", "a", "b"]
    );
}

#[test]
fn in_a_mixed_queue_drf_jobs_share_the_places_that_priority_gave_them() {
    let cluster = Folded::offered(&amounts(&[("cpu", "10")]));
    let share = |cpu| dominant_share(&demand(&[&[("cpu", cpu)]]), &cluster).0;
    let (by_priority, drf) = (JobQueuePolicy::Priority, JobQueuePolicy::Drf);
    let jobs = vec![
        ranked("p9", 9, 0, by_priority, share("1")),
        ranked("d8-large", 8, 0, drf, share("9")),
        ranked("p7", 7, 0, by_priority, share("1")),
        ranked("d6-middle", 6, 0, drf, share("5")),
        ranked("d5-small", 5, 0, drf, share("1")),
        ranked("p1", 1, 0, by_priority, share("1")),
    ];
    assert_eq!(names(jobs), ["p9", "d5-small", "p7", "d6-middle", "d8-large", "p1"]);
}

/// One node of four CPUs, and a PriorityClass of 1000.
fn one_node() -> TestJobs {
    let mut jobs = TestJobs::on("n", 4, 0);
    let class = PriorityClassFacts { value: 1000, default: false, never_preempts: true };
    jobs.cluster.event(WorldEvent::PriorityClass("high".into(), class));
    jobs
}

impl TestJobs {
    /// A job of a leader of one CPU and a worker of this many.
    fn job_comes(&mut self, name: &str, worker: &str, edit: impl FnOnce(&mut JobFacts)) -> &mut Self {
        let mut facts = self.job(name, &[("cpu", "1")], (1, &[("cpu", worker)]));
        edit(&mut facts);
        self.submit(facts)
    }

    fn single_comes(&mut self, priority: i32, age: u64) -> &mut Self {
        let mut single = pod("single", &[("cpu", "4")], self.cluster.now - Duration::from_secs(age));
        (single.spec.priority, single.spec.never_preempts) = (priority, true);
        self.cluster.submit(single);
        self
    }
}

fn high(facts: &mut JobFacts) {
    facts.spec.as_mut().unwrap().parts[0].ask.class = Some("high".into());
}

#[test]
fn a_round_has_the_priority_of_the_highest_job_that_waits_whenever_it_came() {
    let mut jobs = one_node();
    jobs.job_comes("a", "9", |_| {}).single_comes(100, 0).job_comes("b", "3", high).cluster.settle();
    assert_eq!((jobs.state("b"), jobs.cluster.node_of("single")), (Some(ScheduleState::ScheduledSucceed), None));
}

#[test]
fn a_round_has_the_time_of_the_oldest_job_that_waits_whenever_it_came() {
    let mut jobs = one_node();
    jobs.job_comes("a", "9", |_| {}).single_comes(0, 10);
    let old = wall(jobs.cluster.now - Duration::from_secs(20));
    jobs.job_comes("b", "3", |facts| facts.created = old).cluster.settle();
    assert_eq!((jobs.state("b"), jobs.cluster.node_of("single")), (Some(ScheduleState::ScheduledSucceed), None));
}

#[test]
fn a_round_does_not_keep_the_priority_of_a_job_that_is_gone() {
    let mut jobs = one_node();
    jobs.job_comes("a", "3", |_| {}).job_comes("b", "9", high).single_comes(100, 0).remove("b");
    assert_eq!((jobs.state("a"), jobs.cluster.node_of("single")), (Some(ScheduleState::Unscheduled), Some("n")));
}

#[test]
fn a_round_goes_on_to_its_last_job_though_the_first_is_written_meanwhile() {
    let mut jobs = TestJobs::with(Config { batch: 4, ..Config::default() });
    jobs.node("n", 4, 0);
    (0..6).for_each(|at| _ = jobs.job_comes(&format!("hopeless-{at}"), "9", |_| {}));
    jobs.cluster.settle();
    jobs.job_comes("young", "1", |_| {});
    for _ in 0..4 {
        for job in [key("hopeless-0"), key("hopeless-4")] {
            jobs.cluster.jobs.get_mut(&job).unwrap().version += 1;
            jobs.cluster.tell_job(&job);
        }
        jobs.cluster.run_once();
    }
    assert_eq!(jobs.state("young"), Some(ScheduleState::ScheduledSucceed));
}

#[test]
fn drf_jobs_share_the_places_of_their_own_pod_priority_only() {
    let mut jobs = one_node();
    jobs.single_comes(2000, 0).cluster.settle();
    let mut job = |name, worker, priority, queue, edit: fn(&mut JobFacts)| {
        jobs.job_comes(name, worker, |facts| {
            let spec = facts.spec.as_mut().unwrap();
            (spec.priority, spec.queue) = (priority, queue);
            edit(facts);
        });
    };
    job("other-class", "3", 8, JobQueuePolicy::Drf, |_| {});
    job("important", "1", 5, JobQueuePolicy::Priority, high);
    job("small-share", "1", 1, JobQueuePolicy::Drf, high);
    jobs.cluster.settle();
    let turn = |name: &str| jobs.cluster.explain_job(&key(name)).unwrap().turn;
    assert_eq!(["important", "small-share", "other-class"].map(turn), [Some((1, 3)), Some((2, 3)), Some((3, 3))]);
}
