//! TYJobs: stage, placement, ready workers, and why a job is where it is.

use anyhow::anyhow;
use jiff::Timestamp;
use kube::Client;
use kube::api::Api;
use serde::Serialize;

use super::output::{Row, age};
use crate::cluster::client::status_code;
use crate::cluster::tyjob::RawTyJob;
use crate::contract::tyjob::{Allocation, ScheduleState, Stage, TyJob};
use crate::ops::live::all;

/// One job.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRow {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Its stage; none before the controller has seen it.
    pub stage: Option<Stage>,
    /// State of its placement.
    pub schedule_state: Option<ScheduleState>,
    /// `ready/asked for`, of its workers.
    pub ready: String,
    /// Restarts of the leader.
    pub restarts: i32,
    /// 1 to 10; none when the spec cannot be read.
    pub priority: Option<i32>,
    /// Seconds since it was created.
    pub age_seconds: u64,
    /// Pod IP of the leader.
    pub leader_address: Option<String>,
    /// Nodes of its pods.
    pub nodes: Option<String>,
    /// Why it is where it is.
    pub message: Option<String>,
    /// Places, of the leader first.
    pub allocations: Vec<Allocation>,
}

/// Every job of the cluster.
pub async fn read(client: Client) -> anyhow::Result<Vec<RawTyJob>> {
    match all(Api::<RawTyJob>::all(client), "tyjobs").await {
        Err(error) if error.downcast_ref::<kube::Error>().and_then(status_code) == Some(404) => Err(anyhow!(
            "the cluster does not know tyjobs.arranger.taichu.io: install the CRD with `baton crds | kubectl apply --server-side -f -`"
        )),
        other => other,
    }
}

/// The jobs of `namespace` (all when `None`), by namespace and name.
pub fn rows(jobs: Vec<RawTyJob>, namespace: Option<&str>, now: Timestamp) -> Vec<JobRow> {
    let here = |job: &RawTyJob| namespace.is_none_or(|namespace| job.metadata.namespace.as_deref() == Some(namespace));
    let mut rows: Vec<JobRow> = jobs.into_iter().filter(here).map(|job| row(job, now)).collect();
    rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    rows
}

fn row(raw: RawTyJob, now: Timestamp) -> JobRow {
    let meta = raw.metadata.clone();
    let created = meta.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let (job, problem) = match raw.read() {
        Ok((job, unreadable)) => (job, unreadable),
        Err(problem) => (TyJob::default(), Some(problem)),
    };
    let status = job.status.unwrap_or_default();
    JobRow {
        namespace: meta.namespace.unwrap_or_default(),
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        stage: status.stage,
        schedule_state: status.schedule_state,
        // As `kubectl` shows it: of the spec in force, which may differ from the written one.
        ready: status.ready.unwrap_or_else(|| format!("{}/{}", status.ready_workers, job.spec.total_workers())),
        restarts: status.restarts,
        priority: problem.is_none().then_some(job.spec.priority),
        age_seconds: now.duration_since(created).as_secs().try_into().unwrap_or(0),
        leader_address: status.leader_address,
        nodes: status.nodes,
        message: status.message.or(problem.map(|problem| problem.to_string())),
        allocations: status.allocations,
    }
}

impl Row for JobRow {
    const WHAT: &'static str = "job";
    const PLURAL: &'static str = "jobs";
    const NONE: &'static str = "No TYJob here; -A lists every namespace.";
    const HEADERS: &'static str = "NAMESPACE,NAME,STAGE,SCHEDULED,READY,RESTARTS,PRIORITY,AGE,LEADER,NODES,MESSAGE";
    const NARROW: usize = 8;
    fn name(&self) -> &str {
        &self.name
    }
    fn namespace(&self) -> Option<&str> {
        Some(&self.namespace)
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
    use super::super::output::table;
    use super::*;

    fn jobs(edit: impl FnOnce(&mut serde_json::Value)) -> Vec<JobRow> {
        let mut job: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/golden/tyjob.json")).unwrap();
        job["metadata"]["creationTimestamp"] = "2026-01-02T03:00:00Z".into();
        edit(&mut job);
        rows(vec![serde_json::from_value(job).unwrap()], None, "2026-01-02T03:04:05Z".parse().unwrap())
    }

    #[test]
    fn a_job_is_one_line_and_wide_tells_where_and_why() {
        let rows = jobs(|job| job["status"]["message"] = "2 of 3 workers are ready".into());
        let plain = table(&rows, false);
        for word in ["team-a", "rl", "Running", "ScheduledSucceed", "2/3", "4m5s"] {
            assert!(plain.contains(word), "{word}: {plain}");
        }
        assert!(!plain.contains("10.1.0.4"));
        let wide = table(&rows, true);
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
