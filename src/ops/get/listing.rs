//! What is listed: the rows of one resource, filtered, sorted and printed.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use anyhow::bail;
use serde_json::{Value, json};

use super::args::{GetArgs, GetOutput};
use crate::say::{API_VERSION, Format, UsageError, remark};
use crate::view::{Columns, Look, Row, RowId, fitted, say_left_out, shorten};
use baton_contract::hint::LabelSelector;

pub struct Listing {
    what: &'static str,
    plural: &'static str,
    none: &'static str,
    headers: Vec<&'static str>,
    narrow: usize,
    lines: Vec<ListingLine>,
}

struct ListingLine {
    /// `namespace/name`, or the name.
    key: String,
    cells: Vec<String>,
    /// Where it is asked for.
    item: Value,
}

impl Listing {
    /// Those of `rows` that the command line selects.
    pub fn of<R: Row>(rows: Vec<R>, args: &GetArgs) -> anyhow::Result<Self> {
        let names = args.names();
        if let Some(missing) = names.iter().find(|name| !rows.iter().any(|row| args.means(row, name))) {
            bail!("{} {missing:?} not found; `baton get {}` lists what there is", R::WHAT, R::PLURAL);
        }
        let selects = |row: &R| -> anyhow::Result<bool> {
            let no = |flag: &str, what: &str| {
                UsageError(format!("{flag} selects by {what}, which {} do not have", R::PLURAL))
            };
            let id = row.id();
            let labelled = match (&args.selector, id.labels) {
                (None, _) => true,
                (Some(LabelSelector { .. }), None) => return Err(no("--selector", "labels").into()),
                (Some(selector), Some(labels)) => selector.matches(labels),
            };
            let here = args.node.as_deref().is_none_or(|node| id.node == Some(node));
            Ok(labelled && here && (names.is_empty() || names.iter().any(|name| args.means(row, name))))
        };
        let as_items =
            args.output.is_some_and(|output| output != GetOutput::Wide) || args.watch || args.sort_by.is_some();
        let mut lines = Vec::with_capacity(rows.len());
        for row in rows {
            if selects(&row)? {
                let RowId { name, namespace, .. } = row.id();
                let key = namespace.map_or_else(|| name.to_owned(), |space| format!("{space}/{name}"));
                let item = if as_items { serde_json::to_value(&row)? } else { Value::Null };
                lines.push(ListingLine { key, cells: row.cells(), item });
            }
        }
        let headers = R::HEADERS.split(',').collect();
        let mut listing = Self { what: R::WHAT, plural: R::PLURAL, none: R::NONE, headers, narrow: R::NARROW, lines };
        if let Some(by) = &args.sort_by {
            listing.sort(by)?;
        }
        Ok(listing)
    }

    /// `node`, `pod`, `queue`.
    fn singular(&self) -> &'static str {
        self.plural.strip_suffix('s').unwrap_or(self.plural)
    }

    /// `pod/default/train`, as a line.
    fn named(&self, line: &ListingLine) -> String {
        format!("{}/{}\n", self.singular(), line.key)
    }

    /// By a column, or by the path of a field of `-o json` (`.gpu.free`).
    fn sort(&mut self, by: &str) -> anyhow::Result<()> {
        let path = by.trim_start_matches('{').trim_end_matches('}');
        if let Some(path) = path.strip_prefix('.') {
            let field =
                |line: &ListingLine| path.split('.').try_fold(&line.item, |value, part| value.get(part)).cloned();
            if !self.lines.is_empty() && self.lines.iter().all(|line| field(line).is_none()) {
                return Err(
                    UsageError(format!("--sort-by {by}: no {} has that field; -o json shows them", self.what)).into()
                );
            }
            self.lines.sort_by(|a, b| compare(field(a).as_ref(), field(b).as_ref()));
            return Ok(());
        }
        let letters = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
        let Some(at) = self.headers.iter().position(|header| letters(header) == letters(by)) else {
            let columns = self.headers.join(", ");
            let text =
                format!("--sort-by {by}: {} have the columns {columns}; or give a field, such as .name", self.plural);
            return Err(UsageError(text).into());
        };
        self.lines.sort_by(|a, b| natural(&a.cells[at]).partial_cmp(&natural(&b.cells[at])).unwrap_or(Ordering::Equal));
        Ok(())
    }
}

/// Numbers by their size, times by their length, words by their letters; empty cells first.
fn natural(cell: &str) -> (f64, &str) {
    let number = cell.split(|c: char| !c.is_ascii_digit() && c != '.').next().and_then(|digits| digits.parse().ok());
    let length = humantime::parse_duration(cell).ok().map(|length| length.as_secs_f64());
    match length.or(number) {
        Some(number) => (number, ""),
        None => (f64::NEG_INFINITY, cell),
    }
}

fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    match (a, b) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => {
            a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal)
        }
        (Some(Value::String(a)), Some(Value::String(b))) => a.cmp(b),
        (a, b) => a.map(Value::to_string).cmp(&b.map(Value::to_string)),
    }
}

/// Prints listings: the first one whole, later ones where they differ.
pub struct Printer<'a> {
    args: &'a GetArgs,
    look: Look,
    columns: Columns,
    /// By key, without ages; `None` before the first listing.
    shown: Option<BTreeMap<String, Value>>,
}

impl<'a> Printer<'a> {
    /// For standard output as `look` describes it.
    pub fn new(args: &'a GetArgs, look: Look) -> Self {
        let look = if args.output == Some(GetOutput::Wide) { Look { width: None, ..look } } else { look };
        let columns = if args.watch { Columns::followed() } else { Columns::default() };
        Self { args, look, columns, shown: None }
    }

    pub fn print(&mut self, listing: &Listing) -> anyhow::Result<String> {
        let watch = self.args.watch;
        let before = self.shown.take();
        let watched = listing.lines.iter().filter(|_| watch);
        let now: BTreeMap<String, Value> = watched.map(|line| (line.key.clone(), ageless(&line.item))).collect();
        let text = match &before {
            None if !watch || self.args.output.is_none_or(|output| output == GetOutput::Wide) => self.whole(listing)?,
            before => self.changes(listing, before.as_ref().unwrap_or(&BTreeMap::new()), &now)?,
        };
        self.shown = watch.then_some(now);
        Ok(text)
    }

    fn whole(&mut self, listing: &Listing) -> anyhow::Result<String> {
        let items = || {
            let items: Vec<&Value> = listing.lines.iter().map(|line| &line.item).collect();
            let mut kind = listing.singular().to_owned();
            kind[..1].make_ascii_uppercase();
            json!({ "apiVersion": API_VERSION, "kind": format!("{kind}List"), "items": items })
        };
        Ok(match self.args.output {
            Some(GetOutput::Json) => Format::Json.print(&items())?,
            Some(GetOutput::Yaml) => Format::Yaml.print(&items())?,
            Some(GetOutput::Name) => listing.lines.iter().map(|line| listing.named(line)).collect(),
            None | Some(GetOutput::Wide) if listing.lines.is_empty() => {
                let filtered = self.args.node.is_some() || self.args.selector.is_some() || self.args.state.is_some();
                let none = match listing.none.split_once(';') {
                    _ if filtered => format!("No {} matches", listing.what),
                    Some((none, _)) if self.args.all_namespaces => none.to_owned(),
                    _ => listing.none.to_owned(),
                };
                let none = format!("{}.", none.trim_end_matches('.'));
                // Rows alone are for programs.
                if self.look.headers {
                    none + "\n"
                } else {
                    remark(none);
                    String::new()
                }
            }
            _ => self.table(listing, listing.lines.iter().map(|line| line.cells.clone()).collect()),
        })
    }

    fn table(&mut self, listing: &Listing, mut rows: Vec<Vec<String>>) -> String {
        let wide = self.args.output == Some(GetOutput::Wide);
        let headers = &listing.headers[..if wide { listing.headers.len() } else { listing.narrow }];
        rows.iter_mut().for_each(|row| row.truncate(headers.len()));
        if !wide && self.args.names().is_empty() {
            shorten(headers, &mut rows);
        }
        let (text, left_out) = fitted(headers, rows, self.look, &mut self.columns);
        if self.look.headers {
            say_left_out(&left_out, self.look);
        }
        // Once.
        self.look.headers = false;
        text
    }

    /// Rows that are new, differ in more than ages, or are gone.
    fn changes(
        &mut self,
        listing: &Listing,
        before: &BTreeMap<String, Value>,
        now: &BTreeMap<String, Value>,
    ) -> anyhow::Result<String> {
        let changed: Vec<&ListingLine> =
            listing.lines.iter().filter(|line| before.get(&line.key) != now.get(&line.key)).collect();
        let gone = before.iter().filter(|(key, _)| !now.contains_key(*key));
        if let Some(output @ (GetOutput::Json | GetOutput::Yaml)) = self.args.output {
            let known = |line: &ListingLine| if before.contains_key(&line.key) { "MODIFIED" } else { "ADDED" };
            let present = changed.into_iter().map(|line| json!({"type": known(line), "object": line.item}));
            let events = present.chain(gone.map(|(_, item)| json!({"type": "DELETED", "object": item})));
            let print = |event: Value| match output {
                GetOutput::Yaml => Ok(format!("---\n{}", Format::Yaml.print(&event)?)),
                _ => Ok(serde_json::to_string(&event)? + "\n"),
            };
            return events.map(print).collect();
        }
        let mut text = String::new();
        if self.args.output == Some(GetOutput::Name) {
            return Ok(changed.into_iter().map(|line| listing.named(line)).collect());
        }
        if !changed.is_empty() {
            text = self.table(listing, changed.into_iter().map(|line| line.cells.clone()).collect());
        }
        Ok(gone.fold(text, |text, (key, _)| text + key + " is gone\n"))
    }
}

/// Without what changes with the clock alone.
fn ageless(item: &Value) -> Value {
    match item {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !name.to_lowercase().ends_with("seconds"));
            Value::Object(kept.map(|(name, value)| (name.clone(), ageless(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(ageless).collect()),
        other => other.clone(),
    }
}
