//! The time line of the README: the hand-off of the demo's pod `gpu-rdma`, as the demo prints it. `UPDATE_DOCS=1` draws it again.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

const PICTURE: &str = "docs/ui/hand-off.svg";
const POD: &str = "gpu-rdma";
/// Who takes a step, by how its line begins.
const STEPS: [(&str, &str, &str); 6] = [
    ("submitted", "you", "#6e7781"),
    ("lock set", "scheduler", "#2f6fde"),
    ("bound", "scheduler", "#2f6fde"),
    ("Allocate", "node daemon", "#1a8a4c"),
    ("lock on", "node daemon", "#1a8a4c"),
    ("running", "kubelet", "#6e7781"),
];
const STYLE: &str = "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328}.at{text-anchor:end}.way{stroke:#afb8c1}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.way{stroke:#57606a}}";
const ROW: usize = 28;

/// `(seconds, text)` of the lines about the pod until it runs.
fn steps(told: &str) -> Vec<(f64, &str)> {
    let lines = told.lines().filter_map(|line| {
        let (at, rest) = line.trim_start().split_once("s  ")?;
        let text = rest.strip_prefix(POD)?.trim_start();
        let known = STEPS.iter().any(|(begin, ..)| text.starts_with(begin));
        Some((at.parse().ok()?, text)).filter(|_| known)
    });
    lines.collect()
}

fn draw(steps: &[(f64, &str)]) -> String {
    let height = ROW * (steps.len() + 1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"860\" height=\"{height}\" viewBox=\"0 0 860 {height}\">\n\
         <style>{STYLE}</style>\n<path class=\"way\" d=\"M112 {ROW}V{}\"/>\n",
        height - ROW
    );
    for (row, (at, text)) in (1..).zip(steps) {
        let (_, who, colour) = STEPS.iter().find(|(begin, ..)| text.starts_with(begin)).unwrap();
        let (y, after) = (row * ROW, (at - steps[0].0) * 1e3);
        let base = y + 5;
        writeln!(
            svg,
            "<text class=\"at\" x=\"96\" y=\"{base}\">{after:.0} ms</text><circle cx=\"112\" cy=\"{y}\" r=\"6\" fill=\"{colour}\"/>\
             <text x=\"132\" y=\"{base}\">{who}</text><text x=\"244\" y=\"{base}\">{text}</text>"
        )
        .unwrap();
    }
    svg + "</svg>\n"
}

/// What a picture shows besides times: its words without the numbers.
fn words(svg: &str) -> BTreeSet<String> {
    let texts = svg.split("</text>").filter_map(|part| part.rsplit('>').next());
    let bare = texts.map(|text| text.chars().filter(|c| !c.is_ascii_digit() && *c != '.').collect::<String>());
    bare.filter(|text| text.trim() != "ms").collect()
}

/// The picture in the documentation is of what this demo printed.
pub fn is_of(told: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PICTURE);
    let drawn = draw(&steps(told));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &drawn).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(words(&there), words(&drawn), "{PICTURE}: UPDATE_DOCS=1 draws it again");
    assert!(words(&there).iter().any(|text| text.contains("released after")), "{there}");
}
