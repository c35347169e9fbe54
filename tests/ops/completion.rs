//! Completions as bash asks for them: the script that `baton completion bash` prints, called with the words of a line.

use crate::prelude::*;

/// What bash offers for the last word of the line.
async fn offered(server: &TestServer, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let script = "source <(baton completion bash); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9
        _clap_complete_baton baton \"${COMP_WORDS[COMP_CWORD]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let programs = Path::new(env!("CARGO_BIN_EXE_baton")).parent().unwrap().display().to_string();
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash"]).args(words).env("KUBECONFIG", server.path("kubeconfig"));
    command.env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap()));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
}

#[tokio::test]
async fn bash_is_offered_commands_flags_and_names_of_the_cluster() {
    let server = TestServer::start().await;
    server.install(&Values::default()).await;
    for node in ["node-1", "node-2", "other"] {
        server.create_object::<Node>(json!({"metadata": {"name": node}})).await;
    }
    let gpu = |minor: i32| json!({"type": "gpu", "id": format!("GPU-{minor}"), "minor": minor, "health": true, "resources": {}});
    let device = json!({"metadata": {"name": "node-1"}, "spec": {"devices": [gpu(0), gpu(1)]}});
    server.create_object::<Device>(device).await;
    let pod = json!({"metadata": {"name": "train-0"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.pods_in("default").create(&Default::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();

    assert_eq!(offered(&server, "baton cord").await, ["cordon"]);
    assert_eq!(offered(&server, "baton completion f").await, ["fish"]);
    assert!(offered(&server, "baton get nodes --no-h").await.contains(&"--no-headers".to_owned()));
    assert_eq!(offered(&server, "baton explain node node-").await, ["node-1", "node-2"]);
    assert_eq!(offered(&server, "baton cordon node-1/g").await, ["node-1/gpu-0", "node-1/gpu-1"]);
    assert_eq!(offered(&server, "baton explain pod default/t").await, ["default/train-0"]);
}

#[tokio::test]
async fn without_an_api_server_bash_is_offered_no_names_and_no_errors() {
    let server = TestServer::start().await;
    std::fs::write(server.path("kubeconfig"), "clusters: 7").unwrap();
    assert_eq!(offered(&server, "baton explain node node-").await, [""; 0]);
    assert_eq!(offered(&server, "baton cord").await, ["cordon"]);
}
