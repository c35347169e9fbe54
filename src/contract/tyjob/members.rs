//! The pods that a job asks for, by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec::TyJobSpec;
use super::template::PodTemplate;

/// Leader or worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The one that the others report to.
    Leader,
    /// One of a worker set.
    Worker,
}

impl Role {
    /// As in labels, environment and allocations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Worker => "worker",
        }
    }
}

/// One pod that a job asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Member<'a> {
    /// Name of the pod.
    pub name: String,
    /// Leader or worker.
    pub role: Role,
    /// Worker set; none for the leader.
    pub worker_set: Option<&'a str>,
    /// Index in the worker set; 0 for the leader.
    pub index: i32,
    /// Its template.
    pub template: &'a PodTemplate,
}

impl TyJobSpec {
    /// Name of the leader pod.
    pub fn leader_pod(&self, job: &str) -> String {
        format!("{job}-{}", self.leader.name)
    }

    /// The leader.
    pub fn leader_member(&self, job: &str) -> Member<'_> {
        Member {
            name: self.leader_pod(job),
            role: Role::Leader,
            worker_set: None,
            index: 0,
            template: &self.leader.template,
        }
    }

    /// Every pod of the job: the leader, then the workers by set in the order of the spec, then by index.
    pub fn members<'a>(&'a self, job: &'a str) -> impl Iterator<Item = Member<'a>> {
        let workers = self.worker_sets.iter().flat_map(move |set| {
            (0..set.counts.max(0)).map(move |index| Member {
                name: worker_pod(job, &set.name, index),
                role: Role::Worker,
                worker_set: Some(&set.name),
                index,
                template: &set.template,
            })
        });
        std::iter::once(self.leader_member(job)).chain(workers)
    }
}

/// Name of a worker pod.
pub fn worker_pod(job: &str, set: &str, index: i32) -> String {
    format!("{job}-{set}-{index}")
}
