//! TYJobs: stage, placement, ready workers, and why a job is where it is.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::Client;
use kube::api::Api;
use serde::Serialize;

use super::snapshot::Snapshot;
use super::table::{Row, RowId, age};
use crate::live::{all, or_unknown};
use baton_cluster::tyjob::RawTyJob;
use baton_contract::tyjob::{Allocation, ScheduleState, Stage, TyJob, condition};
use baton_runtime::clock;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRow {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Its stage; none before the controller has seen it.
    pub stage: Option<Stage>,
    pub schedule_state: Option<ScheduleState>,
    /// `ready/asked for`, of its workers.
    pub ready: String,
    /// Restarts of its pods and their containers, all together.
    pub restarts: i32,
    /// Those of each worker set; the rest are the leader's.
    pub worker_set_restarts: BTreeMap<String, i32>,
    /// 1 to 10; none when the spec cannot be read.
    pub priority: Option<i32>,
    pub age_seconds: u64,
    /// Pod IP of the leader.
    pub leader_address: Option<String>,
    pub nodes: Option<String>,
    /// Why it is where it is.
    pub message: Option<String>,
    /// Places, of the leader first.
    pub allocations: Vec<Allocation>,
    #[serde(skip)]
    labels: BTreeMap<String, String>,
}

/// Every job of the cluster.
pub async fn read(client: Client) -> anyhow::Result<Snapshot> {
    let key = |job: &RawTyJob| {
        let meta = job.metadata.clone();
        (meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default())
    };
    let jobs = all(Api::<RawTyJob>::all(client), "tyjobs").await;
    let jobs = jobs.map_err(|error| or_unknown("tyjobs.arranger.taichu.io", error))?;
    let jobs = jobs.into_iter().map(|job| (key(&job), job)).collect();
    Ok(Snapshot { jobs, wall: clock::wall(), ..Snapshot::default() })
}

/// The jobs of `namespace` (all when `None`), by namespace and name.
pub fn rows(snapshot: &Snapshot, namespace: Option<&str>) -> Vec<JobRow> {
    let here = snapshot.jobs.iter().filter(|((space, _), _)| namespace.is_none_or(|namespace| space == namespace));
    here.map(|(_, job)| row(job.clone(), snapshot.wall)).collect()
}

fn row(raw: RawTyJob, now: Timestamp) -> JobRow {
    let meta = raw.metadata.clone();
    let created = meta.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let (job, problem) = match raw.read() {
        Ok((job, unreadable)) => (job, unreadable),
        Err(problem) => (TyJob::default(), Some(problem)),
    };
    let status = job.status.unwrap_or_default();
    let restarts = status.sum_of_restarts();
    // Why it has no places is more than that it waits for them.
    let scheduled = status.condition(condition::SCHEDULED).filter(|found| found.status == "False");
    let waits_for =
        scheduled.filter(|_| !status.stage.is_some_and(Stage::is_terminal)).map(|found| found.message.clone());
    JobRow {
        namespace: meta.namespace.unwrap_or_default(),
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        stage: status.stage,
        schedule_state: status.schedule_state,
        // As `kubectl` shows it: of the spec in force, which may differ from the written one.
        ready: status.ready.unwrap_or_else(|| format!("{}/{}", status.ready_workers, job.spec.total_workers())),
        restarts,
        worker_set_restarts: status.worker_set_restarts,
        priority: problem.is_none().then_some(job.spec.priority),
        age_seconds: now.duration_since(created).as_secs().try_into().unwrap_or(0),
        leader_address: status.leader_address,
        nodes: status.nodes,
        message: waits_for.or(status.message).or(problem.map(|problem| problem.to_string())),
        allocations: status.allocations,
        labels: meta.labels.unwrap_or_default(),
    }
}

impl Row for JobRow {
    const WHAT: &'static str = "job";
    const PLURAL: &'static str = "jobs";
    const NONE: &'static str = "No TYJob here; -A lists every namespace.";
    const HEADERS: &'static str = "NAMESPACE,NAME,STAGE,SCHEDULED,READY,RESTARTS,PRIORITY,AGE,LEADER,NODES,MESSAGE";
    const NARROW: usize = 8;
    fn id(&self) -> RowId<'_> {
        let (namespace, labels) = (Some(&*self.namespace), Some(&self.labels));
        RowId { name: &self.name, namespace, labels, node: None }
    }
    fn cells(&self) -> Vec<String> {
        let state = self.schedule_state.map(|state| format!("{state:?}"));
        vec![
            self.namespace.clone(),
            self.name.clone(),
            self.stage.map_or_else(String::new, |stage| stage.to_string()),
            state.unwrap_or_default(),
            self.ready.clone(),
            self.restarts.to_string(),
            self.priority.map(|priority| priority.to_string()).unwrap_or_default(),
            age(std::time::Duration::from_secs(self.age_seconds)),
            self.leader_address.clone().unwrap_or_default(),
            self.nodes.clone().unwrap_or_default(),
            self.message.clone().unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(edit: impl FnOnce(&mut serde_json::Value)) -> Vec<JobRow> {
        let mut job: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/golden/tyjob.json")).unwrap();
        job["metadata"]["creationTimestamp"] = "2026-01-02T03:00:00Z".into();
        edit(&mut job);
        let jobs = [(Default::default(), serde_json::from_value(job).unwrap())].into();
        let wall = "2026-01-02T03:04:05Z".parse().unwrap();
        rows(&Snapshot { wall, jobs, ..Snapshot::default() }, None)
    }

    #[test]
    fn a_job_is_one_line_and_wide_tells_where_and_why() {
        let rows = jobs(|job| job["status"]["message"] = "2 of 3 workers are ready".into());
        assert_eq!(rows[0].cells()[5], "2", "one of the leader and one of a worker");
        let plain = rows[0].cells()[..JobRow::NARROW].join(" ");
        for word in ["team-a", "rl", "Running", "ScheduledSucceed", "2/3", "4m5s"] {
            assert!(plain.contains(word), "{word}: {plain}");
        }
        assert!(!plain.contains("10.1.0.4"));
        let wide = rows[0].cells().join(" ");
        assert!(
            wide.contains("10.1.0.4") && wide.contains("node-1,node-2") && wide.contains("2 of 3 workers"),
            "{wide}"
        );
    }

    #[test]
    fn a_job_that_cannot_be_read_is_shown_with_its_problem() {
        let rows = jobs(|job| job["spec"]["priority"] = "high".into());
        assert!(rows[0].priority.is_none() && rows[0].message.as_deref().unwrap().contains("high"));
        assert_eq!(rows[0].stage, Some(Stage::Running));
    }

    #[test]
    fn workers_are_counted_by_the_spec_in_force_as_kubectl_does() {
        let refused = jobs(|job| job["spec"]["workerSets"][0]["counts"] = 9.into());
        assert_eq!(refused[0].ready, "2/3", "what an edit that is refused asks for is not what the job has");
        let new = jobs(|job| {
            job["spec"]["workerSets"][0]["counts"] = 9.into();
            job["status"] = serde_json::json!({});
        });
        assert!(new[0].ready.starts_with("0/") && new[0].ready != "0/3", "{}", new[0].ready);
    }
}
