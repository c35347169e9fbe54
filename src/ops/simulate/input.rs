//! Tables as CSV: columns by name in any order, and errors that name file, line, column and what is expected.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use csv::StringRecord;

/// A file that cannot be used: where, what is wrong, and what is expected.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InputError(String);

impl InputError {
    /// Of a file as a whole.
    pub fn of(path: &Path, problem: impl Display) -> Self {
        Self(format!("{}: {problem}", path.display()))
    }

    /// Of one of its lines, from 1.
    fn at(path: &Path, line: u64, problem: impl Display) -> Self {
        Self(format!("{}:{line}: {problem}", path.display()))
    }
}

/// The columns of one form of table.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// What it is, for messages.
    pub what: &'static str,
    /// Columns that must be there.
    pub needed: &'static [&'static str],
    /// Columns that may be there.
    pub optional: &'static [&'static str],
}

impl Form {
    fn columns(&self) -> impl Iterator<Item = &'static str> {
        self.needed.iter().chain(self.optional).copied()
    }
}

/// A table that was read.
pub struct TraceTable {
    path: PathBuf,
    /// Name and place of each column that is there.
    columns: Vec<(&'static str, usize)>,
    rows: Vec<(u64, StringRecord)>,
}

impl TraceTable {
    /// Reads a file of one of these forms; also returns which one. There are rows.
    pub fn read(path: &Path, forms: &[Form]) -> Result<(usize, Self), InputError> {
        let wrong = |problem: String| InputError::of(path, problem);
        let bytes = std::fs::read(path).map_err(|error| InputError::of(path, error))?;
        let text = String::from_utf8(bytes).map_err(|error| wrong(format!("is no text: {}", error.utf8_error())))?;
        // Some programs begin a file with a mark of its byte order.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
        let header = reader.headers().map_err(|error| wrong(error.to_string()))?.clone();
        let names: Vec<&str> = header.iter().collect();
        let form = forms.iter().enumerate().max_by_key(|(at, form)| {
            let known = form.columns().filter(|name| names.contains(name)).count();
            (known, std::cmp::Reverse(*at))
        });
        let Some((which, form)) = form else { return Err(wrong("no form is known".to_owned())) };
        let line = |problem: String| InputError::at(path, 1, problem);
        let known: Vec<&str> = form.columns().collect();
        let expected = || format!("expected {} with the columns {}", form.what, known.join(","));
        let mut columns = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let Some(column) = known.iter().find(|column| *column == name) else {
                return Err(line(format!("column {} ({name:?}) is not known; {}", at + 1, expected())));
            };
            if names[..at].contains(name) {
                return Err(line(format!("column {} ({name}) is there twice: keep one", at + 1)));
            }
            columns.push((*column, at));
        }
        if let Some(missing) = form.needed.iter().find(|column| !names.contains(column)) {
            return Err(line(format!("column {missing} is missing; {}", expected())));
        }
        let columns =
            form.columns().filter_map(|name| columns.iter().find(|(column, _)| *column == name).copied()).collect();
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.map_err(|error| wrong(error.to_string()))?;
            let line = record.position().map_or(0, csv::Position::line);
            if record.len() != names.len() {
                let problem = format!("has {} fields, the head of the table has {}", record.len(), names.len());
                return Err(InputError::at(path, line, problem));
            }
            rows.push((line, record));
        }
        if rows.is_empty() {
            return Err(wrong(format!("has no rows; {}", expected())));
        }
        let table = Self { path: path.to_owned(), columns, rows };
        // A quote that is left open makes one field of all the rows after it.
        let broken = |row: TraceRow<'_>| {
            let (name, _) = table.columns.iter().find(|(name, _)| row.text(name).contains(char::is_control))?;
            Some(row.wrong(name, "text of one line without control characters"))
        };
        if let Some(error) = table.rows().find_map(broken) {
            return Err(error);
        }
        Ok((which, table))
    }

    /// Every row.
    pub fn rows(&self) -> impl Iterator<Item = TraceRow<'_>> {
        self.rows.iter().map(|(line, record)| TraceRow { table: self, line: *line, record })
    }
}

/// A row of a table.
#[derive(Clone, Copy)]
pub struct TraceRow<'a> {
    table: &'a TraceTable,
    line: u64,
    record: &'a StringRecord,
}

impl<'a> TraceRow<'a> {
    /// The text of a column; empty where the column is not there.
    pub fn text(&self, name: &str) -> &'a str {
        let column = self.table.columns.iter().find(|(column, _)| *column == name);
        column.and_then(|(_, at)| self.record.get(*at)).unwrap_or_default()
    }

    /// The words of a column, separated by `|`: each once, in order.
    pub fn words(&self, name: &str) -> Vec<String> {
        let words: std::collections::BTreeSet<&str> =
            self.text(name).split('|').filter(|word| !word.is_empty()).collect();
        words.into_iter().map(str::to_owned).collect()
    }

    /// A number from `least` to `most`.
    pub fn number<T: FromStr + PartialOrd + Display + Copy>(
        &self,
        name: &'static str,
        least: T,
        most: T,
    ) -> Result<T, InputError> {
        let number = self.text(name).parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| self.wrong(name, format!("number from {least} to {most}")))
    }

    /// The same, or `None` for an empty field.
    pub fn maybe<T: FromStr + PartialOrd + Display + Copy>(
        &self,
        name: &'static str,
        least: T,
        most: T,
    ) -> Result<Option<T>, InputError> {
        if self.text(name).is_empty() { Ok(None) } else { self.number(name, least, most).map(Some) }
    }

    /// An error about a value.
    pub fn wrong(&self, name: &'static str, expected: impl Display) -> InputError {
        let column = self.table.columns.iter().find(|(column, _)| *column == name).map_or(0, |(_, at)| at + 1);
        let value: String = self.text(name).chars().take(80).collect();
        let problem = format!("column {column} ({name}): {value:?} is no {expected}");
        InputError::at(&self.table.path, self.line, problem)
    }
}
