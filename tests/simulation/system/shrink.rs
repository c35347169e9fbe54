//! The least of a plan that still breaks the same promise.

use super::{Fault, Outcome, Plan, System};

/// Runs smaller plans until none of them breaks what `plan` breaks; at most `runs`.
pub fn shrink(plan: Plan, mut runs: u32) -> (Plan, Outcome) {
    let mut least = System::run(plan.clone());
    let Some(judge) = least.violation.as_ref().map(|violation| violation.judge) else { return (plan, least) };
    let mut plan = plan;
    let mut smaller = |plan: &mut Plan, least: &mut Outcome, less: &dyn Fn(&Plan) -> Plan| -> bool {
        let candidate = less(plan);
        if runs == 0 || candidate == *plan {
            return false;
        }
        runs -= 1;
        let outcome = System::run(candidate.clone());
        let holds = outcome.violation.as_ref().is_none_or(|violation| violation.judge != judge);
        if !holds {
            (*plan, *least) = (candidate, outcome);
        }
        !holds
    };
    smaller(&mut plan, &mut least, &|plan| Plan { hostile: false, ..plan.clone() });
    for fault in Fault::ALL {
        let mut spared = plan.spared.clone();
        spared.push(*fault);
        smaller(&mut plan, &mut least, &|plan| Plan { spared: spared.clone(), ..plan.clone() });
    }
    // Of pods and of faults: less by ever smaller steps.
    let mut step = plan.pods / 2;
    while step > 0 {
        let pods = plan.pods.saturating_sub(step).max(1);
        if !smaller(&mut plan, &mut least, &|plan| Plan { pods, ..plan.clone() }) {
            step /= 2;
        }
    }
    let mut step = least.faults().max(1) as u32;
    while step > 0 {
        let faults = plan.faults.min(least.faults() as u32).saturating_sub(step);
        if !smaller(&mut plan, &mut least, &|plan| Plan { faults, ..plan.clone() }) {
            step /= 2;
        }
    }
    (plan, least)
}
