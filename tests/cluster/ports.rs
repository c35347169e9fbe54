//! The daemons' addresses as strangers, collectors and operators meet them: slow clients, users who lack rights, pods that start again.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::daemons::memory::resident;
use crate::prelude::*;

/// Clients that hold a connection and send next to nothing.
const SLOW: usize = 60;
const PROBES: usize = 100;
/// Pods that name their node themselves.
const PINNED: usize = 1000;

/// The answer to a GET over plain HTTP.
async fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
    let mut stream = TcpStream::connect(here).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// How long the answer to a probe takes.
async fn probe(address: SocketAddr) -> Duration {
    let begin = clock::mono();
    let answer = get(address, "/livez").await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    clock::mono() - begin
}

/// The begin of what a slow client sends.
const HEAD: &[u8] = b"GET /livez HTTP/1.1\r\nX-Slow: ";

/// Connects, sends a byte now and then, reads nothing, and comes again when it is cut.
async fn dawdle(address: SocketAddr, connected: Arc<AtomicUsize>) {
    loop {
        if let Ok(mut stream) = TcpStream::connect(address).await {
            connected.fetch_add(1, Ordering::Relaxed);
            for byte in HEAD.iter().chain(b"a".iter().cycle()) {
                if stream.write_all(&[*byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_of_either_address_keep_no_probe_waiting() {
    let cluster = TestCluster::start(1).await;
    for (name, daemon) in [("scheduler", &cluster.scheduler), ("node daemon", &cluster.nodes[0].agent)] {
        let at = |what| daemon.address(what).expect("the address is logged");
        let probes = at("probes");
        for (where_to, slow_at) in [("metrics", at("metrics")), ("probes", probes)] {
            let (mut slow, connected) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
            for _ in 0..SLOW {
                slow.spawn(dawdle(slow_at, connected.clone()));
            }
            let all = || (connected.load(Ordering::Relaxed) >= SLOW).then_some(());
            until("every slow client is connected", SOON, async || all()).await;
            let mut took = Vec::new();
            for _ in 0..PROBES {
                took.push(probe(probes).await);
            }
            took.sort();
            let (half, longest) = (took[PROBES / 2], took[PROBES - 1]);
            println!(
                "{name}: {SLOW} slow clients of the {where_to}: /livez in {half:?} (longest of {PROBES}: {longest:?})"
            );
            // A busy machine may delay one; a kubelet waits for a second.
            assert!(half < Duration::from_millis(100) && longest < Duration::from_secs(1));
        }
    }
}

/// Pods that come with their node and claim each of its GPUs: the kubelet asks the daemon about every one, and ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute of processor time: each pod is a call of a simulated kubelet and a failed pod"]
async fn a_thousand_pinned_pods_keep_no_probe_waiting() {
    let cluster = TestCluster::start(1).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let object = |number: usize| {
        let forged = json!({"gpu": [{"minor": number % 8, "resources": {key::GPU_CORE: "100"}}]}).to_string();
        let container = json!({"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}});
        json!({"metadata": {"name": format!("pinned-{number}"), "annotations": {key::DEVICE_ALLOCATED: forged}},
            "spec": {"nodeName": "node-0", "schedulerName": "none", "containers": [container]}})
    };
    let create = async {
        for number in 0..PINNED {
            let pod: Pod = serde_json::from_value(object(number)).expect("a pod");
            pods.create(&PostParams::default(), &pod).await.expect("the pod is created");
        }
        let ended = async || {
            let list = pods.list(&ListParams::default().fields("status.phase=Failed")).await.ok()?;
            (list.items.len() == PINNED).then_some(())
        };
        until("the kubelet has refused every pod", SOON * 4, ended).await;
    };
    let daemons = [("scheduler", &cluster.scheduler), ("node daemon", &cluster.nodes[0].agent)];
    let watched = daemons.map(|(name, daemon)| (name, daemon.address("probes").expect("the address is logged")));
    let mut took: [Vec<Duration>; 2] = Default::default();
    tokio::pin!(create);
    loop {
        for ((_, probes), took) in watched.iter().zip(&mut took) {
            took.push(probe(*probes).await);
        }
        let pause = tokio::time::sleep(Duration::from_millis(10));
        tokio::select! {
            () = &mut create => break,
            () = pause => {}
        }
    }
    for (((name, daemon), mut took), _) in daemons.iter().zip(took).zip(watched) {
        took.sort();
        let (half, longest) = (took[took.len() / 2], took[took.len() - 1]);
        let (now, most) = resident(daemon);
        println!(
            "{name}: {PINNED} pinned pods: /livez in {half:?} (longest of {}: {longest:?}), {now} MiB, at most {most}",
            took.len()
        );
        assert!(half < Duration::from_millis(100) && longest < Duration::from_secs(1));
    }
}

/// A simulated API server with Baton's objects, and a scheduler in a pod.
struct Reached {
    api: TestServer,
    scheduler: Daemon,
}

impl Reached {
    async fn start() -> Self {
        let api = TestServer::with_tls().await;
        api.install(&Values { namespace: NAMESPACE.to_owned(), ..Values::default() }).await;
        let kubeconfig = api.credentials(NAMESPACE, "baton-scheduler", None).await;
        let mut args = vec!["scheduler".into(), "--kubeconfig".into(), kubeconfig.into_os_string()];
        let own = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let words = format!("--listen {own} --leader-elect=false --namespace {NAMESPACE}");
        args.extend(words.split(' ').map(Into::into));
        let scheduler = Daemon::start(args, api.path("scheduler.log"));
        let component = ("app.kubernetes.io/component", "scheduler");
        api.pod_of(&scheduler, "baton-scheduler-0", &[component], "node-0").await;
        let reached = Self { api, scheduler };
        reached.until_ready().await;
        reached
    }

    async fn until_ready(&self) {
        let ready = async || self.scheduler.get("/readyz").await?.starts_with("HTTP/1.1 200").then_some(());
        until("the scheduler is ready", SOON, ready).await;
    }

    /// The kubeconfig of a new account that may see pods, and do this with port-forwards.
    async fn user(&self, name: &str, verbs: &[&str]) -> PathBuf {
        self.api.create_account(name).await;
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": verbs}]);
        let role = json!({"metadata": {"name": format!("forwards-{name}")}, "rules": rules});
        self.api.post_rbac(&format!("namespaces/{NAMESPACE}/roles"), &role).await;
        self.api.bind_role(name, "Role", &format!("forwards-{name}")).await;
        self.api.credentials(NAMESPACE, name, None).await
    }
}

/// Runs `baton args…` with these credentials: whether it succeeded, and what it said.
async fn baton(kubeconfig: &Path, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.args(args).args(["--baton-namespace", NAMESPACE]).env("KUBECONFIG", kubeconfig);
    let output = tokio::task::spawn_blocking(move || command.output().expect("baton runs")).await.expect("it ends");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("UTF-8"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_take_one_port_forward_and_a_missing_verb_of_it_is_named() {
    let reached = Reached::start().await;
    reached.api.create_account("ann").await;
    reached.api.bind_role("ann", "Role", "baton-operator").await;
    let ann = reached.api.credentials(NAMESPACE, "ann", None).await;
    let (done, said) = baton(&ann, &["get", "queue"]).await;
    assert!(done && said.contains("Nothing is queued"), "{said}");
    let forwards = || reached.api.server().counts().sum(|counted| counted.subresource == "portforward");
    assert_eq!(forwards(), 1);
    let manifest = reached.api.path("pod.yaml");
    std::fs::write(
        &manifest,
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: i}]}\n",
    )
    .expect("writable");
    let (done, said) = baton(&ann, &["explain", "--what-if", "-f", manifest.to_str().expect("UTF-8")]).await;
    assert!(done && said.contains("Pod default/p"), "{said}");
    assert_eq!(forwards(), 2);
    for (name, verbs, missing) in
        [("bob", &["get"][..], "verb create"), ("eve", &["create"], "verb get"), ("joe", &["watch"], "verb get")]
    {
        let (done, said) = baton(&reached.user(name, verbs).await, &["get", "queue"]).await;
        assert!(!done && said.contains(missing) && said.contains("--role=baton-operator"), "{name}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_watches_goes_on_when_the_pod_has_started_again() {
    let mut reached = Reached::start().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command
        .args(["get", "queue", "--watch", "--baton-namespace", NAMESPACE])
        .env("KUBECONFIG", &reached.api.kubeconfig);
    let file = std::fs::File::create(reached.api.path("watched.log")).expect("a file");
    let err = file.try_clone().expect("a file");
    let mut child = command.stdout(file).stderr(err).spawn().expect("baton runs");
    let said = || std::fs::read_to_string(reached.api.path("watched.log")).unwrap_or_default();
    let forwards = || reached.api.server().counts().sum(|counted| counted.subresource == "portforward");
    until("it has asked", SOON, async || said().contains("Nothing is queued").then_some(())).await;
    assert_eq!(forwards(), 1);
    reached.scheduler.restart();
    reached.until_ready().await;
    let reopened = async || (forwards() >= 2).then_some(());
    until("it asks again over another port-forward", SOON, reopened).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(child.try_wait().expect("a status").is_none(), "it has ended: {}", said());
    child.kill().expect("it ends");
    child.wait().expect("it has ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_closed_and_a_pod_that_is_gone_are_named() {
    let mut reached = Reached::start().await;
    reached.scheduler.kill();
    let (done, said) = baton(&reached.api.kubeconfig, &["get", "queue"]).await;
    assert!(!done && said.contains("connection refused"), "{said}");
    let port = reached.scheduler.address("admin HTTP").expect("an address").port();
    let command = format!("`kubectl -n {NAMESPACE} port-forward baton-scheduler-0 {port}`");
    assert!(said.contains(&command) && said.contains(&format!("--admin-url http://127.0.0.1:{port}")), "{said}");
    let pods = reached.api.pods_in(NAMESPACE);
    let status = json!({"status": {"phase": "Failed"}});
    pods.patch_status("baton-scheduler-0", &PatchParams::default(), &Patch::Merge(status)).await.expect("it has ended");
    let (done, said) = baton(&reached.api.kubeconfig, &["get", "queue"]).await;
    assert!(!done && said.contains("pod not found") && said.contains("baton-scheduler-0"), "{said}");
    pods.delete("baton-scheduler-0", &kube::api::DeleteParams::default().grace_period(0)).await.expect("deleted");
    let (done, said) = baton(&reached.api.kubeconfig, &["get", "queue"]).await;
    assert!(!done && said.contains("no pod there has the labels"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_a_port_of_their_own_and_nothing_else_is_there() {
    let reached = Reached::start().await;
    let metrics = reached.scheduler.get_at("metrics", "/metrics").await.expect("an answer");
    assert!(metrics.contains("baton_scheduler_leading") && metrics.contains("openmetrics"), "{metrics}");
    for path in ["/queue", "/gangs", "/explain", "/livez", "/"] {
        let answer = reached.scheduler.get_at("metrics", path).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
    assert!(reached.scheduler.get("/queue").await.expect("an answer").starts_with("HTTP/1.1 200"));
}
