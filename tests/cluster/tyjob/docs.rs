//! The examples of the documentation are jobs that the API server takes and the controller runs.

use baton::contract::tyjob::{BasicPolicy, JobQueuePolicy, TyJob, validate};

use super::verbs::JobCluster;
use crate::prelude::*;

/// Every YAML block of `docs/tyjob.md` and of the jobs beside it.
fn examples() -> Vec<TyJob> {
    let text = [include_str!("../../../docs/tyjob.md"), include_str!("../../fixtures/tyjob-policies.md")].concat();
    let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.map(|block| serde_saphyr::from_str(block).unwrap_or_else(|error| panic!("{error}:\n{block}"))).collect()
}

#[test]
fn there_is_an_example_of_each_policy_and_all_are_valid() {
    let jobs = examples();
    for job in &jobs {
        assert_eq!(validate(job), [], "{}", job.name_any());
    }
    let basic: BTreeSet<BasicPolicy> = jobs.iter().map(|job| job.spec.scheduler_policy.basic_policy).collect();
    let queue: BTreeSet<JobQueuePolicy> = jobs.iter().map(|job| job.spec.scheduler_policy.job_queue_policy).collect();
    assert_eq!((basic.len(), queue.len()), (6, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_runs() {
    let (cluster, _controller) = JobCluster::controlled().await;
    for job in examples() {
        let name = job.name_any();
        cluster.jobs().create(&PostParams::default(), &job).await.unwrap();
        cluster.play_until_stage(&name, Stage::Running).await;
        let wanted = job.spec.total_workers();
        cluster
            .play_until("every worker is ready", &name, async || {
                cluster.status(&name).await.ready.as_deref() == Some(&format!("{wanted}/{wanted}"))
            })
            .await;
    }
}
