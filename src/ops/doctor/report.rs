//! Findings, and how they are printed.

use std::fmt::Write;

use serde::Serialize;
use serde_json::json;

use baton_contract::word::word_enum;

/// Every check, in the order of the report. `docs/commands.md` explains each.
#[rustfmt::skip]
pub const CHECKS: [&str; 26] = [
    "nvml", "gpu", "device-nodes", "driver-files", "rdma", "kubelet-dir", "kubelet-socket",
    "other-plugin", "pod-resources", "pod-cgroups", "cdi-root", "cdi-spec", "share-isolation", "state-dir", "ledger", "agent",
    "api-server", "permission", "admission", "node", "runtime", "runtime-bypass", "device-object", "resource",
    "node-lock", "other-gpu-driver",
];

word_enum! {
    /// How bad it is.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    CheckLevel {
        /// As it must be.
        Ok = "ok",
        /// Pods are served, or nothing is installed yet; a person should check it.
        Warn = "warn",
        /// Pods do not get their devices.
        Fail = "fail",
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// One of [`CHECKS`].
    pub check: &'static str,
    pub level: CheckLevel,
    /// What was checked and what was found.
    pub found: String,
    /// What to do; absent when nothing is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: CheckLevel::Ok, found: found.into(), advice: None }
    }

    pub fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: CheckLevel::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    pub fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: CheckLevel::Fail, found: found.into(), advice: Some(advice.into()) }
    }

    /// A failure when `serious`, else a warning.
    pub fn bad(serious: bool, check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        if serious { Self::fail(check, found, advice) } else { Self::warn(check, found, advice) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorReport {
    /// The node as the cluster names it.
    pub node: String,
    /// In the order of [`CHECKS`].
    pub findings: Vec<Finding>,
}

impl DoctorReport {
    /// The findings of `node`, sorted by check.
    pub fn new(node: &str, mut findings: Vec<Finding>) -> Self {
        let rank = |finding: &Finding| CHECKS.iter().position(|check| *check == finding.check);
        findings.sort_by_key(rank);
        Self { node: node.to_owned(), findings }
    }

    pub fn count(&self, level: CheckLevel) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    pub fn is_well(&self) -> bool {
        self.count(CheckLevel::Fail) == 0
    }

    /// `{"node", "summary": {"ok", "warn", "fail"}, "findings": [{"check", "level", "found", "advice"?}]}`.
    pub fn json(&self) -> serde_json::Value {
        let summary = json!({
            "ok": self.count(CheckLevel::Ok), "warn": self.count(CheckLevel::Warn), "fail": self.count(CheckLevel::Fail),
        });
        json!({"node": self.node, "summary": summary, "findings": self.findings})
    }

    /// For people: one line for each finding, what to do below it, the counts at the end.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let width = self.findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
        // Further lines stand below the first.
        let indent = " ".repeat(4 + 2 + width + 2);
        for Finding { check, level, found, advice } in &self.findings {
            let found = found.replace('\n', &format!("\n{indent}"));
            let _ = writeln!(text, "{:<4}  {check:<width$}  {found}", level.word());
            if let Some(advice) = advice {
                let _ = writeln!(text, "{indent}→ {}", advice.replace('\n', &format!("\n{indent}  ")));
            }
        }
        let (ok, warn, fail) = (self.count(CheckLevel::Ok), self.count(CheckLevel::Warn), self.count(CheckLevel::Fail));
        let _ = writeln!(text, "\nnode {}: {ok} ok, {warn} to check, {fail} failed", self.node);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stand_in_the_order_of_the_checks_with_the_advice_below() {
        let findings =
            vec![Finding::fail("rdma", "mlx5_0:\nno port", "replace\nthe cable"), Finding::ok("nvml", "12.8")];
        let report = DoctorReport::new("node-a", findings);
        assert!(!report.is_well());
        assert_eq!(
            report.text(),
            "ok    nvml  12.8\nfail  rdma  mlx5_0:\n            no port\n            → replace\n              the \
             cable\n\nnode node-a: 1 ok, 0 to check, 1 failed\n"
        );
        assert_eq!(report.json()["summary"]["fail"], 1);
    }

    #[test]
    fn the_documentation_explains_every_check() {
        let text = include_str!("../../../docs/commands.md");
        let missing: Vec<_> = CHECKS.iter().filter(|check| !text.contains(&format!("| `{check}` |"))).collect();
        assert!(missing.is_empty(), "docs/commands.md lacks {missing:?}");
    }
}
