//! What holds GPU shares to their limits.

use super::word::word_enum;

word_enum! {
    /// `--share-isolation` of the node daemon: what holds GPU shares to their limits.
    #[derive(Default)]
    ShareIsolation {
        /// Nothing: shares are counted, and a pod can take more than its own.
        #[default]
        None = "none",
        /// HAMi-core, a library that is loaded into every process of the container.
        HamiCore = "hami-core",
        /// CUDA MPS.
        Mps = "mps",
    }
}

impl ShareIsolation {
    /// As the label [`key::GPU_ISOLATION_PROVIDER`](super::key::GPU_ISOLATION_PROVIDER) says it.
    pub const fn provider(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::HamiCore => "HAMi-core",
            Self::Mps => "MPS",
        }
    }

    /// The one that a label's value names, in whatever case: Koordinator's own pages write `HAMi-core` and `hami-core`.
    pub fn of_provider(value: &str) -> Option<Self> {
        let names = |one: &&Self| one.provider().eq_ignore_ascii_case(value);
        Self::ALL.iter().find(names).copied()
    }
}
