//! Which branches and faults the search has passed, and how often: `sometimes` properties read it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! branches {
    ($($name:ident $text:literal,)*) => {
        /// A branch of the shipping functions, or a fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Branch { $($name,)* }

        impl Branch {
            pub const ALL: &[Branch] = &[$(Branch::$name,)*];
            pub fn text(self) -> &'static str {
                match self { $(Branch::$name => $text,)* }
            }
            /// A condition for stateright, which takes no closures.
            pub fn reached(self) -> fn(&super::machine::Handoff, &super::state::State) -> bool {
                match self { $(Branch::$name => |model, _| model.setup.coverage.has(Branch::$name),)* }
            }
        }
    };
}

branches! {
    Set "a free lock is set",
    Own "our own lock is found and the bind goes on",
    TakeOverGone "a lock is taken over: its holder is gone",
    TakeOverRecreated "a lock is taken over: its holder was created again",
    TakeOverElsewhere "a lock is taken over: its holder is bound elsewhere",
    TakeOverTerminal "a lock is taken over: its holder has ended",
    TakeOverPastGrace "a lock is taken over: its holder is past its grace",
    TakeOverUnbound "an expired lock of an unbound holder is taken over",
    TakeOverStarted "an expired lock is taken over: its holder runs",
    TakeOverServed "a lock is taken over: its agent says that the holder is served",
    TakeOverUnserved "an expired lock is taken over: its holder waits for its devices",
    LateServed "a pod whose lock was taken over calls, and is served from its assignment",
    LateRefused "a pod whose lock was taken over calls, and is refused",
    Contended "a claim waits for a live holder",
    NotSettled "a claim waits for the agent to settle",
    LockLost "a lock write finds another value than it judged",
    BindConflict "a Binding finds the pod bound by another scheduler",
    BindOurs "a Binding whose answer was lost is found done",
    BindGone "a Binding finds the pod deleted",
    Resumed "a half-done bind is resumed under its lock",
    Abandoned "a half-done bind is abandoned and its lock released",
    ServedBoth "served: PodResources and the lock agree",
    ServedListing "served: PodResources alone tells",
    ServedLock "served: the lock alone tells",
    ServedPreference "served: the preference call identified the pod",
    Repeated "a repetition is answered as before",
    Mismatch "the kubelet chose other ids than the assignment",
    RefusedLock "refused: the lock is not the pod's",
    RefusedNoRoom "refused: the device is held by a live pod",
    RefusedBadAssignment "refused: the assignment is corrupt",
    RefusedUnidentified "refused: no known pod could be calling",
    RefusedAmbiguous "refused: two pods could be calling",
    UnlockServed "the agent unlocks: served",
    UnlockGone "the agent unlocks: the holder is gone",
    UnlockDeleting "the agent unlocks: the holder is being deleted",
    ReleaseRaced "a release finds another value and leaves it",
    Expired "the ledger drops an ended pod's entries",
    Rebuilt "a lost ledger is rebuilt with an entry",
    Learned "what the kubelet lists and the ledger does not know is learned",
    SchedulerCrash "a scheduler crashes in flight",
    AgentCrash "an agent crashes",
    AgentCrashInCall "an agent crashes between its ledger and its answer",
    AgentDown "the kubelet calls while the agent is down",
    ReplyLost "a reply of the API server is lost",
    LockExpired "a lock expires",
    Deleted "a bound pod is deleted",
    ForceDeleted "a bound pod is deleted without grace",
    KubeletRestart "a kubelet restarts",
    KubeletRestartInCall "a kubelet restarts between the answer and its checkpoint",
    Throttled "PodResources is throttled during a call",
    WithoutDevices "a pod is admitted without a call",
    Forged "a lock that names a bound pod is forged",
    Edited "the annotation of a bound pod is edited",
    Excepted "an agent says that a pod holds other devices than its annotation says",
    Diverged "a lost ledger is rebuilt with two sets of devices",
    Muted "an agent may not write its Node any more",
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs without counting: a healed run is no part of the search.
pub fn uncounted<T>(run: impl FnOnce() -> T) -> T {
    QUIET.set(true);
    let result = run();
    QUIET.set(false);
    result
}

pub struct Coverage {
    hits: Vec<AtomicU64>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self { hits: Branch::ALL.iter().map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Coverage {
    pub fn hit(&self, branch: Branch) {
        if QUIET.get() {
            return;
        }
        self.hits[branch as usize].fetch_add(1, Ordering::Relaxed);
    }
    pub fn has(&self, branch: Branch) -> bool {
        self.hits(branch) > 0
    }
    pub fn hits(&self, branch: Branch) -> u64 {
        self.hits[branch as usize].load(Ordering::Relaxed)
    }
}
