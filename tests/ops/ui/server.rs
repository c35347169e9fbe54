//! The server without a browser: who is let in, what the stream says, and what it says when something is missing.

use k8s_openapi::api::core::v1::Event;
use kube::api::ObjectMeta;

use super::http::{Ui, send};
use crate::prelude::*;

const MOST: usize = 64 << 10;

async fn cluster() -> TestServer {
    let server = TestServer::start().await;
    server.install(&Values::default()).await;
    node(&server, "node-a", 2).await;
    server
}

/// A node with so many GPUs.
async fn node(server: &TestServer, name: &str, gpus: i32) {
    let status = json!({"allocatable": {"nvidia.com/gpu": gpus.to_string()}, "conditions": [{"type": "Ready", "status": "True"}]});
    server.create_object::<Node>(json!({"metadata": {"name": name, "labels": {"zone": "a"}}, "status": status})).await;
    let gpu = |minor: i32| json!({"type": "gpu", "id": format!("GPU-{name}-{minor}"), "minor": minor, "health": minor == 0, "resources": {"koordinator.sh/gpu-core": "100"}});
    let gpus: Vec<Value> = (0..gpus).map(gpu).collect();
    server.create_object::<Device>(json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": name}, "spec": {"devices": gpus}})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_browser_that_opened_the_printed_url_is_shown_anything() {
    let server = cluster().await;
    let ui = Ui::start(&server.kubeconfig, &[]);
    let opened = send(&ui.address, &format!("GET {}", &ui.url[ui.url.find("/?").unwrap()..]), &[], "");
    assert_eq!(opened.status, 200);
    assert!(
        opened.head.contains("set-cookie: baton-ui-") && opened.head.contains("httponly; samesite=strict"),
        "{}",
        opened.head
    );
    let mut bytes = 0;
    for path in ["/", "/main.js", "/stream.js", "/style.css", "/api/stream", "/api/node/node-a", "/api/audit"] {
        assert_eq!(send(&ui.address, &format!("GET {path}"), &[], "").status, 401, "{path}");
        let stranger = [("Cookie", &*ui.cookie), ("Host", "evil.example")];
        assert_eq!(send(&ui.address, &format!("GET {path}"), &stranger, "").status, 421, "{path}");
        let other = [("Cookie", &*ui.cookie), ("Sec-Fetch-Site", "same-site")];
        assert_eq!(send(&ui.address, &format!("GET {path}"), &other, "").status, 403, "{path}");
    }
    let index = ui.get("/");
    assert!(index.head.contains("content-security-policy: default-src 'self'"), "{}", index.head);
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ops/ui/assets")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let served = ui.get(&format!("/{}", name.trim_start_matches("index.html")));
        assert_eq!(served.body, std::fs::read_to_string(&path).unwrap(), "{name}");
        assert!(
            !served.body.contains("innerHTML") && !served.body.contains("//cdn") && !served.body.contains("=\"/"),
            "{name}"
        );
        bytes += served.body.len();
    }
    println!("assets: {bytes} bytes");
    assert!(bytes < 150_000, "{bytes}");
    assert_eq!(send(&ui.address, "POST /api/node/node-a", &[("Cookie", &ui.cookie)], "").status, 405);
    // Other addresses than loopback take a word more.
    let (code, _, said) = server.baton(&["ui", "--listen", "0.0.0.0:0"]).await;
    assert!(code == Some(2) && said.contains("--insecure-listen"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_cluster_is_a_small_delta_and_a_stream_resumes() {
    let server = cluster().await;
    let graphs = "http://g/d/x?n={node}";
    let ui = Ui::start(&server.kubeconfig, &["-n", "ml", "--grafana-url", graphs]);
    let mut stream = ui.stream(None);
    let hello = stream.next().unwrap();
    assert_eq!((&*hello.name, &hello.data["namespace"]), ("hello", &json!("ml")), "{hello:?}");
    assert_eq!(hello.data["grafana"], graphs);
    assert!(hello.data["rev"].is_u64() && hello.data["version"].is_string(), "{hello:?}");
    assert_eq!(stream.next().unwrap().name, "snapshot");
    node(&server, "node-b", 3).await;
    let both = stream.until("node-b with its devices", |event| {
        event.data["rows"]["nodes"]["node-b"]["devices"]["gpu-2"].is_object()
    });
    assert!(both.bytes < MOST && both.id.contains('-'), "{both:?}");
    assert_eq!(both.data["rows"]["nodes"]["node-b"]["devices"]["gpu-1"]["s"], "unhealthy");
    drop(stream);
    // What happens while no stream is open is caught up with, without a snapshot.
    Api::<Node>::all(server.client.clone()).delete("node-b", &DeleteParams::default()).await.unwrap();
    let mut stream = ui.stream(Some(&both.id));
    assert_eq!(stream.next().unwrap().name, "hello");
    let gone = stream.until("the end of node-b", |event| {
        assert_eq!(event.name, "delta", "{event:?}");
        event.data["rows"]["nodes"].as_object().is_some_and(|nodes| nodes.get("node-b") == Some(&Value::Null))
    });
    assert!(gone.data["at"].is_i64());
    // An id of another process.
    let mut other = ui.stream(Some("0-1"));
    other.next();
    assert_eq!(other.next().unwrap().name, "snapshot");
    let started = clock::mono();
    ui.interrupt();
    let end = stream.until("its end", |event| event.name == "gone");
    assert!(end.data["why"].as_str().unwrap().contains("ended") && stream.next().is_none(), "{end:?}");
    assert!(clock::mono() - started < Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sixty_fifth_stream_is_told_so_and_the_others_go_on() {
    let server = cluster().await;
    let ui = Ui::start(&server.kubeconfig, &[]);
    let mut streams: Vec<_> = (0..64).map(|_| ui.stream(None)).collect();
    streams.iter_mut().for_each(|stream| assert_eq!(stream.next().unwrap().name, "hello"));
    let mut more = ui.stream(None);
    let gone = more.next().unwrap();
    assert!(gone.name == "gone" && gone.data["why"].as_str().unwrap().contains("64 streams"), "{gone:?}");
    assert!(more.next().is_none());
    drop(streams.pop());
    until("a place is free again", super::http::SOON, async || (ui.stream(None).next()?.name == "hello").then_some(()))
        .await;
    node(&server, "node-b", 1).await;
    streams[0].until("node-b", |event| event.data["rows"]["nodes"]["node-b"].is_object());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_missing_is_named_and_so_is_a_scheduler_that_is_not_there() {
    let server = cluster().await;
    server.create_object::<k8s_openapi::api::core::v1::Namespace>(json!({"metadata": {"name": "ml"}})).await;
    let account = json!({"metadata": {"name": "ann", "namespace": "ml"}});
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(server.client.clone(), "ml");
    accounts.create(&PostParams::default(), &serde_json::from_value(account).unwrap()).await.unwrap();
    let kubeconfig = server.credentials("ml", "ann", None).await;
    let ui = Ui::start(&kubeconfig, &[]);
    let problems = |event: &super::http::Event| event.data["rows"]["problems"].clone();
    for (kind, named) in [
        ("pods", "cannot list resource \"pods\""),
        ("devices", "cannot list resource \"devices\""),
        ("scheduler", "looking for"),
    ] {
        let says = |event: &super::http::Event| {
            problems(event)[kind]["why"]
                .as_str()
                .is_some_and(|why| why.contains(named) || (kind == "scheduler" && why.contains("pods is forbidden")))
        };
        ui.stream(None).until(kind, says);
    }
    let refused = ui.get("/api/audit");
    assert!(refused.status == 502 && refused.body.contains("forbidden"), "{}", refused.body);
    // An operator may read everything; there is no scheduler.
    let ui = Ui::start(&server.kubeconfig, &[]);
    ui.stream(None).until("no scheduler", |event| {
        problems(event)["scheduler"]["why"].as_str().is_some_and(|why| why.contains("no scheduler leads"))
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_shown_with_its_events_and_labels() {
    let server = cluster().await;
    let events: Api<Event> = Api::namespaced(server.client.clone(), "default");
    let event = Event {
        metadata: ObjectMeta {
            name: Some("e".to_owned()),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        reason: Some("GpuUnhealthy".to_owned()),
        message: Some("<script>alert(1)</script>".to_owned()),
        involved_object: serde_json::from_value(json!({"kind": "Node", "name": "node-a", "apiVersion": "v1"})).unwrap(),
        ..Event::default()
    };
    events.create(&PostParams::default(), &event).await.unwrap();
    let ui = Ui::start(&server.kubeconfig, &[]);
    ui.stream(None).until("node-a", |event| event.data["rows"]["nodes"]["node-a"]["devices"].is_object());
    let detail = ui.json("/api/node/node-a");
    assert_eq!(detail["events"]["items"][0]["reason"], "GpuUnhealthy", "{detail}");
    assert_eq!((&detail["devices"][1]["health"], &detail["node"]["name"]), (&json!("unhealthy"), &json!("node-a")));
    assert!(detail["scheduler"]["why"].is_string(), "there is none");
    assert_eq!(ui.json("/api/labels?key=zone"), json!({"node-a": "a"}));
    assert_eq!(ui.json("/api/labels")["zone"], 1);
    assert_eq!(ui.get("/api/node/no-such-node").status, 404);
    assert!(ui.json("/api/audit")["violations"].is_array());
    // No daemon runs here: the page says so, and why.
    let why = detail["records"]["ledger"].as_str().unwrap();
    assert!(why.contains("node daemon of node-a") && detail["pods"] == json!([]), "{detail}");
    // A name that would be more than a name in a path or a selector.
    assert_eq!(ui.get("/api/node/a%2Cspec.nodeName=b").status, 502);
    // Nothing changes here, and the stream says that it lives.
    let mut stream = ui.stream(None);
    let ping = stream.until("a ping", |event| event.name == "ping");
    assert!(ping.data["at"].is_i64(), "{ping:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_goes_and_comes_is_told_and_what_it_missed_follows() {
    let server = TestServer::simulated().await;
    server.install(&Values::default()).await;
    node(&server, "node-a", 1).await;
    let ui = Ui::start(&server.kubeconfig, &[]);
    let mut stream = ui.stream(None);
    stream.until("node-a", |event| event.data["rows"]["nodes"]["node-a"]["devices"].is_object());
    server.server().stop();
    stream.until("that it is away", |event| event.data["rows"]["problems"]["API server"]["why"].is_string());
    server.server().restart().await.unwrap();
    stream.until("that it is back", |event| {
        event.data["rows"]["problems"].as_object().is_some_and(|all| all.get("API server") == Some(&Value::Null))
    });
    node(&server, "node-b", 1).await;
    stream.until("node-b", |event| event.data["rows"]["nodes"]["node-b"].is_object());
}
