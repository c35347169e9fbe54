//! The tables at the end of the demo.

use super::pods::of_burst;
use super::report::{DemoReport, PodReport};
use crate::view::plain;

/// Pod → node, lock, agreement. Those of the burst that agree are shown with `verbose` only.
pub fn pods(report: &DemoReport, verbose: bool) -> String {
    let agrees =
        |pod: &PodReport| pod.kubelet == pod.assigned && pod.ledger == pod.assigned && !pod.assigned.is_empty();
    let row = |pod: &PodReport| {
        let held = pod.lock_held_ms.map(|millis| format!("{millis:.1} ms")).unwrap_or_default();
        let devices = match (pod.assigned.gpu.len(), pod.assigned.rdma.len()) {
            (gpus, 0) => format!("{gpus} GPU"),
            (gpus, nics) => format!("{gpus} GPU, {nics} NIC"),
        };
        let agree = if agrees(pod) { "agree" } else { "DIFFER" }.to_owned();
        vec![pod.name.clone(), pod.node.clone(), devices, held, agree]
    };
    let shown = report.pods.iter().filter(|pod| verbose || !of_burst(&pod.name) || !agrees(pod));
    plain(&["POD", "NODE", "DEVICES", "LOCK HELD", "ANNOTATION, KUBELET, LEDGER"], shown.map(row))
}

/// The last lines.
pub fn verdict(report: &DemoReport) -> String {
    if !report.ok {
        let head = format!("NOT OK: {} violations", report.violations.len());
        return report.violations.iter().fold(head, |text, violation| text + "\n  " + violation);
    }
    let devices = report.pods.iter().filter(|pod| !pod.assigned.is_empty()).count();
    format!(
        "OK: annotation, kubelet and ledger agree for {devices} pods; no lock is left; {:.2} API writes per pod (lock, bind, unlock)",
        report.api_writes_per_pod
    )
}
