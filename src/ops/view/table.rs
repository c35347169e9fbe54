//! Tables as kubectl prints them: without rules, headers in capitals, no wider than the terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde::Serialize;

use crate::say::{remark, visible};

/// One line of a table.
pub trait Row: Serialize {
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
    /// By what the command line selects it.
    fn id(&self) -> RowId<'_>;
    /// Whether the command line names this row: by its name, or by `namespace/name`.
    fn is(&self, given: &str) -> bool {
        let RowId { name, namespace, .. } = self.id();
        name == given || given.split_once('/').is_some_and(|(space, own)| namespace == Some(space) && name == own)
    }
    /// One cell for each header.
    fn cells(&self) -> Vec<String>;
}

/// What selects a row.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowId<'a> {
    pub name: &'a str,
    /// Its namespace, where it has one.
    pub namespace: Option<&'a str>,
    /// The node that `--node` selects it by.
    pub node: Option<&'a str>,
    /// The labels that `-l` selects it by.
    pub labels: Option<&'a BTreeMap<String, String>>,
}

/// Columns of free text: where a terminal is narrow, their cells take several lines.
const TEXT: &str = "NOTES,MEMBERS,WAITS FOR,WHAT TO DO,PROBLEM,MESSAGE,WHY,HOLDERS,REASON,WANTS,WAKES WHEN,HELD BY";
/// Columns that say what a row is about, what is free there, and what is wrong with it.
const KEPT: [&str; 9] = ["NAME", "DEVICE", "STATUS", "GPUS FREE", "HOLDER", "NOTES", "PROBLEM", "REASON", "WHAT TO DO"];
/// Columns whose words are coloured.
const COLOURED: [&str; 3] = ["STATE", "HEALTH", "DAEMON"];
/// A column of text is at least this wide.
const TEXT_WIDTH: usize = 20;
/// Notes are short.
const NOTES_WIDTH: usize = 14;
/// Most characters of a text in a table of many rows.
const SHORT: usize = 160;
/// A longer word of a text, a command's say, may be broken; no value is so long.
const LONG_WORD: usize = 24;
/// A longer name is a cloud's.
const LONG_NAME: usize = 24;
/// Blanks between columns.
const GAP: usize = 3;

/// Where a table is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Columns of the terminal; `None` for a table that is as wide as its content.
    pub width: Option<usize>,
    /// States are coloured.
    pub colour: bool,
    /// The first line names the columns.
    pub headers: bool,
}

impl Look {
    /// A file, a pipe.
    pub const PLAIN: Self = Self { width: None, colour: false, headers: true };

    /// Standard output as it is: only a terminal has a width and colours, the latter unless `NO_COLOR` is set.
    pub fn of_stdout(headers: bool) -> Self {
        let out = std::io::stdout();
        if !out.is_terminal() {
            return Self { headers, ..Self::PLAIN };
        }
        let size = rustix::termios::tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col));
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let colour = set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb");
        Self { width: size.filter(|columns| *columns > 0), colour, headers }
    }
}

/// The columns of a table, for its later lines.
#[derive(Debug, Default)]
pub struct Columns {
    widths: Vec<usize>,
    /// Those that have room, by number.
    kept: Vec<usize>,
    /// Later lines may be of other namespaces.
    is_followed: bool,
}

impl Columns {
    /// Of a table that later lines follow.
    pub fn followed() -> Self {
        Self { is_followed: true, ..Self::default() }
    }

    /// Makes room for the widest cells.
    fn widen(&mut self, headers: &[&str], rows: &[Vec<String>]) {
        self.widths.resize(headers.len(), 0);
        for (at, width) in self.widths.iter_mut().enumerate() {
            *width = (*width).max(widest(rows, at)).max(headers[at].len());
        }
    }

    /// How narrow each may be: a text is broken between its words.
    fn least(&self, headers: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
        let words = |at: usize| rows.iter().filter_map(move |row| row.get(at)).flat_map(|cell| cell.split(' '));
        let lengths = |at: usize| words(at).map(|word| word.chars().count()).filter(|length| *length <= LONG_WORD);
        let text_width = |header: &str| if header == "NOTES" { NOTES_WIDTH } else { TEXT_WIDTH.max(header.len()) };
        let least = |at: usize| text_width(headers[at]).max(lengths(at).max().unwrap_or(0));
        let least = |at: usize| if is_text(headers[at]) { least(at) } else { usize::MAX };
        self.widths.iter().enumerate().map(|(at, width)| (*width).min(least(at))).collect()
    }

    /// Keeps those that have room.
    fn choose(&mut self, headers: &[&str], rows: &[Vec<String>], least: &[usize], room: usize) {
        let Self { kept, is_followed, .. } = self;
        kept.extend(0..headers.len());
        // The first column says what a row is about; a namespace that all rows share is in the question.
        let is_one = |at: usize| rows.windows(2).all(|pair| pair[0].get(at) == pair[1].get(at));
        let says_nothing = |at: usize| match headers[at] {
            "NAMESPACE" => is_one(at) && !*is_followed,
            _ => at > 0 && empty(rows, at),
        };
        let tells = |at: usize| KEPT.contains(&headers[at]);
        let matters = |at: usize| tells(at) || is_text(headers[at]) || COLOURED.contains(&headers[at]);
        // What says nothing goes first, then the last columns, those of text and of states later, names and bad news last of all.
        let in_turn: [&dyn Fn(usize) -> bool; 4] =
            [&says_nothing, &|at| at > 0 && !matters(at), &|at| at > 0 && !tells(at), &|at| at > 0];
        for may_go in in_turn {
            while kept.len() > 1
                && total(kept, least) > room
                && let Some(at) = kept.iter().rposition(|at| may_go(*at))
            {
                kept.remove(at);
            }
        }
    }

    /// The lines of those that are kept.
    fn draw(&self, headers: &[&str], rows: Vec<Vec<String>>, look: Look, least: &[usize]) -> String {
        let Self { widths, kept, .. } = self;
        let mut table = Table::new();
        table.load_style(presets::NOTHING).force_no_tty();
        if look.colour {
            table.enforce_styling();
        }
        let room = look.width.unwrap_or(usize::MAX);
        let narrow = total(kept, widths) > room;
        if narrow {
            let width = u16::try_from(room + GAP).unwrap_or(u16::MAX);
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        if look.headers {
            table.set_header(kept.iter().map(|at| headers[*at]));
        }
        for row in rows {
            let mut row: BTreeMap<usize, String> = row.into_iter().enumerate().collect();
            let cell = |at: &usize| {
                let text = row.remove(at).unwrap_or_default();
                let colour = colour(&text).filter(|_| look.colour && COLOURED.contains(&headers[*at]));
                let cell = Cell::new(text);
                colour.into_iter().fold(cell, Cell::fg)
            };
            table.add_row(kept.iter().map(cell).collect::<Vec<_>>());
        }
        for (column, at) in table.column_iter_mut().zip(kept) {
            column.set_padding((0, GAP as u16)).set_cell_alignment(CellAlignment::Left);
            let is_fixed = narrow && !is_text(headers[*at]);
            let constraint = if is_fixed { ColumnConstraint::Absolute } else { ColumnConstraint::LowerBoundary };
            let width = if narrow { least[*at] } else { widths[*at] };
            column.set_constraint(constraint(Width::Fixed((width + GAP) as u16)));
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n") + "\n"
    }
}

/// Columns with these widths, side by side.
fn total(kept: &[usize], widths: &[usize]) -> usize {
    kept.iter().map(|at| widths[*at] + GAP).sum::<usize>().saturating_sub(GAP)
}

/// Characters of the widest cell of a column.
fn widest(rows: &[Vec<String>], at: usize) -> usize {
    rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
}

fn is_text(header: &str) -> bool {
    TEXT.split(',').any(|text| text == header)
}

/// Ends long names of nodes, as clouds give them, at their first dot, where they differ before it.
fn cut_domains(headers: &[&str], rows: &mut [Vec<String>]) {
    for at in (0..headers.len()).filter(|at| matches!(headers[*at], "NAME" | "NODE")) {
        let names: BTreeSet<String> = rows.iter().filter_map(|row| row.get(at).cloned()).collect();
        let head = |name: &str| name.split_once('.').map_or(name.to_owned(), |(head, _)| head.to_owned());
        if names.iter().map(|name| head(name)).collect::<BTreeSet<_>>().len() == names.len() {
            let long = rows.iter_mut().filter_map(|row| row.get_mut(at)).filter(|name| name.len() > LONG_NAME);
            long.filter(|name| name.contains('.')).for_each(|name| *name = head(name) + "…");
        }
    }
}

/// No cell of the column is news.
fn empty(rows: &[Vec<String>], at: usize) -> bool {
    rows.iter().all(|row| row.get(at).is_none_or(|cell| matches!(cell.as_str(), "-" | "0" | "Ready")))
}

/// The table of `cells` in as many of these columns as fit, with a newline at its end, and the names of those that do not.
/// `columns` is what earlier lines took, kept for later ones.
pub fn fitted(
    headers: &[&str],
    mut rows: Vec<Vec<String>>,
    look: Look,
    columns: &mut Columns,
) -> (String, Vec<String>) {
    for cell in rows.iter_mut().flatten() {
        if cell.is_empty() {
            cell.push('-');
        } else if cell.contains(char::is_control) || !cell.is_ascii() {
            *cell = visible(&cell.replace('\n', " ")).into_owned();
        }
    }
    let room = look.width.unwrap_or(usize::MAX);
    let says = (0..headers.len()).filter(|at| !empty(&rows, *at));
    if says.map(|at| widest(&rows, at).max(headers[at].len()) + GAP).sum::<usize>() > room.saturating_add(GAP) {
        cut_domains(headers, &mut rows);
    }
    columns.widen(headers, &rows);
    let least = columns.least(headers, &rows);
    if columns.kept.is_empty() {
        columns.choose(headers, &rows, &least, room);
    }
    let left_out = left_out(headers, &rows, (&columns.kept, columns.is_followed));
    (columns.draw(headers, rows, look, &least), left_out)
}

/// Names of the columns that are not kept; of a namespace, and of what is no news, with the one value that all rows have.
fn left_out(headers: &[&str], rows: &[Vec<String>], (kept, is_followed): (&[usize], bool)) -> Vec<String> {
    let of_all = |at: usize| {
        rows.first().and_then(|row| row.get(at)).filter(|one| rows.iter().all(|row| row.get(at) == Some(one)))
    };
    let named = |at: usize| match (headers[at], of_all(at)) {
        (header, Some(one)) if !is_followed && (header == "NAMESPACE" || empty(rows, at)) => {
            format!("{header} (all {one})")
        }
        (header, _) => header.to_owned(),
    };
    (0..headers.len()).filter(|at| !kept.contains(at)).map(named).collect()
}

/// Cuts long reasons in a table of many rows. What names a row, asks for `-o wide` or for JSON gets them whole.
pub fn shorten(headers: &[&str], rows: &mut [Vec<String>]) {
    let is_reason = |header: &str| matches!(header, "PROBLEM" | "MESSAGE" | "WHY");
    let reason = |row: &mut Vec<String>| {
        let cells = row.iter_mut().zip(headers).filter(|(_, header)| is_reason(header));
        cells.for_each(|(cell, _)| *cell = short(cell));
    };
    rows.iter_mut().for_each(reason);
}

fn short(text: &str) -> String {
    let line = text.replace('\n', " ");
    let Some((end, _)) = line.char_indices().nth(SHORT) else { return line };
    // A command is whole or not there.
    let end = line[..end].rfind("; ").filter(|at| *at > SHORT / 2).map_or(end, |at| at + 2);
    format!("{}…", &line[..end])
}

/// What a state means to people who run the cluster, by its first word.
fn colour(cell: &str) -> Option<Color> {
    let word = cell.split([' ', ',']).next().unwrap_or_default();
    Some(match word {
        "healthy" | "fresh" | "held" | "served" | "bound" => Color::Green,
        "cordoned" | "parked" | "backOff" | "unregistered" | "away" | "stopped" | "binding" | "late" => Color::Yellow,
        "unhealthy" | "daemon" | "stale" | "none" | "dangling" | "unknown" | "malformed" => Color::Red,
        _ => return None,
    })
}

/// Says which columns a terminal has no room for.
pub fn say_left_out(columns: &[String], look: Look) {
    if let (Some(width), false) = (look.width, columns.is_empty()) {
        remark(format_args!("not shown on {width} columns: {}; -o wide shows all", columns.join(", ")));
    }
}

/// A table without lines, as wide as its content.
pub fn plain(headers: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    fitted(headers, rows.into_iter().collect(), Look::PLAIN, &mut Columns::default()).0
}

/// What `baton get` prints of these rows where its output is no terminal.
#[cfg(feature = "sim")]
pub fn table<R: Row>(rows: &[R]) -> String {
    let headers: Vec<&str> = R::HEADERS.split(',').take(R::NARROW).collect();
    let mut cells: Vec<Vec<String>> =
        rows.iter().map(|row| row.cells().into_iter().take(headers.len()).collect()).collect();
    shorten(&headers, &mut cells);
    plain(&headers, cells)
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

    #[test]
    fn a_long_text_is_cut_where_a_part_of_it_ends() {
        let text = format!("{}; {}", "x".repeat(100), "y".repeat(100));
        assert_eq!((short(&text), short("a\nb")), ("x".repeat(100) + "; …", "a b".to_owned()));
        assert_eq!(short(&"x".repeat(500)).chars().count(), SHORT + 1);
    }

    #[test]
    fn a_cell_forges_no_row_and_no_colour() {
        let text = plain(&["NAME", "WHY"], [vec!["a".to_owned(), "\u{1b}[31mred\nnode-9   Ready".to_owned()]]);
        assert_eq!(text, "NAME   WHY\na      \\u001b[31mred node-9   Ready\n");
    }

    /// On a terminal of so many columns.
    fn on(width: usize, headers: &[&str], rows: &[&[&str]]) -> (String, Vec<String>) {
        let rows = rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        fitted(headers, rows, Look { width: Some(width), ..Look::PLAIN }, &mut Columns::default())
    }

    fn locks(width: usize) -> (String, Vec<String>) {
        let advice = "holder does not exist: the next bind takes it over, or remove it by hand";
        let row = ["node-a", "dangling", "ml/gone-with-the-wind", "2s", advice];
        on(width, &["NODE", "STATE", "HOLDER", "AGE", "WHAT TO DO"], &[&row])
    }

    #[test]
    fn on_a_narrow_terminal_text_takes_several_lines_then_columns_are_left_out_by_name() {
        for width in [20, 40, 60, 72, 80, 100, 120, 200] {
            let (text, left_out) = locks(width);
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= width, "{longest} > {width}:\n{text}");
            assert_eq!(left_out.is_empty(), width >= 72, "{width}: {left_out:?}\n{text}");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                width < 50 || words.contains("remove it by hand") || words.contains("hand"),
                "nothing is cut:\n{text}"
            );
        }
        assert_eq!(locks(60).1, ["STATE", "AGE"]);
    }

    #[test]
    fn a_column_that_says_nothing_is_the_first_to_go() {
        let left_out = |holder| on(20, &["NODE", "HOLDER", "LOCK AGE"], &[&["node-a", holder, "12m5s"]]).1;
        assert_eq!((left_out(""), left_out("ml/a")), (vec!["HOLDER (all -)".to_owned()], vec!["LOCK AGE".to_owned()]));
    }

    #[test]
    fn a_cell_is_broken_between_words_alone() {
        let row = ["default", "gpu-share", "Running", "node-0", "gpu-core=50, gpu-memory-ratio=50", "a b"];
        let headers = ["NAMESPACE", "NAME", "PHASE", "NODE", "WANTS", "PROBLEM"];
        for width in 30..90 {
            let text = on(width, &headers, &[&row]).0;
            let whole = |word: &str| row.iter().chain(&headers).any(|cell| cell.split(' ').any(|of| of == word));
            assert!(text.split_whitespace().all(whole), "{width}:\n{text}");
        }
    }

    #[test]
    fn a_name_and_bad_news_are_the_last_to_go() {
        let row = ["default", "train", "Running", "nvidia.com/gpu=8,rdma=400", "gpu-0 is out of service"];
        let left_out = on(48, &["NAMESPACE", "NAME", "PHASE", "WANTS", "PROBLEM"], &[&row]).1;
        assert_eq!(left_out, ["NAMESPACE (all default)", "PHASE", "WANTS"]);
        // A namespace is news where there are several, and the first column then.
        let pod = |space| [space, "train", "Running", "node-a"];
        let left_out = |other| on(30, &["NAMESPACE", "NAME", "PHASE", "NODE"], &[&pod("default"), &pod(other)]).1;
        assert_eq!(
            (left_out("default"), left_out("ml")),
            (vec!["NAMESPACE (all default)".to_owned()], vec!["NODE".to_owned()])
        );
        // That all nodes are ready is no news, that one is not is bad news.
        let node = |status| ["node-a", status, "fresh 6s", "1 GPU unhealthy"];
        let shown = |status| on(40, &["NAME", "STATUS", "DAEMON", "NOTES"], &[&node(status)]).1;
        let ready = vec!["STATUS (all Ready)".to_owned()];
        assert_eq!((shown("Ready"), shown("NotReady")), (ready, vec!["DAEMON".to_owned()]));
    }

    #[test]
    fn names_of_a_clouds_nodes_end_at_their_first_dot_before_bad_news_is_left_out() {
        let row = |name, notes| [name, "Ready", "0/8", "0", "0/4", "fresh 6s", notes];
        let headers = ["NAME", "STATUS", "GPUS FREE", "PARTLY FREE", "NICS FREE", "DAEMON", "NOTES"];
        let broken = row("ip-10-0-131-207.eu-central-1.compute.internal", "1 GPU unhealthy");
        let shown = |other| on(60, &headers, &[&broken, &row(other, "")]).0;
        let text = shown("ip-10-0-131-208.eu-central-1.compute.internal");
        assert!(text.contains("ip-10-0-131-207…") && text.contains("GPU unhealthy"), "{text}");
        let alike = shown("ip-10-0-131-207.us-east-1.compute.internal");
        assert!(alike.contains("ip-10-0-131-207.us-east-1"), "{alike}");
    }

    #[test]
    fn only_states_are_coloured_and_only_where_there_are_colours() {
        let row = || vec![vec!["healthy".to_owned(), "unhealthy".to_owned()]];
        let shown =
            |colour| fitted(&["NAME", "HEALTH"], row(), Look { colour, ..Look::PLAIN }, &mut Columns::default()).0;
        assert!(!shown(false).contains('\u{1b}'));
        let line = shown(true).lines().last().unwrap().to_owned();
        assert!(line.starts_with("healthy ") && line.contains("\u{1b}[38;5;9munhealthy"), "{line:?}");
    }

    #[test]
    fn later_lines_stand_below_earlier_ones() {
        let mut columns = Columns::default();
        let row = |name: &str| vec![vec![name.to_owned(), "x".to_owned()]];
        let first = fitted(&["NAME", "B"], row("a-long-name"), Look::PLAIN, &mut columns).0;
        let later = fitted(&["NAME", "B"], row("a"), Look { headers: false, ..Look::PLAIN }, &mut columns).0;
        assert_eq!(first.lines().nth(1).unwrap().find('x'), later.find('x'));
        // Where a column has no room, it has none later.
        let mut columns = Columns::default();
        let mut shown = |status: &str, headers: bool| {
            let row = ["node-a", status, "fresh 6s", "1 GPU unhealthy"].map(str::to_owned).to_vec();
            let look = Look { width: Some(40), headers, ..Look::PLAIN };
            fitted(&["NAME", "STATUS", "DAEMON", "NOTES"], vec![row], look, &mut columns).0
        };
        assert!(!shown("Ready", true).contains("STATUS") && shown("NotReady", false).contains("fresh"));
    }
}
