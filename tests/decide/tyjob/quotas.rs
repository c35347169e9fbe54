//! What a namespace may use: quotas, limits and priority classes, and places whose pods do not come.

use std::fmt::Write;

use baton::decide::tyjob::placement::JobClass;

use crate::harness::tyjobs::key;
use crate::prelude::*;

const GPU: &[(&str, &str)] = &[("nvidia.com/gpu", "1")];
const EIGHT: &[(&str, &str)] = &[("nvidia.com/gpu", "8")];
const GPUS: &str = "requests.nvidia.com/gpu";

/// Four nodes of 8 GPUs.
fn cluster() -> TestJobs {
    TestJobs::on_each(&["a", "b", "c", "d"], 64, 8)
}

/// The same, in a namespace that may have so many GPUs.
fn with_quota(gpus: u32) -> TestJobs {
    let mut jobs = cluster();
    jobs.gpus(gpus, 0);
    jobs
}

impl TestJobs {
    fn gpus(&mut self, hard: u32, used: u32) -> &mut Self {
        self.quota("gpus", json!({"hard": {GPUS: hard.to_string()}}), json!({GPUS: used.to_string()}))
    }

    /// Pods of the job that are bound, and places that no pod has taken.
    fn holds(&self, name: &str) -> (usize, usize) {
        let bound = |pod: &str| self.cluster.node_of(&format!("{name}-{pod}")).is_some();
        let bound = self.places(name).keys().filter(|pod| bound(pod)).count();
        (bound, self.cluster.job_records()[&key(name)].reservations())
    }
}

#[test]
fn a_job_gets_no_places_beyond_what_its_namespace_may_use() {
    let mut jobs = cluster();
    jobs.gpus(8, 3).run("some", GPU, (24, GPU), |_| {});
    assert_eq!((jobs.state("some"), jobs.holds("some")), (Some(ScheduleState::ScheduledPartly), (0, 5)));
    let excess = "some-actor-4: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: \
                  requests.nvidia.com/gpu=3, reserved for TYJobs: requests.nvidia.com/gpu=5, limited: \
                  requests.nvidia.com/gpu=8";
    assert!(jobs.message("some").ends_with(excess), "{}", jobs.message("some"));
    jobs.run("none", GPU, (1, CPU), |spec| spec.priority = 4);
    assert_eq!((jobs.state("none"), jobs.holds("none")), (Some(ScheduleState::Unscheduled), (0, 0)));
    let explained = jobs.cluster.explain_job(&key("none")).unwrap();
    assert!(explained.seats[0].refused.as_ref().unwrap().starts_with("exceeded quota: gpus"), "{explained:?}");
    jobs.run("gang", GPU, (5, GPU), |spec| spec.basic = BasicPolicy::Gang);
    assert_eq!(jobs.holds("gang"), (0, 0));
    jobs.gpus(9, 3);
    assert_eq!((jobs.holds("some"), jobs.holds("none")), ((0, 6), (0, 0)), "the more important job takes the room");
    jobs.check();
}

#[test]
fn pods_that_the_quota_counts_are_not_counted_again() {
    let mut jobs = with_quota(4);
    jobs.run("rl", GPU, (3, GPU), |_| {});
    assert_eq!(jobs.holds("rl"), (0, 4));
    // The quota is seen to be used a moment before the leader is seen.
    assert_eq!(jobs.gpus(4, 1).controller("rl").holds("rl"), (1, 3));
    jobs.gpus(4, 4).leader_up("rl").controller("rl").cluster.wait(60);
    assert_eq!((jobs.holds("rl"), jobs.cluster.stats().jobs.places_void), ((4, 0), 0));
    // A worker that has to be made again needs no more than it had.
    jobs.cluster.goes("rl-actor-1").wait(2);
    jobs.gpus(4, 3).cluster.wait(2);
    jobs.controller("rl").gpus(4, 4);
    assert_eq!((jobs.holds("rl"), jobs.state("rl")), ((4, 0), Some(ScheduleState::ScheduledSucceed)));
    jobs.check();
}

#[test]
fn a_quota_that_is_lowered_below_its_use_takes_places_of_the_last_job() {
    let mut jobs = with_quota(8);
    jobs.run("first", GPU, (3, GPU), |spec| spec.priority = 7);
    jobs.run("last", GPU, (3, GPU), |spec| spec.basic = BasicPolicy::Gang);
    assert_eq!((jobs.holds("first"), jobs.holds("last")), ((0, 4), (0, 4)));
    jobs.gpus(7, 0).cluster.wait(9);
    assert_eq!((jobs.holds("first"), jobs.holds("last")), ((0, 4), (0, 4)), "it may be an update out of turn");
    assert_eq!((jobs.after(2).holds("first"), jobs.holds("last")), ((0, 4), (0, 0)));
    assert_eq!(jobs.state("last"), Some(ScheduleState::Unscheduled));
    jobs.gpus(2, 3).cluster.wait(11);
    assert_eq!((jobs.holds("first"), jobs.holds("last")), ((0, 0), (0, 0)), "less than is used");
    assert_eq!((jobs.gpus(8, 0).holds("first"), jobs.holds("last")), ((0, 4), (0, 4)));
    jobs.check();
}

#[test]
fn places_that_a_lowered_quota_takes_are_those_of_the_job_that_comes_last() {
    let mut jobs = with_quota(8);
    jobs.cluster.priority_class("high", 1000);
    jobs.run("classed", GPU, (3, GPU), |spec| {
        spec.parts.iter_mut().for_each(|part| part.ask.class = Some("high".into()));
    });
    jobs.run("plain", GPU, (3, GPU), |spec| (spec.priority, spec.basic) = (6, BasicPolicy::Gang));
    assert_eq!((jobs.holds("classed"), jobs.holds("plain")), ((0, 4), (0, 4)));
    jobs.gpus(7, 0).cluster.wait(11);
    assert_eq!((jobs.holds("classed"), jobs.holds("plain")), ((0, 4), (0, 0)), "the priority of pods comes first");
}

#[test]
fn of_two_quotas_that_contradict_the_narrower_counts() {
    let mut jobs = with_quota(100);
    jobs.quota("tight", json!({"hard": {GPUS: "2", "pods": "5"}}), json!({GPUS: "0", "pods": "0"}));
    jobs.run("rl", GPU, (3, GPU), |_| {});
    assert_eq!(jobs.holds("rl"), (0, 2));
    tells(jobs.message("rl"), ["exceeded quota: tight"]);
    jobs.run("cpus", CPU, (5, CPU), |_| {});
    assert_eq!(jobs.checked().holds("cpus"), (0, 3), "pods are counted for every job: {}", jobs.message("cpus"));
}

#[test]
fn only_quotas_whose_scopes_hold_count() {
    let mut jobs = cluster();
    jobs.cluster.priority_class("high", 1000);
    let expression = json!([{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]);
    let spec = json!({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": expression}});
    jobs.quota("high", spec, json!({"pods": "0"}));
    jobs.quota("short", json!({"hard": {"pods": "0"}, "scopes": ["Terminating"]}), json!({"pods": "0"}));
    jobs.run("low", CPU, (3, CPU), |_| {});
    assert_eq!(jobs.holds("low"), (0, 4));
    jobs.run("high", CPU, (3, CPU), |spec| spec.parts[1].ask.class = Some("high".into()));
    assert_eq!(jobs.holds("high"), (0, 2), "{}", jobs.message("high"));
    jobs.run("long", CPU, (3, CPU), |spec| spec.min_workers = 0);
    assert_eq!(jobs.checked().holds("long"), (0, 4));
}

#[test]
fn what_admission_would_refuse_gets_no_place_and_its_words_are_said() {
    let mut jobs = cluster();
    let refused = |jobs: &mut TestJobs, name: &str, why: &str| {
        assert_eq!((jobs.state(name), jobs.holds(name)), (Some(ScheduleState::Unscheduled), (0, 0)), "{why}");
        tells(jobs.message(name), [why]);
    };
    jobs.run("classless", CPU, (1, CPU), |spec| spec.parts[0].ask.class = Some("gone".into()));
    refused(&mut jobs, "classless", "classless-learner: no PriorityClass with name gone was found");
    jobs.cluster.priority_class("gone", 0);
    assert_eq!(jobs.settled().holds("classless"), (0, 2), "the class is back");

    jobs.run("ranked", CPU, (1, CPU), |spec| spec.parts[0].ask.priority = Some(9));
    refused(&mut jobs, "ranked", "the integer value of priority (9) must not be provided");

    jobs.limit_range(json!({"type": "Container", "max": {"cpu": "500m"}})).run("large", CPU, (1, CPU), |_| {});
    refused(&mut jobs, "large", "maximum cpu usage per Container is 500m, but limit is 1");
    jobs.limit_range(json!({"type": "Container", "min": {"cpu": "100m"}}));
    assert_eq!(jobs.holds("large"), (0, 2), "a range with a minimum only");

    jobs.quota("memory", json!({"hard": {"limits.memory": "1Gi"}}), json!({"limits.memory": "0"}));
    jobs.run("unsaid", CPU, (1, CPU), |_| {});
    refused(&mut jobs, "unsaid", "failed quota: memory: must specify limits.memory for: main");
    jobs.quota("memory", json!({"hard": {"limits.memory": "much"}}), json!({})).cluster.wait(11);
    refused(&mut jobs, "unsaid", "ResourceQuota memory, spec.hard: limits.memory: \"much\" is not a quantity");
    jobs.cluster.event(WorldEvent::Quota(key("memory"), None));
    assert_eq!(jobs.settled().checked().holds("unsaid"), (0, 2), "the quota is gone");
}

#[test]
fn a_place_has_room_for_what_a_limit_range_gives_to_its_pod() {
    let mut jobs = TestJobs::on("a", 8, 0);
    let give = |jobs: &mut TestJobs, cpu: &str| {
        jobs.limit_range(json!({"type": "Container", "defaultRequest": {"cpu": cpu}}));
    };
    let held = |jobs: &TestJobs| jobs.cluster.world().nodes().map(|(_, node)| node.used.milli_cpu).sum::<i64>();
    give(&mut jobs, "3");
    jobs.run("rl", &[], (3, &[]), |spec| spec.basic = BasicPolicy::Gang);
    assert_eq!((jobs.state("rl"), jobs.holds("rl")), (Some(ScheduleState::Unscheduled), (0, 0)), "12 CPUs of 8");
    tells(jobs.message("rl"), ["insufficient cpu"]);
    assert_eq!((jobs.node("b", 8, 0).after(2).holds("rl"), held(&jobs)), ((0, 4), 12_000));
    give(&mut jobs, "5");
    assert_eq!((jobs.after(2).holds("rl"), held(&jobs)), ((0, 0), 0), "each node has room for one pod");
    give(&mut jobs, "2");
    assert_eq!((jobs.after(2).holds("rl"), held(&jobs)), ((0, 4), 8000));
    jobs.cluster.event(WorldEvent::LimitRange(key("limits"), None)).wait(2);
    assert_eq!((jobs.holds("rl"), held(&jobs)), ((0, 4), 0), "what is gone gives nothing");
    jobs.check();
}

#[test]
fn a_pod_that_asks_for_less_than_its_place_pays_for_no_more_and_keeps_no_place() {
    for attempt in [0, 7] {
        let mut jobs = with_quota(8);
        jobs.run("rl", CPU, (1, EIGHT), |_| {});
        assert_eq!(jobs.holds("rl"), (0, 2));
        // Made by its tenant: it claims the place, asks for nothing, and no scheduler knows it.
        let mut forged = jobs.pod_of("rl", "rl-actor-0");
        forged.handoff.scheduler_name = "none".into();
        forged.handoff.containers.clear();
        forged.spec.requests = Default::default();
        let claim = forged.spec.job.as_deref().unwrap().clone();
        forged.spec.job = Some(JobClaim { attempt: Some(attempt), ..claim }.into());
        jobs.cluster.enters(forged).wait(3);
        jobs.run("other", CPU, (1, EIGHT), |_| {});
        assert_eq!(jobs.holds("other"), (0, 0), "attempt {attempt}: the quota is reserved");
        if attempt == 0 {
            jobs.cluster.wait(60);
            for at in 0..4 {
                let name = format!("whole-{at}");
                jobs.cluster.comes(&name, EIGHT);
                assert!(jobs.serve().cluster.node_of(&name).is_some(), "the pod does not ask for these GPUs: {name}");
                jobs.cluster.goes(&name);
            }
        }
        assert_eq!((jobs.after(10 * 60).holds("rl"), jobs.holds("other")), ((0, 0), (0, 2)), "attempt {attempt}");
    }
}

#[test]
fn an_edit_that_admission_refuses_gives_the_places_back() {
    let mut jobs = with_quota(8);
    jobs.run("first", CPU, (1, EIGHT), |_| {});
    assert_eq!(jobs.holds("first"), (0, 2));
    jobs.change("first", |facts| facts.spec.as_mut().unwrap().parts[1].ask.priority = Some(1));
    assert_eq!(jobs.holds("first"), (0, 0));
    jobs.run("second", CPU, (1, EIGHT), |_| {});
    assert_eq!(jobs.checked().holds("second"), (0, 2));
}

#[test]
fn places_that_admission_refuses_now_are_counted_and_given_back() {
    let mut jobs = with_quota(8);
    jobs.cluster.priority_class("class", 0);
    jobs.run("first", CPU, (1, EIGHT), |spec| spec.parts[1].ask.class = Some("class".into()));
    assert_eq!(jobs.holds("first"), (0, 2));
    jobs.cluster.event(WorldEvent::PriorityClassGone("class".into())).settle();
    jobs.run("second", CPU, (1, EIGHT), |_| {}).cluster.wait(9);
    assert_eq!((jobs.holds("first"), jobs.holds("second")), ((0, 2), (0, 0)));
    assert_eq!((jobs.after(2).holds("first"), jobs.holds("second")), ((0, 0), (0, 2)));
    tells(jobs.message("first"), ["no PriorityClass with name class was found"]);
    jobs.check();
}

#[test]
fn places_outside_of_an_exceeded_quota_stay() {
    let mut jobs = with_quota(8);
    jobs.run("cpus", CPU, (1, CPU), |spec| spec.priority = 1);
    jobs.run("gpus", CPU, (1, EIGHT), |spec| spec.priority = 7);
    assert_eq!((jobs.holds("cpus"), jobs.holds("gpus")), ((0, 2), (0, 2)));
    let placed = jobs.cluster.stats().jobs.placed;
    assert_eq!((jobs.gpus(7, 0).after(11).holds("cpus"), jobs.holds("gpus")), ((0, 2), (0, 0)));
    assert_eq!(jobs.checked().cluster.stats().jobs.placed, placed, "no place was given back and found again");
}

#[test]
fn a_worker_that_the_quota_counts_is_placed_although_another_is_beyond_it() {
    let mut jobs = with_quota(3);
    assert_eq!(jobs.run("rl", GPU, (2, GPU), |_| {}).start("rl").gpus(3, 3).holds("rl"), (3, 0));
    ["rl-actor-0", "rl-actor-1"].into_iter().for_each(|worker| _ = jobs.cluster.delete(worker));
    assert_eq!(jobs.settled().gpus(3, 1).after(10 * 60 + 1).holds("rl"), (1, 0), "given back");
    // The second one is made after all; other pods of the namespace use what is left.
    let late = jobs.pod_of("rl", "rl-actor-1");
    jobs.cluster.enters(late);
    jobs.gpus(3, 3).cluster.wait(61);
    assert_eq!(jobs.serve().checked().holds("rl"), (2, 0), "{}", jobs.message("rl"));
}

#[test]
fn a_pod_that_the_quota_counts_is_not_counted_twice_by_an_explanation() {
    let mut jobs = with_quota(2);
    jobs.run("rl", GPU, (1, GPU), |_| {}).start("rl").gpus(2, 2).cluster.goes("rl-actor-0");
    assert_eq!(jobs.gpus(2, 1).after(10 * 60 + 1).holds("rl"), (1, 0), "given back");
    let late = jobs.pod_of("rl", "rl-actor-0");
    jobs.cluster.enters(late);
    jobs.gpus(2, 2);
    let explained = jobs.cluster.explain_job(&key("rl")).unwrap();
    let missing = explained.seats.iter().find(|seat| seat.state == "missing").unwrap();
    assert_eq!((&missing.refused, missing.nodes.len()), (&None, 4), "{missing:?}");
}

#[test]
fn no_job_gets_places_while_the_quotas_may_not_be_read() {
    let mut jobs = cluster();
    jobs.cluster.event(WorldEvent::Readable("ResourceQuotas", false));
    jobs.run("rl", GPU, (1, GPU), |_| {});
    assert_eq!((jobs.state("rl"), jobs.holds("rl")), (Some(ScheduleState::Unscheduled), (0, 0)));
    let why = "rl-learner: the scheduler may not read ResourceQuotas";
    tells(jobs.message("rl"), [why]);
    jobs.cluster.event(WorldEvent::Readable("ResourceQuotas", true));
    assert_eq!(jobs.settled().checked().holds("rl"), (0, 2));
}

/// Minutes and what the jobs held then, one line for each change.
fn minute_by_minute(
    jobs: &mut TestJobs,
    names: &[&str],
    minutes: u64,
    mut act: impl FnMut(&mut TestJobs, u64),
) -> String {
    let (mut table, mut before) = (String::new(), BTreeMap::new());
    write!(table, "minute").unwrap();
    names.iter().for_each(|name| write!(table, "  {name:>16}").unwrap());
    writeln!(table, "  free GPUs").unwrap();
    for minute in 0..=minutes {
        if minute > 0 {
            jobs.cluster.wait(60);
        }
        act(jobs, minute);
        let now: BTreeMap<&str, (usize, usize)> = names.iter().map(|name| (*name, jobs.holds(name))).collect();
        if before != now {
            write!(table, "{minute:>6}").unwrap();
            for name in names {
                let (bound, reserved) = now[name];
                write!(table, "  {:>16}", format!("{bound} run, {reserved} kept")).unwrap();
            }
            let taken: usize = now.values().map(|(bound, reserved)| bound + reserved).sum();
            writeln!(table, "  {}", 32 - taken).unwrap();
            before = now;
        }
        jobs.check();
    }
    table
}

#[test]
fn who_holds_what_minute_by_minute() {
    let mut jobs = with_quota(26);
    // Admission refuses its leader for ever.
    jobs.run("unmade", GPU, (7, GPU), |spec| spec.priority = 10);
    // Its leader is bound, and the image of that is pulled for an hour.
    jobs.run("image", GPU, (11, GPU), |spec| spec.priority = 9);
    // The namespace may use less than it asks for; its pods are made at once.
    jobs.run("beyond", GPU, (9, GPU), |spec| spec.priority = 8);
    let mut used = 0;
    let table = minute_by_minute(&mut jobs, &["beyond", "unmade", "image"], 75, |jobs, minute| {
        jobs.controller("image").controller("beyond");
        if minute == 1 {
            jobs.leader_up("beyond").controller("beyond");
        }
        if minute == 66 {
            jobs.leader_up("image").controller("image");
        }
        let now = ["beyond", "image"].map(|name| jobs.holds(name).0 as u32).iter().sum();
        if used != now {
            used = now;
            jobs.gpus(26, used).controller("beyond").controller("image");
        }
    });
    println!("{table}");
    for name in ["unmade", "image", "beyond"] {
        println!("{name}: {:?} {}", jobs.state(name).unwrap(), jobs.message(name));
    }
    let expected = "\
minute            beyond            unmade             image  free GPUs
     0     1 run, 5 kept     0 run, 8 kept    1 run, 11 kept  6
     1     6 run, 0 kept     0 run, 8 kept    1 run, 11 kept  6
    10    10 run, 0 kept     0 run, 0 kept     1 run, 0 kept  21
    11    10 run, 0 kept     0 run, 8 kept     1 run, 7 kept  6
    21    10 run, 0 kept     0 run, 0 kept     1 run, 0 kept  21
    23    10 run, 0 kept     0 run, 8 kept     1 run, 7 kept  6
    33    10 run, 0 kept     0 run, 0 kept     1 run, 0 kept  21
    37    10 run, 0 kept     0 run, 8 kept     1 run, 7 kept  6
    47    10 run, 0 kept     0 run, 0 kept     1 run, 0 kept  21
    55    10 run, 0 kept     0 run, 8 kept     1 run, 7 kept  6
    65    10 run, 0 kept     0 run, 0 kept     1 run, 0 kept  21
    66    10 run, 0 kept     0 run, 0 kept    12 run, 0 kept  10
";
    assert_eq!(table, expected);
}

#[test]
fn a_job_rests_longer_each_time_and_starts_afresh_once_it_runs() {
    let mut jobs = cluster();
    jobs.run("rl", GPU, (3, GPU), |_| {});
    let class = |jobs: &TestJobs| jobs.cluster.job_records()[&key("rl")].judged.class;
    for pause in [1, 2, 4, 8, 16, 16] {
        assert_eq!(jobs.after(10 * 60 - 1).holds("rl"), (0, 4), "before the limit");
        assert_eq!((jobs.after(2).holds("rl"), class(&jobs)), ((0, 0), JobClass::Resting));
        let text = format!(
            "pod rl-learner was not made within 10 min of its place: 4 places without pods are given back; tried again in {pause} min"
        );
        assert!(jobs.message("rl").starts_with(&text), "{}", jobs.message("rl"));
        assert_eq!(jobs.state("rl"), Some(ScheduleState::Unscheduled));
        assert_eq!(jobs.after(pause * 60 - 2).holds("rl"), (0, 0), "the pause is not over");
        assert_eq!(jobs.after(1).holds("rl"), (0, 4), "tried again");
    }
    assert_eq!(jobs.start("rl").holds("rl"), (4, 0));
    // A worker that cannot be made again.
    jobs.cluster.goes("rl-actor-0").wait(10 * 60 + 1);
    assert_eq!((jobs.holds("rl"), jobs.state("rl")), ((3, 0), Some(ScheduleState::ScheduledPartly)));
    assert!(jobs.message("rl").starts_with("pod rl-actor-0 was not made") && jobs.message("rl").contains("in 1 min"));
    // An edit ends the rest.
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().priority = 6);
    assert_eq!(jobs.checked().holds("rl"), (3, 1));
}

#[test]
fn another_leader_of_the_scheduler_counts_the_time_on() {
    let mut jobs = cluster();
    jobs.run("rl", GPU, (3, GPU), |_| {});
    for _ in 0..3 {
        jobs.cluster.after(3 * 60).restart();
        assert_eq!(jobs.holds("rl"), (0, 4));
    }
    assert_eq!(jobs.after(61).holds("rl"), (0, 0), "ten minutes after the places were found");
}

#[test]
fn places_are_given_back_at_the_configured_limit() {
    let mut config = baton::decide::scheduler::Config::default();
    config.jobs.start_limit = Duration::from_secs(30);
    let mut jobs = TestJobs::with(config);
    jobs.node("a", 64, 8).run("rl", GPU, (3, GPU), |_| {});
    assert_eq!(jobs.after(29).holds("rl"), (0, 4));
    assert_eq!(jobs.after(2).holds("rl"), (0, 0));
}
