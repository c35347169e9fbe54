//! Tests of the table: each condition holds where it says, and the judgement is one of all of them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A device of each class about which nothing is wrong.
fn well() -> impl Iterator<Item = DeviceFacts> {
    DeviceClass::ALL.iter().map(|class| DeviceFacts::new(*class))
}

fn reasons(facts: &DeviceFacts) -> Vec<HealthReason> {
    facts.judge().iter().map(|condition| condition.reason).collect()
}

/// What is seen where a condition holds and nothing else is wrong.
fn holding(reason: HealthReason, mut facts: DeviceFacts) -> DeviceFacts {
    match reason {
        Is::MigUnknown => facts.mig = None,
        Is::MigEnabled => facts.mig = Some(true),
        Is::NotSplit => (facts.strategy, facts.node_split) = (MigStrategy::Single, NodeSplit::Alike),
        Is::MigNotUniform => {
            (facts.mig, facts.strategy, facts.node_split) = (Some(true), MigStrategy::Single, NodeSplit::Mixed);
        }
        Is::DeviceNodesMissing => facts.nodes_missing = vec!["/dev/nvidia-uvm is missing".into()],
        Is::DriverFilesMissing => facts.driver_missing = Some("no libcuda below /".into()),
        Is::DriverVersionMismatch => facts.driver_differs = Some("libcuda is of another driver".into()),
        Is::HeldAsPart => facts.held_as_part = true,
        Is::NotSelected => facts.unselected = Some("--rdma-select=b does not select it".into()),
        stated => facts.found.push(DeviceCondition::new(stated, "seen")),
    }
    facts
}

#[test]
fn every_reason_is_one_row_and_what_is_worse_comes_first() {
    let rows: Vec<HealthReason> = CONDITIONS.iter().map(|rule| rule.reason).collect();
    let bad = HealthReason::ALL.iter().copied().filter(|reason| *reason != Is::Healthy);
    assert_eq!(rows.iter().copied().collect::<BTreeSet<_>>(), bad.collect());
    assert_eq!(rows.len(), HealthReason::ALL.len() - 1);
    assert!(CONDITIONS.is_sorted_by_key(|rule| rule.effect), "the first condition says whether a device is in service");
    for rule in CONDITIONS {
        assert!(!rule.of.is_empty() && !rule.looks_at.is_empty() && !rule.words.is_empty() && !rule.remedy.is_empty());
        assert!(![rule.looks_at, rule.words, rule.remedy].concat().contains(['|', '\n']), "{}", rule.reason);
    }
}

#[test]
fn a_device_about_which_nothing_is_known_is_in_service() {
    for facts in well() {
        assert_eq!(facts.judge(), [], "{}", facts.class);
    }
}

#[test]
fn each_condition_holds_alone_for_its_devices_and_for_no_others() {
    for rule in CONDITIONS {
        for facts in well() {
            let (class, facts) = (facts.class, holding(rule.reason, facts));
            let expected: &[_] = if rule.of.contains(&class) { &[rule.reason] } else { &[] };
            assert_eq!(reasons(&facts), expected, "{} of a {class}", rule.reason);
            for condition in facts.judge() {
                assert_eq!((condition.effect(), condition.remedy()), (rule.effect, rule.remedy));
                assert_eq!(condition.to_string(), format!("{}; {}", condition.seen, rule.remedy));
            }
        }
    }
}

#[test]
fn mig_is_judged_with_the_strategy_and_the_other_gpus() {
    use MigStrategy::{Mixed, None as Whole, Single};
    let judged = |class, mig, strategy, node_split| {
        reasons(&DeviceFacts { mig, strategy, node_split, ..DeviceFacts::new(class) })
    };
    let gpu = |mig, strategy, split| judged(DeviceClass::Gpu, mig, strategy, split);
    assert_eq!(gpu(Some(true), Whole, NodeSplit::Alike), [Is::MigEnabled], "with instances or without");
    for strategy in [Single, Mixed] {
        assert_eq!(gpu(Some(true), strategy, NodeSplit::Alike), [], "{strategy}: its MIG devices are offered");
    }
    for strategy in [Whole, Single, Mixed] {
        assert_eq!(gpu(None, strategy, NodeSplit::None), [Is::MigUnknown], "{strategy}");
        assert_eq!(gpu(Some(false), strategy, NodeSplit::None), [], "{strategy}");
        let beside_split = gpu(Some(false), strategy, NodeSplit::Alike);
        assert_eq!(!beside_split.is_empty(), strategy == Single, "{strategy}");
        let part = judged(DeviceClass::MigDevice, Some(true), strategy, NodeSplit::Mixed);
        assert_eq!(!part.is_empty(), strategy == Single, "{strategy}");
    }
}

#[test]
fn what_a_whole_and_its_part_say_alike_is_said_once() {
    let mut facts = DeviceFacts::new(DeviceClass::Function);
    for seen in ["port 1 is Down", "port 1 is Down", "port 2 is Init"] {
        facts.found.push(DeviceCondition::new(Is::LinkDown, seen));
    }
    assert_eq!(facts.judge(), [DeviceCondition::new(Is::LinkDown, "port 1 is Down, port 2 is Init")]);
}

#[test]
fn a_nic_whose_functions_are_all_out_is_set_aside_and_its_own_link_says_more() {
    let mut facts = DeviceFacts { functions_out: true, ..DeviceFacts::new(DeviceClass::Nic) };
    let out = "none of its virtual functions can be handed out";
    assert_eq!(facts.judge(), [DeviceCondition::new(Is::LinkDown, out)]);
    facts.found.push(DeviceCondition::new(Is::LinkDown, "port 1 is Down"));
    assert_eq!(facts.judge(), [DeviceCondition::new(Is::LinkDown, "port 1 is Down")]);
}

#[test]
fn the_printed_table_has_a_line_for_each_row() {
    let table = condition_table();
    assert_eq!(table.lines().count(), CONDITIONS.len() + 2);
    assert!(table.lines().all(|line| line.matches(" | ").count() == 5), "{table}");
}

fn any_facts() -> impl Strategy<Value = DeviceFacts> {
    let class = proptest::sample::select(DeviceClass::ALL);
    let found = proptest::collection::vec(proptest::sample::select(HealthReason::ALL), 0..4);
    let strategy = proptest::sample::select(MigStrategy::ALL);
    let split = proptest::sample::select(&[NodeSplit::None, NodeSplit::Alike, NodeSplit::Mixed]);
    let mig = proptest::option::of(any::<bool>());
    (class, found, mig, strategy, split, any::<[bool; 6]>()).prop_map(|(class, found, mig, strategy, split, more)| {
        DeviceFacts {
            found: found.into_iter().map(|reason| DeviceCondition::new(reason, "seen")).collect(),
            mig,
            strategy,
            node_split: split,
            nodes_missing: more[0].then(|| "/dev/nvidiactl is missing".into()).into_iter().collect(),
            driver_missing: more[1].then(|| "no libcuda".into()),
            held_as_part: more[2],
            unselected: more[3].then(|| "it is the host's".into()),
            functions_out: more[4],
            driver_differs: more[5].then(|| "libcuda is of another driver".into()),
            ..DeviceFacts::new(class)
        }
    })
}

proptest! {
    #[test]
    fn the_first_condition_is_the_worst_and_one_more_fact_never_makes_a_device_better(
        facts in any_facts(), more in proptest::sample::select(HealthReason::ALL),
    ) {
        let conditions = facts.judge();
        prop_assert!(conditions.is_sorted_by_key(DeviceCondition::effect));
        let rows = conditions.iter().map(|one| CONDITIONS.iter().find(|rule| rule.reason == one.reason).unwrap());
        prop_assert!(rows.clone().all(|rule| rule.of.contains(&facts.class)));
        let mut worse = facts.clone();
        worse.found.push(DeviceCondition::new(more, "more"));
        let (before, after) = (reasons(&facts), reasons(&worse));
        prop_assert!(before.iter().all(|reason| after.contains(reason)));
        let worst = |facts: &DeviceFacts| facts.judge().first().map_or(Limited, DeviceCondition::effect);
        prop_assert!(worst(&worse) <= worst(&facts));
    }
}
