//! The hand-off, model-checked over the functions that ship: 2 nodes, 2 devices, 3 pods, 2 schedulers, crashes, lost
//! replies, expiries, deletions and kubelet restarts in every order. `model/` holds the world around the decisions.
//!
//! The ordinary run uses small bounds. All of it, within five minutes on two cores:
//! `cargo test --release --test model_handoff -- --ignored --nocapture --test-threads 1`.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(
    clippy::unused_self,
    clippy::trivially_copy_pass_by_ref,
    clippy::maybe_infinite_iter,
    clippy::single_match_else,
    clippy::needless_for_each
)] // the parts of the model have one shape, whether or not they need it
#![allow(clippy::disallowed_methods)] // it prints how long it took
#![allow(clippy::unwrap_used, clippy::panic)] // a test may

#[path = "model/agent.rs"]
mod agent;
#[path = "model/answers.rs"]
mod answers;
#[path = "model/coverage.rs"]
mod coverage;
#[path = "model/heal.rs"]
mod heal;
#[path = "model/kubelet.rs"]
mod kubelet;
#[path = "model/machine.rs"]
mod machine;
#[path = "model/memo.rs"]
mod memo;
#[path = "model/properties.rs"]
mod properties;
#[path = "model/scheduler.rs"]
mod scheduler;
#[path = "model/setup.rs"]
mod setup;
#[path = "model/state.rs"]
mod state;
#[path = "model/symmetry.rs"]
mod symmetry;
#[path = "model/unsafe_parts.rs"]
mod unsafe_parts;
#[path = "model/view.rs"]
mod view;

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Instant;

use baton::contract::LockFormat;
use coverage::Branch;
use machine::Handoff;
use setup::{Proof, Setup, Shape, Unsafe};
use stateright::{Checker, HasDiscoveries, Model};

/// Of the random runs.
const SEED: u64 = 20_261_121;

/// How far a search goes.
enum Extent {
    /// Every reachable state.
    Whole,
    /// Every state within so many steps.
    Depth(usize),
    /// Random runs, so many steps in all.
    Runs(usize),
    /// So many random runs.
    Histories(usize),
}

/// Searches, prints what was seen, and fails on a broken invariant or a branch that was not passed.
fn holds(setup: Setup, extent: Extent) {
    let (name, budget) = (setup.name, setup.budget.clone());
    let coverage = Arc::clone(&setup.coverage);
    let reaches = setup.reaches.clone();
    let model = Handoff::new(setup);
    let healer = Arc::clone(&model.healer);
    let began = Instant::now();
    let search_model = model.clone();
    let search = model.checker().threads(2);
    let (seen, words) = match extent {
        Extent::Whole => (Seen::of(search.spawn_bfs().join()), "all states".to_owned()),
        // Stateright counts the first state as depth 1.
        Extent::Depth(steps) => (
            Seen::of(search.target_max_depth(steps + 1).spawn_bfs().join()),
            format!("all states within {steps} steps"),
        ),
        Extent::Runs(steps) => (walk(search_model, steps, usize::MAX), format!("random runs, seed {SEED}")),
        Extent::Histories(runs) => (walk(search_model, usize::MAX, runs), format!("{runs} random runs, seed {SEED}")),
    };
    println!(
        "{name}, faults \"{budget}\", {words}: {} states, {} transitions, depth {}, {:.1} s; longest run to a state that \
         heals: {} steps",
        seen.states,
        seen.transitions,
        seen.depth,
        began.elapsed().as_secs_f64(),
        healer.longest(),
    );
    let passed = Branch::ALL.iter().filter(|branch| coverage.has(**branch));
    let passed: Vec<String> = passed.map(|branch| format!("{} ({})", branch.text(), coverage.hits(*branch))).collect();
    println!("  passed: {}", passed.join("; "));
    let missed: Vec<&str> =
        reaches.iter().filter(|branch| !coverage.has(**branch)).map(|branch| branch.text()).collect();
    println!("  must be passed: {}, missed: {missed:?}", reaches.len());
    assert!(seen.broken.is_empty(), "{name}: {}", seen.broken.join("\n"));
    assert!(missed.is_empty(), "{name}: never passed: {missed:?}");
}

/// Random runs until nothing moves any more, again from the start: `steps` steps in all, or so many runs.
fn walk(model: Handoff, steps: usize, mut runs: usize) -> Seen {
    let always: Vec<_> = model.properties().into_iter().filter(|of| properties::ALWAYS.contains(&of.name)).collect();
    let mut seen = Seen { states: 0, transitions: 0, depth: 0, broken: Vec::new() };
    let mut different = std::collections::HashSet::new();
    let hasher = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
    let mut random = SEED;
    let (mut state, mut path) = (model.init_states().remove(0), Vec::new());
    for _ in 0..steps {
        let mut next = Vec::new();
        model.actions(&state, &mut next);
        // Knuth's linear congruence; its high bits are random enough to choose by.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let Some(action) = next.get((random >> 33) as usize % next.len().max(1)).filter(|_| path.len() < 300) else {
            // It has come to rest, or it is left after a while.
            (state, path) = (model.init_states().remove(0), Vec::new());
            runs -= 1;
            if runs == 0 {
                break;
            }
            continue;
        };
        seen.transitions += 1;
        // An action that changes nothing is passed over.
        let Some(to) = model.next_state(&state, *action) else { continue };
        path.push(*action);
        state = to;
        seen.depth = seen.depth.max(path.len());
        different.insert(hasher.hash_one(&state));
        for broken in always.iter().filter(|of| !(of.condition)(&model, &state)) {
            seen.broken.push(format!("\"{}\" is broken by {path:#?}", broken.name));
        }
        if !seen.broken.is_empty() {
            break;
        }
    }
    seen.states = different.len();
    seen
}

/// What a search brought.
struct Seen {
    states: usize,
    transitions: usize,
    depth: usize,
    /// Broken invariants with the steps to them.
    broken: Vec<String>,
}

impl Seen {
    fn of(checker: impl Checker<Handoff>) -> Self {
        let broken = checker.discoveries().into_iter().filter(|(name, _)| properties::ALWAYS.contains(name));
        let broken = broken.map(|(name, path)| format!("\"{name}\" is broken by {:#?}", path.into_actions())).collect();
        Self {
            states: checker.unique_state_count(),
            transitions: checker.state_count(),
            depth: checker.max_depth(),
            broken,
        }
    }
}

/// Two nodes with a device each; three pods of one container.
fn spread(name: &'static str, budget: &str) -> Setup {
    Setup::new(name, [Shape::One; 3], [0, 1], budget)
}

/// Both devices on one node; one pod has two containers.
fn dense(name: &'static str, budget: &str) -> Setup {
    Setup::new(name, [Shape::Two, Shape::One, Shape::One], [0, 0], budget)
}

/// Both devices on one node; a pod with an init container, one more, and its successor of the same name.
fn reuse(name: &'static str, budget: &str) -> Setup {
    Setup::new(name, [Shape::Init, Shape::One, Shape::Successor], [0, 0], budget)
}

/// A pod with a corrupt assignment is put on the node by hand.
fn foreign(name: &'static str, budget: &str) -> Setup {
    Setup::new(name, [Shape::One, Shape::Two, Shape::Foreign], [0, 0], budget)
}

/// Runs an unsafe model until the named invariant is broken, and prints how.
fn breaks(setup: Setup, flaws: Unsafe, invariant: &'static str) {
    let setup = Setup { flaws, healing: false, ..setup };
    let name = setup.name;
    let began = Instant::now();
    let enough = HasDiscoveries::AllOf([invariant].into());
    let checker = Handoff::new(setup).checker().threads(2).finish_when(enough).spawn_bfs().join();
    let Some(path) = checker.discovery(invariant) else {
        panic!("{name}: the model is too weak: {} states, \"{invariant}\" holds", checker.unique_state_count())
    };
    let steps = path.into_actions();
    println!(
        "{name}: breaks \"{invariant}\" in {} steps ({} states, {:.1} s)",
        steps.len(),
        checker.unique_state_count(),
        began.elapsed().as_secs_f64()
    );
    steps.iter().for_each(|step| println!("  {step:?}"));
}

#[test]
fn the_literal_proposal_gives_one_device_to_two_pods() {
    let all = Unsafe {
        foreign_release: true,
        unlock_after_first: true,
        first_pending: true,
        replay_by_ids: false,
        blind_release: true,
        lock_alone: false,
        without: Some(Proof::Settled),
    };
    for invariant in [properties::DEVICES, properties::ANSWER, properties::GRANTS, properties::REMOVAL] {
        let setup = dense("literal proposal", "ce");
        breaks(Setup { format: LockFormat::Timestamp, runs: true, ..setup }, all, invariant);
    }
}

/// The holder's call may still come, and then the lock is not its own.
#[test]
fn a_lock_that_is_taken_over_without_one_of_the_proofs_is_granted_twice() {
    for (proof, reaches, setup) in [
        (Proof::Watched, vec![], spread("taken over for an old time", "f")),
        (Proof::Settled, vec![TakeOverUnserved], spread("taken over though the agent is down", "ce")),
    ] {
        holds(Setup { coverage: Arc::default(), reaches, ..setup.clone() }, Extent::Depth(11));
        breaks(setup, Unsafe { without: Some(proof), ..Unsafe::default() }, properties::GRANTS);
    }
}

/// A lock is taken over, and then the call of its old holder comes: in every order with the calls and the unlock of the new one.
#[test]
fn a_late_call_of_an_old_holder_serves_no_wrong_pod() {
    let listed = |name, faults| Setup { healing: false, ..Setup::new(name, [Shape::One; 3], [0, 0], faults) };
    let blind = |faults| Setup { pod_resources: false, ..listed("late, no PodResources", faults) };
    for (setup, seen) in [
        (listed("late", "e"), LateRefused),
        (listed("late, without locks", "e").lock_free(), LateServed),
        (blind("e"), LateRefused),
    ] {
        holds(Setup { reaches: vec![TakeOverUnserved, seen], ..setup }, Extent::Depth(14));
    }
    // While no lock is taken over, its holder is the only pod that waits for a call.
    let flaws = Unsafe { lock_alone: true, ..Unsafe::default() };
    holds(Setup { flaws, ..blind("") }, Extent::Depth(14));
    breaks(blind("e"), flaws, properties::ANSWER);
}

#[test]
fn each_shortcut_removes_the_lock_of_another_or_answers_with_its_devices() {
    let sound = Unsafe::default();
    let first = Setup { runs: true, ..dense("first pending pod", "") };
    for (setup, flaws, invariant) in [
        (
            foreign("release on a foreign parse error", ""),
            Unsafe { foreign_release: true, ..sound },
            properties::REMOVAL,
        ),
        (
            dense("unlock after the first container", ""),
            Unsafe { unlock_after_first: true, ..sound },
            properties::REMOVAL,
        ),
        (first, Unsafe { first_pending: true, ..sound }, properties::ANSWER),
        (dense("replay by ids", ""), Unsafe { replay_by_ids: true, ..sound }, properties::ANSWER),
    ] {
        breaks(setup, flaws, invariant);
    }
}

/// Locks that are forged, annotations that are edited, agents that may not write their Nodes.
#[test]
fn hostile_writers_break_no_invariant() {
    let all = |name, budget| Setup { healing: false, ..dense(name, budget) };
    holds(Setup { reaches: vec![Forged], ..spread("forged", "f") }, Extent::Depth(14));
    holds(Setup { reaches: vec![Edited, Excepted], ..all("edited", "ac") }, Extent::Depth(11));
    holds(Setup { reaches: vec![Muted, TakeOverServed], runs: true, ..spread("muted", "w") }, Extent::Depth(16));
}

/// 10,000 histories of edits, forged locks, restarts and losses.
#[test]
fn ten_thousand_hostile_histories_break_no_invariant() {
    let seen = [Forged, Muted, TakeOverServed, TakeOverStarted, TakeOverUnserved, Rebuilt];
    let hostile = Setup { runs: true, healing: false, ..dense("hostile", "aafflllcccckkewd") };
    let reaches = [&seen[..], &[Edited, Excepted, Diverged, Learned]].concat();
    holds(Setup { reaches, ..hostile }, Extent::Histories(10_000));
}

/// As many where the checkpoint cannot be read either: the annotations are true and the kubelet stays. Of an edited one whose pod has
/// other ids, or of a repetition with other ids, nothing else knows the truth.
#[test]
fn ten_thousand_hostile_histories_without_a_checkpoint_break_no_invariant() {
    let reaches = vec![Forged, Muted, TakeOverServed, TakeOverStarted, TakeOverUnserved, Rebuilt];
    let hostile = dense("hostile, no checkpoint", "fflllccccewd");
    holds(Setup { checkpoint: false, runs: true, healing: false, reaches, ..hostile }, Extent::Histories(10_000));
}

use Branch::*;

/// Passed by any model of several pods on a node.
const USUAL: &[Branch] = &[
    Set,
    Own,
    TakeOverTerminal,
    Contended,
    LockLost,
    BindConflict,
    BindOurs,
    Resumed,
    ServedBoth,
    ServedPreference,
    UnlockServed,
    UnlockGone,
    ReleaseRaced,
    Expired,
];

fn reaching(setup: Setup, more: &[Branch]) -> Setup {
    Setup { reaches: [USUAL, more].concat(), ..setup }
}

#[test]
fn without_faults_the_invariants_hold_for_every_shape_of_pods() {
    holds(reaching(dense("dense", ""), &[Mismatch, RefusedNoRoom]), Extent::Whole);
    holds(reaching(foreign("foreign", ""), &[RefusedBadAssignment]), Extent::Whole);
    holds(reaching(reuse("reuse", ""), &[Mismatch, RefusedNoRoom]), Extent::Whole);
}

#[test]
#[ignore = "minutes: run with --release"]
fn every_fault_in_every_order_breaks_no_invariant() {
    let began = Instant::now();
    let crash = &[SchedulerCrash, AgentCrash, AgentCrashInCall, AgentDown, WithoutDevices];
    let restart = &[KubeletRestart, KubeletRestartInCall, Repeated];
    let deletion = &[Deleted, ForceDeleted, TakeOverGone, TakeOverPastGrace, BindGone, UnlockDeleting];
    let blind = |name, budget| Setup { pod_resources: false, ..dense(name, budget) };
    let impatient = |name, budget| Setup { impatient: true, ..spread(name, budget) };
    let whole: Vec<(Setup, Vec<Branch>)> = vec![
        (spread("spread", ""), vec![TakeOverElsewhere]),
        (impatient("spread, impatient", ""), vec![TakeOverElsewhere, Abandoned, RefusedLock]),
        (spread("spread", "r"), vec![ReplyLost]),
        (dense("dense", "cr"), [crash.as_slice(), &[ReplyLost, Abandoned, ServedListing, RefusedLock]].concat()),
        (dense("dense", "e"), vec![LockExpired, TakeOverUnserved, TakeOverUnbound, NotSettled, LateRefused]),
        (dense("dense", "d"), [deletion.as_slice(), &[RefusedUnidentified]].concat()),
        (dense("dense", "rk"), [restart.as_slice(), &[ReplyLost]].concat()),
        (reuse("reuse", "d"), [deletion.as_slice(), &[TakeOverRecreated]].concat()),
        (Setup { runs: true, ..reuse("reuse", "cl") }, [crash.as_slice(), &[Rebuilt]].concat()),
        (reuse("reuse", "kt"), [restart.as_slice(), &[Throttled]].concat()),
        (foreign("foreign", "c"), [crash.as_slice(), &[RefusedBadAssignment, RefusedAmbiguous]].concat()),
        (blind("no PodResources", "c"), vec![ServedLock, RefusedAmbiguous]),
    ];
    for (setup, more) in whole {
        let reaches = if setup.pod_resources { [USUAL, &more].concat() } else { more };
        holds(Setup { reaches, ..setup }, Extent::Whole);
    }
    println!("every fault: {:.0} s in all", began.elapsed().as_secs_f64());
}

#[test]
fn a_repetition_under_a_throttled_listing_is_not_taken_for_the_lock_holders() {
    holds(reuse("reuse", "kt"), Extent::Whole);
}

/// `MODEL="dense cre,reuse kd"`: these shapes with these faults, to the end or to depth `MODEL_DEPTH`.
#[test]
#[ignore = "for looking closer: MODEL=\"dense cre\" cargo test --release --test model_handoff chosen -- --ignored --nocapture"]
fn chosen_faults_break_no_invariant() {
    for chosen in std::env::var("MODEL").unwrap_or_else(|_| "spread cr".to_owned()).split(',') {
        let (shape, faults) = chosen.split_once(' ').unwrap_or((chosen, ""));
        let setup = match shape {
            "spread" => spread("spread", faults),
            "dense" => dense("dense", faults),
            "reuse" => reuse("reuse", faults),
            "foreign" => foreign("foreign", faults),
            other => panic!("MODEL: no shape {other:?}; there are spread, dense, reuse and foreign"),
        };
        let depth = std::env::var("MODEL_DEPTH").ok().map(|text| text.parse().expect("MODEL_DEPTH is a number"));
        holds(setup, depth.map_or(Extent::Whole, Extent::Depth));
    }
}

#[test]
#[ignore = "minutes: run with --release"]
fn two_crashes_and_four_other_faults_together_break_no_invariant() {
    let began = Instant::now();
    for setup in [spread("spread", "ccredk"), dense("dense", "ccredk"), reuse("reuse", "ccredk")] {
        holds(setup.clone(), Extent::Depth(9));
        holds(Setup { coverage: Arc::default(), ..reaching(setup, &[]) }, Extent::Runs(1_000_000));
    }
    println!("all faults together: {:.0} s in all", began.elapsed().as_secs_f64());
}
