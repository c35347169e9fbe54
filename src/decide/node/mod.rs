//! The node daemon's order of doing: what it remembers, and what comes after what. Pure: the daemon, the simulation and the model perform
//! the effects and report what came of them.
//!
//! One Allocate call ([`Allocating`]), in the states that its devices go through:
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
//! A GetPreferredAllocation ([`Preferring`]) is asked and decided in the same way, and writes nothing. The lock goes
//! beside calls: [`unlocking`].

pub mod allocating;
pub mod effect;
pub mod hand_off;
pub mod preferring;
pub mod reads;
pub mod seen;
pub mod unlocking;

pub use allocating::{Allocating, Decide, Time};
pub use effect::{Answer, CallEffect, CallReport, Effects, Grant, ServedCall};
pub use hand_off::{CallEvent, HandOff, Marks, TakenIn};
pub use preferring::{Preferring, Wish};
pub use reads::ReadFailure;
pub use seen::{Facts, NodeSeen};
pub use unlocking::{ServedLock, UnlockEffect, UnlockReport, Unlocking};
