//! Which pod a lock names.

use crate::contract::{LockRead, LockValue, PodKey};
use crate::decide::pod::HandoffPod;

/// How a lock relates to one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// The lock of exactly this pod and this bind.
    Yes,
    /// It names the pod, but its time is not the pod's `bind-timestamp`: another bind's lock.
    OtherBind,
    /// It names another pod, or nobody that is known.
    No,
    /// There is no lock.
    Free,
}

/// Relates the lock to `pod`. Without a uid in the lock, `bind-timestamp` equality proves the holder.
pub fn names(lock: &LockRead, pod: &HandoffPod) -> Named {
    let value = match lock {
        LockRead::Free => return Named::Free,
        LockRead::Malformed { .. } => return Named::No,
        LockRead::Held { value, .. } => value,
    };
    let same_bind = same_bind(value, pod);
    let Some(holder) = &value.holder else {
        return if same_bind { Named::Yes } else { Named::No };
    };
    let same_pod = holder.pod == pod.pod.key && holder.uid.as_ref().is_none_or(|uid| *uid == pod.pod.uid);
    match (same_pod, same_bind) {
        (false, _) => Named::No,
        (true, true) => Named::Yes,
        (true, false) => Named::OtherBind,
    }
}

fn same_bind(value: &LockValue, pod: &HandoffPod) -> bool {
    pod.assignment.bind_timestamp.as_deref().is_some_and(|text| value.matches_bind_timestamp(text))
}

/// Key of the pod that the lock names, where the format has one.
pub fn key(lock: &LockRead) -> Option<&PodKey> {
    match lock {
        LockRead::Held { value: LockValue { holder: Some(holder), .. }, .. } => Some(&holder.pod),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{gpu_pod, lock_of, with_assignment};
    use super::*;
    use crate::contract::LockFormat::{Timestamp, Triple, Uid};
    use crate::contract::PodUid;

    #[test]
    fn all_three_formats_name_their_pod_and_no_other_bind_of_it() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let other = with_assignment(gpu_pod("b", 1), &[("main", &["GPU-0"])]);
        let LockRead::Held { value, .. } = lock_of(&pod) else { unreachable!() };
        for format in [Uid, Triple, Timestamp] {
            let lock = LockRead::parse(Some(&value.print(format)));
            assert_eq!(names(&lock, &pod), Named::Yes, "{format:?}");
            assert_eq!(names(&lock, &other), Named::No, "{format:?}");
        }
        let mut rebound = pod.clone();
        rebound.assignment.bind_timestamp = Some("1".into());
        assert_eq!(names(&lock_of(&pod), &rebound), Named::OtherBind);
        let mut recreated = pod.clone();
        recreated.pod.uid = PodUid::new("other");
        assert_eq!(names(&lock_of(&pod), &recreated), Named::No);
        assert_eq!(names(&LockRead::Free, &pod), Named::Free);
        assert_eq!(names(&LockRead::parse(Some("yes")), &pod), Named::No);
    }
}
