//! What the pages show of clusters of several sizes, played to them. Pictures of them are left in the folder of the tests.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Map;

use super::http::Ui;
use super::proxy::{self, Play};
use super::webdriver::Browser;
use crate::browser::{accessible, browser, is_sound};
use crate::prelude::*;

const SPACES: [&str; 10] = ["ml", "vision", "speech", "search", "ads", "robotics", "bio", "maps", "chat", "infra"];
const XID: &str = "Xid: XID 79: GPU has fallen off the bus (hardware): drain the node and reboot it";

/// A node of eight GPUs and two NICs; every third is held by one pod, the others by several.
fn node(at: u64, now: i64) -> Value {
    let space = |of: u64| SPACES[(of % 10) as usize];
    let device = |gpu: u64| {
        let switch = gpu / 4;
        match (at % 3, (at * 7 + gpu * 5) % 16) {
            (_, 3) if at % 7 == 2 => {
                json!({"p": switch, "s": "unhealthy", "why": XID, "sinceAt": now - 60 * at.cast_signed(), "h": {"ml/train-0": 100}, "drain": true})
            }
            (0, _) => json!({"p": switch, "s": "held", "h": {format!("{}/train-{at}", space(at)): 100}}),
            (_, 0..=5) => json!({"p": switch}),
            (_, 6 | 7) => json!({"p": switch, "s": "partly", "h": {format!("{}/notebook-{gpu}", space(at + gpu)): 50}}),
            (_, 8) => json!({"p": switch, "s": "reserved", "r": ["gang ml/run"]}),
            (_, 9) if at % 5 == 1 => json!({"p": switch, "s": "cordoned", "why": "cordoned by ada: fan fails"}),
            _ => json!({"p": switch, "s": "held", "h": {format!("{}/pod-{gpu}", space(at + gpu)): 100}}),
        }
    };
    let nics = (0..2).map(|nic| (format!("nic-{nic}"), json!({"p": nic})));
    let devices: Map<String, Value> = (0..8).map(|gpu| (format!("gpu-{gpu}"), device(gpu))).chain(nics).collect();
    let daemon = match at % 50 {
        2 => "late",
        22 => "stale",
        _ => "fresh",
    };
    let fault =
        (daemon != "fresh").then(|| format!("the node daemon of node-{at:04} has not been heard for over a minute"));
    json!({"status": "Ready", "daemon": daemon, "fault": fault, "open": daemon != "stale", "version": "0.1.0", "model": "NVIDIA-H100", "devices": devices,
        "created": {format!("{}/train-{at}", space(at)): now - 7200, "ml/train-0": now - 60}})
}

/// What a cluster of so many nodes says, whose scheduler is silent.
fn rows(count: u64, now: i64) -> Value {
    let nodes: Map<String, Value> = (0..count).map(|at| (format!("node-{at:04}"), node(at, now))).collect();
    let why = format!("0/{count} nodes can take the pod: {count} nodes have no 8 free GPUs");
    let waits = |at: i64| {
        let item = json!({"kind": "pod", "name": format!("ml/big-{at}"), "state": "parked", "attempts": 3, "queuedAt": now - 300 + at,
            "rules": ["DeviceFit"], "message": if at == 1 { "" } else { &why }, "wants": "8 GPUs, 2 NICs", "place": at});
        (format!("pod ml/big-{at}"), item)
    };
    let lock = |at: i64, delay: &str, seconds: i64| {
        let advice = format!("{delay}: the kubelet has not asked; look: kubectl -n ml describe pod train-{at}");
        let lock = json!({"node": format!("node-{at:04}"), "state": "held", "holder": format!("ml/train-{at}"), "ageAt": now - seconds,
            "delay": delay, "advice": advice});
        (format!("node-{at:04}"), lock)
    };
    let gang = |key: &str, children: &[&str], counts: [u32; 4], members: &str, why: &str| {
        let [bound, running, pending, absent] = counts;
        json!({"minRequiredNumber": 2, "gangGroup": [key], "mode": "Strict", "lastFailure": why, "waitTime": "10m0s",
            "counts": {"bound": bound, "running": running, "reserved": 0, "pending": pending, "succeeded": 0},
            "notCreated": absent, "members": members, "children": children,
            "nextTry": jiff::Timestamp::from_second(now + 3600).unwrap()})
    };
    let queue: Map<String, Value> = (0..30).map(waits).collect();
    let locks = Map::from_iter([lock(0, "usual", 1), lock(1, "slow", 9), lock(2, "stuck", 84)]);
    json!({"nodes": nodes, "queue": queue,
        "locks": locks,
        "gangs": {"search/run": gang("search/run", &["search/train-3", "search/train-7"], [1, 1, 0, 0], "2 bound, 1 started", ""),
            "ml/short": gang("ml/short", &["ml/a"], [0, 0, 1, 1], "1 pending, 1 not created", "gang ml/short: 0 of 2 placed, 1 without room")},
        "about": {"scheduler": {"version": "0.1.0"}},
        "problems": {"scheduler": {"why": "no scheduler leads", "heardAt": now - 190}}})
}

fn play(count: u64) -> Play {
    Arc::new(move |stream| {
        let at = clock::wall().as_millisecond();
        let event = |name: &str, data: &Value| format!("event: {name}\ndata: {data}\n\n");
        stream.write_all(
            event(
                "hello",
                &json!({"rev": 1, "at": at, "version": "0.1.0", "grafana": "http://g/d/x?n={node}&g={gpu}"}),
            )
            .as_bytes(),
        )?;
        stream.write_all(event("snapshot", &json!({"at": at, "rows": rows(count, at / 1000)})).as_bytes())?;
        // It stays open until its reader leaves.
        std::io::copy(stream, &mut std::io::sink()).map(drop)
    })
}

fn picture(browser: &Browser, name: &str) {
    let shot = browser.devtools("Page.captureScreenshot", &json!({"format": "png"}));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{name}.png")), STANDARD.decode(shot["data"].as_str().unwrap()).unwrap())
        .unwrap();
}

fn enter(browser: &Browser, field: &str, value: &str, event: &str) {
    browser.run(&format!(
        "const field = document.getElementById('{field}'); field.value = '{value}'; field.dispatchEvent(new Event('{event}'))"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn few_nodes_are_boxes_and_pages_of_all_sizes_are_sound_in_both_schemes() {
    let Some(browser) = browser() else { return };
    let server = TestServer::simulated().await;
    let ui = Ui::start(&server.kubeconfig, &[]);
    for count in [3, 24, 25, 203, 5000] {
        let url = proxy::open(&ui, Some(play(count)));
        browser.look(1440, 900, "light");
        browser.open(&url);
        browser.shows(&format!("{count} of {count} nodes"));
        let boxes = browser.run("return document.querySelectorAll('.boxes .slot').length");
        assert_eq!(boxes, if count < 25 { count * 10 } else { 0 }, "of {count} nodes");
        enter(&browser, "colour", "namespace", "change");
        browser.until("document.querySelectorAll('.owners li').length > 4");
        // Four digits fit beside their words.
        let beyond =
            "[...document.querySelectorAll('.gpus li')].filter((of) => of.scrollWidth > of.clientWidth).length";
        assert_eq!(browser.run(&format!("return {beyond}")), 0, "of {count} nodes");
        for scheme in ["light", "dark"] {
            for (width, height) in [(1440, 900), (390, 844)] {
                browser.look(width, height, scheme);
                let name = format!("{count}-{scheme}-{width}");
                browser.until("document.querySelector('.host .cell')");
                is_sound(&browser, &name);
                accessible(&browser, &name);
                picture(&browser, &format!("cluster-{name}"));
                if width == 390 {
                    browser.run(
                        "document.querySelector('main').scrollTop = document.querySelector('.tools').offsetTop - 100",
                    );
                    picture(&browser, &format!("map-{name}"));
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_say_why_how_old_and_how_severe() {
    let Some(browser) = browser() else { return };
    let server = TestServer::simulated().await;
    server.install(&Values::default()).await;
    let ui = Ui::start(&server.kubeconfig, &[]);
    browser.look(1440, 900, "light");
    browser.open(&proxy::open(&ui, Some(play(203))));
    browser.shows("1 slow and 1 stuck locks");
    browser.until("[...document.querySelectorAll('nav a')].map((of) => of.textContent).join() === 'Cluster,Queue 30,Gangs,Locks 3,Health 33'");
    browser.shows("No scheduler has answered for 3m ");
    // The tiles and the sums are those of the filter; a colour's legend is, too.
    enter(&browser, "filter", "node-0003", "input");
    browser.shows("1 of 203 nodes · 8 GPUs: 8 held");
    assert_eq!(browser.run("return document.querySelector('.tile.gpus li:nth-child(3)').textContent"), "8 held");
    enter(&browser, "colour", "gang", "change");
    browser.until("document.querySelector('.owners').textContent === ' search/run: 8 GPUs'");
    enter(&browser, "colour", "age", "change");
    browser.until("document.querySelector('.owners').textContent === ' under a day: 8 GPUs'");
    enter(&browser, "colour", "state", "change");
    browser.until("document.querySelector('.owners').textContent === ''");
    enter(&browser, "filter", "", "input");
    for (scheme, width) in [("light", 1440), ("dark", 390)] {
        browser.look(width, 844, scheme);
        for page in ["queue", "gangs", "locks", "health"] {
            browser.run(&format!("location.hash = '#/{page}'"));
            browser.until(&format!("document.querySelector('main.page-{page} tbody tr')"));
            let first = |cell: &str| browser.run(&format!("return document.querySelector('tbody {cell}').innerText"));
            match page {
                "queue" => {
                    browser.shows("No scheduler has answered for 3m ");
                    browser.until("document.querySelector('.wide.old')");
                    assert_eq!(first(".why"), "0/203 nodes can take the pod: 203 nodes have no 8 free GPUs");
                    assert_eq!(browser.run("return document.querySelectorAll('td.why')[1].innerText"), "DeviceFit");
                    assert_eq!(browser.run("return document.querySelector('td.wants').textContent"), "8 GPUs, 2 NICs");
                }
                "gangs" => {
                    let all = ["2 bound, 1 started", "1 pending, 1 not created", "1 without room"];
                    all.iter().for_each(|words| browser.shows(words));
                    browser.until("document.querySelector('td.next + td.next').textContent.startsWith('in ')");
                }
                "locks" => assert_eq!(first(".state"), "held, stuck"),
                _ => {
                    assert_eq!(first(".state"), "unhealthy", "what holds a pod comes first");
                    tells(first(".why").to_string(), [format!("{XID} · held by ml/train-0")]);
                    let graphs = browser.run("return document.querySelector('tbody a[target]').href");
                    tells(graphs.to_string(), ["http://g/d/x?n=node-", "g=%24__all"]);
                    let last = browser.run("return [...document.querySelectorAll('td.state')].at(-1).innerText");
                    assert_eq!(last, "cordoned");
                    assert_eq!(
                        browser.run("return document.querySelectorAll('tbody tr').length"),
                        33,
                        "a row for each node"
                    );
                }
            }
            is_sound(&browser, page);
            accessible(&browser, page);
            picture(&browser, &format!("{page}-203-{scheme}-{width}"));
        }
    }
}
