//! The words that options may have, each read from and printed as its flag's value.

use crate::contract::word::word_enum;

word_enum! {
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

word_enum! {
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

word_enum! {
    /// What names a GPU in environment and volume mounts.
    DeviceIdStrategy {
        /// The UUID.
        Uuid = "uuid",
        /// The driver's index of the moment.
        Index = "index",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_back_and_an_unknown_one_lists_what_is_known() {
        for value in DeviceListStrategy::ALL {
            assert_eq!(value.word().parse::<DeviceListStrategy>().as_ref(), Ok(value));
        }
        let error = "both".parse::<MigStrategy>().unwrap_err().to_string();
        assert_eq!(error, "\"both\" is not known; expected none, single, mixed");
    }
}
