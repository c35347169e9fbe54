//! Reads the recorded timelines of pods that leave, and compares what the simulation showed with them.
//!
//! What one says of a thing is a chain: all lines of one kind about one name (`process a/main`: runs, GONE). Chains must be
//! equal, lines of one name must come in the recorded order where it had one, and ends must take the recorded time.

use super::prelude::*;
use super::recording::lines_of;

/// Lines that are about things the simulation does not have, and why they say nothing more.
pub const LEFT_OUT: [(&str, &str); 4] = [
    ("pods-dir", "volumes are not simulated; the directory proves nothing"),
    ("cri-container", "there is no CRI socket; process and cgroup say the same"),
    ("cri-sandbox", "there is no CRI socket; the cgroup says the same"),
    ("cri-rpc", "there is no CRI socket; the kubelet's own calls fail meanwhile"),
];

/// Single lines that are left out: scenario, kind, name (`*`: every), what it says, why.
pub const LINES_LEFT_OUT: [(&str, &str, &str, &str, &str); 5] = [
    ("kubelet-down", "api", "k2", "MODIFIED Pending", "the kubelet 1.37 writes a first status before the admission"),
    (
        "kubelet-down",
        "podresources",
        "*",
        "",
        "the recorder's calls failed until the end, the simulated kubelet's do not",
    ),
    ("kubelet-down", "podresources-rpc", "*", "", "as above"),
    ("phase-set-by-another", "api", "d", "", "a pod of the scenario before"),
    ("phase-set-by-another", "cgroup", "d", "", "a pod of the scenario before"),
];

/// Two sampled lines that are closer have no order; calls and events are held to it, too, for simplicity. PodResources, which
/// is asked by a call with a rate limit, gets twice that.
const NO_ORDER_WITHIN: f64 = 0.5;

/// Something done: to which pod (none: to the node), and when, recorded and simulated.
pub type Done = (Option<String>, f64, f64);

#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub at: f64,
    pub what: String,
    pub name: String,
    pub is: String,
}

#[derive(Debug, Clone)]
pub struct Timeline {
    pub scenario: String,
    pub lines: Vec<Line>,
}

/// Kind and name.
pub type Chain = (String, String);
pub type Chains = BTreeMap<Chain, Vec<(f64, String)>>;

pub fn read() -> Vec<Timeline> {
    let mut timelines: Vec<Timeline> = Vec::new();
    for line in lines_of("kubelet-force-delete", "timelines.jsonl") {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        if !line["scenario"].is_null() {
            timelines.push(Timeline { scenario: text("scenario"), lines: Vec::new() });
            continue;
        }
        let is = match &line["is"] {
            Value::Array(ids) => ids.iter().map(|id| id.as_str().unwrap()).collect::<Vec<_>>().join(","),
            _ => text("is"),
        };
        let line = Line { at: line["t"].as_f64().unwrap(), what: text("what"), name: text("name"), is };
        let timeline = timelines.last_mut().unwrap();
        let left_out = LINES_LEFT_OUT.iter().any(|(scenario, what, name, is, _)| {
            *scenario == timeline.scenario
                && *what == line.what
                && (*name == "*" || *name == line.name)
                && (is.is_empty() || *is == line.is)
        });
        if !left_out && !LEFT_OUT.iter().any(|(what, _)| *what == line.what) {
            timeline.lines.push(line);
        }
    }
    timelines
}

/// Sorts lines into chains, each thing said once.
pub fn chains(lines: &[Line]) -> Chains {
    let mut chains = Chains::new();
    // A pod of before the scenario is occupied in its beginning: another count of its processes is no change.
    let mut of_before: BTreeMap<&str, bool> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.what == "api") {
        of_before.entry(&line.name).or_insert(!line.is.starts_with("ADDED"));
    }
    for line in lines.iter().filter(|line| line.what != "step") {
        let chain = chains.entry((line.what.clone(), line.name.clone())).or_default();
        let is = match (line.what.as_str(), line.is.as_str()) {
            ("cgroup", is) if is.starts_with("pids=0") => "empty".to_owned(),
            ("cgroup", is) if is.starts_with("pids=") => "occupied".to_owned(),
            (_, is) => is.to_owned(),
        };
        let again = match line.what.as_str() {
            // A status that was written again without a change to be seen.
            "api" => chain.last().is_some_and(|(_, last)| is.starts_with("MODIFIED") && state(last) == state(&is)),
            // Before the sandbox runs, too short to be sampled each time.
            "cgroup" if chain.is_empty() => {
                is == if of_before.get(line.name.as_str()) == Some(&true) { "occupied" } else { "empty" }
            }
            // Containers are given their devices one after the other: what grows is said once.
            "podresources" | "checkpoint" => chain.last_mut().is_some_and(|(_, last)| {
                let grows = is.starts_with(last.as_str());
                if grows {
                    last.clone_from(&is);
                }
                grows
            }),
            "allocate" | "prestart-asked" | "prestart-ok" | "prestart-refused" => false,
            _ => chain.last().is_some_and(|(_, last)| *last == is),
        };
        if !again {
            chain.push((line.at, is));
        }
    }
    chains.retain(|_, chain| !chain.is_empty());
    chains
}

/// A watch event's text without its type.
fn state(event: &str) -> &str {
    event.split_once(' ').map_or("", |(_, state)| state)
}

/// The simulated chain as the recording's sampling would have shown it.
fn as_sampled(what: &str, recorded: &[(f64, String)], simulated: &[(f64, String)]) -> Vec<(f64, String)> {
    // Too short to be sampled each time: a cgroup between its processes and its end; between the two events of a forced deletion the
    // kubelet counts a pod of a terminal phase as active, without devices.
    let short = match what {
        "cgroup" => "empty",
        "podresources" => "listed",
        _ => return simulated.to_vec(),
    };
    let never = !recorded.iter().any(|(_, is)| is == short);
    let shown = simulated.iter().filter(|(_, is)| !(never && is == short)).cloned();
    shown.collect()
}

/// Recorded things that have not been seen yet, of those before `until`.
pub fn missing(recorded: &Chains, simulated: &Chains, until: f64) -> Vec<String> {
    let none = Vec::new();
    let each = recorded.iter().filter_map(|((what, name), chain)| {
        let wanted = chain.iter().filter(|(at, _)| *at < until).count();
        let shown = as_sampled(what, chain, simulated.get(&(what.clone(), name.clone())).unwrap_or(&none));
        (shown.len() < wanted).then(|| {
            let said = |chain: &[(f64, String)]| chain.iter().map(|(_, is)| is.clone()).collect::<Vec<_>>().join(" | ");
            format!("{what} {name}: {}\n      instead of: {}", said(&shown), said(&chain[..wanted]))
        })
    });
    each.collect()
}

/// Every difference, in words. `scale` is real seconds for each recorded one.
pub fn differences(recorded: &Chains, simulated: &Chains, acts: &[Done], scale: f64) -> Vec<String> {
    let mut found = Vec::new();
    // A device plugin's call is a moment that both have, too: how long a kubelet takes to connect again is not compared.
    let none = Vec::new();
    let called = ("allocate".to_owned(), String::new());
    let calls = recorded.get(&called).unwrap_or(&none).iter().zip(simulated.get(&called).unwrap_or(&none));
    let mut acts: Vec<Done> = acts.iter().cloned().chain(calls.map(|(r, s)| (None, r.0, s.0))).collect();
    acts.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut moments: BTreeMap<&str, Vec<(f64, f64, String)>> = BTreeMap::new();
    let kinds: BTreeSet<&str> = recorded.keys().map(|(what, _)| what.as_str()).collect();
    let names: BTreeSet<&str> = recorded.keys().map(|(_, name)| name.as_str()).collect();
    for (chain, simulated) in simulated {
        let known = kinds.contains(chain.0.as_str()) && names.contains(chain.1.as_str());
        let sampled = !matches!(chain.0.as_str(), "api" | "allocate") && !chain.0.starts_with("prestart");
        // A sampled kind that the recorder never noted of a name is not compared.
        if known && !sampled && !recorded.contains_key(chain) {
            found.push(format!("{} {}: {simulated:?}, and nothing is recorded", chain.0, chain.1));
        }
    }
    for ((what, name), chain) in recorded {
        let Some(simulated) = simulated.get(&(what.clone(), name.clone())) else {
            found.push(format!("{what} {name}: nothing, instead of {chain:?}"));
            continue;
        };
        let shown = as_sampled(what, chain, simulated);
        for (at, (recorded, simulated)) in chain.iter().zip(&shown).enumerate() {
            if recorded.1 != simulated.1 {
                found.push(format!("{what} {name}: `{}` as number {at}, instead of `{}`", simulated.1, recorded.1));
                break;
            }
            let of = name.split('/').next().unwrap_or(name);
            moments.entry(of).or_default().push((recorded.0, simulated.0, format!("{what} {name} {}", recorded.1)));
        }
        if shown.len() < chain.len() {
            found.push(format!("{what} {name}: {shown:?}, instead of {chain:?}"));
        }
        // What the recorder did not wait for at its end may have come.
        let ends = |is: &str| is == "GONE" || is == "empty" || is.contains("deleting(") || is.ends_with("terminated");
        if let Some((_, more)) = shown.get(chain.len()..).unwrap_or_default().iter().find(|(_, is)| !ends(is)) {
            found.push(format!("{what} {name}: `{more}` was not recorded"));
        }
    }
    for (name, mut moments) in moments.into_iter().filter(|(name, _)| !name.is_empty()) {
        moments.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (at, first) in moments.iter().enumerate() {
            for second in &moments[at + 1..] {
                let asked = [first, second].iter().any(|moment| moment.2.starts_with("podresources"));
                let apart = second.0 - first.0 >= NO_ORDER_WITHIN * if asked { 2.0 } else { 1.0 };
                if apart && first.1 - second.1 > 0.2 * scale {
                    let early = (first.1 - second.1) / scale;
                    found.push(format!("{name}: `{}` came {early:.2} s before `{}`", second.2, first.2));
                }
            }
        }
        for (recorded, simulated, what) in &moments {
            if !(what.ends_with(" GONE") && (what.starts_with("process") || what.starts_with("cgroup"))) {
                continue;
            }
            let to = |whom: &Option<String>| whom.as_ref().is_none_or(|whom| whom == name);
            let Some((_, from, since)) = acts.iter().rfind(|(whom, from, _)| from < recorded && to(whom)) else {
                continue;
            };
            let (recorded, simulated) = (recorded - from, (simulated - since) / scale);
            if simulated < recorded * 0.8 - 0.7 || simulated > recorded * 1.2 + 2.0 {
                found.push(format!("{what}: {simulated:.1} s after what was done, instead of {recorded:.1} s"));
            }
        }
    }
    found
}
