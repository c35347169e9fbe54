//! Explains pods, gangs, jobs and the queue, and decides for a pod that does not exist. The rules of real decisions judge the present
//! world; nothing is written or reserved.

mod advice;
mod answer;
mod fleet;
mod gang;
mod job;
mod judged;
mod node;
mod one_move;
mod pod;
mod queue;
mod what_if;

pub use fleet::{Fleet, NamespaceUse, namespaces};
pub use gang::{GangExplanation, GangStanding, GangView, MemberView};
pub use job::{JobExplanation, NodeRating, SeatExplanation};
pub use judged::on_nodes;
pub use node::{NodeRecords, taken_over};
pub use what_if::{Unadmitted, UnadmittedObject};

pub use answer::{
    ClosedNode, DeviceDetail, Explanation, LockEnd, NodeExplanation, NodeVerdict, OneMove, PodState, PodVerdict,
    QueueItem, QueueReport, RatedNode, Rating, ReservedDevices, RuleCount, WhatIf, WhatIfObject, WhatIfObjects,
};
