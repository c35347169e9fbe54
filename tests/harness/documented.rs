//! For tests: the tables of `docs/metrics.md` are what the daemons print. `UPDATE_DOCS=1` writes them again.

use std::collections::BTreeMap;
use std::path::Path;

use baton_runtime::metrics::RequestMetrics;

const HEAD: &str = "| metric | kind | labels | what it counts |\n| --- | --- | --- | --- |\n";

/// What a client of the API server counts, of every kind.
pub fn requests() -> RequestMetrics {
    let requests = RequestMetrics::default();
    requests.sent("get").answered(200);
    requests.watched("pods")();
    requests
}

/// Labels of the samples of a family, but for the bounds of a histogram's buckets.
fn labels(printed: &str, name: &str) -> String {
    let sample = printed.lines().find_map(|line| {
        let (family, rest) = line.split_once('{')?;
        let ends = ["", "_total", "_bucket", "_info"];
        ends.iter()
            .any(|end| family.strip_suffix(end) == Some(name))
            .then(|| rest.split('}').next().unwrap_or_default())
    });
    let keys = sample.unwrap_or_default().split(',').filter_map(|pair| pair.split_once('=')).map(|(key, _)| key);
    keys.filter(|key| *key != "le").map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}

/// The table of what is printed, where every family has a member.
fn table(printed: &str) -> String {
    let field = |kind: &str| -> BTreeMap<&str, &str> {
        let mark = format!("# {kind} ");
        printed.lines().filter_map(|line| line.strip_prefix(mark.as_str())?.split_once(' ')).collect()
    };
    let (kinds, helps) = (field("TYPE"), field("HELP"));
    assert!(!kinds.is_empty());
    // Readers of OpenMetrics take a family's unit from its own line, not from its name.
    for unit in ["seconds", "bytes"] {
        for name in kinds.keys().filter(|name| name.ends_with(&format!("_{unit}"))) {
            assert!(printed.contains(&format!("# UNIT {name} {unit}\n")), "{name} has no unit");
        }
    }
    let row = |(name, kind): (&&str, &&str)| {
        let help = helps[name].trim_end_matches('.');
        format!("| `{name}` | {kind} | {} | {help} |\n", labels(printed, name))
    };
    HEAD.to_owned() + &kinds.iter().map(row).collect::<String>()
}

/// Compares what is printed with the table in the section of that command.
pub fn check(printed: &str, command: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let section = text.find(&format!("\n## `{command}`\n")).unwrap_or_else(|| panic!("no section {command}"));
    let start = section + text[section..].find(HEAD).unwrap();
    let end = text[start..].find("\n\n").map_or(text.len(), |end| start + end + 1);
    let table = table(printed);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{}{table}{}", &text[..start], &text[end..])).unwrap();
        return;
    }
    assert_eq!(text[start..end], table, "docs/metrics.md, `{command}`: UPDATE_DOCS=1 writes the table again");
}
