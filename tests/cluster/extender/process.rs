//! `baton scheduler --extender-listen` as a child process, and HTTP by hand.

use std::process::{Child, Stdio};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::wait;
use crate::prelude::*;
use crate::scheduler::verbs::until;

/// A cluster, and the extender beside it.
pub struct Extender {
    pub cluster: SchedulerCluster,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    child: Child,
}

impl Drop for Extender {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Starts the binary; the caller waits for it.
pub fn spawn(cluster: &SchedulerCluster, [extender, admin]: [SocketAddr; 2], times: &str, more: &[&str]) -> Child {
    let kubeconfig = cluster.options().kubeconfig.unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.env_clear().args(["scheduler", "--leader-elect=false", "--log=info"]);
    command.arg(timings(&format!("lock_sweep: 200ms{times}")));
    command.arg("--kubeconfig").arg(kubeconfig);
    command.args([
        "--extender-listen",
        &extender.to_string(),
        "--listen",
        &admin.to_string(),
        "--metrics-listen=none",
        "--probe-listen=none",
    ]);
    command.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
}

impl Extender {
    pub async fn start(nodes: &[&str]) -> Self {
        Self::start_with(nodes, "", &[]).await
    }

    /// With further times, each after a comma, and further flags.
    pub async fn start_with(nodes: &[&str], times: &str, more: &[&str]) -> Self {
        let cluster = SchedulerCluster::start().await;
        for node in nodes {
            cluster.node(node).await;
        }
        let (address, admin) = (free_address(), free_address());
        let child = spawn(&cluster, [address, admin], times, more);
        let mut extender = Self { cluster, address, admin, child };
        wait::until("the extender leads", Duration::from_secs(30), async || {
            if extender.child.try_wait().ok()?.is_some() {
                // Another process has taken an address that was free a moment ago.
                (extender.address, extender.admin) = (free_address(), free_address());
                extender.child = spawn(&extender.cluster, [extender.address, extender.admin], times, more);
            }
            let (status, _) = request(extender.admin, "GET", "/leading", "").await?;
            (status == 200).then_some(())
        })
        .await;
        extender
    }

    /// One call, as kube-scheduler makes it; the answer must be 200 and JSON.
    pub async fn call(&self, verb: &str, body: &Value) -> Value {
        let (status, text) = request(self.address, "POST", verb, &body.to_string()).await.expect("an answer");
        assert_eq!(status, 200, "{verb}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// The error of a bind; empty when bound.
    pub async fn bind(&self, pod: &Pod, node: &str) -> String {
        self.call("/bind", &binding(pod, node)).await["Error"].as_str().unwrap().to_owned()
    }

    /// A bind that is asked for, and not waited for.
    pub async fn asks(&self, pod: &Pod, node: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let body = binding(pod, node).to_string();
        stream.write_all(format!("{}{body}", head("POST", "/bind", body.len())).as_bytes()).await.unwrap();
        stream
    }

    /// A pod that comes and is bound.
    pub async fn binds(&self, name: &str, limits: Value, node: &str) -> Pod {
        let pod = self.pod(name, limits).await;
        assert_eq!(self.bind(&pod, node).await, "", "{name}");
        pod
    }

    /// A pod that kube-scheduler places.
    pub async fn pod(&self, name: &str, limits: Value) -> Pod {
        self.pod_of(name, json!({"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]}))
            .await
    }

    pub async fn pod_of(&self, name: &str, mut spec: Value) -> Pod {
        spec["schedulerName"] = json!("default-scheduler");
        let pod = json!({"metadata": {"name": name, "namespace": "ml"}, "spec": spec});
        self.cluster.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
    }

    /// The process runs and answers.
    pub async fn lives(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "the process has ended");
        let (status, _) = request(self.address, "GET", "/livez", "").await.expect("an answer");
        assert_eq!(status, 200);
    }

    /// What the scheduler says a pod is doing.
    pub async fn state(&self, pod: &str) -> Option<String> {
        let (_, text) = request(self.admin, "GET", &format!("/explain?pod=ml/{pod}"), "").await?;
        serde_json::from_str::<Value>(&text).ok()?["state"].as_str().map(str::to_owned)
    }

    pub async fn in_state(&self, pod: &str, state: &str) {
        until(&format!("{pod} is {state}"), || async {
            (self.state(pod).await.as_deref() == Some(state)).then_some(())
        })
        .await;
    }
}

pub fn binding(pod: &Pod, node: &str) -> Value {
    let meta = &pod.metadata;
    json!({"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node})
}

pub fn head(method: &str, path: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: baton\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

/// One request on a connection of its own; `None` when nothing listens there.
pub async fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(head(method, path, body.len()).as_bytes()).await.ok()?;
    // Whoever refuses a body early may close before all of it is sent.
    stream.write_all(body.as_bytes()).await.ok();
    Some(answer(&mut stream).await)
}

/// Reads an answer to its end.
pub async fn answer(stream: &mut (impl AsyncReadExt + Unpin)) -> (u16, String) {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(30), async {
        // A reset after the answer does not unmake it.
        while let Ok(1..) = stream.read_buf(&mut bytes).await {}
    });
    read.await.expect("an answer within 30 s");
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
