//! Sentence by sentence: what keys, aliases, levels and invalid values come to, and what changes of a gang's words do to it.

use baton::contract::gang::key;
use baton::contract::gang::{MatchPolicy, Mode, PodGroupPhase, TimeoutClock};
use baton::decide::core::{GangPolicy, OnBindFailure};
use baton::decide::world::WorldPolicy;
use baton::decide::world::gangs::{Gang, GangConfig, GangDefaults};

use crate::prelude::*;

type Keys = Vec<(String, String)>;

fn keys(pairs: &[(&str, &str)]) -> Keys {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn of<'a>(gangs: &'a TestGangs, name: &str) -> &'a Gang {
    gangs.cluster.world().gangs().gang(&GangId::parse(name).unwrap()).unwrap()
}

fn config(gangs: &TestGangs, name: &str) -> GangConfig {
    *of(gangs, name).config()
}

/// Reasons and texts of what is wrong with a gang's words.
fn warnings(gangs: &TestGangs, name: &str) -> Vec<String> {
    of(gangs, name).warnings().iter().map(|warning| format!("{}: {warning}", warning.reason())).collect()
}

/// One member with these keys beside the gang's name, in a world without room.
fn says(pairs: &[(&str, &str)]) -> TestGangs {
    let mut gangs = TestGangs::new(0);
    let mut all = keys(&[(&format!("{G}name"), "g")]);
    all.extend(keys(pairs));
    gangs.member("g-0", &all);
    gangs
}

#[test]
fn what_helps_a_gang_that_is_short_says_where_its_minimum_stands() {
    let object = |api: PodGroupApi| {
        let mut gangs = says(&[]);
        gangs.pod_group("ml/g", |facts| (facts.api, facts.spec.min) = (api, Some(3)));
        gangs
    };
    let mut grouped = TestGangs::new(0);
    for (name, min) in [("g", "1"), ("h", "3")] {
        grouped.member(&format!("{name}-0"), &gang(name, min, &[("groups", r#"["ml/g","ml/h"]"#)]));
    }
    for (gangs, place) in [
        (says(&[(key::MIN_AVAILABLE, "3")]), format!("{} on the pods of ml/g", key::MIN_AVAILABLE)),
        (says(&[(key::POD_GROUP_MIN_AVAILABLE, "3")]), format!("{} on the pods of ml/g", key::POD_GROUP_MIN_AVAILABLE)),
        (object(PodGroupApi::Sigs), "spec.minMember of PodGroup ml/g".to_owned()),
        (object(PodGroupApi::Kubernetes), "spec.schedulingPolicy.gang.minCount of PodGroup ml/g".to_owned()),
        (grouped, format!("{} on the pods of ml/h", key::MIN_AVAILABLE)),
    ] {
        let (id, now) = (GangId::parse("ml/g").unwrap(), gangs.cluster.moment());
        let advice = gangs.cluster.scheduler.explain_gang(&id, now).unwrap().advice;
        assert!(advice.contains(&format!("or lower the minimum ({place}); the gang is tried at once")), "{advice}");
    }
}

#[test]
fn an_invalid_value_warns_once_and_falls_back() {
    let (wait, min, total, mode) = ("waiting-time", "min-available", "total-number", "mode");
    for (key, value, warns) in [
        (wait, "1.5h", false),
        (wait, "1h30m", false),
        (wait, "", false),
        (wait, "0", true),
        (wait, "-5s", true),
        (wait, "600", true),
        (wait, "soon", true),
        (min, " 3 ", false),
        (min, "0", false),
        (min, "-1", true),
        (min, "2147483648", true),
        (min, "three", true),
        (total, "many", true),
        (key::TIMEOUT_CLOCK, "Pending", true),
        (key::TIMEOUT_CLOCK, "pending", false),
        (mode, "strict", true),
        (mode, "NonStrict", false),
        ("match-policy", "whatever", true),
        ("match-policy", "only-waiting", false),
        ("groups", "", false),
    ] {
        let full = if key.contains('/') { key.to_owned() } else { format!("{G}{key}") };
        let gangs = says(&[(&full, value)]);
        let reported = warnings(&gangs, "ml/g");
        assert_eq!(reported.len(), usize::from(warns), "{key} {value:?}: {reported:?}");
        let config = config(&gangs, "ml/g");
        if warns {
            let default = GangConfig {
                min: None,
                total: 0,
                mode: Mode::Strict,
                policy: MatchPolicy::OnceSatisfied,
                wait: Duration::from_secs(600),
                wait_stated: false,
                clock: None,
            };
            assert_eq!(config, default, "{key} {value:?}");
            assert!(reported[0].starts_with("GangInvalidValue") && reported[0].contains(value), "{reported:?}");
            assert!(of(&gangs, "ml/g").group().is_alone());
        }
    }
    assert_eq!(config(&says(&[(&format!("{G}waiting-time"), "1.5h")]), "ml/g").wait, Duration::from_secs(5400));
    let long = says(&[(&format!("{G}waiting-time"), "169h")]);
    assert_eq!(config(&long, "ml/g").wait, Duration::from_secs(604_800), "as much as is allowed");
    let warned = "GangInvalidValue: gang.scheduling.koordinator.sh/waiting-time: 169h is longer than max-waiting-time: 168h counts";
    assert_eq!(warnings(&long, "ml/g"), [warned]);
    assert_eq!(config(&says(&[(&format!("{G}waiting-time"), "168h")]), "ml/g").wait, Duration::from_secs(604_800));
}

/// Gangs of a scheduler that allows an hour of waiting, in a world without room.
fn narrow() -> TestGangs {
    let defaults = GangDefaults { max_wait: Duration::from_secs(3600), ..GangDefaults::default() };
    let world = WorldPolicy { gangs: defaults, ..WorldPolicy::default() };
    TestGangs::with(Config { world, ..Config::default() })
}

#[test]
fn values_beyond_what_the_installation_allows_count_as_that_and_are_reported_once() {
    let mut gangs = narrow();
    let (wait, priority) = (format!("{G}waiting-time"), "label:koordinator.sh/priority");
    for (name, value, sub_priority) in [("g", "90m", "1001"), ("h", "1h", "1000")] {
        gangs.members(name, 2, &gang(name, "2", &[("waiting-time", value)]));
        for n in 0..2 {
            let mut keys = gang(name, "2", &[("waiting-time", value)]);
            keys.push((priority.to_owned(), sub_priority.to_owned()));
            gangs.change(&format!("{name}-{n}"), |facts| facts.spec.gang = declared("ml", &keys));
        }
    }
    gangs.wait(2);
    assert_eq!((config(&gangs, "ml/g").wait, of(&gangs, "ml/g").sub_priority()), (Duration::from_secs(3600), 1000));
    assert_eq!(
        warnings(&gangs, "ml/g"),
        [
            format!("GangInvalidValue: {wait}: 90m is longer than max-waiting-time: 1h counts"),
            "GangInvalidValue: koordinator.sh/priority: 1001 is higher than 1000, which counts".to_owned(),
        ]
    );
    assert_eq!((warnings(&gangs, "ml/h"), gangs.reported("GangInvalidValue")), (vec![], 2));
    let mut group = PodGroupFacts::new(PodGroupApi::Sigs, GangId::parse("ml/timed").unwrap());
    (group.spec.min, group.spec.wait) = (Some(2), PodGroupFacts::wait_seconds(i64::MAX));
    gangs.cluster.event(WorldEvent::PodGroup(Box::new(group)));
    gangs.members("timed", 2, &keys(&[("label:pod-group.scheduling.sigs.k8s.io", "timed")])).wait(2);
    assert_eq!(config(&gangs, "ml/timed").wait, Duration::from_secs(3600));
    assert!(
        warnings(&gangs, "ml/timed")[0].contains("spec.scheduleTimeoutSeconds"),
        "{:?}",
        warnings(&gangs, "ml/timed")
    );
    // A pod of no gang.
    gangs.asks_as("alone", CPU, &[], |facts| {
        facts.spec.labels.insert("koordinator.sh/priority".to_owned(), i64::MAX.to_string());
    });
    gangs.wait(60);
    let said =
        gangs.cluster.notices.iter().filter(|(name, reason)| (&**name, *reason) == ("alone", "GangInvalidValue"));
    assert_eq!(said.count(), 1);
}

#[test]
fn a_list_of_gangs_that_cannot_be_read_holds_the_gang_and_those_that_name_it() {
    let (own, second) = (format!("{G}groups"), format!("label:{P}/groups"));
    for (key, value) in [(&own, "ml/a"), (&format!("{G}gang-groups"), "[1]"), (&second, "a"), (&own, r#"["other"]"#)] {
        for min in ["1", "0"] {
            let mut gangs = TestGangs::new(8);
            let mut keys = gang("g", min, &[]);
            keys.push((key.clone(), value.to_owned()));
            gangs.member("g-0", &keys);
            gangs.come("h", 1, &gang("h", "1", &[("groups", r#"["ml/g"]"#)]));
            assert_eq!(gangs.bound(), Vec::<String>::new(), "{key} {value}");
            for pod in ["g-0", "h-0"] {
                assert_eq!(gangs.reason(pod), "InvalidGang", "{key} {value}");
                tells(gangs.condition(pod), ["gang ml/g", &format!("{value:?}")]);
            }
            assert_eq!((warnings(&gangs, "ml/g"), gangs.reported("GangInvalidValue")), (vec![], 0));
            // Corrected: alone.
            gangs.delete("h-0");
            gangs.change("g-0", |facts| facts.spec.gang = declared("ml", &gang("g", min, &[("groups", "")])));
            assert_eq!(gangs.after(2).bound(), ["g-0"], "{key} {value}");
        }
    }
}

#[test]
fn an_unreadable_list_on_a_pod_group_or_one_member_holds_all() {
    let mut gangs = TestGangs::new(8);
    gangs.pod_group("ml/g", |facts| {
        let bad = BTreeMap::from([(format!("{G}groups"), "{}".to_owned())]);
        (facts.annotated, facts.warnings) = DeclaredFields::of_pod_group(None, Some(&bad));
    });
    gangs.members("g", 2, &gang("g", "2", &[])).come("late", 1, &gang("late", "1", &[]));
    assert_eq!((gangs.bound(), gangs.reason("g-1")), (vec!["late-0".to_owned()], "InvalidGang"));
    // The group of a satisfied gang binds no later member of it, as no gang rule does.
    gangs.member("late-1", &gang("late", "1", &[("groups", "x")]));
    assert_eq!(gangs.after(2).count("late"), 2);
}

#[test]
fn a_total_below_the_minimum_is_the_minimum_and_warns() {
    let total = |value| says(&[(&format!("{G}min-available"), "4"), (&format!("{G}total-number"), value)]);
    assert_eq!((config(&total("8"), "ml/g").total, warnings(&total("8"), "ml/g").len()), (8, 0));
    assert_eq!((config(&total("2"), "ml/g").total, warnings(&total("2"), "ml/g").len()), (4, 1));
    assert_eq!((config(&total("x"), "ml/g").total, warnings(&total("x"), "ml/g").len()), (4, 1));
}

/// Those of an installation that does not read `spec.schedulingGroup`.
fn by_keys_only() -> GangDefaults {
    GangDefaults { scheduling_groups: false, ..GangDefaults::default() }
}

#[test]
fn the_first_name_counts_and_a_second_one_warns() {
    let (label, community, name, own) =
        (format!("label:{P}"), "label:scheduling.x-k8s.io/pod-group", format!("{P}/name"), format!("{G}name"));
    let named = |pairs: &[(&str, &str)]| {
        let said = declared("ml", &keys(pairs)).unwrap();
        let gang = said.named(&by_keys_only()).unwrap().gang.clone().unwrap().name().to_owned();
        (gang, said.warnings.iter().map(|warning| warning.reason().word()).collect::<Vec<_>>())
    };
    let conflict = vec!["GangNameConflict"];
    assert_eq!(named(&[(&own, "e"), (&name, "d")]), ("d".to_owned(), conflict.clone()));
    assert_eq!(named(&[(&own, "e"), (&name, "d"), (community, "c")]), ("c".to_owned(), conflict.clone()));
    assert_eq!(named(&[(&own, "e"), (community, "c"), (&label, "b")]), ("b".to_owned(), conflict));
    assert_eq!(named(&[(&own, "same"), (&label, "same")]), ("same".to_owned(), vec![]));
    assert_eq!(named(&[(&own, "e"), (&label, "")]), ("e".to_owned(), vec![]), "an empty name names nothing");
    assert_eq!(named(&[(&format!("label:{P}/name"), "d")]).0, "d", "as a label too");
    assert_eq!(named(&[(P, "b")]).0, "b", "as an annotation too");
    let label = declared("ml", &keys(&[(&format!("label:{G}name"), "e")])).unwrap();
    assert!(label.named(&by_keys_only()).unwrap().gang.is_err(), "that one is an annotation only");
}

#[test]
fn scheduling_group_names_a_gang_only_behind_its_flag() {
    let annotations = BTreeMap::from([(format!("{G}name"), "other".to_owned())]);
    let source = DeclarationSource {
        namespace: "ml",
        labels: None,
        annotations: Some(&annotations),
        scheduling_group: Some("first"),
    };
    let said = Declared::read(&source, || None).unwrap();
    let (read, unread) = (GangDefaults::default(), by_keys_only());
    let name = |defaults| said.named(defaults).unwrap().gang.clone().unwrap().to_string();
    assert_eq!((name(&read), name(&unread)), ("ml/first".to_owned(), "ml/other".to_owned()));
    let reasons = |defaults| said.all_warnings(defaults).map(|warning| warning.reason().word()).collect::<Vec<_>>();
    assert_eq!(
        (reasons(&read), reasons(&unread)),
        (vec!["GangNameConflict"], vec![]),
        "two names, where both are read"
    );

    let defaults = GangDefaults { scheduling_groups: true, ..GangDefaults::default() };
    let world = WorldPolicy { gangs: defaults, ..WorldPolicy::default() };
    let mut gangs = TestGangs::with(Config { world, ..Config::default() });
    gangs.node("n", 4).asks_as("p", CPU, &[], |facts| facts.spec.gang = Some(Arc::new(said))).settle();
    assert_eq!((gangs.reason("p"), gangs.reported("GangNameConflict")), ("WaitingForPodGroup", 1));
    let mut group = PodGroupFacts::new(PodGroupApi::Kubernetes, GangId::parse("ml/first").unwrap());
    group.spec.min = Some(1);
    gangs.cluster.event(WorldEvent::PodGroup(Box::new(group)));
    assert_eq!(gangs.settled().count("p"), 1);
}

#[test]
fn every_field_comes_from_the_highest_level_that_says_it() {
    let mut gangs = TestGangs::new(0);
    gangs.pod_group("ml/g", |facts| {
        let annotations = BTreeMap::from([
            (format!("{G}mode"), "NonStrict".to_owned()),
            (format!("{G}match-policy"), "only-waiting".to_owned()),
            (format!("{G}total-number"), "9".to_owned()),
        ]);
        (facts.annotated, facts.warnings) = DeclaredFields::of_pod_group(None, Some(&annotations));
        facts.spec.min = Some(7);
        facts.spec.wait = PodGroupFacts::wait_seconds(30);
    });
    let found = config(&gangs, "ml/g");
    assert_eq!((found.min, found.total, found.mode), (Some(7), 9, Mode::NonStrict));
    assert_eq!((found.policy, found.wait), (MatchPolicy::OnlyWaiting, Duration::from_secs(30)));
    let second = [
        (P, "g"),
        (&format!("label:{P}/min-available"), "6"),
        (&format!("label:{P}/match-policy"), "waiting-and-running"),
    ];
    gangs.member("a", &keys(&second));
    let found = config(&gangs, "ml/g");
    assert_eq!((found.min, found.policy), (Some(6), MatchPolicy::WaitingAndRunning));
    let first = [(P, "g"), (&format!("{G}min-available"), "5"), (&format!("{G}mode"), "Strict")];
    gangs.member("b", &keys(&first));
    let found = config(&gangs, "ml/g");
    assert_eq!((found.min, found.mode), (Some(5), Mode::Strict));
    assert_eq!((found.policy, found.wait), (MatchPolicy::WaitingAndRunning, Duration::from_secs(30)));
}

#[test]
fn the_oldest_member_with_a_valid_value_decides_with_one_warning() {
    let mut gangs = TestGangs::new(0);
    for (name, min) in [("a", "nonsense"), ("b", "3"), ("c", "2"), ("d", "2")] {
        gangs.member(name, &gang("g", min, &[]));
        gangs.wait(1);
    }
    assert_eq!(config(&gangs, "ml/g").min, Some(3));
    let conflicts =
        || warnings(&gangs, "ml/g").into_iter().filter(|reported| reported.starts_with("GangConfigConflict")).count();
    assert_eq!((conflicts(), warnings(&gangs, "ml/g").len()), (1, 2));
    gangs.delete("b");
    assert_eq!((config(&gangs, "ml/g").min, warnings(&gangs, "ml/g").len()), (Some(2), 1));
}

#[test]
fn of_two_pod_groups_of_one_name_that_of_sigs_counts() {
    let mut gangs = TestGangs::new(0);
    let mut other = PodGroupFacts::new(PodGroupApi::Community, GangId::parse("ml/g").unwrap());
    other.spec.min = Some(9);
    gangs.cluster.event(WorldEvent::PodGroup(Box::new(other)));
    assert_eq!(config(&gangs, "ml/g").min, Some(9));
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(2));
    assert_eq!(config(&gangs, "ml/g").min, Some(2));
    let reported = warnings(&gangs, "ml/g");
    assert!(reported.len() == 1 && reported[0].contains("scheduling.sigs.k8s.io"), "{reported:?}");
}

#[test]
fn gangs_of_one_name_in_two_namespaces_have_nothing_to_do_with_each_other() {
    let mut gangs = TestGangs::new(8);
    gangs.members("one/g", 2, &gang("g", "2", &[])).come("two/g", 2, &gang("g", "3", &[]));
    assert_eq!(gangs.counts(["one/", "two/"]), [2, 0]);
    assert_eq!(gangs.reason("two/g-0"), "GangIncomplete");
}

#[test]
fn a_gang_is_implied_in_its_own_list_and_one_that_is_listed_twice_counts_once() {
    let mut gangs = TestGangs::new(8);
    assert_eq!(gangs.come("a", 2, &gang("a", "2", &[("groups", r#"["ml/b","ml/b"]"#)])).count("a"), 0);
    let mut second = gang("b", "2", &[]);
    second.push((format!("{P}/groups"), r#"["ml/a"]"#.to_owned()));
    assert_eq!(gangs.come("b", 2, &second).bound().len(), 4);
}

#[test]
fn a_one_sided_list_holds_only_the_gang_that_lists() {
    let mut gangs = TestGangs::new(8).asked("a", 2, "2", &[("gang-groups", r#"["ml/b"]"#)]);
    gangs.come("b", 2, &gang("b", "2", &[]));
    assert_eq!((gangs.count("a"), gangs.count("b"), gangs.reason("a-0")), (0, 2, "GangGroupMismatch"));
}

#[test]
fn lists_that_go_round_hold_everybody() {
    let mut gangs = TestGangs::new(8);
    for (name, next) in [("a", r#"["ml/b"]"#), ("b", r#"["ml/c"]"#), ("c", r#"["ml/a"]"#)] {
        gangs.members(name, 1, &gang(name, "1", &[("groups", next)]));
    }
    assert_eq!(gangs.settled().bound(), Vec::<String>::new());
    assert_eq!(["a-0", "b-0", "c-0"].map(|name| gangs.reason(name)), ["GangGroupMismatch"; 3]);
}

#[test]
fn a_list_that_is_edited_makes_another_group_and_releases_what_was_held() {
    let mut gangs = TestGangs::holding(2);
    let list = ("groups", r#"["ml/a","ml/b"]"#);
    gangs.members("a", 2, &gang("a", "2", &[("mode", "NonStrict"), list]));
    assert_eq!(gangs.come("b", 1, &gang("b", "1", &[("mode", "NonStrict"), list])).stand("a"), (0, 2));
    let said = declared("ml", &gang("b", "1", &[("mode", "NonStrict")]));
    gangs.change("b-0", |facts| facts.spec.gang = said).wait(2);
    assert_eq!((gangs.reserved("ml/a"), gangs.reason("a-0"), gangs.count("b")), (0, "GangGroupMismatch", 1));
}

#[test]
fn a_held_member_that_moves_to_another_gang_takes_nothing_along() {
    let mut gangs = TestGangs::holding(2);
    assert_eq!(gangs.come("a", 3, &gang("a", "3", &[("mode", "NonStrict")])).reserved("ml/a"), 2);
    let said = declared("ml", &gang("b", "3", &[("mode", "NonStrict")]));
    gangs.change("a-0", |facts| facts.spec.gang = said).settle();
    assert_eq!((gangs.reserved("ml/a"), gangs.reserved("ml/b")), (0, 0));
    assert_eq!((gangs.reason("a-0"), gangs.reason("a-1")), ("GangIncomplete", "GangIncomplete"));
}

#[test]
fn a_pod_group_that_comes_and_goes_never_makes_half_a_gang() {
    let mut gangs = TestGangs::new(4);
    gangs.members("g", 5, &[(P.to_owned(), "g".to_owned())]);
    for round in 0..20 {
        gangs.pod_group("ml/g", |facts| facts.spec.min = Some(5));
        if round % 2 == 0 {
            gangs.settle();
        }
        gangs.pod_group_gone("ml/g").settle();
        assert_eq!((gangs.count("g"), gangs.reason("g-0")), (0, "WaitingForPodGroup"));
    }
    gangs.node("more", 1).pod_group("ml/g", |facts| facts.spec.min = Some(5));
    assert_eq!(gangs.after(2).count("g"), 5);
}

#[test]
fn what_a_pod_group_asks_for_in_all_must_be_free_before_anything_is_tried() {
    let mut gangs = TestGangs::new(4);
    let ten = || Resources::of([("cpu", "10".parse().unwrap())]);
    gangs.pod_group("ml/g", |facts| {
        facts.spec.min = Some(2);
        facts.min_resources = ten();
    });
    gangs.members("g", 2, &[(P.to_owned(), "g".to_owned())]);
    assert_eq!(gangs.after(2).count("g"), 0);
    tells(gangs.condition("g-0"), ["at least 10 cpu"]);
    gangs.node("more", 6);
    assert_eq!(gangs.after(2).count("g"), 2);
}

#[test]
fn the_sub_priority_goes_before_age_and_what_is_no_number_is_zero() {
    let mut gangs = TestGangs::new(2);
    gangs.cluster.step_down();
    let label = "label:koordinator.sh/priority";
    let with = |name: &'static str, value: &str| {
        let mut all = gang(name, "2", &[]);
        all.push((label.to_owned(), value.to_owned()));
        all
    };
    gangs.members("old", 2, &with("old", "high")).cluster.later(60);
    gangs.members("young", 2, &with("young", "1")).cluster.lead();
    assert_eq!(gangs.settled().counts(["old", "young"]), [0, 2]);
}

#[test]
fn with_the_pending_clock_a_strict_gang_times_out_too() {
    let mut gangs = TestGangs::by(GangPolicy { clock: TimeoutClock::Pending, ..GangPolicy::default() });
    gangs.node("n", 2).members("g", 3, &gang("g", "3", &[("waiting-time", "5s")]));
    assert_eq!(gangs.after(4).state("g-0"), MemberState::Pending);
    gangs.wait(2);
    assert_eq!(["g-0", "g-1", "g-2"].map(|name| gangs.state(name)), [MemberState::TimedOut; 3]);
}

#[test]
fn a_gang_chooses_the_clock_of_its_waiting_time_for_itself() {
    let mut gangs = TestGangs::new(2);
    let wait = ("waiting-time", "5s");
    gangs.members("own", 3, &gang("own", "3", &[wait, (key::TIMEOUT_CLOCK, "pending")]));
    gangs.members("other", 3, &gang("other", "3", &[wait])).pod_group("ml/object", |facts| {
        let clock = BTreeMap::from([(key::TIMEOUT_CLOCK.to_owned(), "pending".to_owned())]);
        facts.annotated = DeclaredFields::of_pod_group(None, Some(&clock)).0;
        facts.spec.wait = PodGroupFacts::wait_seconds(5);
    });
    gangs.members("object", 3, &gang("object", "3", &[]));
    // One gang of a group is enough.
    let list = ("groups", r#"["ml/a","ml/b"]"#);
    gangs.members("a", 2, &gang("a", "2", &[wait, list]));
    gangs.members("b", 2, &gang("b", "2", &[(key::TIMEOUT_CLOCK, "pending"), list])).wait(7);
    let timed_out =
        ["own-0", "other-0", "object-0", "a-0", "b-0"].map(|name| gangs.state(name) == MemberState::TimedOut);
    assert_eq!(timed_out, [true, false, true, true, true]);
    // And where pending is the default, a gang may do without.
    let mut gangs = TestGangs::by(GangPolicy { clock: TimeoutClock::Pending, ..GangPolicy::default() });
    gangs.members("g", 3, &gang("g", "3", &[wait, (key::TIMEOUT_CLOCK, "holding")]));
    assert_eq!(gangs.after(7).state("g-0"), MemberState::Pending);
}

#[test]
fn a_strict_gang_whose_waiting_time_does_not_run_says_so_at_once() {
    let mut gangs = TestGangs::new(2);
    let wait = ("waiting-time", "5s");
    gangs.pod_group("ml/g", |facts| facts.uid = "u".into()).members("g", 3, &gang("g", "3", &[wait]));
    gangs.members("own", 3, &gang("own", "3", &[wait, (key::TIMEOUT_CLOCK, "pending")]));
    gangs.come("silent", 3, &gang("silent", "3", &[]));
    let said = "; the gang has no deadline: a Strict gang that waits holds nothing, so its waiting time of 5 s does not begin; \
                annotate it with baton.io/timeout-clock: pending";
    assert!(gangs.condition("g-0").ends_with(said), "{}", gangs.condition("g-0"));
    gangs.wait(17);
    let written = gangs.cluster.pod_group_writes.iter().flat_map(|write| &write.status.conditions);
    assert!(written.clone().any(|condition| condition.message.contains(said)), "{:?}", written.collect::<Vec<_>>());
    assert!(!gangs.condition("own-0").contains("deadline") && !gangs.condition("silent-0").contains("deadline"));
}

#[test]
fn a_pod_group_made_for_pods_without_controller_goes_with_the_last_of_them() {
    let mut gangs = TestGangs::by(GangPolicy { create_pod_groups: true, ..GangPolicy::default() });
    gangs.node("n", 8);
    let named = |name: &str| keys(&[(&format!("{P}/name"), name), (&format!("{P}/min-available"), "2")]);
    for name in ["made", "foreign", "unserved"] {
        gangs.come(name, 2, &named(name)).pod_group(&format!("ml/{name}"), |facts| {
            facts.uid = "u".into();
            facts.ours = name != "foreign";
            facts.status.phase = (name != "unserved").then_some(PodGroupPhase::Scheduled);
        });
    }
    assert_eq!(gangs.after(2).cluster.pod_groups_made, ["ml/made", "ml/foreign", "ml/unserved"]);
    for name in ["made", "foreign", "unserved"] {
        gangs.delete(&format!("{name}-0"));
        gangs.cluster.finish(&format!("{name}-1"));
        assert!(gangs.after(2).cluster.pod_groups_removed.is_empty(), "{name}: a pod that has ended is left");
    }
    ["made", "foreign", "unserved"].into_iter().for_each(|name| gangs.delete(&format!("{name}-1")));
    gangs.wait(2);
    let removed = ("ml/made".to_owned(), "u".into());
    assert_eq!(gangs.cluster.pod_groups_removed, vec![removed.clone()]);
    assert_eq!(gangs.after(20).cluster.pod_groups_removed, vec![removed; 2], "the request was lost");
    // A scheduler that starts finds what another one left.
    gangs.cluster.restart();
    assert_eq!(gangs.settled().cluster.pod_groups_removed.len(), 3);
    gangs.pod_group_gone("ml/made");
    assert_eq!(gangs.after(40).cluster.pod_groups_removed.len(), 3);
}

#[test]
fn a_timed_out_gang_is_free_again_when_its_marks_are_removed() {
    let mut gangs = TestGangs::holding(2);
    gangs.members("g", 3, &gang("g", "3", &[("mode", "NonStrict"), ("waiting-time", "5s")]));
    gangs.after(7).node("more", 4);
    for n in 0..3 {
        assert_eq!(gangs.settled().count("g"), 0, "one mark is enough");
        gangs.change(&format!("g-{n}"), |facts: &mut PodFacts| {
            let said = facts.spec.gang.clone().unwrap();
            facts.spec.gang = Some(Arc::new(Declared { timed_out: false, ..(*said).clone() }));
        });
    }
    assert_eq!(gangs.after(2).count("g"), 3);
}

#[test]
fn after_once_satisfied_a_member_that_fits_nowhere_keeps_nobody_back() {
    let mut gangs = TestGangs::new(4);
    let keys = gang("g", "2", &[]);
    gangs.come("g", 2, &keys).asks("g-large", &[("cpu", "50")], &keys);
    gangs.asks("g-small", CPU, &keys);
    assert_eq!(gangs.after(2).counts(["g-small", "g-large"]), [1, 0]);
}

#[test]
fn a_new_generation_under_an_old_name_needs_its_minimum_again() {
    let mut gangs = TestGangs::new(4);
    let keys = gang("g", "2", &[]);
    gangs.come("g", 2, &keys).cluster.finish("g-0");
    gangs.goes("g-1").member("g-2", &keys);
    assert_eq!((gangs.after(2).count("g-2"), gangs.reason("g-2")), (0, "GangIncomplete"));
    gangs.member("g-3", &keys);
    assert_eq!(gangs.after(2).counts(["g-2", "g-3"]), [1, 1]);
}

#[test]
fn a_gang_of_ten_thousand_waits_for_its_last_place_and_holds_nothing() {
    let mut gangs = TestGangs::with(Config { batch: 1_000_000, ..Config::default() });
    gangs.cluster.watchful = false;
    (0..100).for_each(|n| _ = gangs.plain_node(&format!("n{n}"), if n == 0 { 99 } else { 100 }, "x"));
    assert_eq!(gangs.come("g", 10_000, &gang("g", "10000", &[])).bound().len(), 0);
    gangs.plain_node("last", 1, "x").cluster.later(2);
    assert_eq!(gangs.settled().bound().len(), 10_000);
}

#[test]
fn with_evict_gang_the_commit_leaves_with_a_member_that_the_kubelet_refused() {
    for (policy, evicted) in [(OnBindFailure::Solo, 0), (OnBindFailure::EvictGang, 2)] {
        let mut gangs = TestGangs::by(GangPolicy { on_bind_failure: policy, ..GangPolicy::default() });
        gangs.node("n", 8).come("g", 3, &gang("g", "3", &[]));
        gangs.change("g-1", |facts| {
            facts.handoff.phase = Phase::Failed;
            facts.spec.refused = true;
        });
        assert_eq!(gangs.settled().cluster.evicted.len(), evicted);
        gangs.change("g-0", |facts| facts.spec.nominated = None);
        assert_eq!(gangs.cluster.evicted.len(), evicted, "once");
    }
}

#[test]
fn with_evict_gang_a_pod_that_was_refused_once_takes_no_later_run_along() {
    let mut gangs = TestGangs::by(GangPolicy { on_bind_failure: OnBindFailure::EvictGang, ..GangPolicy::default() });
    gangs.node("n", 8);
    let keys = gang("g", "3", &[("match-policy", "waiting-and-running")]);
    gangs.come("g", 3, &keys).change("g-1", |facts| {
        facts.handoff.phase = Phase::Failed;
        facts.spec.refused = true;
    });
    assert_eq!(gangs.settled().cluster.evicted.len(), 2);
    ["g-0", "g-2"].into_iter().for_each(|name| gangs.delete(name));
    ["g-3", "g-4", "g-5"].into_iter().for_each(|name| gangs.member(name, &keys));
    assert_eq!(gangs.after(2).count("g"), 4, "{}", gangs.condition("g-3"));
    // A finalizer keeps its object.
    let now = gangs.cluster.moment().wall;
    gangs.change("g-1", |facts| facts.handoff.deleting = Some(Deletion { at: now, grace_seconds: 0 }));
    assert_eq!(gangs.after(2).cluster.evicted.len(), 2);
}

#[test]
fn a_pod_whose_first_name_is_none_hears_of_the_second_one_too() {
    let mut gangs = TestGangs::new(4);
    gangs.comes("p", &keys(&[(&format!("label:{P}"), "Not_A_Name"), (&format!("{G}name"), "g")]));
    assert_eq!(
        (gangs.reason("p"), gangs.reported("InvalidGang"), gangs.reported("GangNameConflict")),
        ("InvalidGang", 1, 1)
    );
}

#[test]
fn of_members_made_in_one_second_the_first_by_name_decides_whatever_their_uids() {
    for uids in [["x", "y"], ["y", "x"]] {
        let mut gangs = TestGangs::new(0);
        for ((name, min), uid) in [("p0", "3"), ("p1", "5")].into_iter().zip(uids) {
            gangs.asks_as(name, CPU, &gang("g", min, &[]), |facts| {
                facts.handoff.pod = baton::contract::PodRef::new("ml", name, uid);
            });
        }
        assert_eq!(config(&gangs, "ml/g").min, Some(3));
    }
}

#[test]
fn marks_hold_a_late_member_back_even_when_the_other_gang_of_the_group_is_gone() {
    let mut gangs = TestGangs::holding(2);
    let keys =
        |name| gang(name, "2", &[("mode", "NonStrict"), ("waiting-time", "5s"), ("groups", r#"["ml/a","ml/b"]"#)]);
    gangs.members("a", 2, &keys("a")).members("b", 2, &keys("b")).wait(8);
    assert_eq!((gangs.reason("a-0"), gangs.reason("b-0")), ("GangTimeout", "GangTimeout"));
    (0..2).for_each(|n| gangs.delete(&format!("a-{n}")));
    assert_eq!(gangs.comes("b-late", &keys("b")).reason("b-late"), "GangTimeout");
}

#[test]
fn the_number_of_members_that_came_is_soon_right_on_all_of_them() {
    let mut gangs = TestGangs::new(8);
    let keys = gang("g", "5", &[]);
    for count in 1..5 {
        gangs.member(&format!("g-{count}"), &keys);
        gangs.wait(3);
        for earlier in 1..=count {
            let said = gangs.condition(&format!("g-{earlier}"));
            assert!(said.contains(&format!("{count} of 5 pods")), "g-{earlier} of {count}: {said}");
        }
    }
}

#[test]
fn members_of_a_large_gang_that_come_one_by_one_cost_ten_writes_each_at_most() {
    let mut gangs = TestGangs::new(8);
    let keys = gang("g", "100", &[]);
    for count in 1..100 {
        gangs.member(&format!("g-{count:03}"), &keys);
        gangs.wait(2);
    }
    // Within a step of ten, at most, and within the last pause where nothing came.
    let said = gangs.condition("g-001").to_owned();
    let number: u32 = said.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    assert!((90..100).contains(&number), "{said}");
    let written = gangs.cluster.condition_writes;
    assert!(written <= 100 * 11, "{written} writes");
    tells(gangs.after(70).condition("g-001"), ["99 of 100"]);
}

#[test]
fn a_gang_of_a_thousand_that_waits_is_told_with_bounded_writes() {
    let mut gangs = TestGangs::with(Config { batch: 1_000_000, ..Config::default() });
    gangs.cluster.watchful = false;
    gangs.plain_node("n", 900, "x").members("g", 1000, &gang("g", "1000", &[]));
    let counts = |gangs: &TestGangs| (gangs.cluster.condition_writes, gangs.cluster.notices.len());
    gangs.wait(1);
    let first = counts(&gangs);
    // The room changes every ten seconds, for ten minutes.
    (0..60).for_each(|minute| gangs.plain_node("n", 900 + minute % 7, "x").wait(10));
    let (conditions, events) = counts(&gangs);
    println!("first: {first:?}, after ten minutes: {conditions} conditions, {events} events");
    assert!(conditions <= 1000 * 12 && events <= 1000 * 3, "{conditions} conditions, {events} events");
}
