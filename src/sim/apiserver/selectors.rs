//! Label and field selectors, in the full grammar of the API, and what they mean for a watch.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::failure::Failure;
use super::object::{Object, text};
use super::resource::Resource;

/// What happened to one object.
#[derive(Debug)]
pub struct Change {
    /// Storage key.
    pub key: String,
    /// Version of this change.
    pub version: u64,
    /// The object before, if it existed.
    pub before: Option<Arc<Object>>,
    /// The object after, if it exists. For a deletion, `None`.
    pub after: Option<Arc<Object>>,
    /// For a deletion, the last state with the deletion's version.
    pub last: Option<Arc<Object>>,
}

/// What a list or watch asks for.
#[derive(Debug, Default, Clone)]
pub struct Selection {
    labels: Vec<LabelTerm>,
    fields: Vec<FieldTerm>,
}

#[derive(Debug, Clone, PartialEq)]
enum LabelTerm {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

#[derive(Debug, Clone)]
struct FieldTerm {
    path: Vec<String>,
    value: String,
    equal: bool,
}

/// A change as one watcher sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Came into view.
    Added,
    /// Was and stays in view.
    Modified,
    /// Left the view.
    Deleted,
}

impl Seen {
    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

impl Selection {
    /// Parses the query parameters; `resource` decides which fields may be selected.
    pub fn parse(labels: &str, fields: &str, resource: &Resource) -> Result<Self, Failure> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(fields, resource)? })
    }

    /// Whether nothing is selected away.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Adds `metadata.name=<name>`, for requests on one object.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        let path = vec!["metadata".to_owned(), "name".to_owned()];
        self.fields.push(FieldTerm { path, value: name.to_owned(), equal: true });
        self
    }

    /// The node name that `spec.nodeName=` fixes, if any.
    pub fn node_name(&self) -> Option<&str> {
        self.fields.iter().find(|f| f.equal && f.path == ["spec", "nodeName"]).map(|f| f.value.as_str())
    }

    /// Whether the object is selected.
    pub fn matches(&self, value: &Value) -> bool {
        self.fields.iter().all(|f| f.matches(value))
            && (self.labels.is_empty() || {
                let labels = &value["metadata"]["labels"];
                self.labels.iter().all(|l| l.matches(labels))
            })
    }

    fn sees(&self, object: Option<&Object>) -> bool {
        object.is_some_and(|o| self.matches(&o.value))
    }

    /// Whether a change says anything to a watcher with this selection.
    pub fn concerns(&self, change: &Change) -> bool {
        self.is_everything() || self.sees(change.before.as_deref()) || self.sees(change.after.as_deref())
    }

    /// The event that the watcher gets; `None` for none.
    pub fn view(&self, change: &Change) -> Option<Seen> {
        match (self.sees(change.before.as_deref()), self.sees(change.after.as_deref())) {
            (false, true) => Some(Seen::Added),
            (true, true) => Some(Seen::Modified),
            (true, false) => Some(Seen::Deleted),
            (false, false) => None,
        }
    }
}

impl FieldTerm {
    fn matches(&self, value: &Value) -> bool {
        let found = self.path.iter().try_fold(value, |at, key| at.get(key.as_str()));
        let shown = match found {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(s)) => s.clone(),
            Some(other) => other.to_string(),
        };
        let shown = match (self.path.last().map(String::as_str), shown.as_str()) {
            (Some("unschedulable" | "hostNetwork"), "") => "false",
            (Some("podIP"), "") => text(value, &["status", "podIP"]),
            _ => &shown,
        };
        (shown == self.value) == self.equal
    }
}

impl LabelTerm {
    fn matches(&self, labels: &Value) -> bool {
        let get = |key: &str| labels.get(key).and_then(Value::as_str);
        match self {
            Self::In(key, values) => get(key).is_some_and(|v| values.iter().any(|w| w == v)),
            Self::NotIn(key, values) => get(key).is_none_or(|v| values.iter().all(|w| w != v)),
            Self::Exists(key) => get(key).is_some(),
            Self::Absent(key) => get(key).is_none(),
            Self::Greater(key, n) => get(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *n),
            Self::Less(key, n) => get(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *n),
        }
    }
}

fn bad_labels(why: &str) -> Failure {
    Failure::bad_request(format!("unable to parse requirement: {why}"))
}

fn parse_labels(text: &str) -> Result<Vec<LabelTerm>, Failure> {
    let mut terms = Vec::new();
    for part in split_terms(text) {
        let part = part.trim();
        if part.is_empty() {
            continue;
        }
        terms.push(parse_label_term(part)?);
    }
    Ok(terms)
}

/// Splits at commas outside parentheses.
fn split_terms(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0_usize, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

fn parse_label_term(part: &str) -> Result<LabelTerm, Failure> {
    let key_of = |key: &str| {
        let key = key.trim();
        match super::validate::label_key(key) {
            None => Ok(key.to_owned()),
            Some(why) => Err(bad_labels(&format!("<nil>: Invalid value: \"{key}\": {why}"))),
        }
    };
    if let Some(key) = part.strip_prefix('!') {
        return Ok(LabelTerm::Absent(key_of(key)?));
    }
    if let Some((head, tail)) = part.split_once('(') {
        let values: Vec<String> = tail
            .strip_suffix(')')
            .ok_or_else(|| bad_labels(&format!("found '{part}', expected: ',' or ')'")))?
            .split(',')
            .map(|v| v.trim().to_owned())
            .collect();
        let words: Vec<&str> = head.split_whitespace().collect();
        return match words.as_slice() {
            [key, "in"] => Ok(LabelTerm::In(key_of(key)?, values)),
            [key, "notin"] => Ok(LabelTerm::NotIn(key_of(key)?, values)),
            _ => Err(bad_labels(&format!("found '{head}', expected: in, notin"))),
        };
    }
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = part.split_once(operator) {
            let value = value.trim().to_owned();
            if let Some(why) = super::validate::label_value(&value) {
                return Err(bad_labels(&format!("values[0][{}]: Invalid value: \"{value}\": {why}", key.trim())));
            }
            let key = key_of(key)?;
            return Ok(if equal { LabelTerm::In(key, vec![value]) } else { LabelTerm::NotIn(key, vec![value]) });
        }
    }
    for (operator, greater) in [(">", true), ("<", false)] {
        if let Some((key, value)) = part.split_once(operator) {
            let n = value.trim().parse().map_err(|_| {
                bad_labels(&format!(
                    "values[0][{}]: Invalid value: \"{}\": must be an integer",
                    key.trim(),
                    value.trim()
                ))
            })?;
            let key = key_of(key)?;
            return Ok(if greater { LabelTerm::Greater(key, n) } else { LabelTerm::Less(key, n) });
        }
    }
    Ok(LabelTerm::Exists(key_of(part)?))
}

/// Fields that may be selected beside `metadata.name` and `metadata.namespace`.
fn selectable(resource: &Resource) -> &'static [&'static str] {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("resource.k8s.io", "resourceslices") => &["spec.nodeName", "spec.driver"],
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events.k8s.io", "events") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "replicationcontrollers") | ("apps", "replicasets") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        _ => &[],
    }
}

fn parse_fields(text: &str, resource: &Resource) -> Result<Vec<FieldTerm>, Failure> {
    let allowed = selectable(resource);
    let custom = resource.custom.as_ref().map(|c| c.selectable.as_slice()).unwrap_or_default();
    let mut terms = Vec::new();
    for part in text.split(',').filter(|p| !p.trim().is_empty()) {
        let (path, value, equal) = if let Some((p, v)) = part.split_once("!=") {
            (p, v, false)
        } else if let Some((p, v)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (p, v, true)
        } else {
            return Err(Failure::bad_request(format!("invalid selector: '{part}'; can't understand '{part}'")));
        };
        let path = path.trim();
        let known = matches!(path, "metadata.name")
            || (path == "metadata.namespace" && (resource.namespaced || resource.custom.is_some()))
            || allowed.contains(&path)
            || custom.iter().any(|c| c.trim_start_matches('.') == path);
        if !known {
            return Err(Failure::bad_request(format!("field label not supported: {path}")));
        }
        terms.push(FieldTerm { path: stored_path(path), value: value.trim().to_owned(), equal });
    }
    Ok(terms)
}

/// Events are stored in the core form.
fn stored_path(path: &str) -> Vec<String> {
    let renamed: BTreeMap<&str, &str> = BTreeMap::from([
        ("regarding.kind", "involvedObject.kind"),
        ("regarding.namespace", "involvedObject.namespace"),
        ("regarding.name", "involvedObject.name"),
        ("regarding.uid", "involvedObject.uid"),
        ("regarding.apiVersion", "involvedObject.apiVersion"),
        ("regarding.resourceVersion", "involvedObject.resourceVersion"),
        ("regarding.fieldPath", "involvedObject.fieldPath"),
        ("reportingController", "reportingComponent"),
        ("source", "source.component"),
    ]);
    renamed.get(path).copied().unwrap_or(path).split('.').map(str::to_owned).collect()
}

/// Whether a label selector object selects an object. An empty one selects everything, an absent one nothing.
pub fn selects(selector: &Value, object: &Value) -> bool {
    if !selector.is_object() {
        return false;
    }
    let labels = &object["metadata"]["labels"];
    let exact = selector["matchLabels"].as_object().into_iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    exact
        && selector["matchExpressions"].as_array().into_iter().flatten().all(|e| {
            let found = labels.get(e["key"].as_str().unwrap_or_default());
            let listed = || found.is_some_and(|f| e["values"].as_array().is_some_and(|v| v.contains(f)));
            match e["operator"].as_str() {
                Some("In") => listed(),
                Some("NotIn") => !listed(),
                Some("Exists") => found.is_some(),
                Some("DoesNotExist") => found.is_none(),
                _ => false,
            }
        })
}
