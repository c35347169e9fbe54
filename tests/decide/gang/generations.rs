//! Where one generation of a gang ends and the next begins: members that one controller makes one after the other are of one.

use crate::harness::gangs::{P, TestGangs, gang};

type Keys = Vec<(String, String)>;

/// How the last live member of a gang ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Its containers, and its Job keeps the pod.
    Fails,
    /// It was evicted, drained, or deleted because its Job was suspended.
    Goes,
}

/// When another scheduler begins to lead.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Restart {
    Never,
    Before,
    After,
}

fn end(gangs: &mut TestGangs, name: &str, end: End) {
    match end {
        End::Fails => _ = gangs.fail(name),
        End::Goes => gangs.delete(name),
    }
    gangs.wait(10);
}

/// Each gang with its members and their Jobs runs, all but the last member succeed, that one ends, and its Job makes another.
fn last_made_again(
    groups: &[(&str, &str, &str)],
    keys: &dyn Fn(&str) -> Keys,
    how: End,
    restart: Restart,
) -> TestGangs {
    let mut gangs = TestGangs::new(8);
    for name in ["a", "b"] {
        gangs.pod_group(&format!("ml/{name}"), |facts| facts.spec.min = Some(3));
    }
    for (name, of, job) in groups {
        gangs.job_member(name, job, &keys(of));
    }
    assert_eq!(gangs.after(2).bound().len(), groups.len(), "{how:?} {}", gangs.condition("a-0"));
    let (last, rest) = groups.split_last().unwrap();
    for (name, ..) in rest {
        gangs.cluster.finish(name);
        gangs.wait(1);
    }
    end(&mut gangs, last.0, how);
    if restart == Restart::Before {
        gangs.cluster.restart();
    }
    gangs.job_member("again", last.2, &keys(last.1));
    if restart == Restart::After {
        gangs.cluster.restart();
    }
    gangs.wait(5);
    gangs
}

#[test]
fn a_job_comes_to_its_end_however_its_last_live_pod_ends() {
    let annotated = |name: &str| gang(name, "3", &[]);
    let community = |name: &str| vec![("label:scheduling.x-k8s.io/pod-group".to_owned(), name.to_owned())];
    let ack = |name: &str| {
        vec![(format!("label:{P}/name"), name.to_owned()), (format!("label:{P}/min-available"), "3".to_owned())]
    };
    let dialects: [&dyn Fn(&str) -> Keys; 3] = [&annotated, &community, &ack];
    let one = [("a-0", "a", "job"), ("a-1", "a", "job"), ("a-2", "a", "job")];
    for keys in dialects {
        for how in [End::Fails, End::Goes] {
            for restart in [Restart::Never, Restart::Before, Restart::After] {
                let gangs = last_made_again(&one, keys, how, restart);
                assert_eq!(gangs.count("again"), 1, "{how:?} {restart:?}: {}", gangs.condition("again"));
            }
        }
    }
}

#[test]
fn leader_and_workers_of_several_jobs_are_of_one_generation() {
    let keys = |name: &str| gang(name, "3", &[]);
    // The last one has no sibling of its own Job: only what is left of it shows that its Job is of this generation.
    let alone = [("a-0", "a", "leader"), ("a-1", "a", "leader"), ("a-2", "a", "worker")];
    let two = [("a-0", "a", "leader"), ("a-1", "a", "worker"), ("a-2", "a", "worker")];
    for (members, how) in [(alone, End::Fails), (two, End::Fails), (two, End::Goes)] {
        for restart in [Restart::Never, Restart::Before, Restart::After] {
            let gangs = last_made_again(&members, &keys, how, restart);
            assert_eq!(gangs.count("again"), 1, "{how:?} {restart:?}: {}", gangs.condition("again"));
        }
    }
}

#[test]
fn a_gang_of_a_group_goes_on_where_all_the_others_have_succeeded() {
    let keys = |name: &str| gang(name, if name == "a" { "1" } else { "2" }, &[("groups", r#"["ml/a","ml/b"]"#)]);
    let members = [("a-0", "a", "one"), ("b-0", "b", "other"), ("b-1", "b", "other")];
    for how in [End::Fails, End::Goes] {
        for restart in [Restart::Never, Restart::Before, Restart::After] {
            let gangs = last_made_again(&members, &keys, how, restart);
            assert_eq!(gangs.count("again"), 1, "{how:?} {restart:?}: {}", gangs.condition("again"));
        }
    }
}

/// Group `a` `b` runs, the pods of `b` are gone and made again while those of `a` run, or when these have succeeded.
fn made_again_beside(lives: bool, restart: bool) -> TestGangs {
    let mut gangs = TestGangs::new(8);
    let keys = |name: &str| gang(name, "2", &[("groups", r#"["ml/a","ml/b"]"#)]);
    let make = |gangs: &mut TestGangs, names: [&str; 2], of: &str| {
        names.iter().for_each(|name| _ = gangs.job_member(name, of, &keys(of)));
    };
    make(&mut gangs, ["a-0", "a-1"], "a");
    make(&mut gangs, ["b-0", "b-1"], "b");
    assert_eq!(gangs.after(2).bound().len(), 4);
    ["b-0", "b-1"].iter().for_each(|name| gangs.delete(name));
    if lives {
        make(&mut gangs, ["again-0", "again-1"], "b");
    }
    // Nothing leads meanwhile.
    gangs.cluster.later(1);
    ["a-0", "a-1"].iter().for_each(|name| gangs.cluster.finish(name));
    gangs.cluster.later(1);
    if !lives {
        make(&mut gangs, ["again-0", "again-1"], "b");
    }
    if restart {
        gangs.cluster.restart();
    }
    gangs.wait(5);
    gangs
}

#[test]
fn pods_that_were_made_before_the_others_succeeded_are_of_their_generation() {
    for restart in [false, true] {
        let gangs = made_again_beside(true, restart);
        assert_eq!(gangs.count("again"), 2, "{restart}: {}", gangs.condition("again-0"));
        let gangs = made_again_beside(false, restart);
        assert_eq!(gangs.count("again"), 0, "{restart}");
        assert_eq!(gangs.reason("again-0"), "GangIncomplete", "{restart}");
    }
}

#[test]
fn several_pods_that_end_after_one_has_succeeded_are_made_again_one_by_one() {
    let mut gangs = TestGangs::new(8);
    let keys = gang("a", "3", &[]);
    (0..3).for_each(|n| _ = gangs.job_member(&format!("a-{n}"), "job", &keys));
    gangs.after(2).cluster.finish("a-0");
    end(&mut gangs, "a-1", End::Goes);
    end(&mut gangs, "a-2", End::Goes);
    for name in ["again", "too"] {
        gangs.job_member(name, "job", &keys);
        assert_eq!(gangs.after(2).count(name), 1, "{}", gangs.condition(name));
    }
}

#[test]
fn a_run_of_a_new_job_under_the_name_starts_whole_beside_what_has_succeeded() {
    for (first, next) in [(Some("job"), Some("next")), (Some("job"), None), (None, None)] {
        for restart in [false, true] {
            let mut gangs = TestGangs::new(8);
            let keys = gang("a", "3", &[]);
            let make = |gangs: &mut TestGangs, name: &str, job: Option<&str>| match job {
                Some(job) => _ = gangs.job_member(name, job, &keys),
                None => gangs.member(name, &keys),
            };
            (0..3).for_each(|n| make(&mut gangs, &format!("a-{n}"), first));
            gangs.wait(2);
            (0..3).for_each(|n| gangs.cluster.finish(&format!("a-{n}")));
            gangs.wait(1);
            for n in 0..3 {
                assert_eq!(gangs.count("new"), 0, "{first:?} {next:?}");
                if restart {
                    gangs.cluster.restart();
                }
                make(&mut gangs, &format!("new-{n}"), next);
                gangs.wait(2);
            }
            assert_eq!(gangs.count("new"), 3, "{first:?} {next:?}: {}", gangs.condition("new-0"));
        }
    }
}

#[test]
fn a_job_whose_pods_have_all_failed_starts_whole_again() {
    let mut gangs = TestGangs::new(8);
    let keys = gang("a", "2", &[]);
    // An earlier run has succeeded, and its pods are still there.
    for job in ["first", "second"] {
        (0..2).for_each(|n| _ = gangs.job_member(&format!("{job}-{n}"), job, &keys));
        assert_eq!(gangs.after(2).count(job), 2);
        for name in [format!("{job}-0"), format!("{job}-1")] {
            match job {
                "first" => gangs.cluster.finish(&name),
                _ => _ = gangs.fail(&name),
            }
        }
        gangs.wait(1);
    }
    gangs.job_member("again-0", "second", &keys).wait(2);
    assert_eq!((gangs.count("again"), gangs.reason("again-0")), (0, "GangIncomplete"));
    gangs.job_member("again-1", "second", &keys);
    assert_eq!(gangs.after(2).count("again"), 2);
}

#[test]
fn a_policy_that_counts_after_the_first_time_counts_on_where_a_job_goes_on() {
    for (policy, placed) in [("only-waiting", 0), ("waiting-and-running", 0), ("waiting-running-succeed", 1)] {
        let keys = |name: &str| gang(name, "3", &[("match-policy", policy)]);
        let one = [("a-0", "a", "job"), ("a-1", "a", "job"), ("a-2", "a", "job")];
        let gangs = last_made_again(&one, &keys, End::Fails, Restart::Never);
        assert_eq!(gangs.count("again"), placed, "{policy}: {}", gangs.condition("again"));
    }
}
