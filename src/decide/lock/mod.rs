//! The node lock: when it may be set, taken over and released. Decisions only; `cluster::node_lock` performs them by
//! compare-and-swap on the exact value that was judged.
//!
//! ```text
//!            acquire: Set                  release: P is served, or its bind has ended
//!   free ──────────────────▶ held by pod P ──────────────────────────────▶ free
//!                              │   │
//!          P gone (proof)      │   │  P waits, value unchanged for the expiry, agent live
//!   TakeOver ◀─────────────────┘   └──▶ TakeOver; P keeps its devices
//! ```

mod acquire;
mod age;
mod daemon;
mod delay;
mod holder;
mod owner;
mod release;

pub use acquire::{AgentLiveness, BoundHolder, Intent, LockClaim, LockMode, LockPolicy, LockView, WaitReason, acquire};
pub use age::LockAge;
pub use daemon::{DaemonState, Heard};
pub use delay::{Delay, LockDelay, stands};
pub use holder::{GoneReason, HolderState, Lookup, judge_holder, judge_pod};
pub use owner::{LockMatch, names};
pub use release::{HolderProgress, LiveHolder, ReleaseIntent, ReleaseReason, judge_release};
