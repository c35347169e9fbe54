//! What most of these tests name.

pub use std::collections::{BTreeMap, BTreeSet};
pub use std::sync::Arc;
pub use std::time::Duration;

pub use baton::cluster::pod::LightPod;
pub use baton::contract::gang::{GangId, PodGroupApi, TopologySpec};
pub use baton::contract::inventory::{Device, DeviceInfo, DeviceStatus};
pub use baton::contract::tyjob::{BasicPolicy, JobQueuePolicy, ScheduleState, Stage};
pub use baton::contract::{
    AgentStatus, DeviceAllocation, DeviceId, DeviceType, Identity, PodKey, PodRef, PodUid, Quantity, key,
};
pub use baton::decide::core::rules::plugins::{DefaultSet, NodesWithoutAgent};
pub use baton::decide::devices::{Assignment, Grant, NodePool, Part, PodDeviceRequest, Reason, Slot, Wishes, pick};
pub use baton::decide::explain::PodState;
pub use baton::decide::pod::ContainerKind::{App, Init, Sidecar};
pub use baton::decide::pod::{ContainerKind, Deletion, Phase};
pub use baton::decide::scheduler::{Config, Effect, EffectResult};
pub use baton::decide::tyjob::placement::JobFacts;
pub use baton::decide::world::gangs::{DeclarationSource, Declared, DeclaredFields, MemberState, PodGroupFacts};
pub use baton::decide::world::spec::{PodTerm, Spread, Taint, TaintEffect, Toleration, VolumeUse};
pub use baton::decide::world::{BudgetFacts, ClassFacts, JobClaim, PodFacts, Resources, WorldEvent};
pub use jiff::Timestamp;
pub use serde_json::{Value, json};

pub use crate::dice::Dice;
pub use crate::harness::gangs::{G, P, TestGangs, declared, gang};
pub use crate::harness::parts::{among, condition, labels_of, near, spread, with_label};
pub use crate::harness::tells::tells;
pub use crate::harness::tyjobs::TestJobs;
pub use crate::harness::{Fault, TestScheduler, gpu_device, pod, wall};

/// What a pod asks for.
pub const CPU: &[(&str, &str)] = &[("cpu", "1")];
pub const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];
pub const TWO: &[(&str, &str)] = &[(key::NVIDIA_GPU, "2")];
pub const FOUR: &[(&str, &str)] = &[(key::NVIDIA_GPU, "4")];
