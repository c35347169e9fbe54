//! The tables at the end of the demo.

use std::fmt::Write;

use super::pods::of_burst;
use super::report::{DemoReport, PodReport, list};
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
    let mut text = String::new();
    let devices: usize = report.pods.iter().filter(|pod| list(&pod.assigned) != "nothing").count();
    if report.ok {
        let _ = write!(
            text,
            "OK: annotation, kubelet and ledger agree for {devices} pods; no lock is left; {:.2} API writes per pod (lock, \
             bind, unlock)",
            report.api_writes_per_pod
        );
    } else {
        let _ = write!(text, "NOT OK: {} violations", report.violations.len());
        for violation in &report.violations {
            let _ = write!(text, "\n  {violation}");
        }
    }
    text
}
