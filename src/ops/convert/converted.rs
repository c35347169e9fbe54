//! What a conversion makes: Baton's file, and above it what could not be carried over.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};

use serde_json::{Map, Value, json};

use crate::config::print_yaml;
use crate::settings::{API_VERSION, KIND};
use baton_decide::core::rules::plugins::{Point, names_at};

/// What it means that a setting is not carried over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Pods may go to other nodes than before, or wait.
    Moves,
    /// Pods go where they went.
    Harmless,
}

/// Baton's configuration and what is not in it.
#[derive(Debug, Default)]
pub struct Converted {
    keys: Map<String, Value>,
    /// The order of the queue, where it is not the default one.
    pub queue_sort: Option<&'static str>,
    /// Rules that are turned off, by the point that they are for.
    pub off: BTreeMap<Point, BTreeSet<&'static str>>,
    scores: Vec<(String, i64)>,
    args: BTreeMap<String, Value>,
    /// What is not carried over and changes where pods go.
    pub moves: Vec<String>,
    /// What else is not carried over.
    pub harmless: Vec<String>,
}

/// Points whose rules have another half elsewhere, which goes with them.
const HALVES: [(Point, &[Point]); 2] =
    [(Point::Filter, &[Point::PreFilter, Point::Reserve, Point::PreBind]), (Point::Score, &[Point::PreScore])];

/// The default order, kube-scheduler's and Baton's.
const ORDER: &str = "PrioritySort";

/// The highest weight of a score or resource.
const HEAVIEST: i64 = 100;

impl Converted {
    /// Something is not carried over.
    pub fn lose(&mut self, loss: Loss, what: impl Display, why: impl Display) {
        let list = if loss == Loss::Moves { &mut self.moves } else { &mut self.harmless };
        // A line break would end the comment.
        list.push(format!("{what}: {why}").replace(|letter: char| letter.is_control(), " "));
    }

    /// A field that kube-scheduler's types do not have, or not in the versions that Baton knows.
    pub fn unknown(&mut self, what: impl Display) {
        self.lose(Loss::Moves, what, "is not known here");
    }

    /// A key of the file, in place of an earlier value.
    pub fn key(&mut self, name: &str, value: Value) {
        self.keys.insert(name.to_owned(), value);
    }

    /// A field of a plugin's arguments.
    pub fn argument(&mut self, plugin: &str, field: &str, value: Value) {
        let args = self.args.entry(plugin.to_owned()).or_insert_with(|| json!({}));
        args[field] = value;
    }

    pub fn scores(&mut self, path: &str, scores: Vec<(String, i64)>) {
        self.scores = self.scaled(path, scores);
    }

    /// These weights, made smaller where one is too high.
    pub fn scaled(&mut self, path: &str, weights: Vec<(String, i64)>) -> Vec<(String, i64)> {
        let highest = weights.iter().map(|(_, weight)| *weight).max().unwrap_or_default();
        if highest <= HEAVIEST {
            return weights;
        }
        let divisor = weights.iter().fold(0, |divisor, (_, weight)| common_divisor(divisor, *weight)).max(1);
        let exact = highest / divisor <= HEAVIEST;
        let fit = |weight: i64| {
            let part = (weight as f64 * HEAVIEST as f64 / highest as f64).round().max(1.0) as i64;
            if exact { weight / divisor } else { part }
        };
        let made: Vec<(String, i64)> = weights.iter().map(|(name, weight)| (name.clone(), fit(*weight))).collect();
        let said: Vec<String> =
            weights.iter().zip(&made).map(|((name, from), (_, to))| format!("{name} {from} becomes {to}")).collect();
        let (loss, how) = if exact { (Loss::Harmless, "in proportion") } else { (Loss::Moves, "out of proportion") };
        self.lose(loss, format!("{path} weights"), format!("1 to {HEAVIEST} here; {}, {how}", said.join(", ")));
        made
    }

    fn lists(&self) -> Map<String, Value> {
        let mut off = self.off.clone();
        let scored = |name: &str| self.scores.iter().any(|(score, _)| score == name);
        off.insert(Point::Score, names_at(Point::Score).filter(|name| !scored(name)).collect());
        for (point, halves) in HALVES {
            let gone = off.get(&point).cloned().unwrap_or_default();
            for half in halves {
                let names = names_at(*half).filter(|name| gone.contains(name)).collect::<Vec<_>>();
                off.entry(*half).or_default().extend(names);
            }
        }
        let mut lists = Map::new();
        for (point, key) in Point::ALL {
            let out = off.get(&point).into_iter().flatten().map(|name| json!({"name": name})).collect::<Vec<_>>();
            let list = match point {
                Point::QueueSort => {
                    let Some(sort) = self.queue_sort.filter(|sort| *sort != ORDER) else { continue };
                    json!({"enabled": [{"name": sort}], "disabled": [{"name": "*"}]})
                }
                Point::Score => {
                    let scores = self.scores.iter().map(|(name, weight)| json!({"name": name, "weight": weight}));
                    json!({"enabled": scores.collect::<Vec<_>>(), "disabled": [{"name": "*"}]})
                }
                _ if out.is_empty() => continue,
                _ => json!({"disabled": out}),
            };
            lists.insert(key.to_owned(), list);
        }
        lists
    }

    /// The file.
    pub fn print(&self) -> anyhow::Result<String> {
        let mut file =
            Map::from_iter([("apiVersion".to_owned(), json!(API_VERSION)), ("kind".to_owned(), json!(KIND))]);
        file.extend(self.keys.clone());
        file.insert("plugins".to_owned(), self.lists().into());
        let args: Vec<Value> = self.args.iter().map(|(name, args)| json!({"name": name, "args": args})).collect();
        if !args.is_empty() {
            file.insert("pluginConfig".to_owned(), args.into());
        }
        let mut text = String::from(
            "# Made by `baton config convert`. The scores are those of the file, without Baton's default that packs GPUs.\n",
        );
        for (title, notes) in [
            ("Not carried over, and changes where pods go", &self.moves),
            ("Not carried over, harmless", &self.harmless),
        ] {
            if !notes.is_empty() {
                writeln!(text, "#\n# {title}:")?;
            }
            for note in notes {
                writeln!(text, "# - {note}")?;
            }
        }
        Ok(text + &print_yaml(&Value::from(file))?)
    }
}

fn common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
