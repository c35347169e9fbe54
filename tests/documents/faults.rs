//! Every row of `docs/promises.md` and of `tests/faults.md` names tests that exist.

use std::path::Path;

/// `(fault, file, test)` of each row of a table.
fn rows(text: &str) -> Vec<(&str, &str, &str)> {
    let lines = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let cells = lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    cells
        .filter(|cells| !matches!(cells[0], "fault" | "behaviour" | "promise"))
        .map(|cells| {
            let named = cells.get(1).and_then(|cell| cell.strip_prefix('`')?.strip_suffix('`')?.split_once(": "));
            let (file, test) = named.unwrap_or_else(|| panic!("{}: no `file: test` in its second column", cells[0]));
            (cells[0], file, test)
        })
        .collect()
}

/// The test of that name stands in the source, with an attribute that makes it one.
fn has_test(source: &str, test: &str) -> bool {
    let Some(at) = source.find(&format!("fn {test}(")) else { return false };
    let before = source[..at].rsplit('}').next().unwrap_or_default();
    before.contains("#[test]") || before.contains("#[tokio::test") || before.contains("proptest!")
}

#[test]
fn every_row_is_shown_by_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (page, least) in [("docs/promises.md", 30), ("tests/faults.md", 100)] {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let rows = rows(&text);
        assert!(rows.len() > least, "{page}: {} rows", rows.len());
        for (fault, file, test) in rows {
            let source =
                std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{fault}: {file}: {error}"));
            assert!(has_test(&source, test), "{page}: {fault}: {file} has no test {test}");
        }
    }
}

#[test]
fn a_row_whose_test_is_gone_is_found() {
    let text = "| fault | test |\n| --- | --- |\n| x | `a.rs: is_there` | processes |\n";
    assert_eq!(rows(text), [("x", "a.rs", "is_there")]);
    assert!(has_test("#[test]\nfn is_there() {}", "is_there"));
    assert!(!has_test("#[test]\nfn other() {}\n\nfn is_there() {}", "is_there"), "a plain function is no test");
}
