//! The table of events, in either API form.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Column, age};
use crate::apiserver::object::text;

pub(super) fn columns() -> Vec<Column> {
    let shown = |name: &str, description: &str| Column::new(name, 0, description, "");
    vec![
        shown("Last Seen", "The time at which the most recent occurrence of this event was recorded."),
        shown("Type", "Type of this event (Normal, Warning), new types could be added in the future"),
        shown(
            "Reason",
            "This should be a short, machine understandable string that gives the reason for the transition.",
        ),
        shown("Object", "The object that this event is about."),
        shown("Message", "A human-readable description of the status of this operation."),
        Column::new("Source", 1, "The component reporting this event.", ""),
        Column::new("Count", 1, "The number of times this event has occurred.", ""),
        Column::wide_name(),
    ]
}

pub(super) fn cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let first =
        |paths: &[&[&str]]| paths.iter().map(|p| text(event, p)).find(|t| !t.is_empty()).unwrap_or_default().to_owned();
    let seen = first(&[
        &["series", "lastObservedTime"],
        &["lastTimestamp"],
        &["deprecatedLastTimestamp"],
        &["eventTime"],
        &["firstTimestamp"],
    ]);
    let about = if event.get("regarding").is_some() { &event["regarding"] } else { &event["involvedObject"] };
    let count = [&event["series"]["count"], &event["count"], &event["deprecatedCount"]];
    let count = count.into_iter().find_map(Value::as_i64).unwrap_or(1);
    vec![
        json!(age(Some(&seen), now)),
        event["type"].clone(),
        event["reason"].clone(),
        json!(format!("{}/{}", text(about, &["kind"]).to_lowercase(), text(about, &["name"]))),
        json!(first(&[&["message"], &["note"]]).trim()),
        json!(first(&[&["source", "component"], &["reportingComponent"], &["reportingController"]])),
        json!(count),
        event["metadata"]["name"].clone(),
    ]
}
