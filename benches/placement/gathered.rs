//! Gangs in one rack: the same jobs three times, gathered in no rack, in one where that is possible, and in one or nowhere.

use baton::contract::gang::{TopologyLayer, TopologySpec};
use baton::decide::core::rules::plugins::{DefaultSet, default_plugins};
use baton::decide::world::WorldPolicy;
use baton::decide::world::gangs::GangDefaults;
use baton::ops::simulate::cluster::OnFailure;
use baton::ops::simulate::engine::Engine;
use baton::ops::simulate::runs::{Decider, Replay};
use baton::ops::simulate::summary::{PolicySummary, SimulationSummary};
use baton::ops::simulate::trace::{Trace, TraceAsk, TraceGang, TraceMachine, WHOLE};
use tokio_util::sync::CancellationToken;

use super::steady::steady;

const RACK: &str = "example.com/rack";
/// Nodes of a rack, with eight GPUs each.
const NODES: usize = 8;
/// Of all GPUs.
const LOAD: f64 = 0.85;
/// Members, GPUs of each, and how many such jobs there are: three quarters of the demand are gangs, up to a whole rack.
const JOBS: [(u32, u32, usize); 8] =
    [(1, 1, 30), (1, 2, 10), (1, 4, 10), (1, 8, 10), (4, 4, 4), (2, 8, 8), (4, 8, 6), (8, 8, 3)];

/// What the gangs of a run ask for.
const WISHES: [(&str, Option<&str>, Option<&str>); 3] =
    [("anywhere", None, None), ("preferred", None, Some(RACK)), ("required", Some(RACK), None)];

fn trace(racks: usize, required: Option<&str>, preferred: Option<&str>) -> Trace {
    let machine = |at: usize| TraceMachine {
        name: at.to_string(),
        milli_cpu: 128_000,
        memory: 1 << 40,
        gpus: 8,
        labels: [(RACK.to_owned(), format!("r{:03}", at / NODES))].into(),
        ..TraceMachine::default()
    };
    let mut trace = Trace::of("gathered".into(), (0..racks * NODES).map(machine).collect());
    for (members, gpus, count) in JOBS {
        let topology = TopologySpec::short(required, preferred).expect("the label is one").unwrap_or_default();
        let gang = (members > 1).then_some(TraceGang { members, topology });
        let ask = TraceAsk { milli_cpu: 8000, memory: 1 << 35, gpus, milli: WHOLE, gang, ..TraceAsk::default() };
        trace.add(ask, None, count);
    }
    trace
}

/// One row for each wish, means over the seeds: domains per gang, wait and GPUs in use.
pub fn compare(racks: usize, seeds: u64) -> SimulationSummary {
    let traces = WISHES.map(|(_, required, preferred)| trace(racks, required, preferred));
    let plugins = default_plugins(&DefaultSet::default()).expect("the default set is whole");
    let layer = TopologyLayer { name: RACK.into(), label: RACK.into() };
    let gangs = GangDefaults { layers: [layer].into(), ..GangDefaults::default() };
    let world = WorldPolicy { gangs, ..WorldPolicy::default() };
    let (plugins, world) = (&plugins, &world);
    let decider = |trace| -> Decider<'_> {
        let of = move |order: &[usize]| Engine::new(trace, order, plugins.clone(), world.clone(), OnFailure::Queue);
        Box::new(move |order, _| Box::new(of(order)))
    };
    let replay = Replay {
        trace: &traces[0],
        on_failure: OnFailure::Queue,
        seeds: (42..42 + seeds).collect(),
        arrivals: &|random| {
            let (arrivals, measured) = steady(&traces[0], LOAD, random);
            (arrivals, Some(measured))
        },
    };
    let deciders: Vec<_> = traces.iter().map(decider).collect();
    let runs = replay.run(&deciders, &CancellationToken::new());
    SimulationSummary::of(&replay, Some(LOAD), WISHES.map(|(name, ..)| name.to_owned()), &runs)
}

/// Domains per gang, mean wait in seconds, percent of GPUs in use.
pub fn figures(policy: &PolicySummary) -> [f64; 3] {
    let wait = policy.departures.and_then(|ends| ends.mean_wait_seconds.mean);
    let domains = policy.domains_per_gang.get(RACK).and_then(|domains| domains.mean);
    [domains, wait, policy.allocation.at_load.mean].map(Option::unwrap_or_default)
}
