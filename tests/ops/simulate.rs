//! `baton simulate` as a user runs it.

use std::fmt::Write;

use crate::prelude::*;

const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\n";
const PODS: &str = "arrive,end,cpu,memory,gpus,share,model\n";

/// Six nodes of two models, and pods of every size, in a directory as the command takes it.
fn trace() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (mut nodes, mut pods) = (NODES.to_owned(), PODS.to_owned());
    for node in 0..6 {
        writeln!(nodes, "n{node},64000,262144,{},{}", 8 - node % 3 * 2, ["A10", "T4"][node % 2]).unwrap();
    }
    for (at, (gpus, share, model)) in
        (0..200).zip([(1, "30", ""), (1, "", "T4"), (2, "", ""), (1, "55", "A10")].iter().cycle())
    {
        writeln!(pods, "{at},{},4,8Gi,{gpus},{share},{model}", at + 60).unwrap();
    }
    std::fs::write(dir.path().join("nodes.csv"), nodes).unwrap();
    std::fs::write(dir.path().join("pods.csv"), pods).unwrap();
    dir
}

fn simulate(trace: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_baton")).arg("simulate").arg(trace).args(args).output().unwrap()
}

fn summary(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn both_profiles_are_measured_and_drawn() {
    let dir = trace();
    let plot = dir.path().join("out.svg");
    let summary = summary(&simulate(dir.path(), &["--seeds", "2", "-o", "json", "--plot", plot.to_str().unwrap()]));
    assert_eq!((&summary["nodes"], &summary["gpus"]), (&6.into(), &36.into()));
    assert_eq!((&summary["load"], &summary["seeds"]), (&1.3.into(), &json!([42, 43])));
    let policies = summary["policies"].as_array().unwrap();
    let names: Vec<&str> = policies.iter().filter_map(|policy| policy["name"].as_str()).collect();
    assert_eq!(names, ["current", "patience"]);
    for policy in policies {
        let used = policy["allocation"]["atLoad"]["mean"].as_f64().unwrap();
        let idle: f64 = policy["idle"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        assert!((used + idle - 100.0).abs() < 1.5, "what is not in use lies idle: {policy}");
        assert!(policy["departures"].is_null() && policy["decisionMicros"]["p50"].as_f64().unwrap() > 0.0);
        assert!(policy["rejected"]["share"].is_f64() && policy["rejected"]["8"].is_f64());
    }
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("patience") && svg.contains("arrived demand"));
    let table = simulate(dir.path(), &["--seeds", "1", "--load", "0.5", "--policy", "current"]).stdout;
    tells(String::from_utf8(table).unwrap(), ["6 nodes, 36 GPUs, load 50 %, seeds 42 to 42", "AT 50 %"]);
}

#[test]
fn where_pods_end_the_rejected_and_the_waiting_are_shown() {
    let dir = trace();
    for (on_failure, waits) in [("drop", false), ("queue", true)] {
        let args = ["--seeds", "1", "--departures", "--on-failure", on_failure, "-o", "json"];
        let summary = summary(&simulate(dir.path(), &args));
        assert!(summary["load"].is_null(), "{summary}");
        for policy in summary["policies"].as_array().unwrap() {
            let ends = &policy["departures"];
            let share = |name: &str| ends[name]["mean"].as_f64().unwrap();
            assert_eq!(share("rejectedShare") > 0.0, !waits, "in the end there is room, {on_failure}: {policy}");
            assert_eq!(share("waitingShare") > 0.0 && share("meanWaitSeconds") > 0.0, waits, "{on_failure}: {policy}");
            assert!(policy["allocation"]["atLoad"]["mean"].as_f64().unwrap() > 50.0);
        }
    }
    let table = String::from_utf8(simulate(dir.path(), &["--seeds", "1", "--departures"]).stdout).unwrap();
    tells(table, ["36 GPUs, as recorded, seeds 42 to 42"]);
}

#[test]
fn a_cluster_is_replayed_as_kubectl_prints_it() {
    let dir = tempfile::tempdir().unwrap();
    let labels = json!({"nvidia.com/gpu.product": "A10"});
    let node = |at: usize| {
        json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": format!("n{at}"), "labels": labels},
            "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}}})
    };
    let pod = |at: usize| {
        let limits = json!({"cpu": "4", "nvidia.com/gpu": (1 + at % 3).to_string()});
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": format!("p{at}"), "namespace": "ml",
            "uid": at.to_string(), "creationTimestamp": "2026-11-20T10:00:00Z"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]},
            "status": {"phase": "Running"}})
    };
    let items: Vec<Value> = (0..3).map(node).chain((0..12).map(pod)).collect();
    let cluster = json!({"kind": "List", "apiVersion": "v1", "items": items});
    for (name, text) in
        [("cluster.json", cluster.to_string()), ("cluster.yaml", baton::ops::config::print_yaml(&cluster).unwrap())]
    {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        let filled = simulate(&file, &["--seeds", "1", "-o", "json"]);
        assert!(String::from_utf8_lossy(&filled.stderr).contains("note: 3 nodes have no Device object"));
        let filled = summary(&filled);
        assert_eq!((&filled["trace"], &filled["gpus"]), (&"cluster".into(), &24.into()));
        let replayed = summary(&simulate(&file, &["--seeds", "1", "--departures", "-o", "json"]));
        for policy in replayed["policies"].as_array().unwrap() {
            assert_eq!(policy["departures"]["rejectedShare"]["mean"], 0.0, "all of them run there: {policy}");
        }
        std::fs::write(dir.path().join("few.csv"), format!("{NODES}n0,64000,262144,8,A10\n")).unwrap();
        let few = dir.path().join("few.csv");
        let few = summary(&simulate(&file, &["--nodes", few.to_str().unwrap(), "--seeds", "1", "-o", "json"]));
        assert_eq!((&few["nodes"], &few["gpus"]), (&1.into(), &8.into()));
    }
}

#[test]
fn what_cannot_be_simulated_says_why() {
    let dir = trace();
    let fails = |args: &[&str], code: i32, says: &str| {
        let output = simulate(dir.path(), args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && said.contains(says), "{args:?}: {said}");
    };
    fails(&["--load", "0"], 2, "expected a number from 0.01 to 10");
    fails(&["--load", "nan"], 2, "expected a number");
    fails(&["--load", "0.9", "--departures"], 2, "cannot be used with");
    fails(&["--seeds", "0"], 2, "0 is not in 1..=10000");
    fails(&["--policy", "fgd"], 2, "possible values: current, patience");
    fails(&["--first-seed", "52"], 2, "unexpected argument '--first-seed'");
    fails(&["-o", "csv"], 2, "possible values: table, json");
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    write("pods.csv", format!("{PODS}0,,1,1Gi,0,,\n"));
    fails(&[], 1, "none of the pods asks for a GPU");
    write("pods.csv", format!("{PODS}0,,1,1Gi,1,-5,\n"));
    fails(&[], 1, "pods.csv:2: column 6 (share): \"-5\" is no number from 1 to 100");
    write("pods.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,count\n1000,1,1,1000,,7\n".to_owned());
    fails(&[], 1, "pods.csv:1: column 1 (\"cpu_milli\") is not known; expected pods with times");
    write("pods.csv", format!("{PODS}0,,1,1Gi,1,,\n"));
    write("nodes.csv", format!("{NODES}a,1000,1,0,\n"));
    fails(&[], 1, "none of the nodes has a GPU");
    write("config.yaml", "profile: best\n".to_owned());
    write("nodes.csv", format!("{NODES}a,1000,1,8,\n"));
    let config = dir.path().join("config.yaml");
    fails(&["--config-file", config.to_str().unwrap()], 2, "config.yaml:1");
}
