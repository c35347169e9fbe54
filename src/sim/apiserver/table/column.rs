//! A column: what it is called and where its cells come from.

use jiff::Timestamp;
use serde_json::{Value, json};

/// Description of every name column.
const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources \
    may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for \
    creation idempotence and configuration definition. Cannot be updated. More info: \
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
/// Description of every age column of built-in kinds.
const AGE: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not \
    guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is \
    represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// One column of a table.
#[derive(Debug, Clone)]
pub struct Column {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: String,
}

impl Column {
    /// The name.
    pub fn name() -> Self {
        Self { format: "name".into(), ..Self::new("Name", 0, NAME, ".metadata.name") }
    }

    /// The name, shown only in wide tables.
    pub fn wide_name() -> Self {
        Self { priority: 1, ..Self::name() }
    }

    /// The age of a built-in object.
    pub fn age() -> Self {
        Self::new("Age", 0, AGE, "age")
    }

    /// The age of a custom object whose definition names no columns.
    pub fn age_of_custom() -> Self {
        Self { kind: "date".into(), ..Self::new("Age", 0, AGE, ".metadata.creationTimestamp") }
    }

    /// A text column with the path of its cells.
    pub fn new(name: &str, priority: i64, description: &str, path: &str) -> Self {
        Self {
            name: name.into(),
            kind: "string".into(),
            format: String::new(),
            description: description.into(),
            priority,
            path: path.into(),
        }
    }

    /// A column of a CustomResourceDefinition.
    pub fn custom(definition: &Value) -> Self {
        let text = |key: &str| definition[key].as_str().unwrap_or_default().to_owned();
        let mut description = text("description");
        if description.is_empty() {
            description = format!("Custom resource definition column (in JSONPath format): {}", text("jsonPath"));
        }
        Self {
            name: text("name"),
            kind: text("type"),
            format: text("format"),
            description,
            priority: definition["priority"].as_i64().unwrap_or(0),
            path: text("jsonPath"),
        }
    }

    /// The column definition on the wire.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name, "type": self.kind, "format": self.format, "description": self.description,
            "priority": self.priority,
        })
    }

    /// The cell of one object.
    pub fn cell(&self, item: &Value, now: Timestamp) -> Value {
        if self.path == "age" {
            return json!(age(item["metadata"]["creationTimestamp"].as_str(), now));
        }
        // Of several, a real server shows the first.
        let Some(first) = find(item, &self.path).first().map(|first| (*first).clone()) else { return Value::Null };
        match (self.kind.as_str(), first) {
            ("date", Value::String(time)) => json!(age(Some(&time), now)),
            ("date", _) => json!("<unknown>"),
            ("string", Value::String(s)) => json!(s),
            ("string", Value::Null) => Value::Null,
            ("string", other) => json!(plain(&other)),
            (_, other) => other,
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Values at a JSONPath of fields, indexes, `[*]` and `[?(@.key=="value")]`.
fn find<'a>(item: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![item];
    for step in steps(path) {
        found = found.into_iter().flat_map(|value| take(value, &step)).collect();
    }
    found
}

fn steps(path: &str) -> Vec<String> {
    let mut steps = Vec::new();
    let mut current = String::new();
    let mut depth = 0;
    let mut escaped = false;
    for c in path.trim_matches(['{', '}']).chars() {
        if escaped {
            current.push(c);
            escaped = false;
            continue;
        }
        match c {
            '\\' => escaped = true,
            '[' => {
                if depth == 0 && !current.is_empty() {
                    steps.push(std::mem::take(&mut current));
                }
                depth += 1;
                current.push(c);
            }
            ']' => {
                depth -= 1;
                current.push(c);
                if depth == 0 {
                    steps.push(std::mem::take(&mut current));
                }
            }
            '.' if depth == 0 => {
                if !current.is_empty() {
                    steps.push(std::mem::take(&mut current));
                }
            }
            other => current.push(other),
        }
    }
    if !current.is_empty() {
        steps.push(current);
    }
    steps
}

fn take<'a>(value: &'a Value, step: &str) -> Vec<&'a Value> {
    let Some(inner) = step.strip_prefix('[').and_then(|s| s.strip_suffix(']')) else {
        return value.get(step).into_iter().collect();
    };
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    if inner == "*" {
        return match value {
            Value::Object(map) => map.values().collect(),
            _ => items.iter().collect(),
        };
    }
    if let Some(filter) = inner.strip_prefix("?(@.").and_then(|f| f.strip_suffix(')')) {
        let Some((key, wanted)) = filter.split_once("==") else { return Vec::new() };
        let wanted = wanted.trim().trim_matches(['"', '\'']);
        return items.iter().filter(|i| i.get(key.trim()).is_some_and(|v| plain(v) == wanted)).collect();
    }
    if let Ok(index) = inner.parse::<usize>() {
        return items.get(index).into_iter().collect();
    }
    value.get(inner.trim_matches(['"', '\''])).into_iter().collect()
}

/// How long ago, as kubectl shows it: `5s`, `2m30s`, `3h`, `4d`.
pub(in crate::apiserver) fn age(since: Option<&str>, now: Timestamp) -> String {
    let Some(since) = since.and_then(|s| s.parse::<Timestamp>().ok()) else { return "<unknown>".to_owned() };
    let seconds = now.as_second() - since.as_second();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        s if s < -1 => "<invalid>".to_owned(),
        s if s < 0 => "0s".to_owned(),
        s if s < 120 => format!("{s}s"),
        s if s < 600 => match s % 60 {
            0 => format!("{minutes}m"),
            rest => format!("{minutes}m{rest}s"),
        },
        s if s < 3 * 3600 => format!("{minutes}m"),
        s if s < 8 * 3600 => match (s / 60) % 60 {
            0 => format!("{hours}h"),
            rest => format!("{hours}h{rest}m"),
        },
        s if s < 48 * 3600 => format!("{hours}h"),
        s if s < 8 * 86_400 => match hours % 24 {
            0 => format!("{days}d"),
            rest => format!("{days}d{rest}h"),
        },
        s if s < 2 * 365 * 86_400 => format!("{days}d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_shown_as_kubectl_does() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        for (since, shown) in [
            ("2026-01-01T23:59:55Z", "5s"),
            ("2026-01-01T23:57:30Z", "2m30s"),
            ("2026-01-01T21:00:00Z", "3h"),
            ("2025-12-29T00:00:00Z", "4d"),
            ("2023-01-01T00:00:00Z", "3y"),
        ] {
            assert_eq!(age(Some(since), now), shown, "{since}");
        }
    }

    #[test]
    fn json_paths_take_fields_indexes_and_filters() {
        let item =
            serde_json::json!({"a": {"b.c": 1}, "l": [{"type": "X", "status": "T"}, {"type": "Y", "status": "F"}]});
        assert_eq!(find(&item, ".a.b\\.c"), [&serde_json::json!(1)]);
        assert_eq!(find(&item, ".l[?(@.type==\"Y\")].status"), [&serde_json::json!("F")]);
        assert_eq!(find(&item, ".l[*].type").len(), 2);
        assert_eq!(find(&item, ".l[0].type"), [&serde_json::json!("X")]);
    }
}
