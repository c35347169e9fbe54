//! Why a pod is where it is, what the queue holds, and what would be decided for a pod that does not exist. Judged afresh on the
//! live world by the rules that decide; nothing is written and nothing stays assumed.

mod advice;
mod answer;
mod gang;
mod job;
mod judged;
mod pod;
mod queue;
mod what_if;

pub use gang::{GangExplanation, GangStanding, GangView, MemberView};
pub use job::{JobExplanation, NodeRating, SeatExplanation};
pub use what_if::Unadmitted;

pub use answer::{
    DeviceDetail, Explanation, NodeVerdict, PodState, QueueItem, QueueReport, RatedNode, Rating, RuleCount, Verdict,
    WhatIf,
};
