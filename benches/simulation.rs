//! The simulated system of `tests/simulation` for as long as one likes: faults by kind, branches that were seen, violations, and pod
//! lives per second on one core.
//!
//! * `cargo bench --bench simulation [-- --budget 60m --from 1 --pods 200]`: seeds from the first on. Goes on with `--from`.
//! * `-- --mutants [--seeds 1000] [--mutant NAME]`: in how many seeds each wrong adapter is found; fails where one is not.
//! * `-- --shrink SEED [--mutant NAME] [--lines 50]`: the least history that breaks the same promise, in its last lines.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // a bench is a test

#[path = "../tests/harness/dice.rs"]
mod dice;
#[path = "../tests/harness/scheduler/mod.rs"]
#[allow(dead_code, unused_imports)] // tests use more of it
mod harness;
#[path = "../tests/simulation/system/mod.rs"]
#[allow(unused_imports)] // tests use more of it
mod system;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::runtime::clock;
use system::{Fault, Mutant, Outcome, Plan, RARE, RAREST, System, shrink};

/// Without `--budget`.
const BUDGET: Duration = Duration::from_secs(60);
/// Seeds within which a wrong adapter must be found.
const SEEDS: u64 = 1000;
const PODS: u32 = 50;
/// Smaller plans that are tried.
const SMALLER: u32 = 200;

struct Arguments(Vec<String>);

impl Arguments {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|given| given == name)
    }

    fn of(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|given| given == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.of(name).map(|text| text.parse().unwrap_or_else(|_| panic!("{name} {text} is no number")))
    }

    fn budget(&self) -> Duration {
        let Some(text) = self.of("--budget") else { return BUDGET };
        let (number, unit) = text.split_at(text.len() - 1);
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => panic!("--budget {text}: expected a number with s, m or h, as 60m"),
        };
        Duration::from_secs(number.parse::<u64>().unwrap_or_else(|_| panic!("--budget {text} is no time")) * seconds)
    }
}

fn print(plan: &Plan, outcome: &Outcome) {
    println!("{plan:?}");
    outcome.history.last.iter().for_each(|line| println!("{line}"));
    if let Some(violation) = &outcome.violation {
        println!("{violation}");
    }
}

fn soak(arguments: &Arguments) -> usize {
    let (budget, pods) = (arguments.budget(), arguments.number("--pods").map_or(PODS, |pods| pods as u32));
    let from = arguments.number("--from").unwrap_or(1);
    let began = clock::mono();
    let (mut faults, mut seen): (BTreeMap<Fault, u64>, BTreeMap<&str, u64>) = Default::default();
    let (mut lives, mut lines, mut hours, mut broken) = (0, 0, 0.0, Vec::new());
    let mut seed = from;
    while clock::mono() < began + budget {
        let plan = Plan::new(seed, pods);
        let outcome = System::run(plan.clone());
        outcome.counts.iter().for_each(|(fault, count)| *faults.entry(*fault).or_default() += count);
        outcome.history.seen.iter().for_each(|(what, count)| *seen.entry(what).or_default() += count);
        lives += outcome.lives();
        lines += outcome.history.steps;
        hours += outcome.took.as_secs_f64() / 3600.0;
        if let Some(violation) = &outcome.violation {
            println!("seed {seed}, {violation}");
            broken.push(seed);
        }
        seed += 1;
    }
    let took = (clock::mono() - began).as_secs_f64();
    println!(
        "seeds {from} to {}: {lives} pod lives, {:.0} a second; {lines} lines in {hours:.1} virtual hours",
        seed - 1,
        lives as f64 / took
    );
    println!("{} faults:", faults.values().sum::<u64>());
    faults.iter().for_each(|(fault, count)| println!("{count:>9}  {}", fault.words()));
    println!("seen:");
    seen.iter().for_each(|(what, count)| println!("{count:>9}  {what}"));
    let expected = RARE.iter().chain(RAREST).filter(|_| seed - from >= SEEDS);
    let missed: Vec<&&str> = expected.filter(|what| !seen.contains_key(**what)).collect();
    let never: Vec<&str> = Fault::ALL.iter().filter(|fault| !faults.contains_key(fault)).map(|f| f.words()).collect();
    println!("branches that were never passed: {missed:?}; faults that never happened: {never:?}");
    println!("violations: {} {broken:?}; go on with --from {seed}", broken.len());
    broken.len() + missed.len()
}

fn mutants(seeds: u64, only: Option<&str>) -> usize {
    let (mut tried, mut missed) = (0, 0);
    for mutant in Mutant::ALL.iter().filter(|mutant| only.is_none_or(|only| only == format!("{mutant:?}"))) {
        let mut judges = BTreeSet::new();
        let found = (1..=seeds).find(|seed| {
            let outcome = System::run(Plan { mutant: Some(*mutant), ..Plan::new(*seed, PODS) });
            // What breaks without the mutant is no finding.
            let found = outcome.violation.filter(|_| System::run(Plan::new(*seed, PODS)).violation.is_none());
            judges.extend(found.map(|violation| violation.judge));
            !judges.is_empty()
        });
        match found {
            Some(seed) => println!("{:<60} seed {seed}: {}", mutant.words(), judges.into_iter().collect::<String>()),
            None => println!("{:<60} NOT FOUND within {seeds} seeds", mutant.words()),
        }
        (tried, missed) = (tried + 1, missed + usize::from(found.is_none()));
    }
    println!("{} of {tried} wrong adapters found", tried - missed);
    missed
}

fn main() {
    let arguments = Arguments(std::env::args().skip(1).collect());
    let failures = if arguments.has("--mutants") {
        mutants(arguments.number("--seeds").unwrap_or(SEEDS), arguments.of("--mutant"))
    } else if let Some(seed) = arguments.number("--shrink") {
        let mutant = arguments.of("--mutant").map(|name| {
            let named = Mutant::ALL.iter().find(|mutant| format!("{mutant:?}") == name);
            *named.unwrap_or_else(|| panic!("--mutant {name}: expected one of {:?}", Mutant::ALL))
        });
        let plan = Plan::new(seed, PODS);
        let lines = arguments.number("--lines").map_or(plan.lines, |lines| lines as usize);
        let (plan, outcome) = shrink(Plan { mutant, lines, ..plan }, SMALLER);
        print(&plan, &outcome);
        0
    } else {
        soak(&arguments)
    };
    assert!(failures == 0, "{failures} failures");
}
