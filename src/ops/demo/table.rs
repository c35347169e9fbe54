//! The tables at the end of the demo.

use std::fmt::Write;

use super::report::{DemoReport, JobReport, list};
use super::story::StoryOutcome;
use crate::get::{device_names, plain};

/// Node → device → pods.
pub fn devices(outcome: &StoryOutcome) -> String {
    let mut rows = Vec::new();
    for device in &outcome.devices {
        let node = device.metadata.name.clone().unwrap_or_default();
        for (info, name) in device.spec.devices.iter().zip(device_names(device)) {
            let (percent, pods) = outcome.shares.of(&node, info.id.as_str());
            let used = if percent == 0 { String::new() } else { format!("{percent}%") };
            rows.push(vec![node.clone(), name, info.id.to_string(), used, pods.join(", ")]);
        }
    }
    format!("\n{}", plain(&["NODE", "DEVICE", "ID", "USED", "PODS"], rows))
}

/// Pod → node, lock, agreement.
pub fn pods(report: &DemoReport) -> String {
    let row = |pod: &super::report::PodReport| {
        let agree = pod.kubelet == pod.assigned && pod.ledger == pod.assigned && !pod.assigned.is_empty();
        let held = pod.lock_held_ms.map(|millis| format!("{millis:.1} ms")).unwrap_or_default();
        let devices = match (pod.assigned.gpu.len(), pod.assigned.rdma.len()) {
            (gpus, 0) => format!("{gpus} GPU"),
            (gpus, nics) => format!("{gpus} GPU, {nics} NIC"),
        };
        let agree = if agree { "agree" } else { "DIFFER" }.to_owned();
        vec![pod.name.clone(), pod.node.clone(), devices, held, agree]
    };
    plain(&["POD", "NODE", "DEVICES", "LOCK HELD", "ANNOTATION, KUBELET, LEDGER"], report.pods.iter().map(row))
}

/// Job → its course, and where its pods were.
pub fn job(job: &JobReport) -> String {
    let pods = job.pods.iter().map(|(pod, node)| format!("{pod} on {node}")).collect::<Vec<_>>().join(", ");
    let course = job.stages.join(", ");
    let row = vec![job.name.clone(), course, job.worker_restarts.to_string(), pods, job.pods_left.to_string()];
    plain(&["TYJOB", "STAGES", "REPLACED", "PODS", "PODS LEFT"], [row])
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
