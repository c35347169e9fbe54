//! The expressions of alerts, dashboards and docs/metrics.md: Prometheus reads them, they name metrics that exist, and the join joins.

use std::collections::BTreeSet;

use baton::agent::metrics::{AgentMetrics, PodShare};
use promql_parser::parser::{Expr, LabelModifier, VectorMatchCardinality, parse};
use serde_json::Value;

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

/// Every selector below an expression.
fn selectors(expr: &Expr, found: &mut BTreeSet<String>) {
    match expr {
        Expr::Aggregate(aggregate) => selectors(&aggregate.expr, found),
        Expr::Unary(unary) => selectors(&unary.expr, found),
        Expr::Binary(binary) => [&binary.lhs, &binary.rhs].into_iter().for_each(|side| selectors(side, found)),
        Expr::Paren(paren) => selectors(&paren.expr, found),
        Expr::Subquery(query) => selectors(&query.expr, found),
        Expr::VectorSelector(selector) => found.extend(selector.name.clone()),
        Expr::MatrixSelector(matrix) => found.extend(matrix.vs.name.clone()),
        Expr::Call(call) => call.args.args.iter().for_each(|arg| selectors(arg, found)),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}

#[test]
fn prometheus_reads_every_expression_and_each_names_documented_metrics() {
    let text = read(&root().join("docs/metrics.md"));
    let all = expressions();
    assert!(all.len() > 45, "{all:?}");
    for expression in all {
        let parsed = parse(&expression).unwrap_or_else(|why| panic!("{expression}: {why}"));
        let mut names = BTreeSet::new();
        selectors(&parsed, &mut names);
        assert!(!names.is_empty(), "{expression}");
        for name in names.iter().filter(|name| !name.starts_with("DCGM_") && *name != "up") {
            let bare = ["_total", "_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            let known = |name: &str| text.contains(&format!("| `{name}` |"));
            assert!(known(name) || bare.is_some_and(known), "{expression}: no such metric: {name}");
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
    let metrics = AgentMetrics::default();
    let uuid = "GPU-5f1c2a90-0000-4000-8000-000000000001";
    let [namespace, pod, container] = ["ml", "train-0", "main"].map(Into::into);
    metrics.pod_shares("node-a", &[PodShare { namespace, pod, container, uuid: uuid.into(), share: 0.5 }]);
    let printed = metrics.print();
    let series = printed.lines().find(|line| line.starts_with(many.name.as_deref().unwrap())).unwrap();
    assert!(series.contains(&format!(r#"uuid="{uuid}""#)) && series.ends_with("} 0.5"), "{series}");
    assert!(lent.labels.iter().all(|label| !series.contains(&format!("{label}="))), "{series}");
}
