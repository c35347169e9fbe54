//! `baton demo` as a user runs it: exit code 0, and one JSON object that holds what it promises.

#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect()
}

#[test]
fn the_demo_ends_well_and_its_records_agree() {
    let output = Command::new(env!("CARGO_BIN_EXE_baton")).args(["demo", "-o", "json"]).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert_eq!(out.lines().count(), 1, "one object and nothing else on standard output: {out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["violations"], Value::Array(Vec::new()));
    assert_eq!(report["apiWritesPerPod"].as_f64(), Some(3.0), "lock, binding, unlock");

    let pods = report["pods"].as_array().unwrap();
    let mut burst: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut whole: BTreeSet<&str> = BTreeSet::new();
    for pod in pods {
        let name = pod["name"].as_str().unwrap();
        for kind in ["gpu", "rdma"] {
            let ids = strings(&pod["assigned"][kind]);
            assert!(ids.is_sorted(), "{pod}");
            for record in ["kubelet", "ledger"] {
                assert_eq!(strings(&pod[record][kind]), ids, "{name}: {record}");
            }
        }
        let held = pod["lockHeldMs"].as_f64().unwrap();
        assert!(held > 0.0 && held < 10_000.0, "{name}: lock held for {held} ms");
        let gpus = strings(&pod["assigned"]["gpu"]);
        let expected = match name {
            "two-containers" => 3,
            "init-and-sidecar" => 2,
            "gpu-rdma" => 4,
            _ => 1,
        };
        assert_eq!(gpus.len(), expected, "{name}");
        assert_eq!(strings(&pod["assigned"]["rdma"]).len(), if name == "gpu-rdma" { 2 } else { 0 }, "{name}");
        if name.starts_with("burst-") {
            burst.entry(pod["node"].as_str().unwrap()).or_default().extend(gpus);
        } else if name != "gpu-share" {
            for gpu in gpus {
                assert!(whole.insert(gpu), "{gpu} is held twice");
            }
        }
    }
    assert_eq!(pods.len(), 5 + 16);
    // 16 halves on one node are its 8 GPUs, two each.
    assert_eq!(burst.len(), 1, "{burst:?}");
    let mut per_gpu: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in burst.into_values().flatten() {
        *per_gpu.entry(gpu).or_default() += 1;
        assert!(!whole.contains(gpu), "{gpu} is whole and shared");
    }
    assert_eq!(per_gpu.values().copied().collect::<Vec<_>>(), [2; 8]);
    let chapter = [
        "3 of 5 pods have a node",
        "waits and holds nothing: gang default/job: 0 of 5 placed",
        "submitted behind the gang, runs at once",
        "all five run, nobody did anything",
        "waits: gang default/learner starts together with gang actors/actor",
        "both gangs run, bound as one",
    ];
    for line in ["lock set on", "bound to", "Allocate answered", "released after"].into_iter().chain(chapter) {
        assert!(err.contains(line), "progress lacks {line:?}:\n{err}");
    }
    println!("{} pods; lock held {:?} ms", pods.len(), pods.iter().map(|pod| &pod["lockHeldMs"]).collect::<Vec<_>>());
}
