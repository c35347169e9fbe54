//! `baton explain` and `baton get queue` as an operator runs them, against the running scheduler.

use crate::prelude::*;
use crate::scheduler::verbs::{Running, until};

/// Exit code, standard output, standard error.
async fn baton(scheduler: &Running, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.args(args).arg("--admin-url").arg(format!("http://{}", scheduler.admin)).env_remove("KUBECONFIG");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: next\n  namespace: ml\nspec:\n  schedulerName: baton-scheduler\n  containers:\n  - name: main\n    image: x\n    resources:\n      limits:\n        nvidia.com/gpu: 2\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_and_the_queue_are_shown_on_the_command_line() {
    let (cluster, scheduler) = SchedulerCluster::running("n1").await;
    cluster.binds("first", json!({"nvidia.com/gpu": "6"})).await;
    cluster.pod("big", json!({"nvidia.com/gpu": "4"})).await;
    let text = until("big is parked", || async {
        let (code, text, said) = baton(&scheduler, &["explain", "pod", "ml/big"]).await;
        (code == Some(0) && text.contains("parked")).then_some(text).or_else(|| {
            println!("{said}");
            None
        })
    })
    .await;
    assert!(text.contains("1 node has fewer than 4 free GPUs"), "{text}");
    tells(text, ["What helps:"]);

    let (_, wide, _) = baton(&scheduler, &["explain", "pod", "big", "-n", "ml", "-o", "wide"]).await;
    tells(wide, ["GPU-n1-7", "ml/first"]);
    let (_, json, _) = baton(&scheduler, &["explain", "pod", "ml/big", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["state"], &json["rules"][0]["count"]), (&json!("parked"), &json!(1)));
    let (_, yaml, _) = baton(&scheduler, &["explain", "pod", "ml/big", "-o", "yaml"]).await;
    tells(yaml, ["state: parked"]);

    let (_, bound, _) = baton(&scheduler, &["explain", "pod", "ml/first"]).await;
    tells(bound, ["bound to node n1"]);
    let (code, _, said) = baton(&scheduler, &["explain", "pod", "ml/nobody"]).await;
    assert_eq!(code, Some(1));
    tells(said, ["there is no pod ml/nobody"]);

    let (_, queue, _) = baton(&scheduler, &["get", "queue"]).await;
    let line = queue.lines().find(|line| line.starts_with("ml/big")).unwrap_or_else(|| panic!("{queue}"));
    assert!(line.contains("parked") && line.contains("1 has fewer than 4 free GPUs"), "{queue}");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_if_answers_from_the_live_world_and_writes_nothing() {
    let (cluster, scheduler) = SchedulerCluster::running("n1").await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let fits = file("fits.yaml", POD);
    until("the scheduler knows the node", || async {
        let (_, text, _) = baton(&scheduler, &["explain", "--what-if", "-f", &fits]).await;
        text.contains("would start now on").then_some(())
    })
    .await;
    cluster.server().counts().reset();
    let (_, json, said) = baton(&scheduler, &["explain", "pod", "--what-if", "-f", &fits, "-o", "json"]).await;
    let answer: Value = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!((&answer["node"], answer["devices"].as_array().map(Vec::len)), (&json!("n1"), Some(2)));
    let big = file("big.yaml", &POD.replace("gpu: 2", "gpu: 9"));
    let (code, text, _) = baton(&scheduler, &["explain", "--what-if", "-f", &big]).await;
    assert_eq!(code, Some(0));
    tells(text, ["never starts here", "fewer than 9 GPUs in service"]);
    let bad = file("bad.yaml", &POD.replace("  containers:", "  containers: ]"));
    let (code, _, said) = baton(&scheduler, &["explain", "--what-if", "-f", &bad]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("line 8") && said.contains("bad.yaml"), "{said}");
    let large = file("large.yaml", &format!("{POD}# {}\n", "x".repeat(3 << 19)));
    let (code, _, said) = baton(&scheduler, &["explain", "--what-if", "-f", &large]).await;
    assert_eq!(code, Some(1));
    tells(said, ["large.yaml"]);
    let counts = cluster.server().counts();
    let writes: u64 =
        ["pods", "nodes", "events", "persistentvolumeclaims"].iter().map(|kind| counts.writes(kind)).sum();
    assert_eq!(writes, 0, "{:?}", counts.all());
    assert!(cluster.get("next").await.is_none());
    scheduler.stop().await;
}
