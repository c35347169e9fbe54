//! The scheduling cycle as pure functions: choose a node, hold its room, lock, bind, and answer every report.
//!
//! ```text
//!   queue ──choose──▶ held ──permit──▶ prepared ──▶ in the node's line ──▶ locking ──▶ binding ──▶ bound
//!     ▲                                │   ▲                │            │
//!     │                                │   └───contended────┘            │
//!     └──── release, forget ◀──────────┴───────── final failure ◀────────┘
//! ```

mod annotations;
mod binding;
mod choose;
mod effect;
mod engine;
mod errand;
mod explain;
mod extend;
mod flight;
mod gang;
mod hold;
mod index;
mod jobs;
mod line;
mod locks;
mod preempt;
mod refusals;
mod report;
mod settings;
mod tell;

pub use annotations::Annotations;
pub use choose::{Choice, Diagnosis, choose};
pub use effect::{BindResult, Effect, Effects, LockResult, PodGroupWrite, Report, Ticket};
pub use engine::Engine;
pub use errand::{AskId, BindAnswer, BindVerdict};
pub use explain::{
    DeviceDetail, Explanation, NodeVerdict, PodState, QueueItem, QueueReport, RatedNode, Rating, RuleCount, Unadmitted,
    Verdict, WhatIf,
};
pub use extend::{Fits, Room};
pub use flight::{Flight, Line, Stage};
pub use gang::{
    GangExplanation, GangPolicy, GangStanding, GangView, MemberView, OnBindFailure, RootCause, TimeoutClock,
};
pub use hold::Hold;
pub use index::{Index, PodShape};
pub use jobs::{JobExplanation, JobHalf, JobPlace, JobPolicy, JobRecord, JobWriteResult, NodeRating, SeatExplanation};
pub use preempt::{Candidate, Nomination, Victim};
pub use settings::{EngineConfig, LockMode, Moment, Search, Stats};
