//! Whose lock is it, and may it be taken away? Every answer carries the exact value that the removal must find.

use crate::contract::{LockRead, LockValue, PodRef};

use super::holder::{GoneReason, HolderState};

/// `true` when the lock names `pod`: by uid; without one, by `bind_timestamp` (the pod's annotation).
pub fn names(lock: &LockValue, pod: &PodRef, bind_timestamp: Option<&str>) -> bool {
    let proven_by_time = || bind_timestamp.is_some_and(|stamp| lock.matches_bind_timestamp(stamp));
    match &lock.holder {
        None => proven_by_time(),
        Some(holder) if holder.pod != pod.key => false,
        Some(holder) => holder.uid.as_ref().map_or_else(proven_by_time, |uid| *uid == pod.uid),
    }
}

/// The value to remove when `pod` has been served, or can never be: only its own lock.
pub fn release_of_owner<'a>(lock: &'a LockRead, pod: &PodRef, bind_timestamp: Option<&str>) -> Option<&'a str> {
    match lock {
        LockRead::Held { value, raw } if names(value, pod, bind_timestamp) => Some(raw),
        _ => None,
    }
}

/// The value to remove when its holder will never be served.
pub fn release_of_proof<'a>(lock: &'a LockRead, holder: &HolderState) -> Option<(&'a str, GoneReason)> {
    match holder {
        HolderState::Gone(proof) => lock.raw().map(|raw| (raw, *proof)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(raw: &str) -> LockRead {
        LockRead::parse(Some(raw))
    }

    #[test]
    fn only_the_owner_releases_and_only_the_value_it_saw() {
        let me = PodRef::new("ml", "me", "uid-me");
        let stamp = "1795226400000000000"; // 2026-11-21T02:00:00Z
        for (raw, mine) in [
            ("2026-11-21T02:00:00Z,ml,me,uid-me", true),
            ("2026-11-21T02:00:00Z,ml,me,uid-old", false),
            ("2026-11-21T02:00:00Z,ml,other,uid-me", false),
            ("2026-11-21T02:00:00Z,ml,me", true),
            ("2026-11-21T02:00:01Z,ml,me", false),
            ("2026-11-21T02:00:00Z", true),
            ("2026-11-21T02:00:01Z", false),
            ("gibberish", false),
        ] {
            assert_eq!(release_of_owner(&lock(raw), &me, Some(stamp)), mine.then_some(raw), "{raw}");
        }
        assert_eq!(release_of_owner(&LockRead::Free, &me, Some(stamp)), None);
        assert_eq!(
            release_of_owner(&lock("2026-11-21T02:00:00Z,ml,me"), &me, None),
            None,
            "a name alone proves nothing"
        );
    }

    #[test]
    fn proof_releases_whatever_value_was_judged() {
        let read = lock("2026-11-21T02:00:00Z,ml,me,uid-me");
        let gone = HolderState::Gone(GoneReason::Terminal);
        assert_eq!(release_of_proof(&read, &gone), Some(("2026-11-21T02:00:00Z,ml,me,uid-me", GoneReason::Terminal)));
        assert_eq!(release_of_proof(&read, &HolderState::Unknown), None);
        assert_eq!(release_of_proof(&LockRead::Free, &gone), None);
    }
}
