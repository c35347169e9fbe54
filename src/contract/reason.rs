//! Reasons of events and conditions; `docs/events.md` says what each means, and a test compares it with these lists.

/// An enum whose values are written as they are named.
macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($reason:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)] // docs/events.md
        pub enum $name { $($reason,)+ }

        impl $name {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$reason,)+];

            /// As it is written.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$reason => stringify!($reason),)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

reasons! {
    /// Reason of an event.
    EventReason {
        Scheduled, FailedScheduling, WaitingForNodeLock, NotServed, Served, ServedLate, NotScheduledByBaton, FailedBinding, Preempted, EvictOnFault,
        AllocateRefused, AmbiguousAllocate, DeviceIdMismatch, DeviceDivergence, AdmittedWithoutDevices,
        AssignmentEdited, DevicesStillUsed, DevicesFreedUnseen, DeviceUnhealthy, DeviceHealthy, DeviceError, DeviceLimited, NodeSuspect, NodeTrusted, SharesUnavailable, SharesAvailable,
        NoDevicesSelected, DevicesSelected,
        DeviceCordoned, DeviceUncordoned, GangHold, GangHoldReleased, Earmarked, GangSatisfied, Unschedulable,
        GangTimeout, GangBindFailed, GangIncomplete, GangGroupMismatch, WaitingForPodGroup, InvalidGang, GangInvalidValue,
        GangNameConflict, GangConfigConflict, NotSupported, ScheduledPartly, Unfit, Pending, Starting, Running, Rescheduling, Succeeded,
        Failed, WorkerRestarted, WorkerFailed, WorkerDisrupted, EnvOverridden, InvalidSpec, InvalidUpdate, NameConflict,
        PodRefused, StatusTooLarge,
    }
}

reasons! {
    /// Reason of a condition of a pod, a PodGroup, a TYJob or a node.
    ConditionReason {
        Unschedulable, SchedulerError, WaitingForNodeLock, GangIncomplete, GangGroupMismatch, WaitingForPodGroup,
        GangTimeout, InvalidGang, Scheduled, Binding, GangSatisfied, NotSatisfied, NoMarks, Finished, NewGeneration,
        Placed, PlacedPartly, StartLimit, StatusTooLarge, QuotaLowered, Unfit, InvalidTemplate, NewAttempt, Deleted, Invalid, InvalidPod,
        Accepted, Refused, ForeignPod, Resolved, LeaderImage, Pulled, LeaderLost, PreemptionByScheduler,
        MachineFailedPods, LimitsNotEnforced, SelectorMatchesNothing, AdmittedWithoutDevices, Served,
    }
}

reasons! {
    /// Reason of the condition of a device, and name of what limits one that stays in service: the rows of the table in
    /// `decide::health`.
    HealthReason {
        Healthy, Xid, XidNeedsReset, XidNeedsReboot, RecoveryActionPending, Gone, Lost, ResetRequired, NvmlTimeout,
        Unlisted, FabricNotReady, NvmlError, NvmlUnavailable, NotSplit, MigNotUniform, LinkDown, NicTimeout, NicAway,
        DeviceSuspect, HeldAsPart, NotSelected, DeviceNodesMissing, MigUnknown, MigEnabled, DriverFilesMissing,
        DriverVersionMismatch, MinorUnknown, PlaceUnknown, LinksUnknown, ModelUnknown, MemoryUnknown, MigDevicesUnknown,
        StateUnknown,
    }
}

impl HealthReason {
    /// The device takes no new pods because a pod has it, and serves that one.
    pub const fn serves_its_pod(self) -> bool {
        matches!(self, Self::NicAway | Self::HeldAsPart)
    }
}
