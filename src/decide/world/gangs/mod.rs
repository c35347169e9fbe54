//! Gangs: sets of pods that get their places together or not at all.
//!
//! [`Declared`] is what one pod says, [`GangBook`] what all pods and PodGroups say together: it lives in the world, follows every
//! pod, and tells for each gang what holds for it ([`GangConfig`]), how many members stand where ([`Counts`]), with which gangs it
//! starts ([`GroupId`]) and why it may not be attempted yet ([`Hold`]). [`rule`] says when a gang is complete and when it is
//! satisfied. What only attempts know is
//! theirs to keep, one [`GangProgress`] per group.

mod book;
mod config;
mod declared;
#[allow(clippy::module_inception)] // one gang, in the folder of gangs
mod gang;
mod hold;
mod member;
mod pod_group;
mod progress;
pub mod rule;
mod status;
mod votes;
mod warning;

pub use book::{Change, GangBook, Resolved};
pub use config::{GangConfig, GangDefaults, GroupId};
pub use declared::{Declared, Fields, Named, NamedBy, Owner, Source};
pub use gang::Gang;
pub use hold::Hold;
pub use member::{Counts, Member, MemberState};
pub use pod_group::PodGroupFacts;
pub use progress::GangProgress;
pub use status::{Sight, is_rewording, is_same_but_times, status};
pub use votes::Rank;
pub use warning::Warning;
