//! The node daemon's order of doing: what it remembers, and what comes after what. Pure: the daemon, the simulation and the model perform
//! the effects and report what came of them.
//!
//! One Allocate call ([`Allocating`]), from the kubelet's question to what follows the answer; what remains of it is a row of the
//! [table of calls](crate::handoff::ledger):
//!
//! | state | moved by | effects |
//! | --- | --- | --- |
//! | asked | its turn | list PodResources, unless the preference call just before did |
//! | deciding | the list, news of a watch, a live read | wait for the watch, then read live; or |
//! | | the caller is known | build the answer |
//! | | no caller may be served | **refuse**; unlock, where the lock is useless |
//! | granting | the answer is built | record the grant, write the ledger |
//! | recorded | the ledger is written | **answer**; then unlock, publish, log |
//! | | it is not | take the grant back, **refuse** |
//!
//! A GetPreferredAllocation ([`Preferring`]) is asked and decided in the same way, and writes nothing. Beside calls
//! go the lives of the lock ([`unlocking`]), of a container's start ([`starting`]) and of what pods leave behind ([`following`]), and what
//! contradicts is compared ([`comparing`]) and published ([`publishing`]).

pub mod allocating;
#[cfg(test)]
mod beside_tests;
pub mod comparing;
pub mod effect;
pub mod following;
pub mod hand_off;
#[cfg(test)]
mod order_tests;
pub mod preferring;
pub mod publishing;
pub mod reads;
pub mod seen;
pub mod starting;
pub mod starts;
pub mod unlocking;

pub use allocating::{Allocating, Decide, Time};
pub use comparing::{CompareEffect, Comparing};
pub use effect::{BuildAnswer, CallAnswer, CallEffect, CallEffects, CallReport, ServedCall};
pub use following::{FollowEffect, FollowReport, Following};
pub use hand_off::{CallEvent, HandOff};
pub use preferring::{Preferring, Wish};
pub use publishing::{HandoffStatus, NotKnown};
pub use reads::ReadFailure;
pub use seen::{Facts, NodeSeen};
pub use starting::{StartEffect, Starting};
pub use starts::Starts;
pub use unlocking::{ServedLock, UnlockEffect, UnlockReport, Unlocking};
