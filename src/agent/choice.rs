//! The words that options may have, each read from and printed as its flag's value.

use crate::contract::word;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word of the flag.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        word::words!($name, $($word => Self::$variant,)+);
    };
}

words! {
    /// Which MIG devices are offered.
    MigStrategy {
        /// GPUs are offered whole; GPUs in MIG mode are not offered.
        None = "none",
        /// All GPUs are split alike; their MIG devices are offered as `nvidia.com/gpu`.
        Single = "single",
        /// MIG devices are offered under the name of their profile, `nvidia.com/mig-1g.10gb`.
        Mixed = "mixed",
    }
}

words! {
    /// How devices reach a container.
    DeviceListStrategy {
        /// CDI names in the CRI field (containerd ≥ 1.7, CRI-O ≥ 1.23).
        CdiCri = "cdi-cri",
        /// CDI names in container annotations, for older runtimes.
        CdiAnnotations = "cdi-annotations",
        /// `NVIDIA_VISIBLE_DEVICES` in the environment, for the NVIDIA runtime.
        Envvar = "envvar",
        /// Mounts below `/var/run/nvidia-container-devices`, for the NVIDIA runtime.
        VolumeMounts = "volume-mounts",
    }
}

words! {
    /// What names a GPU in environment and volume mounts.
    DeviceIdStrategy {
        /// The UUID.
        Uuid = "uuid",
        /// The driver's index of the moment.
        Index = "index",
    }
}

words! {
    /// Whether the node lock is part of every hand-off.
    LockMode {
        /// It is.
        Always = "always",
        /// Not where this agent can tell the calling pod without it.
        Auto = "auto",
    }
}

words! {
    /// What happens when the kubelet chose other ids than the assignment.
    IdMismatch {
        /// The answer follows the assignment; a metric and an event say so.
        ServeAssignment = "serve-assignment",
        /// The call is refused.
        Reject = "reject",
    }
}

words! {
    /// What happens to pods without an assignment.
    Unassigned {
        /// Refused, with a text that says how to fix it.
        Deny = "deny",
        /// Served with the kubelet's ids when those are free.
        Serve = "serve",
    }
}

words! {
    /// Which ports of a NIC must be active.
    PortPolicy {
        /// At least one.
        Any = "any",
        /// Every one.
        All = "all",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_back_and_an_unknown_one_lists_what_is_known() {
        for value in DeviceListStrategy::ALL {
            assert_eq!(value.as_str().parse::<DeviceListStrategy>().as_ref(), Ok(value));
        }
        let error = "both".parse::<MigStrategy>().unwrap_err().to_string();
        assert_eq!(error, "\"both\" is not known; expected none, single, mixed");
    }
}
