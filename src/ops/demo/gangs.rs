//! The demo's chapter on gangs: a job that gets half of its pods computes nothing. As a gang it waits as a whole, holds nothing,
//! and starts as a whole when there is room; gangs of two namespaces do the same together.

use std::time::Duration;

use anyhow::bail;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use super::cluster::DemoCluster;
use super::pods::{NAMESPACE, SCHEDULER};
use baton_contract::gang::key::{GROUPS, MIN_AVAILABLE, NAME};
use baton_contract::key::{GANG_COMMITTED, NVIDIA_GPU};
use baton_runtime::clock;

/// Time for one scene.
const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
const SECOND_NAMESPACE: &str = "actors";

/// One pod of the chapter: name, namespace, GPUs, node where it must be one, annotations.
struct ChapterPod<'a> {
    namespace: &'a str,
    name: String,
    gpus: u32,
    node: Option<&'a str>,
    annotations: Value,
}

impl<'a> ChapterPod<'a> {
    fn new(namespace: &'a str, name: String, gpus: u32, annotations: Value) -> Self {
        Self { namespace, name, gpus, node: None, annotations }
    }
}

struct PodStand {
    name: String,
    node: Option<String>,
    runs: bool,
    reason: String,
    message: String,
    commit: Option<String>,
}

struct GangChapter<'a> {
    cluster: &'a mut DemoCluster,
    violations: Vec<String>,
}

/// Plays the chapter and takes everything away again. Returns what went wrong.
pub async fn play(cluster: &mut DemoCluster) -> anyhow::Result<Vec<String>> {
    let nodes: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
    let [first, second, third] = nodes.as_slice() else { return Ok(Vec::new()) };
    cluster.progress.heading("Gangs: all pods of a job or none");
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": SECOND_NAMESPACE}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let mut chapter = GangChapter { cluster, violations: Vec::new() };
    // Two nodes with two free GPUs each, as in the classic example; the third node joins later.
    for (node, gpus) in [(first, 6), (second, 6), (third, 8)] {
        let busy = ChapterPod::new(NAMESPACE, format!("busy-{node}"), gpus, json!({}));
        let busy = ChapterPod { node: Some(node), ..busy };
        chapter.submit(&[busy]).await?;
    }
    chapter.wait("the other pods run", NAMESPACE, "busy-", |pods| pods.iter().all(|pod| pod.runs)).await?;
    chapter.without_gang().await?;
    chapter.as_a_gang(third).await?;
    chapter.across_namespaces().await?;
    chapter.clear(NAMESPACE, "").await?;
    Ok(chapter.violations)
}

impl GangChapter<'_> {
    fn say(&self, subject: &str, text: &str) {
        self.cluster.say(subject, text);
    }

    /// 1 parameter server and 4 workers of 2 GPUs, 4 GPUs free: half a job.
    async fn without_gang(&mut self) -> anyhow::Result<()> {
        self.say("job", "submitted without gang: 1 parameter server, 4 workers of 2 GPUs; 4 GPUs are free on 2 nodes");
        self.submit(&job(&json!({}))).await?;
        let placed = |pods: &[PodStand]| pods.iter().filter(|pod| pod.node.is_some()).count() == 3;
        let says = |pods: &[PodStand]| pods.iter().all(|pod| pod.node.is_some() || pod.reason == "Unschedulable");
        self.wait("three pods have a node, two have not", NAMESPACE, "job-", |pods| placed(pods) && says(pods)).await?;
        self.say("job", "3 of 5 pods have a node: 4 GPUs are taken and nothing can be computed");
        self.clear(NAMESPACE, "job-").await
    }

    /// The same with two annotations.
    async fn as_a_gang(&mut self, joining: &str) -> anyhow::Result<()> {
        self.say("job", "submitted as a gang of 5: all of them or none");
        self.submit(&job(&json!({NAME: "job", MIN_AVAILABLE: "5"}))).await?;
        let pods = self.wait("all five say why they wait", NAMESPACE, "job-", |pods| {
            pods.iter().all(|pod| pod.reason == "Unschedulable" && pod.message.contains("0 of 5 placed"))
        });
        for pod in pods.await? {
            if let Some(node) = pod.node {
                self.violations.push(format!("gang job: pod {} is on {node} while the others wait", pod.name));
            }
        }
        let why = self.look(NAMESPACE, "job-").await?.into_iter().next().map(|pod| pod.message).unwrap_or_default();
        self.say("job", &format!("waits and holds nothing: {why}"));
        // What the gang does not hold, others can have.
        self.submit(&[ChapterPod::new(NAMESPACE, "small".to_owned(), 2, json!({}))]).await?;
        self.wait("a pod behind the gang runs", NAMESPACE, "small", |pods| pods.iter().all(|pod| pod.runs)).await?;
        self.say("small", "2 GPUs, submitted behind the gang, runs at once");
        self.clear(NAMESPACE, "small").await?;
        self.say(joining, "8 GPUs come free");
        self.clear(NAMESPACE, &format!("busy-{joining}")).await?;
        let pods = self.wait("the gang runs", NAMESPACE, "job-", |pods| pods.iter().all(|pod| pod.runs)).await?;
        self.one_commit("gang job", &pods, 5);
        self.say("job", "all five run, without any action");
        self.clear(NAMESPACE, "job-").await
    }

    /// A group of two gangs in two namespaces.
    async fn across_namespaces(&mut self) -> anyhow::Result<()> {
        let groups = format!("[\"{NAMESPACE}/learner\", \"{SECOND_NAMESPACE}/actor\"]");
        let keys = |name: &str, min: &str| json!({NAME: name, MIN_AVAILABLE: min, GROUPS: groups});
        self.say("learner", &format!("starts together with gang {SECOND_NAMESPACE}/actor, which does not exist yet"));
        self.submit(&[ChapterPod::new(NAMESPACE, "learner-0".to_owned(), 2, keys("learner", "1"))]).await?;
        let waits = |pods: &[PodStand]| pods.iter().all(|pod| pod.reason == "GangIncomplete");
        let pods = self.wait("the learner waits for the actors", NAMESPACE, "learner-", waits).await?;
        for pod in &pods {
            self.say("learner", &format!("waits: {}", pod.message));
        }
        let actor = |n: u32| ChapterPod::new(SECOND_NAMESPACE, format!("actor-{n}"), 1, keys("actor", "2"));
        self.submit(&[actor(0), actor(1)]).await?;
        let mut all =
            self.wait("the learner runs", NAMESPACE, "learner-", |pods| pods.iter().all(|pod| pod.runs)).await?;
        let actors = |pods: &[PodStand]| pods.len() == 2 && pods.iter().all(|pod| pod.runs);
        all.extend(self.wait("the actors run", SECOND_NAMESPACE, "actor-", actors).await?);
        self.one_commit("group of learner and actor", &all, 3);
        self.say("learner", "both gangs run, bound as one");
        self.clear(SECOND_NAMESPACE, "actor-").await
    }

    /// Every pod was bound by one and the same decision, which was about all of them.
    fn one_commit(&mut self, what: &str, pods: &[PodStand], count: usize) {
        let commits: std::collections::BTreeSet<&str> =
            pods.iter().map(|pod| pod.commit.as_deref().unwrap_or("none")).collect();
        let whole = commits.first().is_some_and(|commit| commit.ends_with(&format!("/{count}")));
        if pods.len() != count || commits.len() != 1 || !whole {
            self.violations
                .push(format!("{what}: {} pods were bound by the commits {commits:?}, not by one", pods.len()));
        }
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), namespace)
    }

    async fn submit(&self, members: &[ChapterPod<'_>]) -> anyhow::Result<()> {
        for member in members {
            let limits =
                if member.gpus == 0 { json!({"cpu": "100m"}) } else { json!({NVIDIA_GPU: member.gpus.to_string()}) };
            let selector = member.node.map(|node| json!({"kubernetes.io/hostname": node})).unwrap_or(json!({}));
            let pod = json!({
                "metadata": {"name": member.name, "namespace": member.namespace, "annotations": member.annotations},
                "spec": {"schedulerName": SCHEDULER, "restartPolicy": "Never", "nodeSelector": selector,
                    "containers": [{"name": "main", "image": "demo", "resources": {"limits": limits, "requests": limits}}]},
            });
            self.pods(member.namespace).create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        }
        Ok(())
    }

    async fn look(&self, namespace: &str, prefix: &str) -> anyhow::Result<Vec<PodStand>> {
        let pods = self.pods(namespace).list(&ListParams::default()).await?.items.into_iter();
        let stands = pods.map(|pod| {
            let (spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
            let mut conditions = status.conditions.into_iter().flatten();
            let waits = conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
            let (reason, message) = waits.map(|waits| (waits.reason, waits.message)).unwrap_or_default();
            PodStand {
                name: pod.metadata.name.unwrap_or_default(),
                node: spec.node_name,
                runs: status.phase.as_deref() == Some("Running"),
                reason: reason.unwrap_or_default(),
                message: message.unwrap_or_default(),
                commit: pod.metadata.annotations.and_then(|mut all| all.remove(GANG_COMMITTED)),
            }
        });
        Ok(stands.filter(|pod| pod.name.starts_with(prefix)).collect())
    }

    async fn wait(
        &mut self,
        what: &str,
        namespace: &str,
        prefix: &str,
        done: impl Fn(&[PodStand]) -> bool,
    ) -> anyhow::Result<Vec<PodStand>> {
        let deadline = clock::mono() + LIMIT;
        loop {
            self.cluster.check_daemons()?;
            let pods = self.look(namespace, prefix).await?;
            if !pods.is_empty() && done(&pods) {
                return Ok(pods);
            }
            if clock::mono() > deadline {
                let stand = |pod: &PodStand| format!("{} {:?} {} {}", pod.name, pod.node, pod.reason, pod.message);
                let pods: Vec<String> = pods.iter().map(stand).collect();
                let (limit, logs) = (LIMIT.as_secs(), self.cluster.last_lines(12));
                bail!("not within {limit} s: {what}: {}; the daemons' last lines:\n{logs}", pods.join("; "));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Deletes the pods of that prefix and waits until they are gone.
    async fn clear(&mut self, namespace: &str, prefix: &str) -> anyhow::Result<()> {
        for pod in self.look(namespace, prefix).await? {
            self.pods(namespace).delete(&pod.name, &DeleteParams::default().grace_period(0)).await?;
        }
        let deadline = clock::mono() + LIMIT;
        while !self.look(namespace, prefix).await?.is_empty() {
            if clock::mono() > deadline {
                bail!("pods {prefix}* in namespace {namespace} were not gone within {} s", LIMIT.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

/// A parameter server without GPU and four workers of two.
fn job(annotations: &Value) -> Vec<ChapterPod<'static>> {
    let member = |name: String, gpus| ChapterPod::new(NAMESPACE, name, gpus, annotations.clone());
    let workers = (0..4).map(|n| member(format!("job-worker-{n}"), 2));
    std::iter::once(member("job-ps".to_owned(), 0)).chain(workers).collect()
}
