//! `baton explain --what-if -f pod.yaml`: what would be decided for a pod that does not exist.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Deserialize;

use super::output::Common;
use super::verdict::{advice, nodes, refusals};
use crate::view::plain;
use baton_contract::key::MAX_OBJECT;
use baton_decide::explain::{WhatIf, WhatIfObjects};

/// A pod that does not exist.
#[derive(Debug, Args)]
pub struct WhatIfArgs {
    /// Show what would be decided for the objects of a manifest in the live cluster; nothing is written.
    #[arg(long, requires = "file")]
    pub what_if: bool,
    /// The manifest, YAML or JSON: Pods, Jobs, Deployments, TYJobs, gangs, one or several documents; - reads standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub file: Option<PathBuf>,
}

impl WhatIfArgs {
    /// A file says enough.
    pub fn is_asked(&self) -> bool {
        self.what_if || self.file.is_some()
    }
}

pub(super) async fn run(args: &WhatIfArgs, common: &Common) -> anyhow::Result<String> {
    let path = args.file.as_deref().unwrap_or(Path::new("-"));
    let manifest = read(path)?;
    let leader = common.leader().await?;
    let answer: WhatIfAnswer = leader.post("/explain", manifest).await.with_context(|| shown(path))?;
    match answer {
        WhatIfAnswer::Pod(answer) => common.print("WhatIf", &*answer, text),
        WhatIfAnswer::Objects(answer) => common.print("WhatIfList", &answer, objects_text),
    }
}

/// Of one Pod the scheduler shows every node's verdict.
#[derive(Deserialize)]
#[serde(untagged)]
enum WhatIfAnswer {
    Objects(WhatIfObjects),
    Pod(Box<WhatIf>),
}

/// What is printed of several objects.
fn objects_text(answer: &WhatIfObjects, _wide: bool) -> String {
    let many = "Judged in this order, each beside those before it:\n";
    let mut out = if answer.objects.len() > 1 { many.to_owned() } else { String::new() };
    for object in &answer.objects {
        let _ = writeln!(out, "{} {}.", object.object, object.headline);
        for note in &object.notes {
            let _ = writeln!(out, "  note: {note}");
        }
    }
    out
}

/// As messages name it.
fn shown(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let cannot = || format!("cannot read {}", path.display());
    let source: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(path).with_context(cannot)?),
    };
    source.take(MAX_OBJECT as u64 + 1).read_to_string(&mut text).with_context(cannot)?;
    if text.len() > MAX_OBJECT {
        bail!("{} is larger than {MAX_OBJECT} bytes: no pod is", path.display());
    }
    Ok(text)
}

/// What `baton explain --what-if` prints; `wide` adds every node and device.
pub fn text(answer: &WhatIf, wide: bool) -> String {
    let mut out = String::new();
    let WhatIf { pod, fits, verdict, .. } = answer;
    // Counted reasons are listed one by one, as those of a pod that waits.
    let listed_below = !verdict.rules.is_empty() && verdict.rules.iter().all(|rule| rule.count > 0);
    let reasons = format!(": {}", verdict.message);
    let cut = answer.headline.split_once(&*reasons).map(|(first, _)| first).filter(|_| listed_below);
    let _ = writeln!(out, "Pod {pod} {}.", cut.unwrap_or(&answer.headline));
    if !fits && !answer.headline.contains(&verdict.message) && verdict.rules.iter().all(|rule| rule.count == 0) {
        let _ = writeln!(out, "  {}", verdict.message);
    }
    if let Some(way) = answer.preemption.as_ref().filter(|way| !answer.headline.contains(&**way)) {
        let _ = writeln!(out, "  {way}");
    }
    if !answer.devices.is_empty() {
        let _ = writeln!(out, "  devices: {}", answer.devices.join(", "));
    }
    for note in &answer.notes {
        let _ = writeln!(out, "  note: {note}");
    }
    if !answer.best.is_empty() {
        let row = |node: &baton_decide::explain::RatedNode| {
            let ratings = node.ratings.iter().map(|part| format!("{} {}×{}", part.rule, part.score, part.weight));
            vec![node.node.clone(), node.score.to_string(), ratings.collect::<Vec<_>>().join(", ")]
        };
        let _ = write!(out, "\n{}", plain(&["BEST NODES", "SCORE", "MADE OF"], answer.best.iter().map(row)));
    }
    for node in &answer.best {
        for (rule, why) in node.ratings.iter().filter_map(|part| Some((&part.rule, part.why.as_ref()?))) {
            let _ = writeln!(out, "  {}: {rule}: {why}", node.node);
        }
    }
    refusals(&mut out, verdict);
    advice(&mut out, verdict);
    if wide {
        nodes(&mut out, verdict);
    }
    out
}
