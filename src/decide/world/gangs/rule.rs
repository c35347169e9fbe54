//! When a gang is complete and when it is satisfied: arithmetic over its counts.

use super::member::MemberCounts;
use baton_contract::gang::MatchPolicy;

/// Members that count against the minimum before an attempt: those without a node that may be tried, and those that the policy
/// counts beside them. `once` is the group's flag: under [`MatchPolicy::OnceSatisfied`] it ends the rule.
pub const fn counted(policy: MatchPolicy, counts: &MemberCounts) -> u32 {
    let open = counts.pending + counts.reserved;
    match policy {
        MatchPolicy::OnlyWaiting | MatchPolicy::OnceSatisfied => open,
        MatchPolicy::WaitingAndRunning => open + counts.placed(),
        MatchPolicy::WaitingRunningSucceed => open + counts.placed() + counts.succeeded,
    }
}

/// Members that count for satisfaction.
pub const fn weight(policy: MatchPolicy, counts: &MemberCounts) -> u32 {
    match policy {
        MatchPolicy::OnlyWaiting | MatchPolicy::OnceSatisfied => counts.waiting(),
        MatchPolicy::WaitingAndRunning => counts.waiting() + counts.placed(),
        MatchPolicy::WaitingRunningSucceed => counts.waiting() + counts.placed() + counts.succeeded,
    }
}

/// The gang's rule is over: its group was satisfied once and that is all that its policy asks.
pub const fn is_over(policy: MatchPolicy, once: bool) -> bool {
    once && matches!(policy, MatchPolicy::OnceSatisfied)
}

/// Enough members exist for an attempt.
pub const fn complete(policy: MatchPolicy, min: u32, counts: &MemberCounts, once: bool) -> bool {
    is_over(policy, once) || counted(policy, counts) >= min
}

/// Members that still need a place before the gang is satisfied. `once` is the group's flag.
pub const fn needed(policy: MatchPolicy, min: u32, counts: &MemberCounts, once: bool) -> u32 {
    if is_over(policy, once) { 0 } else { min.saturating_sub(weight(policy, counts)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MatchPolicy::{OnceSatisfied, OnlyWaiting, WaitingAndRunning, WaitingRunningSucceed};

    fn counts(pending: u32, w: u32, r: u32, s: u32) -> MemberCounts {
        // Half of those with a node run; failed, gated, marked and leaving members never count.
        MemberCounts {
            pending,
            reserved: w,
            bound: r / 2,
            running: r - r / 2,
            succeeded: s,
            failed: 9,
            gated: 9,
            timed_out: 9,
            terminating: 9,
        }
    }

    #[test]
    fn each_policy_counts_what_it_names() {
        // policy, (pending, w, r, s), min, complete, still needed
        let table = [
            (OnlyWaiting, (0, 3, 0, 0), 3, true, 0),
            (OnlyWaiting, (1, 2, 0, 0), 3, true, 1),
            (OnlyWaiting, (1, 0, 2, 0), 3, false, 3),
            (OnlyWaiting, (0, 2, 9, 9), 3, false, 1),
            (WaitingAndRunning, (0, 1, 2, 0), 3, true, 0),
            (WaitingAndRunning, (1, 0, 1, 2), 3, false, 2),
            (WaitingAndRunning, (2, 0, 1, 2), 3, true, 2),
            (WaitingAndRunning, (0, 0, 3, 0), 3, true, 0),
            (WaitingRunningSucceed, (1, 0, 1, 2), 3, true, 0),
            (WaitingRunningSucceed, (1, 0, 0, 2), 3, true, 1),
            (WaitingRunningSucceed, (0, 0, 0, 2), 3, false, 1),
            (OnceSatisfied, (0, 3, 0, 0), 3, true, 0),
            (OnceSatisfied, (1, 2, 5, 5), 3, true, 1),
            (OnceSatisfied, (1, 1, 5, 5), 3, false, 2),
            (OnceSatisfied, (0, 0, 0, 0), 0, true, 0),
        ];
        for (policy, (p, w, r, s), min, is_complete, still) in table {
            let counts = counts(p, w, r, s);
            let found = (complete(policy, min, &counts, false), needed(policy, min, &counts, false));
            assert_eq!(found, (is_complete, still), "{policy} pending {p} w {w} r {r} s {s} min {min}");
        }
    }

    #[test]
    fn a_group_that_was_satisfied_once_has_no_rule_any_more_under_that_policy_only() {
        let none = MemberCounts::default();
        for policy in MatchPolicy::ALL.iter().copied() {
            let over = policy == OnceSatisfied;
            assert_eq!(complete(policy, 3, &none, true), over, "{policy}");
            assert_eq!(needed(policy, 3, &none, true), if over { 0 } else { 3 }, "{policy}");
        }
    }
}
