//! The daemons' addresses as strangers, collectors and operators meet them: slow clients, tokens, reviews that fail.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use baton::cluster::client;
use baton::contract::key;
use baton::ops::manifests::Values;
use baton::runtime::clock;
use baton::sim::apiserver::{ApiServer, Effect, FaultRule, Options};
use jiff::ToSpan;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::daemons::memory::resident;
use crate::harness::daemon::Daemon;
use crate::harness::wait::until;
use crate::harness::{NAMESPACE, SOON, TestCluster, TestServer};
use crate::skip::skipped;

/// Clients that hold a connection and send next to nothing.
const SLOW: usize = 60;
const PROBES: usize = 100;
/// Pods that name their node themselves.
const PINNED: usize = 1000;
/// The pod of the scheduler, as the API server knows it.
const POD: &str = "baton-scheduler-0";

/// The address that a daemon has logged: `probes` or `admin HTTP`.
fn address(daemon: &Daemon, what: &str) -> Option<SocketAddr> {
    let output = daemon.output();
    output.rsplit_once(&format!("{what} address="))?.1.split_whitespace().next()?.parse().ok()
}

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

/// The begin of what a slow client sends: a request, or the record of a TLS handshake.
const HEAD: &[u8] = b"GET /livez HTTP/1.1\r\nX-Slow: ";
const HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

/// Connects, sends a byte now and then, reads nothing, and comes again when it is cut.
async fn dawdle(address: SocketAddr, begin: &'static [u8], connected: Arc<AtomicUsize>) {
    loop {
        if let Ok(mut stream) = TcpStream::connect(address).await {
            connected.fetch_add(1, Ordering::Relaxed);
            for byte in begin.iter().chain(b"a".iter().cycle()) {
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
async fn slow_clients_on_either_address_keep_no_probe_waiting() {
    let cluster = TestCluster::with_args(1, &["--admin-auth=token"], &["--admin-auth=token"]).await;
    for (name, daemon) in [("scheduler", &cluster.scheduler), ("node daemon", &cluster.nodes[0].agent)] {
        let [probes, admin] =
            ["probes", "admin HTTP"].map(|what| address(daemon, what).expect("the address is logged"));
        for (where_to, slow_at, begin) in [("the admin address", admin, HELLO), ("the probe address", probes, HEAD)] {
            let (mut slow, connected) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
            for _ in 0..SLOW {
                slow.spawn(dawdle(slow_at, begin, connected.clone()));
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
                "{name}: {SLOW} slow clients on {where_to}: /livez in {half:?} (longest of {PROBES}: {longest:?})"
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
    let watched = daemons.map(|(name, daemon)| (name, address(daemon, "probes").expect("the address is logged")));
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

/// An API server with Baton's objects, and a scheduler whose admin address wants tokens.
struct Guarded {
    api: TestServer,
    _scheduler: Daemon,
    probes: SocketAddr,
    admin: SocketAddr,
    /// What the simulated server's clock is ahead, in seconds.
    ahead: Arc<AtomicI64>,
}

impl Guarded {
    async fn start(account: &str) -> Self {
        let ahead = Arc::new(AtomicI64::new(0));
        let api = if std::env::var_os("KUBEBUILDER_ASSETS").is_some() {
            TestServer::start().await
        } else {
            let ahead = ahead.clone();
            let clock = move || clock::wall() + ahead.load(Ordering::Relaxed).seconds();
            let options = Options { clock: Arc::new(clock), ..Options::default() };
            TestServer::around(ApiServer::start(options).await.expect("simulated API server starts")).await
        };
        api.install(&Values { namespace: NAMESPACE.to_owned(), ..Values::default() }).await;
        if account != "baton-scheduler" {
            create_account(&api, account).await;
        }
        let kubeconfig = api.credentials(NAMESPACE, account, None).await;
        let mut args = vec!["scheduler".into(), "--kubeconfig".into(), kubeconfig.into_os_string()];
        let words = "--listen [::]:0 --probe-listen [::]:0 --admin-auth token --leader-elect=false --namespace";
        args.extend(words.split(' ').chain([NAMESPACE]).map(Into::into));
        let scheduler = Daemon::start(args, api.path("scheduler.log"));
        let both = async || Some((address(&scheduler, "probes")?, address(&scheduler, "admin HTTP")?));
        let (probes, admin) = until("the addresses are open", SOON, both).await;
        Self { api, _scheduler: scheduler, probes, admin, ahead }
    }

    async fn until_ready(&self) {
        let ready = async || get(self.probes, "/readyz").await.ok()?.starts_with("HTTP/1.1 200").then_some(());
        until("the scheduler is ready", SOON, ready).await;
    }

    /// Status and text of the admin address itself, with this header.
    async fn ask(&self, path: &str, header: Option<(&str, &str)>) -> (u16, String) {
        let url = format!("https://127.0.0.1:{}", self.admin.port()).parse().expect("a URL");
        send(&client::at(url).expect("a client"), path, header).await
    }

    /// The same through the API server.
    async fn ask_through_proxy(&self, path: &str, header: Option<(&str, &str)>) -> (u16, String) {
        let pod = format!("/api/v1/namespaces/{NAMESPACE}/pods/https:{POD}:{}/proxy", self.admin.port());
        send(&self.api.client, &(pod + path), header).await
    }

    /// The scheduler's pod, at an address of this machine; `false` where a real API server may not go to it.
    async fn make_pod(&self) -> bool {
        let own = std::net::UdpSocket::bind("0.0.0.0:0")
            .and_then(|socket| socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()));
        let own = own.map(|address| address.ip()).ok().filter(|ip| !ip.is_unspecified());
        let ip = own.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        if self.api.control_plane.simulated().is_none() && ip.is_loopback() {
            return false;
        }
        let ports = [("probes", self.probes), ("admin", self.admin)];
        let ports = ports.map(|(name, address)| json!({"name": name, "containerPort": address.port()}));
        let labels = json!({"app.kubernetes.io/part-of": "baton", "app.kubernetes.io/component": "scheduler"});
        let pod = json!({"metadata": {"name": POD, "labels": labels},
            "spec": {"containers": [{"name": "scheduler", "image": "i", "ports": ports}]}});
        let pods: Api<Pod> = Api::namespaced(self.api.client.clone(), NAMESPACE);
        pods.create(&PostParams::default(), &serde_json::from_value(pod).expect("a pod")).await.expect("created");
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
        pods.patch_status(POD, &PatchParams::default(), &Patch::Merge(status)).await.expect("status");
        true
    }

    /// A token of the viewer that expired a minute ago.
    async fn expired_token(&self) -> String {
        let token = self.api.token(NAMESPACE, "baton-viewer", Some("baton-admin")).await;
        if self.api.control_plane.simulated().is_some() {
            self.ahead.fetch_add(660, Ordering::Relaxed);
            return token;
        }
        let key = self.api.path("certs/sa.key");
        // The API server takes what is signed here, while it lasts.
        let lasting = resigned(&token, &key, 600);
        let (status, text) = self.ask_through_proxy("/queue", Some(("X-Baton-Token", &lasting))).await;
        assert_eq!(status, 200, "{text}");
        resigned(&token, &key, -60)
    }
}

async fn create_account(api: &TestServer, name: &str) {
    let account = serde_json::from_value(json!({"metadata": {"name": name}})).expect("an account");
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(api.client.clone(), NAMESPACE);
    accounts.create(&PostParams::default(), &account).await.expect("the account is created");
}

/// Gives an account of ours a role: in the namespace, or in the cluster.
async fn bind(api: &TestServer, account: &str, cluster: bool, role: &str) {
    let path = if cluster { "clusterrolebindings".to_owned() } else { format!("namespaces/{NAMESPACE}/rolebindings") };
    let body = json!({"metadata": {"name": format!("{account}-{role}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]});
    post(api, &path, body).await;
}

async fn post(api: &TestServer, path: &str, body: Value) {
    let request = http::Request::post(format!("/apis/rbac.authorization.k8s.io/v1/{path}"));
    let request = request.header("content-type", "application/json").body(body.to_string().into_bytes());
    api.client.request::<Value>(request.expect("request")).await.expect("created");
}

async fn send(client: &kube::Client, path: &str, header: Option<(&str, &str)>) -> (u16, String) {
    let request = header.iter().fold(http::Request::get(path), |request, (name, value)| request.header(*name, *value));
    let request = request.body(kube::client::Body::empty()).expect("a request");
    let response = client.send(request).await.expect("an answer");
    let status = response.status().as_u16();
    let bytes = response.into_body().collect_bytes().await.expect("the answer's end");
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

/// The token with an end in so many seconds, signed again with the API server's key.
fn resigned(token: &str, key: &Path, seconds: i64) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as BASE64};
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
    let payload = token.split('.').nth(1).expect("a JWT");
    let mut claims: Value = serde_json::from_slice(&BASE64.decode(payload).expect("base64")).expect("claims");
    let now = clock::wall().as_second();
    (claims["iat"], claims["nbf"], claims["exp"]) = (json!(now - 660), json!(now - 660), json!(now + seconds));
    let head = json!({"alg": "ES256"}).to_string();
    let signed = format!("{}.{}", BASE64.encode(head), BASE64.encode(claims.to_string()));
    let pem = std::fs::read_to_string(key).expect("the key is readable");
    let der = STANDARD.decode(pem.lines().filter(|line| !line.starts_with('-')).collect::<String>()).expect("PEM");
    let random = ring::rand::SystemRandom::new();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &random).expect("a P-256 key");
    let signature = pair.sign(&random, signed.as_bytes()).expect("signed");
    format!("{signed}.{}", BASE64.encode(signature))
}

/// Runs `baton args…` with these credentials: whether it succeeded, and what it said.
async fn baton(kubeconfig: PathBuf, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.args(args).args(["--scheduler-namespace", NAMESPACE]).env("KUBECONFIG", kubeconfig);
    let output = tokio::task::spawn_blocking(move || command.output().expect("baton runs")).await.expect("it ends");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("UTF-8"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_through_the_pod_proxy_need_the_viewers_token() {
    let guarded = Guarded::start("baton-scheduler").await;
    guarded.until_ready().await;
    if !guarded.make_pod().await {
        return skipped("this machine has no address that a real API server takes for a pod's");
    }
    let expired = guarded.expired_token().await;
    let users_own = guarded.api.token(NAMESPACE, "baton-viewer", None).await;
    let right = guarded.api.token(NAMESPACE, "baton-viewer", Some("baton-admin")).await;
    for (what, token, status) in [
        ("no token", None, 401),
        ("a wrong token", Some("nonsense"), 401),
        ("an expired token", Some(&*expired), 401),
        ("a token for the API server", Some(&*users_own), 401),
        ("the right token", Some(&*right), 200),
    ] {
        let (found, text) = guarded.ask_through_proxy("/queue", token.map(|token| ("X-Baton-Token", token))).await;
        println!("{what}: {found} {}", text.trim());
        assert_eq!(found, status, "{what}: {text}");
    }
    // What only the admin's own header could carry does not arrive: the API server keeps it.
    let (status, _) = guarded.ask_through_proxy("/leading", None).await;
    assert_eq!(status, 401);
    // Commands ask with the token of the viewer, for users who may make one.
    create_account(&guarded.api, "ann").await;
    bind(&guarded.api, "ann", false, "baton-operator-default").await;
    let ann = guarded.api.credentials(NAMESPACE, "ann", None).await;
    let (done, said) = baton(ann.clone(), &["get", "queue"]).await;
    assert!(done && said.contains("Nothing is queued"), "{said}");
    let manifest = guarded.api.path("pod.yaml");
    std::fs::write(
        &manifest,
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: i}]}\n",
    )
    .expect("writable");
    let (done, said) = baton(ann, &["explain", "--what-if", "-f", manifest.to_str().expect("UTF-8")]).await;
    assert!(done && said.contains("Pod default/p"), "{said}");
    create_account(&guarded.api, "bob").await;
    let rule = json!({"apiGroups": [""], "resources": ["pods", "pods/proxy"], "verbs": ["get", "list"]});
    post(&guarded.api, "clusterroles", json!({"metadata": {"name": "too-little"}, "rules": [rule]})).await;
    bind(&guarded.api, "bob", false, "too-little").await;
    let bob = guarded.api.credentials(NAMESPACE, "bob", None).await;
    let (done, said) = baton(bob, &["get", "queue"]).await;
    assert!(!done && said.contains("--clusterrole=baton-operator"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_reads_metrics_with_its_own_token_and_nothing_else() {
    let guarded = Guarded::start("baton-scheduler").await;
    guarded.until_ready().await;
    create_account(&guarded.api, "prometheus").await;
    let token = guarded.api.token(NAMESPACE, "prometheus", None).await;
    let bearer = format!("Bearer {token}");
    let header = Some(("Authorization", &*bearer));
    let (status, text) = guarded.ask("/metrics", header).await;
    assert_eq!(status, 403, "{text}");
    assert!(text.contains("system:serviceaccount:default:prometheus"), "{text}");
    let rules = json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
    post(&guarded.api, "clusterroles", json!({"metadata": {"name": "scrape"}, "rules": rules})).await;
    // Another account: what was denied to the first one is remembered for half a minute.
    create_account(&guarded.api, "collector").await;
    bind(&guarded.api, "collector", true, "scrape").await;
    for audience in [None, Some("baton-admin")] {
        let bearer = format!("Bearer {}", guarded.api.token(NAMESPACE, "collector", audience).await);
        let header = Some(("Authorization", &*bearer));
        let collected = async || {
            let (status, text) = guarded.ask("/metrics", header).await;
            (status == 200 && text.contains("baton_scheduler_leading")).then_some(())
        };
        until(&format!("metrics with a token for {audience:?}"), SOON, collected).await;
        let (status, text) = guarded.ask("/queue", header).await;
        assert_eq!(status, 403, "{text}");
        let (status, _) = guarded.ask("/metrics", Some(("X-Baton-Token", bearer.trim_start_matches("Bearer ")))).await;
        assert_eq!(status, if audience.is_none() { 401 } else { 200 }, "{audience:?}");
    }
    if let Some(server) = guarded.api.control_plane.simulated() {
        let reviews =
            || server.counts().sum(|counted| counted.resource.ends_with("reviews") && counted.verb == "create");
        let before = reviews();
        for _ in 0..50 {
            guarded.ask("/metrics", header).await;
        }
        assert_eq!(reviews(), before, "what the API server has said is remembered");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_tokens_cannot_be_reviewed_requests_are_refused_and_probes_answered() {
    // An account without any right: the roles were not applied.
    let guarded = Guarded::start("powerless").await;
    let (status, text) = guarded.ask("/metrics", Some(("Authorization", "Bearer something"))).await;
    println!("{status} {}", text.trim());
    assert_eq!(status, 503);
    assert!(text.contains("tokenreviews") && text.contains("`baton manifests`"), "{text}");
    assert!(get(guarded.probes, "/livez").await.expect("an answer").ends_with("alive\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_review_hangs_probes_are_answered_and_the_request_ends_in_time() {
    let guarded = Guarded::start("baton-scheduler").await;
    let Some(server) = guarded.api.control_plane.simulated() else {
        return skipped("a real API server does not hang on command");
    };
    server.faults().add(FaultRule::on("create", "tokenreviews"), Effect::Hang);
    let begin = clock::mono();
    let asking = guarded.ask("/metrics", Some(("Authorization", "Bearer another")));
    let probing = async {
        until("the review hangs", SOON, async || {
            let fired = server.counts().sum(|counted| counted.resource == "tokenreviews");
            (fired >= 1).then_some(())
        })
        .await;
        get(guarded.probes, "/livez").await.expect("an answer")
    };
    let ((status, text), alive) = tokio::join!(asking, probing);
    println!("{status} after {:?}: {}", clock::mono() - begin, text.trim());
    assert!(status == 503 && text.contains("no answer within 3s"), "{text}");
    assert!(alive.ends_with("alive\n"), "{alive}");
}
