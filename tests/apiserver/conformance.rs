//! Replays the recording of a real Kubernetes 1.36 API server against the simulated one.
//!
//! `BATON_FIXTURES` names another directory with the same layout (`apiserver/transcript.jsonl`).

use std::path::PathBuf;

use baton::sim::apiserver::{ApiServer, Options};
use serde_json::Value;

use super::compare::{Comparison, LEFT_OUT, Mapping};
use super::http;

fn transcript() -> Vec<Value> {
    let root = std::env::var_os("BATON_FIXTURES")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"), PathBuf::from);
    let path = root.join("apiserver/transcript.jsonl");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

struct Replay {
    server: ApiServer,
    mapping: Mapping,
    compared: usize,
    differences: Vec<String>,
}

/// A request ready to be sent.
struct Prepared {
    method: String,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Option<String>,
}

impl Replay {
    fn prepare(&self, interaction: &Value) -> Prepared {
        let request = &interaction["request"];
        let mut path = self.mapping.forward(request["path"].as_str().unwrap());
        if let Some(recorded) = path.split(['?', '&']).find_map(|p| p.strip_prefix("resourceVersion=")) {
            let recorded = recorded.to_owned();
            let ours = self.mapping.version(&recorded);
            path = path.replace(&format!("resourceVersion={recorded}"), &format!("resourceVersion={ours}"));
        }
        let mut headers = Vec::new();
        for (key, name) in [("accept", "Accept"), ("contentType", "Content-Type")] {
            if let Some(value) = request[key].as_str() {
                headers.push((name, value.to_owned()));
            }
        }
        let token = match interaction["auth"].as_str() {
            None => Some(self.server.token("admin")),
            Some("node") => Some(self.server.token("system:node:node-a")),
            Some("bad") => Some("no-such-token".to_owned()),
            Some("none") => None,
            Some(other) => panic!("unknown auth {other}"),
        };
        if let Some(token) = token {
            headers.push(("Authorization", format!("Bearer {token}")));
        }
        let body = match &request["body"] {
            Value::Null => None,
            Value::String(s) if s == "one annotation of 262200 bytes" => {
                Some(serde_json::json!({"metadata": {"annotations": {"x/big": "a".repeat(262_200)}}}).to_string())
            }
            body => Some(self.mapping.forward_value(body, "").to_string()),
        };
        Prepared { method: request["method"].as_str().unwrap().to_owned(), path, headers, body }
    }

    fn address(&self) -> String {
        self.server.url().trim_start_matches("http://").to_owned()
    }

    fn check(&mut self, interaction: &Value, answer: &http::Answer) {
        let number = interaction["n"].as_u64().unwrap();
        let mut comparison = Comparison { number, mapping: &mut self.mapping, differences: Vec::new() };
        if u64::from(answer.status) != interaction["status"].as_u64().unwrap() {
            comparison
                .differences
                .push(format!("status {}, recorded {}: {}", answer.status, interaction["status"], answer.body));
        }
        if let Some(media) = interaction["headers"]["Content-Type"].as_str() {
            let ours = answer.headers.get("content-type").map_or("", String::as_str);
            if ours != media {
                comparison.differences.push(format!("Content-Type {ours}, recorded {media}"));
            }
        }
        if let Some(events) = interaction["events"].as_array() {
            let ours: Vec<Value> = answer.body.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
            comparison.value("events", "", &Value::Array(events.clone()), &Value::Array(ours));
        } else {
            let ours = serde_json::from_str(&answer.body).unwrap_or_else(|_| Value::String(answer.body.clone()));
            comparison.value("", "", &interaction["response"], &ours);
        }
        let name = interaction["name"].as_str().unwrap_or("setup");
        let found = comparison.differences;
        self.differences.extend(found.into_iter().map(|d| format!("{number} {name}: {d}")));
        self.compared += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_simulated_server_answers_as_the_recorded_one() {
    let options = Options { node_lifecycle: false, ..Options::default() };
    let mut replay = Replay {
        server: ApiServer::start(options).await.unwrap(),
        mapping: Mapping::default(),
        compared: 0,
        differences: Vec::new(),
    };
    let all = transcript();
    let mut running = std::collections::HashMap::new();
    for interaction in &all {
        let number = interaction["n"].as_u64().unwrap();
        if interaction["control"] == "compact" {
            replay.server.compact();
            continue;
        }
        // Watches that were open from here on are opened before.
        for watch in all.iter().filter(|w| w["during"][0] == number) {
            let prepared = replay.prepare(watch);
            let address = replay.address();
            let before = replay.server.counts().of("watch", "pods", "");
            let task = tokio::spawn(async move {
                http::send(&address, &prepared.method, &prepared.path, &prepared.headers, prepared.body.as_deref())
                    .await
            });
            running.insert(watch["n"].as_u64().unwrap(), task);
            // The server has begun the watch when it has counted it and answers the next request.
            while replay.server.counts().of("watch", "pods", "") == before {
                tokio::task::yield_now().await;
            }
        }
        let answer = if let Some(task) = running.remove(&number) {
            task.await.unwrap()
        } else {
            let prepared = replay.prepare(interaction);
            let (method, path) = (&prepared.method, &prepared.path);
            http::send(&replay.address(), method, path, &prepared.headers, prepared.body.as_deref()).await
        };
        replay.check(interaction, &answer.unwrap());
    }
    println!("compared {} of {} recorded interactions; not compared:", replay.compared, all.len() - 1);
    for (what, why) in LEFT_OUT {
        println!("  {what}: {why}");
    }
    assert!(
        replay.differences.is_empty(),
        "{} differences:\n{}",
        replay.differences.len(),
        replay.differences.join("\n")
    );
    assert_eq!(replay.compared, all.iter().filter(|i| i["control"].is_null()).count());
}
