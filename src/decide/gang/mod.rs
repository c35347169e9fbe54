//! Gangs in the cycle: groups of gangs are queued, tried and committed as one.
//!
//! ```text
//!            review (every change of a gang)
//!               │                      ┌──────────── Strict: all or nothing, again in another order ─┐
//!   held ◀──────┴──▶ queued ──pop──▶ attempt ──▶ satisfied ──▶ commit: volumes of all, then locks and Bindings
//!    (reason told)     ▲                 │
//!                      └── parked ◀──────┴── NonStrict: reservations stay, the clock runs ──▶ expired: released, marked
//! ```
//!
//! A group attempt is a transaction on the world: members are assumed one by one, and when the group cannot be satisfied in
//! Strict mode all of it is undone before anybody else looks.

mod alike;
mod attempt;
mod before;
mod clock;
mod commit;
mod deadlock;
mod joint_preempt;
mod offer;
mod pod_groups;
mod preempt;
mod record;
mod review;
mod search;
mod short;
mod view;
mod warn;

pub(in crate::decide) use alike::is_twin;
pub(in crate::decide) use commit::Commit;
pub(in crate::decide) use record::GroupRecord;
pub use record::{GangPolicy, OnBindFailure, TimeoutClock};
pub(in crate::decide) use review::Route;
pub use view::{GangExplanation, GangStanding, GangView, MemberView, RootCause};
