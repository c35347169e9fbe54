//! Gangs: sets of pods that get their places together or not at all.
//!
//! [`Declared`] is what one pod states, [`GangBook`] what all pods and PodGroups state together: it lives in the world and follows
//! every pod. For each gang it knows what holds for it ([`GangConfig`]), how many members are in which state ([`MemberCounts`]), with
//! which gangs it starts ([`GroupId`]) and why it may not be attempted yet ([`NotReady`]). [`rule`] says when a gang is complete
//! and when it is satisfied. What only attempts know is kept by the scheduler, one [`GangProgress`] per group.

mod book;
mod config;
mod declared;
#[allow(clippy::module_inception)] // one gang, in the folder of gangs
mod gang;
mod member;
mod not_ready;
pub mod rule;
mod status;
mod topology;
mod votes;

pub use book::{GangBook, GangChange, Resolved};
pub use config::{GangConfig, GangDefaults, GroupId};
pub use declared::{
    DeclarationSource, Declared, DeclaredFields, GangName, NamedBy, Owner, PodGroupFacts, Warning, read_sub_priority,
    unsupported,
};
pub use gang::Gang;
pub use member::{Member, MemberCounts, MemberState};
pub use not_ready::{NotReady, Uncounted};
pub use status::{
    GangProgress, Generation, GroupAttempts, after_satisfaction, is_rewording, is_same_but_times, status,
};
pub use topology::GroupTopology;
pub use votes::MemberAge;
