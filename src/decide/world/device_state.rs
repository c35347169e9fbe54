//! What a device is to new pods, in the words of every surface.

use serde::Serialize;

use baton_contract::word::word_enum;

word_enum! {
    /// What a device is to new pods. The first that is true of it counts, from the last to the first.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    DeviceState {
        /// A new pod can have it whole.
        Free = "free",
        /// No pod holds it, and its node takes no new pods with devices.
        Off = "off",
        /// Pods hold a part of it.
        Partly = "partly",
        /// The scheduler has reserved a part of it for pods that are not bound yet.
        Reserved = "reserved",
        /// Pods hold all of it.
        Held = "held",
        /// Its MIG devices are handed out in its place.
        Split = "split",
        /// People have taken it out of use.
        Cordoned = "cordoned",
        /// It takes no new pods until it is healthy again.
        Unhealthy = "unhealthy",
    }
}
