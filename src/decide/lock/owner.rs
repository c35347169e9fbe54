//! Which pod a lock names: the one rule, for schedulers and node daemons.

use crate::pod::HandoffPod;
use baton_contract::LockValue;

/// How a lock relates to one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMatch {
    /// The lock of exactly this pod and this bind.
    ThisBind,
    /// It names the pod, but its time is not the pod's `bind-timestamp`: of another bind, or of one that is on its way.
    OtherBind,
    /// It names another pod, or none that is known.
    No,
}

/// Relates a lock to `pod`: by name and uid; without a uid in the lock, `bind-timestamp` equality proves the holder.
pub fn names(lock: &LockValue, pod: &HandoffPod) -> LockMatch {
    let same_bind = pod.assignment.bind_timestamp.as_deref().is_some_and(|text| lock.matches_bind_timestamp(text));
    let Some(holder) = &lock.holder else {
        return if same_bind { LockMatch::ThisBind } else { LockMatch::No };
    };
    let same_pod = holder.pod == pod.pod.key && holder.uid.as_ref().is_none_or(|uid| *uid == pod.pod.uid);
    match (same_pod, same_bind) {
        (false, _) => LockMatch::No,
        (true, true) => LockMatch::ThisBind,
        (true, false) => LockMatch::OtherBind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handoff::testing::{gpu_pod, lock_of, with_assignment};
    use baton_contract::LockFormat::{Timestamp, Triple, Uid};
    use baton_contract::{LockRead, PodUid};

    fn read(raw: &str) -> LockValue {
        LockValue::parse(raw).unwrap()
    }

    #[test]
    fn all_three_formats_name_their_pod_and_no_other_bind_of_it() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let other = with_assignment(gpu_pod("b", 1), &[("main", &["GPU-0"])]);
        let LockRead::Held { value, .. } = lock_of(&pod) else { unreachable!() };
        for format in [Uid, Triple, Timestamp] {
            let lock = read(&value.print(format));
            assert_eq!(names(&lock, &pod), LockMatch::ThisBind, "{format:?}");
            assert_eq!(names(&lock, &other), LockMatch::No, "{format:?}");
        }
        let mut rebound = pod.clone();
        rebound.assignment.bind_timestamp = Some("1".into());
        assert_eq!(names(&value, &rebound), LockMatch::OtherBind);
        let mut recreated = pod.clone();
        recreated.pod.uid = PodUid::new("other");
        assert_eq!(names(&value, &recreated), LockMatch::No);
    }

    #[test]
    fn a_time_alone_or_a_name_alone_proves_only_what_it_says() {
        let mut pod = gpu_pod("a", 1);
        pod.assignment.bind_timestamp = Some("1795226400000000000".into()); // 2026-11-21T02:00:00Z
        for (raw, named) in [
            ("2026-11-21T02:00:00Z,default,a,a-uid", LockMatch::ThisBind),
            ("2026-11-21T02:00:01Z,default,a,a-uid", LockMatch::OtherBind),
            ("2026-11-21T02:00:00Z,default,a,old-uid", LockMatch::No),
            ("2026-11-21T02:00:00Z,default,b,a-uid", LockMatch::No),
            ("2026-11-21T02:00:00Z,default,a", LockMatch::ThisBind),
            ("2026-11-21T02:00:01Z,default,a", LockMatch::OtherBind),
            ("2026-11-21T02:00:00Z", LockMatch::ThisBind),
            ("2026-11-21T02:00:01Z", LockMatch::No),
        ] {
            assert_eq!(names(&read(raw), &pod), named, "{raw}");
        }
        pod.assignment.bind_timestamp = None;
        assert_eq!(names(&read("2026-11-21T02:00:00Z,default,a"), &pod), LockMatch::OtherBind);
    }
}
