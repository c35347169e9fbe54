//! `DynamicResources`: pods with resource claims (DRA) are refused with a clear reason.

use crate::core::rules::{Outcome, Plugin, PreFilter, Slots, View};
use crate::world::{Pod, Wake};

/// The rule.
pub struct DynamicResources;

const NAME: &str = "DynamicResources";

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }
}

impl PreFilter for DynamicResources {
    fn pre_filter(&self, _: View<'_>, pod: &Pod, _: &mut Slots) -> Outcome {
        if !pod.facts.spec.resource_claims {
            return Outcome::Fit;
        }
        let text = "spec.resourceClaims (dynamic resource allocation) is not supported: ask for devices by resource names, or use another scheduler";
        Outcome::never(NAME, text, Wake::NONE)
    }
}
