//! Measured figures beside the limits of `expect.toml`.

use std::collections::BTreeMap;

/// The limits of one bench. Counts and ratios over their limit fail the bench; times only show, because machines differ.
pub struct Expect {
    limits: BTreeMap<String, Limit>,
    broken: Vec<String>,
}

/// One figure's limit.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    limit: f64,
    /// `false`: shown beside the figure, never a failure.
    #[serde(default = "yes")]
    gate: bool,
}

fn yes() -> bool {
    true
}

impl Expect {
    /// Reads the section of this bench.
    pub fn load(section: &str) -> Self {
        let mut all: BTreeMap<String, BTreeMap<String, Limit>> =
            toml::from_str(include_str!("expect.toml")).expect("expect.toml is readable");
        Self { limits: all.remove(section).expect("the bench has a section"), broken: vec![] }
    }

    fn judge(&mut self, name: &str, found: f64, holds: impl Fn(f64) -> bool, word: &str) {
        let Some(limit) = self.limits.get(name) else {
            println!("  {name:28} {found:>12.3}");
            return;
        };
        let good = holds(limit.limit);
        let verdict = if good {
            "ok"
        } else if limit.gate {
            "BROKEN"
        } else {
            "over (shown, not gated)"
        };
        println!("  {name:28} {found:>12.3}   {word} {:>10.3}   {verdict}", limit.limit);
        if !good && limit.gate {
            self.broken.push(name.to_owned());
        }
    }

    /// `found` must not be above the limit.
    pub fn at_most(&mut self, name: &str, found: f64) {
        self.judge(name, found, |limit| found <= limit, "limit");
    }

    /// `found` must not be below the limit.
    #[allow(dead_code)] // not every bench has such a figure
    pub fn at_least(&mut self, name: &str, found: f64) {
        self.judge(name, found, |limit| found >= limit, "least");
    }

    /// `found` must be the stated number.
    pub fn exactly(&mut self, name: &str, found: f64) {
        self.judge(name, found, |limit| (found - limit).abs() < 1e-9, "equals");
    }

    /// Exits with 1 when a gate is broken.
    pub fn finish(self) {
        if !self.broken.is_empty() {
            eprintln!("limits of expect.toml are broken: {}", self.broken.join(", "));
            std::process::exit(1);
        }
    }
}
