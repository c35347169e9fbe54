//! Compares a recorded body with ours: every field must be there with the same value, and no other, except what is
//! named here with its reason.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

/// Values that differ between two runs of the same server: recorded → ours.
#[derive(Debug, Default)]
pub struct Mapping {
    known: BTreeMap<String, String>,
    versions: BTreeMap<u64, u64>,
}

/// What is not compared, and why.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("4 /gitVersion, gitCommit, gitTreeState, goVersion, compiler", "identity of the binary that was recorded"),
    ("7 hash= in the URLs", "a hash of documents that describe this server's own resources"),
    ("23 order of the fields in the quoted object", "Go's struct order; the quoted object itself is compared as JSON"),
    ("33 the diff after the first line", "a dump of Go's internal pod struct with its line numbers"),
    ("91 connection headers", "only Content-Type is recorded"),
];

impl Mapping {
    /// Replaces generated values of earlier answers in a request's text.
    pub fn forward(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (recorded, ours) in self.known.iter().filter(|(k, _)| k.len() > 8) {
            text = text.replace(recorded.as_str(), ours);
        }
        text
    }

    /// A resourceVersion of an earlier answer.
    pub fn version(&self, recorded: &str) -> String {
        let found = recorded.parse::<u64>().ok().and_then(|v| self.versions.get(&v));
        found.map_or_else(|| recorded.to_owned(), u64::to_string)
    }

    /// Replaces generated values everywhere in a request body.
    pub fn forward_value(&self, value: &Value, key: &str) -> Value {
        match value {
            Value::String(s) if key == "resourceVersion" => Value::String(self.version(s)),
            Value::String(s) => Value::String(self.forward(s)),
            Value::Array(items) => items.iter().map(|v| self.forward_value(v, key)).collect(),
            Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), self.forward_value(v, k))).collect(),
            other => other.clone(),
        }
    }

    fn bind(&mut self, recorded: &str, ours: &str, at: &str, differences: &mut Vec<String>) {
        match self.known.get(recorded) {
            Some(before) if before == ours => {}
            Some(before) => differences.push(format!("{at}: {recorded} was {before} before and is {ours} now")),
            None => {
                self.known.insert(recorded.to_owned(), ours.to_owned());
            }
        }
    }

    /// Versions map one to one and keep their order.
    fn bind_version(&mut self, recorded: &str, ours: &str, at: &str, differences: &mut Vec<String>) {
        let (Ok(r), Ok(o)) = (recorded.parse::<u64>(), ours.parse::<u64>()) else {
            if recorded != ours {
                differences.push(format!("{at}: version {recorded:?} != {ours:?}"));
            }
            return;
        };
        if let Some(before) = self.versions.get(&r) {
            if *before != o {
                differences.push(format!("{at}: version {r} was {before} before and is {o} now"));
            }
            return;
        }
        let below = self.versions.range(..r).next_back().is_none_or(|(_, v)| *v < o);
        let above = self.versions.range(r..).next().is_none_or(|(_, v)| *v > o);
        if !below || !above {
            differences.push(format!("{at}: version {o} for {r} is out of order"));
        }
        self.versions.insert(r, o);
    }
}

pub struct Comparison<'a> {
    /// Number of the interaction.
    pub number: u64,
    /// Generated values so far.
    pub mapping: &'a mut Mapping,
    pub differences: Vec<String>,
}

const TIMES: [&str; 4] = ["creationTimestamp", "deletionTimestamp", "time", "lastTransitionTime"];

impl Comparison<'_> {
    pub fn value(&mut self, at: &str, key: &str, recorded: &Value, ours: &Value) {
        match (recorded, ours) {
            (Value::Object(r), Value::Object(o)) => {
                for (name, value) in r {
                    let path = format!("{at}/{name}");
                    match o.get(name) {
                        Some(mine) => self.value(&path, name, value, mine),
                        None if self.skipped(&path) => {}
                        None => self.differences.push(format!("{path}: missing, recorded {value}")),
                    }
                }
                for name in o.keys().filter(|n| !r.contains_key(*n)) {
                    let path = format!("{at}/{name}");
                    if !self.skipped(&path) {
                        self.differences.push(format!("{path}: not recorded, ours {}", o[name]));
                    }
                }
                if r.contains_key("deletionGracePeriodSeconds") {
                    self.due(at, ours);
                }
            }
            (Value::Array(r), Value::Array(o)) => {
                if r.len() != o.len() {
                    self.differences.push(format!("{at}: {} items, recorded {}: {ours}", o.len(), r.len()));
                }
                for (index, (value, mine)) in r.iter().zip(o).enumerate() {
                    self.value(&format!("{at}/{index}"), key, value, mine);
                }
            }
            (Value::String(r), Value::String(o)) => self.text(at, key, r, o),
            _ if recorded == ours => {}
            _ => self.differences.push(format!("{at}: {ours}, recorded {recorded}")),
        }
    }

    fn text(&mut self, at: &str, key: &str, recorded: &str, ours: &str) {
        if self.skipped(at) {
            return;
        }
        let numbers = |t: &str| t.chars().filter(char::is_ascii_digit).count() == t.len() && !t.is_empty();
        match key {
            "uid" | "continue" => self.mapping.bind(recorded, ours, at, &mut self.differences),
            "resourceVersion" if numbers(recorded) => {
                self.mapping.bind_version(recorded, ours, at, &mut self.differences);
            }
            "serverAddress" => {}
            "name" if recorded.starts_with("gen-") => {
                if !ours.starts_with("gen-") || ours.len() != recorded.len() {
                    self.differences.push(format!("{at}: {ours} is not shaped like {recorded}"));
                }
                self.mapping.bind(recorded, ours, at, &mut self.differences);
            }
            _ if TIMES.contains(&key) => {
                if ours.len() != recorded.len() || ours.parse::<Timestamp>().is_err() {
                    self.differences.push(format!("{at}: {ours} is not a time like {recorded}"));
                }
            }
            "serverRelativeURL" => {
                let bare = |t: &str| t.split("hash=").next().unwrap_or_default().to_owned();
                if bare(recorded) != bare(ours) {
                    self.differences.push(format!("{at}: {ours}, recorded {recorded}"));
                }
            }
            "cells" => {
                let age = |t: &str| t.ends_with('s') && numbers(t.trim_end_matches('s'));
                let wanted = self.mapping.forward(recorded);
                if wanted != ours && !(age(recorded) && age(ours)) {
                    self.differences.push(format!("{at}: {ours}, recorded {recorded}"));
                }
            }
            "message" => self.message(at, recorded, ours),
            _ => {
                let wanted = self.mapping.forward(recorded);
                if wanted != ours {
                    self.differences.push(format!("{at}: {ours:?}, recorded {wanted:?}"));
                }
            }
        }
    }

    fn message(&mut self, at: &str, recorded: &str, ours: &str) {
        let mut wanted = self.mapping.forward(recorded);
        let mut found = ours.to_owned();
        if let Some((head, last)) = wanted.clone().rsplit_once('(')
            && wanted.contains("too old resource version")
        {
            wanted = format!("{head}({})", self.mapping.version(last.trim_end_matches(')')));
        }
        if self.number == 33 {
            wanted = wanted.lines().next().unwrap_or_default().to_owned();
            found = found.lines().next().unwrap_or_default().to_owned();
        }
        if self.number == 23 {
            let (recorded, ours) = (quoted(recorded), quoted(ours));
            match (recorded, ours) {
                (Some((head, object, tail)), Some((my_head, my_object, my_tail))) => {
                    self.value(&format!("{at}(quoted object)"), "", &object, &my_object);
                    (wanted, found) = (head + &tail, my_head + &my_tail);
                }
                _ => self.differences.push(format!("{at}: no quoted object in {found}")),
            }
        }
        if wanted != found {
            self.differences.push(format!("{at}: {found:?}, recorded {wanted:?}"));
        }
    }

    /// The deletion time lies the grace period ahead.
    fn due(&mut self, at: &str, ours: &Value) {
        let due = ours["deletionTimestamp"].as_str().and_then(|t| t.parse::<Timestamp>().ok());
        let grace = ours["deletionGracePeriodSeconds"].as_i64().unwrap_or(-1);
        let now = baton::runtime::clock::wall().as_second();
        let fits = due.is_some_and(|d| (d.as_second() - grace - now).abs() <= 15);
        if !fits {
            self.differences.push(format!("{at}/deletionTimestamp: {due:?} is not {grace} s ahead of now"));
        }
    }

    fn skipped(&self, at: &str) -> bool {
        let build = ["/gitVersion", "/gitCommit", "/gitTreeState", "/goVersion", "/compiler"];
        self.number == 4 && build.contains(&at)
    }
}

/// Splits a text at the JSON string in it: before, the object in that string, after.
fn quoted(text: &str) -> Option<(String, Value, String)> {
    let start = text.find("\"{")?;
    let mut stream = serde_json::Deserializer::from_str(&text[start..]).into_iter::<String>();
    let inner = stream.next()?.ok()?;
    let end = start + stream.byte_offset();
    Some((text[..start].to_owned(), serde_json::from_str(&inner).ok()?, text[end..].to_owned()))
}
