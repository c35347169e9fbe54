//! `SchedulingGates`: a pod with gates is not tried until they are gone.

use crate::core::rules::{Outcome, Plugin, PreFilter, Slots, View};
use crate::world::{Pod, Wake};

/// The rule.
pub struct SchedulingGates;

/// As the configuration calls it.
pub const NAME: &str = "SchedulingGates";

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        NAME
    }
}

impl PreFilter for SchedulingGates {
    fn pre_filter(&self, _: View<'_>, pod: &Pod, _: &mut Slots) -> Outcome {
        let gates = &pod.facts.spec.gates;
        if gates.is_empty() {
            return Outcome::Fit;
        }
        // Nothing but the pod's own change wakes it.
        Outcome::never(NAME, format!("scheduling is gated by {}", gates.join(", ")), Wake::NONE)
    }
}
