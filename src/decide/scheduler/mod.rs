//! The scheduling cycle as pure functions: choose a node, hold its room, lock, bind, and answer every report.
//!
//! ```text
//!   queue ──choose──▶ held ──permit──▶ prepared ──▶ in the node's line ──▶ locking ──▶ binding ──▶ bound
//!     ▲                                │   ▲                │            │
//!     │                                │   └───contended────┘            │
//!     └──── release, forget ◀──────────┴───────── final failure ◀────────┘
//! ```

pub(in crate::decide) mod annotations;
pub(in crate::decide) mod binding;
pub(in crate::decide) mod effect;
pub(in crate::decide) mod engine;
pub(in crate::decide) mod errand;
pub(in crate::decide) mod extend;
pub(in crate::decide) mod flight;
pub(in crate::decide) mod hold;
pub(in crate::decide) mod line;
pub(in crate::decide) mod locks;
pub(in crate::decide) mod preemption;
pub mod queue;
mod report;
pub mod rules;
pub(in crate::decide) mod select;
pub(in crate::decide) mod settings;
pub(in crate::decide) mod tell;

pub use crate::decide::explain::{
    DeviceDetail, Explanation, NodeVerdict, PodState, QueueItem, QueueReport, RatedNode, Rating, RuleCount, Unadmitted,
    Verdict, WhatIf,
};
pub use crate::decide::gang::{
    GangExplanation, GangPolicy, GangStanding, GangView, MemberView, OnBindFailure, RootCause, TimeoutClock,
};
pub use crate::decide::tyjob::{
    JobExplanation, JobHalf, JobPlace, JobPolicy, JobRecord, JobWriteResult, NodeRating, SeatExplanation,
};
pub use annotations::Annotations;
pub use effect::{BindResult, Effect, Effects, LockResult, PodGroupWrite, Report, Ticket};
pub use engine::Engine;
pub use errand::{AskId, BindAnswer, BindVerdict};
pub use extend::{Fits, Room};
pub use flight::{Flight, Line, Stage};
pub use hold::Hold;
pub use preemption::Nomination;
pub use rules::{Candidate, Victim};
pub use select::choose::{Choice, Diagnosis, choose};
pub use select::index::Index;
pub use select::shape::PodShape;
pub use settings::{EngineConfig, LockMode, Moment, Search, Stats};
