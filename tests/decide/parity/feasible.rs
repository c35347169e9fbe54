//! Which nodes are feasible.

use super::recorded::{files, list, moment, pod, read, scheduler_of};
use crate::prelude::*;

#[test]
fn the_feasible_nodes_of_every_recorded_case_are_those_of_kube_scheduler() {
    let files = files("cluster-");
    assert!(!files.is_empty(), "no cluster-*.json");
    let set = DefaultSet { without_agent: NodesWithoutAgent::Plain, ..DefaultSet::default() };
    let (mut by_rule, mut wrong, mut cases) = (BTreeMap::<String, (usize, usize)>::new(), Vec::new(), 0);
    for file in &files {
        let cluster = read(file);
        for (at, case) in list(&cluster, "cases").iter().enumerate() {
            cases += 1;
            let expected: BTreeSet<String> =
                case["feasible"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
            let mut scheduler = scheduler_of(&cluster, &set);
            let facts = pod(&case["pod"], &format!("case-{at}")).facts();
            let key = facts.handoff.pod.key.clone();
            scheduler.event(WorldEvent::Pod(Box::new(facts)), moment());
            let explained = scheduler.explain(&key, moment()).unwrap();
            let found: BTreeSet<String> =
                explained.verdict.nodes.iter().filter(|node| node.fits).map(|node| node.node.clone()).collect();
            let rules: BTreeSet<&str> =
                case["rules"].as_array().unwrap().iter().map(|rule| rule.as_str().unwrap()).collect();
            for rule in rules {
                let count = by_rule.entry(rule.to_owned()).or_default();
                count.0 += usize::from(found == expected);
                count.1 += 1;
            }
            if found != expected {
                wrong.push(format!(
                    "{} case {at} {key}: expected {expected:?}, found {found:?}\n  rules {}\n  theirs: {}\n  ours: {}",
                    file.file_name().unwrap().to_string_lossy(),
                    case["rules"],
                    case["message"],
                    explained.verdict.message
                ));
            }
        }
    }
    for (rule, (equal, all)) in &by_rule {
        println!("{rule:>14}: {equal} of {all} equal");
    }
    println!("feasible sets: {} of {cases} equal in {} clusters", cases - wrong.len(), files.len());
    assert!(wrong.is_empty(), "{}", wrong.iter().take(12).cloned().collect::<Vec<_>>().join("\n"));
}
