//! Grafana's dashboards: the cluster, and the way of devices to a pod.

use serde_json::{Value, json};

/// One expression and the name of its series.
type Query = (&'static str, &'static str);

/// Title, unit as Grafana names it, what is drawn.
type Panel = (&'static str, &'static str, &'static [Query]);

const CLUSTER: &[Panel] = &[
    (
        "Devices",
        "short",
        &[
            ("sum by (type) (baton_device_healthy)", "{{type}} in service"),
            ("sum by (type) (1 - baton_device_healthy)", "{{type}} out of service"),
            ("max(baton_scheduler_devices_cordoned)", "cordoned"),
        ],
    ),
    ("Nodes by their node daemon", "short", &[("max by (state) (baton_scheduler_agents)", "{{state}}")]),
    (
        "Pods that wait",
        "short",
        &[
            ("max(baton_scheduler_queue_active)", "to be tried"),
            ("max(baton_scheduler_queue_backoff)", "backing off"),
            ("max(baton_scheduler_queue_parked)", "waiting for an event"),
            ("max(baton_scheduler_in_flight)", "being bound"),
        ],
    ),
    (
        "From creation to bind",
        "s",
        &[
            ("histogram_quantile(0.5, sum by (le) (rate(baton_scheduler_pod_wait_seconds_bucket[5m])))", "p50"),
            ("histogram_quantile(0.99, sum by (le) (rate(baton_scheduler_pod_wait_seconds_bucket[5m])))", "p99"),
        ],
    ),
    (
        "Decisions",
        "ops",
        &[
            ("sum(rate(baton_scheduler_attempts_total[5m]))", "all"),
            ("sum(rate(baton_scheduler_unschedulable_total[5m]))", "without a node"),
            ("sum(rate(baton_scheduler_bound_total[5m]))", "bound"),
            ("sum(rate(baton_scheduler_bind_failures_total[5m]))", "bind failed"),
        ],
    ),
    (
        "Pods ended by the scheduler",
        "short",
        &[("sum(increase(baton_scheduler_preempted_total[1h]))", "preempted in an hour")],
    ),
    (
        "Gangs",
        "short",
        &[
            ("max(baton_scheduler_gangs_waiting)", "groups that wait"),
            ("sum(increase(baton_scheduler_gangs_satisfied_total[1h]))", "satisfied in an hour"),
            ("sum(increase(baton_scheduler_gang_timeouts_total[1h]))", "timed out in an hour"),
        ],
    ),
    ("Nodes kept for one that has waited long", "s", &[("max(baton_scheduler_earmark_age_seconds)", "kept for")]),
    ("TYJobs", "short", &[("max by (stage) (baton_controller_jobs)", "{{stage}}")]),
    ("Versions", "short", &[("count by (version) (baton_build_info)", "{{version}}")]),
];

const HAND_OFF: &[Panel] = &[
    ("Allocate calls", "ops", &[("sum by (result) (rate(baton_allocate_total[5m]))", "{{result}}")]),
    (
        "Allocate calls, duration",
        "s",
        &[
            ("histogram_quantile(0.5, sum by (le) (rate(baton_allocate_seconds_bucket[5m])))", "p50"),
            ("histogram_quantile(0.99, sum by (le) (rate(baton_allocate_seconds_bucket[5m])))", "p99"),
        ],
    ),
    (
        "Node locks, held",
        "s",
        &[
            ("histogram_quantile(0.5, sum by (le) (rate(baton_lock_held_seconds_bucket[5m])))", "p50"),
            ("histogram_quantile(0.99, sum by (le) (rate(baton_lock_held_seconds_bucket[5m])))", "p99"),
            ("max(baton_scheduler_oldest_lock_seconds)", "the oldest present lock"),
        ],
    ),
    (
        "Node locks, waited for",
        "s",
        &[
            ("histogram_quantile(0.5, sum by (le) (rate(baton_scheduler_lock_wait_seconds_bucket[5m])))", "p50"),
            ("histogram_quantile(0.99, sum by (le) (rate(baton_scheduler_lock_wait_seconds_bucket[5m])))", "p99"),
        ],
    ),
    (
        "Node locks, released and contended",
        "ops",
        &[
            ("sum by (reason) (rate(baton_lock_released_total[5m]))", "{{reason}}"),
            ("sum(rate(baton_scheduler_lock_contended_total[5m]))", "found another lock"),
        ],
    ),
    (
        "How calling pods were identified",
        "ops",
        &[("sum by (reason) (rate(baton_identified_total[5m]))", "{{reason}}")],
    ),
    (
        "Calls that waited for the API server",
        "ops",
        &[
            ("sum by (call) (rate(baton_live_reads_total[5m]))", "read of {{call}}"),
            ("sum(rate(baton_watch_wait_seconds_count[5m]))", "wait for the watch"),
        ],
    ),
    (
        "Refused, in ten minutes",
        "short",
        &[("sum by (node, resource) (increase(baton_allocate_refused_total[10m])) > 0", "{{node}} {{resource}}")],
    ),
    (
        "Resources that the kubelet lacks",
        "short",
        &[("sum by (node, resource) (1 - baton_registered) > 0", "{{node}} {{resource}}")],
    ),
    (
        "Findings and XIDs, in ten minutes",
        "short",
        &[
            ("sum by (node, reason) (increase(baton_divergence_total[10m])) > 0", "{{node}} {{reason}}"),
            (
                "sum by (node, xid, action) (increase(baton_xid_events_total[10m])) > 0",
                "{{node}} XID {{xid}} {{action}}",
            ),
        ],
    ),
];

/// Every dashboard by its name.
pub(super) fn dashboards() -> [(&'static str, Value); 2] {
    [
        ("baton-cluster", dashboard("baton-cluster", "Baton: cluster", CLUSTER)),
        ("baton-hand-off", dashboard("baton-hand-off", "Baton: hand-off", HAND_OFF)),
    ]
}

/// Two panels in a row, of Grafana's 24 columns.
fn dashboard(uid: &str, title: &str, panels: &[Panel]) -> Value {
    let panel = |(at, (title, unit, queries)): (usize, &Panel)| {
        let target =
            |(letter, (expr, legend)): (char, &Query)| json!({ "refId": letter, "expr": expr, "legendFormat": legend });
        json!({
            "id": at + 1, "type": "timeseries", "title": title,
            "gridPos": { "w": 12, "h": 8, "x": at % 2 * 12, "y": at / 2 * 8 },
            "datasource": { "type": "prometheus", "uid": "$datasource" },
            "fieldConfig": { "defaults": { "unit": unit, "min": 0 }, "overrides": [] },
            "targets": ('A'..).zip(*queries).map(target).collect::<Vec<_>>(),
        })
    };
    json!({
        "uid": uid, "title": title, "tags": ["baton"], "schemaVersion": 39, "editable": true, "refresh": "30s",
        "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": [{ "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" }] },
        "panels": panels.iter().enumerate().map(panel).collect::<Vec<_>>(),
    })
}
