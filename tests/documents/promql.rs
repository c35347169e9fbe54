//! The expressions of alerts, dashboards and docs/metrics.md: Prometheus reads them, they name metrics that exist, and the join joins.

use std::collections::BTreeSet;

use baton::agent::metrics::{AgentMetrics, PodShare};
use baton::runtime::metrics::RequestMetrics;
use promql_parser::parser::{Expr, LabelModifier, VectorMatchCardinality, parse};
use serde_json::Value;

use super::asked::asked;
use super::{documents, read, root};

/// The expressions of alerts and dashboards, and those between marks in docs/metrics.md.
fn expressions() -> Vec<String> {
    let objects = documents(&read(&root().join("daemonset/components/monitoring/monitoring.yaml")));
    let rules = objects.iter().find(|object| object["kind"] == "PrometheusRule").unwrap();
    let alerts = rules["spec"]["groups"][0]["rules"].as_array().unwrap().clone();
    let files =
        objects.iter().filter(|object| object["kind"] == "ConfigMap").flat_map(|of| of["data"].as_object().unwrap());
    let dashboards: Vec<Value> = files.map(|(_, text)| serde_json::from_str(text.as_str().unwrap()).unwrap()).collect();
    assert_eq!(dashboards.len(), 2);
    let panels = dashboards.iter().flat_map(|board| board["panels"].as_array().unwrap());
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap().clone());
    let drawn = alerts.into_iter().chain(targets).map(|of| of["expr"].as_str().unwrap().to_owned());
    let text = read(&root().join("docs/metrics.md"));
    let marked = text.split("```promql\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    drawn.chain(marked).collect()
}

/// Labels that Prometheus adds, of whom it asks.
const OF_TARGET: [&str; 1] = ["node"];

#[test]
fn prometheus_reads_every_expression_and_each_names_documented_metrics() {
    let text = read(&root().join("docs/metrics.md"));
    let all = expressions();
    assert!(all.len() > 45, "{all:?}");
    for expression in all {
        let parsed = parse(&expression).unwrap_or_else(|why| panic!("{expression}: {why}"));
        let asked = asked(&parsed);
        assert!(!asked.is_empty(), "{expression}");
        for (name, labels) in asked.iter().filter(|(name, _)| !name.starts_with("DCGM_") && *name != "up") {
            let bare = ["_total", "_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            let row = |name: &str| text.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let row =
                row(name).or_else(|| row(bare?)).unwrap_or_else(|| panic!("{expression}: no such metric: {name}"));
            for label in labels.iter().filter(|label| *label != "le" && !OF_TARGET.contains(&&***label)) {
                assert!(row.contains(&format!("`{label}`")), "{expression}: {name} has no label {label}");
            }
        }
    }
}

#[test]
fn the_join_with_dcgm_exporter_matches_each_share_with_its_one_gpu() {
    let expression = expressions().into_iter().find(|expression| expression.contains("DCGM_")).unwrap();
    let Expr::Binary(join) = parse(&expression).unwrap() else { panic!("{expression} is no join") };
    let modifier = join.modifier.as_ref().unwrap();
    // Many containers share one GPU: its series is the one side, and lends its labels.
    let VectorMatchCardinality::ManyToOne(lent) = &modifier.card else { panic!("{:?}", modifier.card) };
    let Some(LabelModifier::Include(on)) = &modifier.matching else { panic!("{:?}", modifier.matching) };
    assert_eq!(on.labels, ["uuid"]);
    // The one side has one series for each value of the label: nothing but it and what is lent is left of the others.
    let Expr::Aggregate(one) = &*join.rhs else { panic!("{:?}", join.rhs) };
    let Some(LabelModifier::Include(kept)) = &one.modifier else { panic!("{:?}", one.modifier) };
    let kept: BTreeSet<&String> = kept.labels.iter().collect();
    assert_eq!(kept, on.labels.iter().chain(&lent.labels).collect());
    // dcgm-exporter writes the label in capitals.
    let Expr::Call(replace) = &*one.expr else { panic!("{:?}", one.expr) };
    let words: Vec<String> = replace.args.args.iter().skip(1).map(std::string::ToString::to_string).collect();
    assert_eq!(
        (replace.func.name, words),
        ("label_replace", ["\"uuid\"", "\"$1\"", "\"UUID\"", "\"(.+)\""].map(str::to_owned).to_vec())
    );
    // The many side is what the daemon prints, with that label and the UUID as NVML gives it.
    let Expr::VectorSelector(many) = &*join.lhs else { panic!("{:?}", join.lhs) };
    let metrics = AgentMetrics::new(&RequestMetrics::default());
    let uuid = "GPU-5f1c2a90-0000-4000-8000-000000000001";
    let [namespace, pod, container] = ["ml", "train-0", "main"].map(Into::into);
    metrics.pod_shares("node-a", &[PodShare { namespace, pod, container, uuid: uuid.into(), share: 0.5 }]);
    let printed = metrics.print();
    let series = printed.lines().find(|line| line.starts_with(many.name.as_deref().unwrap())).unwrap();
    assert!(series.contains(&format!(r#"uuid="{uuid}""#)) && series.ends_with("} 0.5"), "{series}");
    assert!(lent.labels.iter().all(|label| !series.contains(&format!("{label}="))), "{series}");
}
