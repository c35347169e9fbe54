//! The node lock: when it may be set, taken over and released. Decisions only; `cluster::node_lock` performs them by
//! compare-and-swap on the exact value that was judged.
//!
//! ```text
//!            acquire: Set                  release: P is served, or its bind has ended
//!   free ──────────────────▶ held by pod P ──────────────────────────────▶ free
//!                              │   │
//!          P gone (proof)      │   │  P alive, value older than the expiry, agent live
//!   TakeOver ◀─────────────────┘   └──▶ Fence P, wait until it is gone ──▶ TakeOver
//! ```

mod acquire;
mod holder;
mod owner;
mod release;

pub use acquire::{
    AgentLiveness, BoundHolder, ExpiredHolder, Intent, LockClaim, LockMode, LockPolicy, LockView, Missing, WaitReason,
    acquire,
};
pub use holder::{GoneReason, HolderState, Lookup, judge_holder, judge_pod};
pub use owner::{LockMatch, names};
pub use release::{HolderProgress, LiveHolder, ReleaseIntent, ReleaseReason, judge_release};
