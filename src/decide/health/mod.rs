//! Whether a device may be handed out: the table of conditions, what an XID means, when a GPU goes and when it comes back, and the same for the
//! links of a NIC. Pure: events, probes and polls come in with the time, changes come out.
//!
//! ```text
//!              XID with an action ≥ unhealthy, bad probe
//!   Healthy ─────────────────────────────────────────────▶ Unhealthy(cause)
//!      ▲                                                        │  clean probe: count
//!      └────────────────────────────────────────────────────────┘  anything else: count again from 0
//!        3 clean probes over ≥ 60 s, and the cause allows it
//! ```

mod condition;
mod evicting;
mod gpu;
mod nic;
mod suspect;
mod xid;

pub use condition::{
    CONDITIONS, ConditionEffect, ConditionRule, DeviceClass, DeviceCondition, DeviceFacts, MigStrategy, NodeSplit,
    condition_table,
};
pub use evicting::{FaultAnswer, FaultEvictions, FaultStep};
pub use gpu::{Ailment, EventJudgement, FaultCause, GpuHealth, GpuStatus, HealthChange, Observation, RecoveryRule};
pub use nic::{LinkFault, NicHealth, PortPolicy};
pub use suspect::{Blame, Outage, ServeOutcome, SuspectRule, Suspicion};
pub use xid::{XIDS, XidAction, XidOrigin, XidPolicy, XidRule, xid_named, xid_table, xid_words};
