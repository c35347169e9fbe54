//! What the panels of the dashboards ask for is what daemons of a running cluster answer.

use promql_parser::parser::parse;

use crate::harness::SOON;
use crate::harness::daemon::Daemon;
use crate::prelude::*;
use crate::promql::{Asked, asked};

/// Series that are there only while something is wrong, has happened or waits for long.
const PASSING: [&str; 6] = [
    "baton_scheduler_lock_stuck_seconds",
    "baton_node_lock_released_total",
    "baton_node_divergence_total",
    "baton_node_live_reads_total",
    "baton_node_xid_events_total",
    "baton_controller_jobs",
];
/// What is there of a pod that has one of eight GPUs and one that waits for nine.
const VALUES: [&str; 4] = [
    r#"baton_scheduler_devices{pool="none",type="gpu",state="free"} 7.0"#,
    r#"baton_node_gpus{state="held"} 1.0"#,
    r#"baton_scheduler_namespace_gpus{namespace="default",state="held"} 1.0"#,
    r#"baton_scheduler_namespace_gpus{namespace="default",state="waiting"} 9.0"#,
];
/// Labels that Prometheus adds, of whom it asks.
const OF_TARGET: [&str; 1] = ["node"];

/// Every panel by its title, with what it asks for.
fn panels() -> Vec<(String, Asked)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset/chart/dashboards");
    let boards = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let boards: Vec<Value> = boards.map(|text| serde_json::from_slice(&text).unwrap()).collect();
    let panels = boards.iter().flat_map(|board| board["panels"].as_array().unwrap());
    let targets =
        panels.flat_map(|panel| panel["targets"].as_array().unwrap().iter().map(move |of| (&panel["title"], of)));
    let drawn = targets.flat_map(|(title, target)| {
        let expression = parse(target["expr"].as_str().unwrap()).unwrap();
        asked(&expression).into_iter().map(move |asked| (title.to_string(), asked))
    });
    // Variables list the values of a label: `label_values(METRIC, LABEL)`.
    let variables = boards.iter().flat_map(|board| board["templating"]["list"].as_array().unwrap());
    let listed = variables.filter_map(|of| {
        let query = of["query"]["query"].as_str()?;
        let (metric, label) = query.strip_prefix("label_values(")?.strip_suffix(')')?.split_once(", ")?;
        Some((query.to_owned(), (metric.to_owned(), [label.to_owned()].into())))
    });
    drawn.chain(listed).collect()
}

/// The labels of every series, by name.
fn series(text: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut all = BTreeMap::<&str, BTreeSet<&str>>::new();
    for line in text.lines().filter(|line| line.starts_with("baton_")) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let labels = rest.strip_prefix('{').map(|rest| rest.split('}').next().unwrap()).unwrap_or_default();
        all.entry(name).or_default().extend(labels.split(',').filter_map(|pair| Some(pair.split_once('=')?.0)));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_of_the_dashboards_has_series_on_a_running_cluster() {
    let cluster = TestCluster::with_agent_args(1, &["--pod-metrics"]).await;
    let credentials = cluster.credentials(cluster.namespace, "baton-controller", None).await;
    let fixed = ["controller", "--leader-elect=false", "--probe-listen=none", "--metrics-listen=127.0.0.1:0"];
    let kubeconfig = format!("--kubeconfig={}", credentials.display());
    let command = fixed.into_iter().chain([&*kubeconfig]).map(Into::into).collect();
    let controller = Daemon::start(command, cluster.dir.path().join("controller.log"));
    cluster.runs(&pod("runs").app("main", &[(key::NVIDIA_GPU, "1")])).await;
    cluster.create(&pod("waits").app("main", &[(key::NVIDIA_GPU, "9")])).await;
    let asked = panels();
    assert!(asked.len() > 60, "{asked:?}");
    until("every panel has series", SOON, async || {
        let mut text = cluster.scheduler.get("/metrics").await? + &cluster.nodes[0].agent.get("/metrics").await?;
        text += &controller.get_at("metrics", "/metrics").await?;
        let known = series(&text);
        let lacks = |(_, (name, labels)): &&(String, Asked)| {
            let of = known.get(&**name);
            let has = |label: &String| OF_TARGET.contains(&&**label) || of.is_some_and(|of| of.contains(&**label));
            // What counts events begins without a series; docs/metrics.md has its labels, of which another test knows.
            !(PASSING.contains(&&**name) || of.is_some() && labels.iter().all(has))
        };
        let lacking: Vec<_> = asked.iter().filter(lacks).map(|(title, (name, _))| format!("{title}: {name}")).collect();
        let missing: Vec<_> = VALUES.iter().filter(|value| !text.contains(**value)).collect();
        println!("panels without series: {lacking:#?}; values that are missing: {missing:#?}");
        (lacking.is_empty() && missing.is_empty()).then_some(())
    })
    .await;
}
