//! No half declaration in silence: from what a pod or PodGroup states to what is said of it.

use baton::contract::gang::NativeSpec;
use baton::decide::world::gangs::{GangDefaults, Warning, unsupported};

use super::gathered::{RACK, REQUIRED, cluster};
use crate::harness::gangs::owned_by;
use crate::prelude::*;

fn keys(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let written = |key: &str| key.replace("G/", G).replace("P/", &format!("{P}/"));
    pairs.iter().map(|(key, value)| (written(key), (*value).to_owned())).collect()
}

/// The messages of a pod's events with this reason.
fn events<'a>(gangs: &'a TestGangs, pod: &str, reason: &str) -> Vec<&'a str> {
    let all = gangs.cluster.messages.iter().filter(|(name, found, _)| name == pod && *found == reason);
    all.map(|(.., message)| message.as_str()).collect()
}

#[test]
fn a_pod_with_a_key_of_a_gang_and_no_name_waits_and_is_told_so() {
    let nothing_else: [(&[(&str, &str)], &str); 20] = [
        (&[("G/min-available", "2")], "min-available \"2\" is stated, and no key names the gang"),
        (&[("G/min-available", "0")], "min-available \"0\""),
        (&[("G/min-available", "")], "min-available \"\" names no gang"),
        (&[("G/min-available", " ")], "min-available \" \""),
        (&[("G/min-available", "NaN")], "min-available \"NaN\""),
        (&[("P/min-available", "2")], "pod-group.scheduling.sigs.k8s.io/min-available \"2\""),
        (&[("label:P/min-available", "2")], "pod-group.scheduling.sigs.k8s.io/min-available \"2\""),
        (&[("G/name", ""), ("G/min-available", "2")], "koordinator.sh/name \"\" names no gang"),
        (&[("label:P/name", ""), ("label:P/min-available", "2")], "sigs.k8s.io/name \"\" names no gang"),
        (&[("label:pod-group.scheduling.sigs.k8s.io", "")], "sigs.k8s.io \"\" names no gang"),
        (&[("label:scheduling.x-k8s.io/pod-group", "")], "pod-group \"\" names no gang"),
        (&[("scheduling.x-k8s.io/pod-group", "g")], "pod-group \"g\" is an annotation, and read as a label only"),
        (&[("label:G/name", "g")], "name \"g\" is a label, and read as an annotation only"),
        (&[("label:G/min-available", "2")], "min-available \"2\" is a label"),
        (&[("G/groups", r#"["ml/a"]"#)], "groups \"[\\\"ml/a\\\"]\""),
        (&[("G/mode", "Strict")], "mode \"Strict\""),
        (&[("G/waiting-time", "-5s")], "waiting-time \"-5s\""),
        (&[("P/match-policy", "only-waiting")], "match-policy \"only-waiting\""),
        (&[("G/name", " "), ("G/min-available", "2")], "gang name \" \" is no RFC 1123 subdomain"),
        (&[("G/total-number", "9999999999999999999")], "total-number \"9999999999999999999\""),
    ];
    for (pairs, said) in nothing_else {
        let mut gangs = TestGangs::new(8);
        gangs.member("p", &keys(pairs));
        assert_eq!((gangs.after(2).bound().len(), gangs.reason("p")), (0, "InvalidGang"), "{pairs:?}");
        let told = gangs.condition("p");
        assert!(told.contains(said) && told.contains("never runs without the gang"), "{pairs:?}: {told}");
        assert_eq!(events(&gangs, "p", "InvalidGang"), [told], "{pairs:?}");
        // Without the key it is a pod like any other.
        gangs.change("p", |facts| facts.spec.gang = None);
        assert_eq!(gangs.after(2).bound(), ["p"], "{pairs:?}");
    }
    for pairs in
        [&[("label:app", "g")][..], &[("G/timeout", "true")], &[("baton.io/committed", "1.000/2")], &[("G/other", "1")]]
    {
        assert!(declared("ml", &keys(pairs)).is_none(), "{pairs:?} declares no gang");
    }
}

#[test]
fn a_name_by_the_scheduling_group_is_enough_where_it_is_read() {
    let annotations: BTreeMap<String, String> = keys(&[("G/min-available", "2")]).into_iter().collect();
    let source = DeclarationSource {
        namespace: "ml",
        labels: None,
        annotations: Some(&annotations),
        scheduling_group: Some("g"),
    };
    let said = Declared::read(&source, || None).unwrap();
    let read = GangDefaults::default();
    assert_eq!(said.named(&read).unwrap().gang.as_ref().unwrap().to_string(), "ml/g");
    assert_eq!(said.all_warnings(&read).count(), 0);
    let unread = GangDefaults { scheduling_groups: false, ..read };
    assert!(said.named(&unread).unwrap().gang.is_err());
}

#[test]
fn what_contradicts_itself_or_is_misplaced_is_said_and_the_first_counts() {
    for (pairs, min, said) in [
        (
            &[("G/min-available", "1"), ("P/min-available", "2")][..],
            1,
            "GangConfigConflict: gang.scheduling.koordinator.sh/min-available says \"1\" and \
             pod-group.scheduling.sigs.k8s.io/min-available says \"2\"; the first counts, remove one",
        ),
        (&[("G/min-available", "1"), ("P/min-available", " 1 ")], 1, ""),
        (&[("label:P/min-available", "1"), ("P/min-available", "2")], 1, "GangConfigConflict: pod-group"),
        (&[("label:P/min-available", "x"), ("P/min-available", "1")], 1, "GangInvalidValue: pod-group"),
        (&[("G/min-available", "NaN"), ("P/min-available", "1")], 1, "GangInvalidValue: gang"),
        (&[("G/min-available", "1"), ("label:G/min-available", "2")], 1, "is a label, and read as an annotation only"),
        (
            &[("G/min-available", "1"), ("G/match-policy", "only-waiting"), ("P/match-policy", "once-satisfied")],
            1,
            "Gang",
        ),
        (&[("G/min-available", "1"), ("G/groups", "[]"), ("G/gang-groups", r#"["ml/h"]"#)], 1, "GangConfigConflict"),
        (&[("G/min-available", "1"), ("G/groups", ""), ("P/groups", r#"["ml/h"]"#)], 1, "GangConfigConflict"),
        (
            &[("G/min-available", "1"), ("label:koordinator.sh/priority", "high")],
            1,
            "koordinator.sh/priority: \"high\"",
        ),
        (&[("G/min-available", "1"), ("label:koordinator.sh/priority", "")], 1, ""),
        (&[("G/min-available", "1"), ("G/waiting-time", "-1s")], 1, "waiting-time: \"-1s\" is not above zero"),
        (&[("G/min-available", "1"), ("G/waiting-time", " ")], 1, "waiting-time: \" \""),
        (&[("G/min-available", "1"), ("G/waiting-time", "99999999999999h")], 1, "longer than a duration can be"),
    ] {
        let mut gangs = TestGangs::new(8);
        let mut all = keys(pairs);
        all.push((format!("{G}name"), "g".to_owned()));
        gangs.member("p", &all);
        gangs.wait(2);
        let gang = gangs.cluster.world().gangs().gang(&GangId::parse("ml/g").unwrap()).unwrap();
        assert_eq!(gang.config().min, Some(min), "{pairs:?}");
        let told: Vec<String> =
            gang.warnings().iter().map(|warning| format!("{}: {warning}", warning.reason())).collect();
        assert_eq!(told.len(), usize::from(!said.is_empty()), "{pairs:?}: {told:?}");
        assert!(told.iter().all(|told| told.contains(said)), "{pairs:?}: {told:?}");
        let warned: usize =
            ["GangInvalidValue", "GangConfigConflict"].iter().map(|reason| gangs.reported(reason)).sum();
        assert_eq!((gangs.count("p"), warned), (1, told.len()), "{pairs:?}: it runs, and is told once");
    }
}

#[test]
fn a_sub_priority_of_a_single_pod_that_is_no_number_is_said_once() {
    for (value, warns) in
        [("high", true), ("NaN", true), ("1e3", true), ("9".repeat(30).as_str(), true), ("", false), ("7", false)]
    {
        let mut gangs = TestGangs::new(0);
        gangs.asks_as("p", CPU, &[], |facts| {
            facts.spec.labels.insert("koordinator.sh/priority".to_owned(), value.to_owned());
        });
        gangs.wait(60);
        assert_eq!(events(&gangs, "p", "GangInvalidValue").len(), usize::from(warns), "{value}");
    }
}

#[test]
fn what_is_not_built_is_named_once_a_pod() {
    use baton::contract::key::is_unsupported;
    for (key, asks) in [
        ("scheduling.koordinator.sh/numa-topology-spec", true),
        ("scheduling.koordinator.sh/resource-spec", true),
        ("scheduling.koordinator.sh/reservation-affinity", true),
        ("gang.scheduling.koordinator.sh/network-topology-spec", false),
        ("gang.scheduling.koordinator.sh/network-topology-index", false),
        ("gang.scheduling.koordinator.sh/min-Available", true),
        ("quota.scheduling.koordinator.sh/name", true),
        ("pod-group.scheduling.sigs.k8s.io/minAvailable", true),
        ("scheduling.koordinator.sh/resource-status", false),
        ("internal.scheduling.koordinator.sh/bind-gang-group-id", false),
        ("notscheduling.koordinator.sh/x", false),
        ("koordinator.sh/qosClass", false),
        ("scheduling.koordinator.sh", false),
        ("app", false),
        (key::DEVICE_ALLOCATE_HINT, false),
        (key::DEVICE_ALLOCATED, false),
        (key::GANG_COMMITTED, false),
        (baton::contract::gang::key::TIMEOUT_CLOCK, false),
        ("scheduling.koordinator.sh/container-devices", true),
        ("gang.scheduling.koordinator.sh/timeout", false),
    ] {
        assert_eq!(is_unsupported(key), asks, "{key}");
    }
    assert!(baton::contract::gang::key::POD_KEYS.iter().all(|place| !is_unsupported(place.key)));
    let mut gangs = TestGangs::new(0);
    for (name, keys) in [("single", vec![]), ("g-0", gang("g", "1", &[]))] {
        gangs.asks_as(name, CPU, &keys, |facts| {
            facts.spec.unsupported = Some("scheduling.koordinator.sh/numa-topology-spec".into());
        });
        gangs.wait(70);
        let told = events(&gangs, name, "NotSupported");
        assert!(told.len() == 1 && told[0].starts_with("scheduling.koordinator.sh/numa-topology-spec: "), "{told:?}");
    }
}

#[test]
fn empty_wishes_ask_for_nothing_and_many_are_counted() {
    let key = "scheduling.koordinator.sh/numa-topology-spec";
    for (value, asks) in
        [("", false), (" ", false), ("{}", false), ("null", false), ("[]", false), ("x", true), (r#"{"a":"b"}"#, true)]
    {
        let map = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        assert_eq!(unsupported(None, Some(&map)).as_deref(), asks.then_some(key), "{value:?}");
        assert_eq!(unsupported(Some(&map), None).as_deref(), asks.then_some(key), "{value:?}");
    }
    let moved = "gang.scheduling.koordinator.sh/timeout-clock";
    let said = unsupported(None, Some(&BTreeMap::from([(moved.to_owned(), "pending".to_owned())]))).unwrap();
    assert_eq!(&*said, format!("{moved} (not read any more; the key is baton.io/timeout-clock)"));
    let many: BTreeMap<String, String> =
        (0..100).map(|n| (format!("scheduling.koordinator.sh/k{n:02}"), "x".to_owned())).collect();
    let said = unsupported(Some(&many), None).unwrap();
    assert!(said.ends_with("scheduling.koordinator.sh/k04 and 95 more"), "{said}");
}

impl TestGangs {
    /// A PodGroup of Kubernetes' own API, as the adapter reads it.
    fn native(&mut self, name: &str, spec: &Value) -> &mut Self {
        let read = NativeSpec::read(spec);
        let mut facts = PodGroupFacts::new(PodGroupApi::Kubernetes, GangId::parse(name).unwrap());
        (facts.spec.min, facts.priority, facts.never_preempts) = (read.min, read.priority, read.never_preempts);
        facts.warnings.extend(read.refused.map(Warning::NotHonoured));
        self.cluster.event(WorldEvent::PodGroup(Box::new(facts)));
        self
    }

    /// A member that names its gang by `spec.schedulingGroup`.
    fn native_member(&mut self, name: &str, group: &str, change: impl FnOnce(&mut PodFacts)) -> &mut Self {
        let source =
            DeclarationSource { namespace: "ml", labels: None, annotations: None, scheduling_group: Some(group) };
        let mut facts = self.facts(name, CPU, &[]);
        facts.spec.gang = Declared::read(&source, || None).map(Arc::new);
        change(&mut facts);
        self.cluster.submit(facts);
        self
    }
}

#[test]
fn a_native_pod_group_with_a_field_that_is_not_honoured_is_refused_by_its_name() {
    for (field, value) in [
        ("schedulingConstraints", json!({"topology": [{"key": "rack", "mode": "spread"}]})),
        ("resourceClaims", json!([{"name": "c", "resourceClaimName": "x"}])),
        ("disruptionMode", json!({"all": {}})),
        ("parentCompositePodGroupName", json!("p")),
        ("somethingNew", json!(true)),
    ] {
        for policy in [json!({"gang": {"minCount": 1}}), json!({"basic": {}})] {
            let mut gangs = TestGangs::new(8);
            gangs.native("ml/g", &json!({"schedulingPolicy": policy, field: value}));
            gangs.native_member("p", "g", |_| {}).wait(2);
            assert_eq!((gangs.bound().len(), gangs.reason("p")), (0, "InvalidGang"), "{field}");
            let told = gangs.condition("p");
            assert!(told.contains(field) && told.contains("is not honoured"), "{field}: {told}");
            assert_eq!(events(&gangs, "p", "InvalidGang").len(), 1, "{field}");
            gangs.native("ml/g", &json!({"schedulingPolicy": policy}));
            assert_eq!(gangs.after(2).bound(), ["p"], "{field}");
        }
    }
}

#[test]
fn the_priority_of_a_native_pod_group_counts_whatever_its_pods_state() {
    for first in [true, false] {
        let mut gangs = TestGangs::new(0);
        let spec = json!({"schedulingPolicy": {"gang": {"minCount": 2}}, "priority": 9, "preemptionPolicy": "Never"});
        if first {
            gangs.native("ml/g", &spec);
        }
        gangs.native_member("g-0", "g", |facts| facts.spec.priority = 3);
        gangs.native_member("g-1", "g", |facts| facts.spec.priority = 4).native("ml/g", &spec).wait(2);
        let counts = |gangs: &TestGangs, name: &str| {
            let spec = &gangs.cluster.world().pod_by_key(&TestGangs::key(name)).unwrap().facts.spec;
            (spec.priority, spec.never_preempts)
        };
        assert_eq!((counts(&gangs, "g-0"), counts(&gangs, "g-1")), ((9, true), (9, true)));
        assert_eq!(
            gangs.reason("g-0"),
            "Unschedulable",
            "they differ, and need not be equal: {}",
            gangs.condition("g-0")
        );
        // Without the PodGroup their own count again.
        gangs.cluster.event(WorldEvent::PodGroupGone(PodGroupApi::Kubernetes, GangId::parse("ml/g").unwrap()));
        gangs.settle();
        assert_eq!((counts(&gangs, "g-0"), counts(&gangs, "g-1")), ((3, false), (4, false)));
    }
}

#[test]
fn a_native_gang_preempts_by_the_priority_and_policy_of_its_pod_group() {
    for (policy, evicted) in [("PreemptLowerPriority", 1), ("Never", 0)] {
        let mut gangs = TestGangs::new(1);
        gangs.comes("low", &[]);
        let spec = json!({"schedulingPolicy": {"gang": {"minCount": 1}}, "priority": 9, "preemptionPolicy": policy});
        gangs.native("ml/g", &spec).native_member("g-0", "g", |_| {});
        assert_eq!(gangs.after(2).cluster.evicted.len(), evicted, "{policy}");
    }
}

#[test]
fn clock_and_waiting_time_that_are_changed_take_effect_at_once() {
    let clock = |word: &str| {
        let stated = BTreeMap::from([(baton::contract::gang::key::TIMEOUT_CLOCK.to_owned(), word.to_owned())]);
        DeclaredFields::of_pod_group(None, Some(&stated)).0
    };
    let mut gangs = TestGangs::new(2);
    gangs.pod_group("ml/g", |facts| facts.spec.wait = PodGroupFacts::wait_seconds(30));
    gangs.members("g", 3, &gang("g", "3", &[]));
    tells(gangs.after(10).condition("g-0"), ["no deadline"]);
    gangs.pod_group("ml/g", |facts| {
        facts.spec.wait = PodGroupFacts::wait_seconds(30);
        facts.annotated = clock("pending");
    });
    assert!(!gangs.after(2).condition("g-0").contains("no deadline"), "{}", gangs.condition("g-0"));
    assert_eq!(gangs.after(15).state("g-0"), MemberState::Pending, "27 of 30 s since the first failed attempt");
    // Longer, before it is over; and shorter than what has passed already.
    gangs.pod_group("ml/g", |facts| {
        facts.spec.wait = PodGroupFacts::wait_seconds(60);
        facts.annotated = clock("pending");
    });
    assert_eq!(gangs.after(10).state("g-0"), MemberState::Pending);
    gangs.pod_group("ml/g", |facts| {
        facts.spec.wait = PodGroupFacts::wait_seconds(20);
        facts.annotated = clock("pending");
    });
    assert_eq!(gangs.after(1).state("g-0"), MemberState::TimedOut);

    // The clock stops where `holding` is stated again: a Strict gang holds nothing.
    let mut gangs = TestGangs::new(2);
    gangs.pod_group("ml/g", |facts| {
        facts.spec.wait = PodGroupFacts::wait_seconds(30);
        facts.annotated = clock("pending");
    });
    gangs.members("g", 3, &gang("g", "3", &[])).wait(20);
    gangs.pod_group("ml/g", |facts| facts.spec.wait = PodGroupFacts::wait_seconds(30));
    assert_eq!(gangs.after(20).state("g-0"), MemberState::Pending);
    tells(gangs.condition("g-0"), ["no deadline"]);
}

#[test]
fn a_stateful_set_that_makes_pods_one_by_one_is_told_to_make_them_together() {
    for (kind, api, count, hints) in [
        ("StatefulSet", "apps/v1", 1, true),
        ("StatefulSet", "apps/v1", 2, false),
        ("StatefulSet", "other.example/v1", 1, false),
        ("Job", "batch/v1", 1, false),
    ] {
        for policy in ["once-satisfied", "only-waiting", "waiting-and-running", "waiting-running-succeed"] {
            let mut gangs = TestGangs::new(8);
            for n in 0..count {
                let name = format!("web-{n}");
                let keys = gang("g", "3", &[("match-policy", policy)]);
                gangs.asks_as(&name, CPU, &keys, |facts| owned_by(facts, kind, api, "web"));
            }
            gangs.wait(3);
            let told = gangs.condition("web-0");
            assert!(told.contains(&format!("has {count} of 3 pods")), "{told}");
            assert_eq!(
                told.contains("StatefulSet web") && told.contains("podManagementPolicy: Parallel"),
                hints,
                "{told}"
            );
        }
    }
}

#[test]
fn members_that_do_not_count_are_named_with_what_keeps_them_from_it() {
    for (policy, said) in [
        ("only-waiting", "has 1 of 3 pods, 2 more have a node; match-policy only-waiting does not count those"),
        ("waiting-and-running", ""),
        ("waiting-running-succeed", ""),
    ] {
        let mut gangs = TestGangs::new(8);
        let keys = gang("g", "3", &[("match-policy", policy)]);
        gangs.members("g", 3, &keys).after(2).delete("g-0");
        gangs.member("g-new", &keys);
        assert_eq!(gangs.after(2).count("g-new") == 0, !said.is_empty(), "{policy}");
        assert!(gangs.condition("g-new").contains(said), "{policy}: {}", gangs.condition("g-new"));
    }
    // Under once-satisfied, members that another client bound do not count, and neither do ended or leaving ones.
    let mut gangs = TestGangs::new(8);
    let keys = gang("g", "3", &[]);
    gangs.comes("g-0", &keys);
    let phases = [Phase::Running, Phase::Succeeded, Phase::Failed, Phase::Pending];
    for (name, phase) in ["bound", "good", "bad", "gated"].into_iter().zip(phases) {
        let mut facts = gangs.facts(name, CPU, &keys);
        let gated = phase == Phase::Pending;
        facts.handoff.node = Some("n".into()).filter(|_| !gated);
        facts.spec.gates = if gated { vec!["queue".into()] } else { Vec::new() };
        facts.handoff.phase = phase;
        gangs.cluster.submit(facts);
    }
    gangs.wait(70);
    let told = gangs.condition("g-0");
    let all = "has 1 of 3 pods, 1 more has a node, 1 more has succeeded, 1 more has failed, 1 more is held by scheduling gates; \
               match-policy once-satisfied";
    tells(told, [all]);
}

#[test]
fn no_more_pods_are_called_marked_than_there_are() {
    for count in [1, 2, 4, 7] {
        let mut gangs = TestGangs::holding(1);
        let min = (count + 1).max(2).to_string();
        gangs.member("big", &gang("g", &min, &[("mode", "NonStrict"), ("waiting-time", "5s")]));
        gangs.members("g", count, &gang("g", &min, &[("mode", "NonStrict"), ("waiting-time", "5s")])).wait(20);
        for (name, told) in &gangs.cluster.condition_messages {
            let Some((before, _)) = told.split_once(" marked as timed out") else { continue };
            let number: usize = before.split(' ').rev().find_map(|word| word.parse().ok()).unwrap();
            assert_eq!(number, count + 1, "{name}: {told}");
        }
        assert_eq!(gangs.reason("big"), "GangTimeout");
        gangs.delete("big");
        gangs.wait(3);
        let told = gangs.condition("g-0");
        let (pods, is) = if count == 1 { ("pod", "is") } else { ("pods", "are") };
        tells(told, [format!("{count} {pods} {is} marked")]);
    }
}

#[test]
fn a_victim_elsewhere_is_told_its_own_node_and_the_preemptor_which_nodes_are_left() {
    let mut gangs = TestGangs::on_ones(3);
    gangs.all_of_priority("low", 3, 1, &gang("low", "3", &[])).settle();
    let at = |gangs: &TestGangs, name: &str| gangs.cluster.pods[&TestGangs::key(name)].handoff.node.clone().unwrap();
    let homes: Vec<(String, String)> =
        (0..3).map(|n| format!("low-{n}")).map(|name| (name.clone(), at(&gangs, &name).to_string())).collect();
    gangs.of_priority("high", 9, &[]);
    assert_eq!(gangs.settled().cluster.evicted.len(), 3);
    let chosen = gangs.cluster.pods[&TestGangs::key("high")].spec.nominated.clone().unwrap().to_string();
    for (name, home) in homes {
        let told = events(&gangs, &name, "Preempted")[0];
        assert!(told.contains("preempted by pod ml/high (uid-ml/high"), "{told}");
        assert!(told.contains(&format!("on node {chosen}")), "{told}");
        let elsewhere = told.contains(&format!("leaves node {home} with the other members of its gang"));
        assert_eq!(elsewhere, home != chosen, "{told}");
        let told = gangs.condition("high");
        assert!(told.contains(&format!("ml/{name} from node {home}")), "{told}");
        assert!(told.ends_with(&format!("to make room on node {chosen}")), "{told}");
    }
}

#[test]
fn a_gang_below_a_minimum_that_was_raised_is_not_called_untried() {
    for policy in ["once-satisfied", "waiting-and-running", "only-waiting"] {
        let mut gangs = TestGangs::new(8);
        let object = |min: u32| {
            move |facts: &mut PodGroupFacts| {
                facts.uid = "u".into();
                facts.version = min.to_string().into();
                facts.spec.min = Some(min);
            }
        };
        gangs.pod_group("ml/g", object(2)).members("g", 2, &keys(&[(P, "g"), ("G/match-policy", policy)]));
        assert_eq!(gangs.after(3).count("g"), 2);
        gangs.pod_group("ml/g", object(3)).wait(120);
        let written = gangs.cluster.pod_group_writes.last().unwrap();
        let scheduled = written.status.conditions.iter().find(|condition| condition.type_ == "GangScheduled").unwrap();
        let told = (scheduled.reason.as_str(), scheduled.message.as_str());
        assert_eq!(told, ("GangIncomplete", "2 of 3 members have a node, and no other one waits"), "{policy}");
    }
}

#[test]
fn each_gang_pod_that_another_scheduler_binds_is_told_so() {
    let mut gangs = TestGangs::new(8);
    gangs.cluster.later(1);
    let members = gang("g", "2", &[]);
    for name in ["g-0", "g-1", "plain"] {
        let keys = if name == "plain" { &[][..] } else { &members };
        gangs.asks_as(name, CPU, keys, |facts| facts.handoff.scheduler_name = "default-scheduler".into());
    }
    // Half a declaration is one; and a gang of kube-scheduler's own is none of ours.
    gangs.asks_as("half", CPU, &keys(&[("G/min-available", "2")]), |facts| {
        facts.handoff.scheduler_name = "default-scheduler".into();
    });
    gangs.native_member("native", "k", |facts| facts.handoff.scheduler_name = "default-scheduler".into());
    gangs.comes("ours", &gang("h", "2", &[]));
    for name in ["g-0", "g-1", "plain", "half", "native", "ours"] {
        gangs.change(name, |facts| facts.handoff.node = Some("n".into()));
        gangs.change(name, |facts| facts.handoff.phase = Phase::Running);
    }
    gangs.wait(40);
    for (name, said) in [
        (
            "g-0",
            "the scheduler \"default-scheduler\" has bound the pod, and Baton does not see to it that gang ml/g starts",
        ),
        ("g-1", "spec.schedulerName: baton-scheduler"),
        ("half", "that a gang starts together"),
        ("ours", "the pod was bound by another client than Baton, and not together with gang ml/h"),
    ] {
        let told = events(&gangs, name, "NotScheduledByBaton");
        assert!(told.len() == 1 && told[0].contains(said), "{name}: {told:?}");
    }
    assert_eq!(gangs.reported("NotScheduledByBaton"), 4);
    // What was bound before this process began to lead is not said again, and neither is what it binds itself.
    gangs.cluster.restart();
    gangs.members("i", 2, &gang("i", "2", &[])).wait(40);
    assert_eq!((gangs.count("i"), gangs.reported("NotScheduledByBaton")), (2, 4));
}

#[test]
fn a_pod_that_is_made_again_has_a_waiting_time_of_its_own() {
    let clock = baton::contract::gang::key::TIMEOUT_CLOCK;
    let more = [("match-policy", "waiting-and-running"), ("waiting-time", "600s"), (clock, "pending")];
    let keys = gang("g", "3", &more);
    let mut gangs = TestGangs::new(3);
    gangs.members("g", 3, &keys);
    assert_eq!(gangs.after(2).count("g"), 3);
    gangs.delete("g-2");
    gangs.member("other", &[]);
    gangs.after(2).member("g-3", &keys);
    gangs.after(540).delete("g-3");
    gangs.after(1).member("g-4", &keys);
    assert_eq!(gangs.after(120).state("g-4"), MemberState::Pending, "{}", gangs.condition("g-4"));
    assert_eq!(gangs.after(500).state("g-4"), MemberState::TimedOut);
}

/// What a group holds is given back for its next attempt.
#[test]
fn a_gathered_gang_that_holds_room_is_not_overtaken_when_the_rest_comes_free() {
    let mut gangs = cluster(&[]).accumulating();
    for name in ["a", "b"] {
        gangs.cluster.node(name, 4);
        gangs.labelled(name, "rack=r1");
    }
    gangs.asks("filler", FOUR, &[]);
    gangs.after(1).all_ask("g", 8, ONE, &gang("g", "8", &[(REQUIRED, RACK), ("mode", "NonStrict")]));
    gangs.after(5).delete("filler");
    gangs.asks("young", FOUR, &[]);
    assert_eq!(gangs.after(3).counts(["g", "young"]), [8, 0], "{}", gangs.condition("g-0"));
}
