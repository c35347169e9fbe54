//! What every open page knows: rows by table and key, published as merge patches (RFC 7396) of a bounded size, with the last of
//! them kept for streams that resume.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

/// Most bytes of one delta.
pub const MOST: usize = 64 << 10;
/// Bytes of deltas that are kept. A stream that is further behind gets a snapshot.
const KEPT: usize = 16 * MOST;
/// Times differ by the rounding of two clocks; a row whose times moved by less is the same row.
const ROUNDING: i64 = 2;

/// Name of a table and key of a row.
type RowKey = (&'static str, String);

/// What a stream sends next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// It is up to date.
    Nothing,
    /// The deltas after its revision: revision and JSON, which all streams share.
    Deltas(Vec<(u64, Bytes)>),
    /// Everything at this revision.
    Snapshot(u64, Bytes),
}

/// Published rows, and rows that wait for the next delta.
#[derive(Debug)]
pub struct RowFeed {
    state: Mutex<FeedState>,
    revision: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct FeedState {
    revision: u64,
    wall: Timestamp,
    rows: BTreeMap<&'static str, BTreeMap<String, Value>>,
    /// Newest values of rows that differ from the published ones.
    waiting: HashMap<RowKey, Option<Value>>,
    /// The order in which they came to differ, so that none waits for ever.
    order: VecDeque<RowKey>,
    past: VecDeque<(u64, Bytes)>,
    past_bytes: usize,
    snapshot: Option<Bytes>,
}

/// All rows, written without a copy of them.
#[derive(Serialize)]
struct Whole<'a> {
    at: i64,
    rows: &'a BTreeMap<&'static str, BTreeMap<String, Value>>,
}

impl RowFeed {
    pub fn new() -> Self {
        Self { state: Mutex::default(), revision: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports each new revision.
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// A stream is open.
    pub fn has_readers(&self) -> bool {
        self.revision.receiver_count() > 0
    }

    /// Puts a row, or takes it away.
    pub fn put(&self, table: &'static str, key: &str, row: Option<Value>) {
        let mut state = self.state();
        let now = state.rows.get(table).and_then(|rows| rows.get(key));
        let same = match (now, &row) {
            (Some(now), Some(row)) => patch(now, row).is_none(),
            (None, None) => true,
            _ => false,
        };
        let key = (table, key.to_owned());
        if same {
            // Its place in the order stays and is passed over.
            state.waiting.remove(&key);
        } else if state.waiting.insert(key.clone(), row).is_none() {
            state.order.push_back(key);
        }
    }

    /// Puts all rows of a table; those that it does not name are taken away.
    pub fn put_table(&self, table: &'static str, rows: impl IntoIterator<Item = (String, Value)>) {
        let rows: BTreeMap<String, Value> = rows.into_iter().collect();
        let gone: Vec<String> = {
            let state = self.state();
            let known = state.rows.get(table).into_iter().flat_map(BTreeMap::keys);
            let waiting = state.waiting.keys().filter(|(of, _)| *of == table).map(|(_, key)| key);
            known.chain(waiting).filter(|key| !rows.contains_key(*key)).cloned().collect()
        };
        gone.iter().for_each(|key| self.put(table, key, None));
        rows.into_iter().for_each(|(key, row)| self.put(table, &key, Some(row)));
    }

    pub fn row(&self, table: &str, key: &str) -> Option<Value> {
        self.state().rows.get(table)?.get(key).cloned()
    }

    /// Publishes the rows that wait, as many as one delta holds.
    pub fn publish(&self, wall: Timestamp) {
        let mut state = self.state();
        state.wall = wall;
        let (mut delta, mut bytes) = (Map::new(), 0);
        while let Some(key) = state.order.pop_front() {
            let Some(row) = state.waiting.remove(&key) else { continue };
            let Some((row, change, length)) = state.change(&key, row) else { continue };
            if bytes > 0 && bytes + length > MOST {
                state.waiting.insert(key.clone(), row);
                state.order.push_front(key);
                break;
            }
            bytes += length;
            let (table, key) = key;
            let changes = delta.entry(table).or_insert_with(|| Value::Object(Map::new()));
            changes[&key] = change;
            let rows = state.rows.entry(table).or_default();
            match row {
                Some(row) => drop(rows.insert(key, row)),
                None => drop(rows.remove(&key)),
            }
        }
        if delta.is_empty() {
            return;
        }
        let text: Bytes = json!({"at": wall.as_millisecond(), "rows": delta}).to_string().into();
        state.snapshot = None;
        state.revision += 1;
        state.past_bytes += text.len();
        let revision = state.revision;
        state.past.push_back((revision, text));
        while state.past_bytes > KEPT
            && let Some((_, oldest)) = state.past.pop_front()
        {
            state.past_bytes -= oldest.len();
        }
        drop(state);
        self.revision.send_replace(revision);
    }

    /// What a stream sends that has sent everything up to `sent`.
    pub fn next(&self, sent: Option<u64>) -> Next {
        let mut state = self.state();
        let oldest = state.past.front().map_or(state.revision + 1, |(revision, _)| *revision);
        if let Some(sent) = sent.filter(|sent| (oldest - 1..=state.revision).contains(sent)) {
            let deltas: Vec<_> = state.past.iter().filter(|(revision, _)| *revision > sent).cloned().collect();
            return if deltas.is_empty() { Next::Nothing } else { Next::Deltas(deltas) };
        }
        let (revision, wall) = (state.revision, state.wall);
        let text = match &state.snapshot {
            Some(text) => text.clone(),
            // Rows are text or numbers by text keys: they can always be written.
            None => {
                serde_json::to_vec(&Whole { at: wall.as_millisecond(), rows: &state.rows }).unwrap_or_default().into()
            }
        };
        state.snapshot = Some(text.clone());
        Next::Snapshot(revision, text)
    }
}

impl FeedState {
    /// The row, the patch from the published one and its bytes; `None` where nothing differs any more. A row that is larger than a
    /// delta is replaced by a word about it.
    fn change(&self, (table, key): &RowKey, row: Option<Value>) -> Option<(Option<Value>, Value, usize)> {
        let now = self.rows.get(table).and_then(|rows| rows.get(key));
        let of = |row: Option<Value>| {
            let change = match (now, &row) {
                (None, None) => return None,
                (Some(_), None) => Value::Null,
                (None, Some(row)) => row.clone(),
                (Some(now), Some(row)) => patch(now, row)?,
            };
            let length = change.to_string().len() + key.len() + table.len() + 16;
            Some((row, change, length))
        };
        let (row, change, length) = of(row)?;
        if length < MOST - 1024 {
            return Some((row, change, length));
        }
        of(Some(json!({"tooLarge": length})))
    }
}

/// The merge patch from one value to another; `None` where they are the same. Neither holds a null. Numbers under keys that end in
/// `At` are seconds and differ when they are further apart than their rounding.
fn patch(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return (from != to).then(|| to.clone()) };
    let mut changes = Map::new();
    for (key, to) in to {
        let same_time = |from: &Value| {
            let (from, to) = (from.as_i64(), to.as_i64());
            key.ends_with("At") && from.zip(to).is_some_and(|(from, to)| from.abs_diff(to) <= ROUNDING as u64)
        };
        let change = match from.get(key) {
            Some(from) if same_time(from) => None,
            Some(from) => patch(from, to),
            None => Some(to.clone()),
        };
        changes.extend(change.map(|change| (key.clone(), change)));
    }
    changes.extend(from.keys().filter(|key| !to.contains_key(*key)).map(|key| (key.clone(), Value::Null)));
    (!changes.is_empty()).then_some(Value::Object(changes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deltas(feed: &RowFeed, sent: u64) -> Vec<Value> {
        match feed.next(Some(sent)) {
            Next::Deltas(deltas) => deltas.iter().map(|(_, text)| serde_json::from_slice(text).unwrap()).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// What a page does with a patch, in the words of RFC 7396.
    fn merged(target: Value, patch: Value) -> Value {
        let Value::Object(patch) = patch else { return patch };
        let mut target = if let Value::Object(target) = target { target } else { Map::new() };
        for (key, change) in patch {
            if change.is_null() {
                target.remove(&key);
            } else {
                let before = target.remove(&key).unwrap_or(Value::Null);
                target.insert(key, merged(before, change));
            }
        }
        Value::Object(target)
    }

    #[test]
    fn a_delta_holds_what_changed_and_brings_an_earlier_snapshot_up_to_date() {
        let (feed, wall) = (RowFeed::new(), Timestamp::UNIX_EPOCH);
        feed.put(
            "nodes",
            "a",
            Some(json!({"devices": {"gpu-0": {"h": {"ml/x": 100}}, "gpu-1": {}}, "status": "Ready"})),
        );
        feed.put("nodes", "b", Some(json!({"status": "Ready"})));
        feed.publish(wall);
        let Next::Snapshot(1, before) = feed.next(None) else { panic!() };
        feed.put("nodes", "a", Some(json!({"devices": {"gpu-0": {}, "gpu-1": {}}, "status": "Ready"})));
        feed.put("nodes", "b", None);
        feed.publish(wall);
        let delta = deltas(&feed, 1).remove(0);
        assert_eq!(delta["rows"], json!({"nodes": {"a": {"devices": {"gpu-0": {"h": null}}}, "b": null}}));
        let Next::Snapshot(2, after) = feed.next(None) else { panic!() };
        let [before, after] = [before, after].map(|text| serde_json::from_slice::<Value>(&text).unwrap());
        assert_eq!(merged(before["rows"].clone(), delta["rows"].clone()), after["rows"]);
    }

    #[test]
    fn what_did_not_change_is_not_sent_and_times_may_be_rounded() {
        let (feed, wall) = (RowFeed::new(), Timestamp::UNIX_EPOCH);
        feed.put("queue", "a", Some(json!({"queuedAt": 1000, "attempts": 1})));
        feed.publish(wall);
        feed.put("queue", "a", Some(json!({"queuedAt": 1002, "attempts": 1})));
        feed.publish(wall);
        assert_eq!(feed.next(Some(1)), Next::Nothing);
        feed.put("queue", "a", Some(json!({"queuedAt": 1003, "attempts": 1})));
        // It is as it was before the delta went.
        feed.put("queue", "a", Some(json!({"queuedAt": 1000, "attempts": 1})));
        feed.publish(wall);
        assert_eq!(feed.next(Some(1)), Next::Nothing);
        feed.put("queue", "a", Some(json!({"queuedAt": 1003, "attempts": 1})));
        feed.publish(wall);
        assert_eq!(deltas(&feed, 1)[0]["rows"], json!({"queue": {"a": {"queuedAt": 1003}}}));
        feed.put_table("queue", [("b".to_owned(), json!({}))]);
        feed.publish(wall);
        assert_eq!(deltas(&feed, 2)[0]["rows"], json!({"queue": {"a": null, "b": {}}}));
    }

    #[test]
    fn a_delta_is_at_most_64_kb_and_every_row_gets_its_turn() {
        let (feed, wall) = (RowFeed::new(), Timestamp::UNIX_EPOCH);
        let change = |round: usize| {
            (0..100).for_each(|row| {
                feed.put("nodes", &row.to_string(), Some(json!({"text": format!("{round}").repeat(2000)})));
            });
        };
        change(1);
        feed.put("nodes", "huge", Some(json!({"text": "x".repeat(MOST)})));
        for round in 2..8 {
            feed.publish(wall);
            change(round);
        }
        let Next::Snapshot(_, text) = feed.next(None) else { panic!() };
        let rows = serde_json::from_slice::<Value>(&text).unwrap()["rows"]["nodes"].clone();
        assert_eq!(
            rows.as_object().unwrap().len(),
            101,
            "the first rows changed all the time, and the others came too"
        );
        assert!(rows["huge"]["tooLarge"].as_u64().unwrap() > MOST as u64);
        let Next::Deltas(all) = feed.next(Some(0)) else { panic!() };
        let longest = all.iter().map(|(_, text)| text.len()).max().unwrap();
        assert!(longest > MOST / 2 && longest <= MOST, "{longest}");
    }

    #[test]
    fn a_stream_that_is_far_behind_gets_a_snapshot_and_not_a_growing_queue() {
        let (feed, wall) = (RowFeed::new(), Timestamp::UNIX_EPOCH);
        for round in 0..1000 {
            feed.put("nodes", "a", Some(json!({"text": format!("{round:01000}").repeat(30)})));
            feed.publish(wall);
        }
        assert!(matches!(feed.next(Some(1)), Next::Snapshot(1000, _)));
        assert!(matches!(feed.next(Some(990)), Next::Deltas(deltas) if deltas.len() == 10));
        assert!(matches!(feed.next(Some(1001)), Next::Snapshot(1000, _)), "a revision of another server");
        let kept = feed.state().past_bytes;
        assert!(kept <= KEPT, "{kept}");
    }
}
