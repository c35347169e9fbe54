//! `baton simulate` as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A twentieth of openb's nodes and its counted pods, in a directory as the command takes it.
fn trace() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let openb = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openb");
    let nodes = std::fs::read_to_string(openb.join("nodes.csv")).unwrap();
    let (head, rows) = nodes.split_once('\n').unwrap();
    let rows: Vec<&str> = rows.lines().step_by(20).collect();
    std::fs::write(dir.path().join("nodes.csv"), format!("{head}\n{}\n", rows.join("\n"))).unwrap();
    std::fs::copy(openb.join("kinds-gpuspec33.csv"), dir.path().join("pods.csv")).unwrap();
    dir
}

fn simulate(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_baton")).arg("simulate").arg(dir).args(args).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_policy_is_measured_and_the_profile_utilization_is_ahead() {
    let dir = trace();
    let all = "current,patience,random,dot-product,gpu-clustering,gpu-packing,best-fit,fgd";
    let plot = dir.path().join("out.svg");
    let args = ["--policy", all, "--seeds", "2", "-o", "json", "--plot", plot.to_str().unwrap()];
    let summary = json(&simulate(dir.path(), &args));
    assert_eq!(
        (&summary["nodes"], &summary["load"], &summary["seeds"]),
        (&61.into(), &1.3.into(), &serde_json::json!([42, 43]))
    );
    let policies = summary["policies"].as_array().unwrap();
    let at_load = |name: &str| {
        let policy = policies.iter().find(|policy| policy["name"] == name).unwrap();
        policy["allocation"]["atLoad"]["mean"].as_f64().unwrap()
    };
    for policy in policies {
        let used = policy["allocation"]["atLoad"]["mean"].as_f64().unwrap();
        let idle: f64 = policy["idle"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        assert!((used + idle - 100.0).abs() < 0.5, "what is not in use lies idle: {policy}");
        assert!(policy["departures"].is_null() && policy["decisionMicros"]["p50"].as_f64().unwrap() > 0.0);
        assert!(policy["rejected"]["share"].is_f64() && policy["rejected"]["8"].is_f64());
    }
    assert_eq!(policies.len(), 8);
    for other in ["current", "random", "dot-product", "gpu-clustering", "gpu-packing", "best-fit", "fgd"] {
        assert!(at_load("patience") > at_load(other), "{other}: {summary}");
    }
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("gpu-packing") && svg.contains("restTooSmall"));
}

#[test]
fn where_pods_end_the_rejected_and_the_waiting_are_shown() {
    let dir = trace();
    for (on_failure, waits) in [("drop", false), ("queue", true)] {
        let args = [
            "--policy",
            "patience,fgd",
            "--seeds",
            "1",
            "--departures",
            "--load",
            "0.9",
            "--on-failure",
            on_failure,
            "-o",
            "json",
        ];
        let summary = json(&simulate(dir.path(), &args));
        for policy in summary["policies"].as_array().unwrap() {
            let ends = &policy["departures"];
            let share = |name: &str| ends[name]["mean"].as_f64().unwrap();
            assert!((0.0..40.0).contains(&share("rejectedShare")), "{policy}");
            assert_eq!(share("waitingShare") > 0.0 && share("meanWaitSeconds") > 0.0, waits, "{on_failure}: {policy}");
            assert!(policy["allocation"]["atLoad"]["mean"].as_f64().unwrap() > 50.0);
        }
    }
}

#[test]
fn what_cannot_be_simulated_says_why() {
    let dir = trace();
    let fails = |args: &[&str], says: &str| {
        let output = simulate(dir.path(), args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{args:?}: {said}");
    };
    fails(&["--load", "0"], "expected a number from 0.01 to 10");
    fails(&["--load", "nan"], "expected a number");
    fails(&["--seeds", "0"], "0 is not in 1..=10000");
    fails(&["--policy", "fcfs"], "possible values: current, patience, random");
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("pods.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,count\n1000,1,0,0,,7\n");
    fails(&[], "none of the pods asks for a GPU");
    write("pods.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,count\n1000,1,1,-5,,7\n");
    fails(&[], "pods.csv:2: column 4 (gpu_milli): \"-5\" is no number from 1 to 1000");
    write("nodes.csv", "sn,cpu_milli,memory_mib,gpu,model\na,1000,1,0,\n");
    write("pods.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,count\n1000,1,1,1000,,7\n");
    fails(&[], "none of the nodes has a GPU");
    write("config.yaml", "profile: best\n");
    write("nodes.csv", "sn,cpu_milli,memory_mib,gpu,model\na,1000,1,8,\n");
    let config = dir.path().join("config.yaml");
    fails(&["--config-file", config.to_str().unwrap()], "config.yaml:1");
}
