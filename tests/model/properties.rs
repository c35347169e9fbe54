//! The invariants of the hand-off, each with its name.

use stateright::Property;

use super::coverage::{Branch, uncounted};
use super::machine::Handoff;
use super::setup::Setup;
use super::state::{PODS, SCHEDULERS, State};
use super::view::bit;

/// Rules that are judged on a step, and remembered in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// An answer that is not the caller's.
    Answer,
    /// A grant over a grant.
    Grants,
    /// A lock removed without right, or another value than was judged.
    Removal,
    /// An assignment that changed.
    Assignment,
}

impl Broken {
    pub fn bit(self) -> u8 {
        1 << self as u8
    }
}

pub const DEVICES: &str = "no device is held by two live pods";
pub const ANSWER: &str = "an Allocate made for a pod is answered with its devices or an error";
pub const GRANTS: &str = "between two grants of a lock there is a release, a proof, or the expiry under a live agent";
pub const REMOVAL: &str = "only owner or proof removes a lock, and only the value it saw";
pub const ASSIGNMENT: &str = "a bound pod's assignment is complete and never changes";
pub const COUNTED: &str = "what is counted for a served pod covers the devices in its containers";
pub const PLACES: &str = "every undeleted pod is exactly one of queued, in flight, bound, terminal";
pub const HEALS: &str =
    "from every state a run without further faults frees the locks, or the next claim may take them";

/// The invariants by name.
pub const ALWAYS: [&str; 8] = [DEVICES, ANSWER, GRANTS, REMOVAL, ASSIGNMENT, COUNTED, PLACES, HEALS];

/// Everything that always holds; the branches that must be passed are added by the setup.
pub fn of(setup: &Setup) -> Vec<Property<Handoff>> {
    let mut all: Vec<Property<Handoff>> = vec![
        Property::always(DEVICES, |model: &Handoff, state: &State| model.answers_are_sound(state)),
        Property::always(ANSWER, |_, state: &State| state.broken & Broken::Answer.bit() == 0),
        Property::always(GRANTS, |_, state: &State| state.broken & Broken::Grants.bit() == 0),
        Property::always(REMOVAL, |_, state: &State| state.broken & Broken::Removal.bit() == 0),
        Property::always(ASSIGNMENT, |model: &Handoff, state: &State| {
            state.broken & Broken::Assignment.bit() == 0 && assignments_are_complete(model, state)
        }),
        Property::always(COUNTED, |model: &Handoff, state: &State| containers_are_counted(model, state)),
        Property::always(PLACES, |_, state: &State| places_are_unique(state)),
    ];
    if setup.healing {
        all.push(Property::always(HEALS, |model: &Handoff, state: &State| {
            uncounted(|| model.healer.heals(model, state))
        }));
        all.extend(
            setup.reaches.iter().map(|branch: &Branch| Property::<Handoff>::sometimes(branch.text(), branch.reached())),
        );
    }
    all
}

/// Compares two states that follow each other.
pub fn watch(last: &State, next: &mut State) {
    let changed = (0..PODS).any(|pod| last.pods[pod].bound.is_some() && next.pods[pod].bound != last.pods[pod].bound);
    if changed {
        next.broken |= Broken::Assignment.bit();
    }
}

fn assignments_are_complete(model: &Handoff, state: &State) -> bool {
    (0..PODS).all(|pod| match state.pods[pod].bound {
        Some(bound) if model.setup.shapes[pod] != super::setup::Shape::Foreign => {
            let node = usize::from(bound.node);
            let devices = bound.devices.iter().take(model.setup.kinds(pod).len());
            devices.into_iter().all(|device| model.setup.home.get(usize::from(*device)) == Some(&node))
        }
        _ => true,
    })
}

/// Where the agent is up, the scheduler's account of a pod is a recount from the kubelet, or more where that is not known any more.
fn containers_are_counted(model: &Handoff, state: &State) -> bool {
    if model.setup.faults.edits == 0 {
        return true;
    }
    Handoff::nodes().filter(|node| state.nodes[*node].agent_up).all(|node| {
        let counted = model.counted(state, node);
        let here = |pod: &usize| state.pods[*pod].on(node) && state.pods[*pod].exists() && !state.pods[*pod].ended();
        (0..PODS).filter(here).filter(|pod| model.is_served(state, *pod)).all(|pod| {
            let held = state.kube[pod].answer.into_iter().flatten().fold(0, |all, device| all | bit(device));
            let unsure = state.books[pod].entries.iter().flatten().any(|entry| entry.also.is_some());
            let admitted = state.kube[pod].active && !state.kube[pod].admitting;
            held & !counted[pod] == 0 && (unsure || !admitted || held == 0 || held == counted[pod])
        })
    })
}

fn places_are_unique(state: &State) -> bool {
    (0..PODS).filter(|pod| state.pods[*pod].life == super::state::Life::There).all(|pod| {
        (0..SCHEDULERS).all(|scheduler| {
            let is = &state.schedulers[scheduler];
            let flies = is.flight.is_some_and(|flight| usize::from(flight.pod) == pod);
            let settled = state.pods[pod].bound.is_some() || state.pods[pod].ended();
            match (is.queued[pod], flies, settled) {
                // A flight that was overtaken finds out with its next step.
                (false, _, true) => true,
                (queued, flies, false) => queued != flies,
                (true, ..) => false,
            }
        })
    })
}
