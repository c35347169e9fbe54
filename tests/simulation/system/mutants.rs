//! What an adapter could do wrong. The decisions stay as they ship: each of these breaks a promise around them, and a simulation that
//! does not find it is too weak.

macro_rules! mutants {
    ($($name:ident = $words:literal;)*) => {
        /// One wrong adapter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant { $($name),* }

        impl Mutant {
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            pub fn words(self) -> &'static str {
                match self { $(Self::$name => $words),* }
            }
        }
    };
}

mutants! {
    LockWithoutTest = "a lock is set whatever stands there";
    ReleaseWithoutOwner = "a lock is removed whatever stands there";
    BindWithoutUid = "a Binding has no uid";
    DeleteWithoutUid = "a deletion has no uid";
    StaleLeaderWrites = "a scheduler writes although it leads no more";
    LeadsForEver = "a leader never steps down";
    LeaseWithoutVersion = "the Lease is written without its version";
    LostAnswerIsRefusal = "a Binding without an answer counts as refused";
    WaitsForEver = "a request without an answer is waited for";
    AgesReversed = "a scheduler reads creation times backwards";
    UnlockIsNoNews = "a scheduler does not learn that a lock has gone";
    GoneIsForgotten = "a scheduler does not learn what a second list lacks";
    JobGoneIsNoNews = "a scheduler does not learn that a TYJob has gone";
    HealthIgnored = "a call is decided as if every device were healthy";
    StatusWithoutVersion = "a controller writes a status whatever stands there";
    StatusAssumed = "a status counts as stored once it is sent";
    LostStatusCounts = "a status that is not stored counts as stored";
    StaleControllerWrites = "a controller writes although it leads no more";
    JobDeletesWithoutUid = "a controller deletes pods without their uid";
    FinalizerByWatch = "a controller lets a TYJob go by what its watch shows";
    LeaderGoneByWatch = "a controller takes a leader for lost by what its watch shows";
    RebuildSkipped = "a lost ledger is not rebuilt";
    LiveReadsSkipped = "live reads are not made";
    ResizesUnseen = "a node daemon does not read that a pod is resized";
    AnswersBeforeWriting = "the ledger is written after the answer";
    FreedAtDeletion = "entries go with the pod's object";
    FreedAtPhase = "entries go with a terminal phase";
    GateSharesPermits = "starts that wait share the permits of calls";
    GateAsksNothing = "every container starts at once";
    NeverExpires = "entries of ended pods stay";
    NeverUnlocks = "the node daemon removes no lock";
    UnlocksAfterFirst = "the lock goes after the first container";
    ReleaseTriedOnce = "a release that fails is not tried again";
    NoExceptions = "the node daemon reports no exceptions";
    KubeletChooses = "the kubelet's ids are served";
    UnlocksBeforeGranting = "the lock goes before the grant is in the ledger";
    UnlocksBeforeWriting = "the lock goes before the grant is in the ledger's file";
    AnswersUnwritten = "the answer follows a write that has failed";
    ListsAfterDeciding = "the kubelet is listed after the decision";
    RebuildsBeforeListing = "a lost ledger is rebuilt before the kubelet's list and checkpoint are read";
    DropsBeforeLooking = "an entry goes before the cgroup of its pod is looked at";
    StatusAfterEffects = "a status is written after what it decides";
    BindCountsWhenSent = "a Binding counts as done once it is sent";
    UnlocksAfterBinding = "a scheduler removes its lock once the Binding is done";
    UnlocksAfterRefusing = "the lock goes with every call that is refused";
}
