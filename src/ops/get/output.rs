//! Tables as kubectl prints them: without rules, headers in capitals.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

/// One line of a table.
pub trait Row {
    /// Name of one row, for messages: `node`.
    const WHAT: &'static str;
    /// Its name on the command line: `nodes`.
    const PLURAL: &'static str;
    /// Printed instead of an empty table.
    const NONE: &'static str;
    /// Headers, joined by commas; those after the first [`Self::NARROW`] are shown with `-o wide` only.
    const HEADERS: &'static str;
    /// How many columns the plain table has.
    const NARROW: usize;
    /// The name that the command line may select.
    fn name(&self) -> &str;
    /// Its namespace, where it has one.
    fn namespace(&self) -> Option<&str> {
        None
    }
    /// Whether the command line names this row: by its name, or by `namespace/name`.
    fn is(&self, given: &str) -> bool {
        self.name() == given
            || given.split_once('/').is_some_and(|(space, name)| self.namespace() == Some(space) && self.name() == name)
    }
    /// One cell for each header.
    fn cells(&self) -> Vec<String>;
}

/// The table of `rows`, with a newline at its end.
pub fn table<R: Row>(rows: &[R], wide: bool) -> String {
    let mut headers: Vec<&str> = R::HEADERS.split(',').collect();
    headers.truncate(if wide { headers.len() } else { R::NARROW });
    let cells = |row: &R| row.cells().into_iter().take(headers.len()).collect::<Vec<_>>();
    plain(&headers, rows.iter().map(cells))
}

/// A table without lines, as wide as its content.
pub fn plain(headers: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty().set_header(headers.iter().copied());
    table.add_rows(rows.into_iter().map(|row| row.into_iter().map(or_dash).collect::<Vec<_>>()));
    for column in table.column_iter_mut() {
        column.set_padding((0, 3)).set_cell_alignment(CellAlignment::Left);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}

fn or_dash(cell: String) -> String {
    if cell.is_empty() { "-".to_owned() } else { cell }
}

/// `3s`, `12m5s`, `4h7m`, `3d2h`: two units at most.
pub fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units_at_most() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (61, "1m1s"), (3_700, "1h1m"), (100_000, "1d3h")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_table_has_no_lines_and_marks_empty_cells() {
        let text = plain(&["NODE", "LOCK"], [vec!["node-a".to_owned(), String::new()]]);
        assert_eq!(text, "NODE     LOCK\nnode-a   -\n");
    }
}
