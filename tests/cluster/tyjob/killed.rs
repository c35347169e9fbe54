//! Both daemons as they ship run one job after the other, and one of them is killed with -9 at one of its calls: before the
//! call is applied, or after it was applied and before its answer. Every job ends as the undisturbed one. There is room for one
//! job and no more: what a run leaves behind, the next one would miss.

use baton::sim::apiserver::RuleId;
use http::Request;

use super::placed::SCHEDULER;
use super::verbs::{CONTROLLER, JobCluster, SOON};
use crate::prelude::*;

/// What a job comes to, as far as every run must agree.
#[derive(Debug, PartialEq)]
struct End {
    stage: Option<Stage>,
    schedule_state: Option<ScheduleState>,
    scheduled: bool,
    restarts: i32,
    worker_restarts: BTreeMap<String, i32>,
    ready: Option<String>,
    finished: bool,
}

/// How the leader is lost in the middle of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Fails,
    Evicted,
    NodeGone,
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Controller,
    Scheduler,
}

impl Victim {
    fn user(self) -> &'static str {
        match self {
            Self::Controller => CONTROLLER,
            Self::Scheduler => SCHEDULER,
        }
    }
}

struct Pair {
    cluster: JobCluster,
    controller: Daemon,
    scheduler: Daemon,
    runs: usize,
}

impl Pair {
    async fn start() -> Self {
        let (cluster, scheduler, controller) = JobCluster::whole("1").await;
        Self { cluster, controller, scheduler, runs: 0 }
    }

    fn daemon(&mut self, victim: Victim) -> &mut Daemon {
        match victim {
            Victim::Controller => &mut self.controller,
            Victim::Scheduler => &mut self.scheduler,
        }
    }

    /// One job from submission over a worker's failure and the leader's loss to success and deletion. The victim is killed
    /// when its rule hits. Answers what the job came to, and whether anybody was killed.
    async fn run(&mut self, loss: Loss, mut strike: Option<(Victim, RuleId)>) -> (End, bool) {
        self.runs += 1;
        let name = format!("job-{}", self.runs);
        self.cluster.submit_with(&name, "Gang").await;
        let (leader, worker) = (format!("{name}-learner"), format!("{name}-actor-1"));
        let (mut act, mut killed, mut ended) = (0, false, None);
        until(&format!("{name} has run and is gone"), SOON, async || {
            if let Some((victim, _)) = strike.filter(|(_, rule)| self.cluster.server().faults().fired(*rule) > 0) {
                self.daemon(victim).kill();
                self.cluster.server().faults().clear();
                self.daemon(victim).restart();
                (strike, killed) = (None, true);
            }
            let cluster = &self.cluster;
            cluster.play_bound(&name).await;
            cluster.check_room().await;
            let crew = cluster.pods_of(&name).await;
            assert!(crew.len() <= 3, "{name}: more pods than asked: {:?}", crew.keys());
            let status = cluster.status(&name).await;
            let terminal = status.stage.is_some_and(Stage::is_terminal);
            assert!(ended.is_none() || terminal || act > 3, "{name}: a terminal stage was left for {:?}", status.stage);
            let all_ready = status.stage == Some(Stage::Running) && status.ready.as_deref() == Some("2/2");
            match act {
                0 if all_ready => cluster.ends(&worker, "Failed").await,
                1 if all_ready && status.worker_set_restarts.get("actor") == Some(&1) => {
                    cluster.lose(&leader, loss).await;
                }
                2 if all_ready && status.restarts == 1 => cluster.ends(&leader, "Succeeded").await,
                3 if terminal && crew.is_empty() => {
                    ended = Some(End {
                        stage: status.stage,
                        schedule_state: status.schedule_state,
                        scheduled: status.holds(condition::SCHEDULED),
                        restarts: status.restarts,
                        worker_restarts: status.worker_set_restarts,
                        ready: status.ready,
                        finished: status.completion_time.is_some(),
                    });
                    cluster.jobs().delete(&name, &DeleteParams::default()).await.unwrap();
                }
                4 if cluster.job(&name).await.is_none() && crew.is_empty() => return Some(()),
                _ => return None,
            }
            act += 1;
            None
        })
        .await;
        (ended.expect("the job has ended before it was deleted"), killed)
    }

    /// As [`Pair::run`], with the victim started again and killed at its call of that number.
    async fn strike(&mut self, victim: Victim, effect: &Effect, call: u64) -> (End, bool) {
        let mut rule = FaultRule::on("", "").after(call).times(1);
        victim.user().clone_into(&mut rule.user);
        let rule = self.cluster.server().faults().add(rule, effect.clone());
        self.daemon(victim).restart();
        let (end, killed) = self.run(Loss::Fails, Some((victim, rule))).await;
        self.cluster.server().faults().clear();
        (end, killed)
    }

    /// How many calls the victim makes in an undisturbed run, its start included, and what the job comes to.
    async fn calm(&mut self, victim: Victim) -> (u64, End) {
        self.cluster.server().counts().reset();
        self.daemon(victim).restart();
        let (end, _) = self.run(Loss::Fails, None).await;
        (self.cluster.server().counts().sum(|counted| counted.user == victim.user()), end)
    }
}

impl JobCluster {
    /// Nodes of one CPU, pods that ask for one: more than one live pod on a node is over-commitment.
    async fn check_room(&self) {
        let pods = self.pods().list(&kube::api::ListParams::default()).await.unwrap();
        let mut taken: BTreeMap<String, String> = BTreeMap::new();
        for pod in pods.items {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            if let Some(node) = node.filter(|_| phase != "Failed" && phase != "Succeeded") {
                let other = taken.insert(node.clone(), pod.name_any());
                assert_eq!(other, None, "{node} is given to {} too", pod.name_any());
            }
        }
    }

    async fn lose(&self, pod: &str, loss: Loss) {
        match loss {
            Loss::Fails => self.ends(pod, "Failed").await,
            Loss::Evicted => {
                let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod } });
                let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
                let request = Request::post(path).header("content-type", "application/json");
                let request = request.body(serde_json::to_vec(&eviction).unwrap()).unwrap();
                self.client.request::<Value>(request).await.unwrap();
            }
            Loss::NodeGone => {
                let node = self.pods().get(pod).await.unwrap().spec.unwrap().node_name.unwrap();
                self.nodes().delete(&node, &DeleteParams::default()).await.unwrap();
                let uid = self.pods().get(pod).await.unwrap().uid();
                until("the pod of the lost node is gone", SOON, async || {
                    let found = self.pods().get_opt(pod).await.unwrap();
                    if let Some(found) = found.filter(|found| found.uid() == uid) {
                        // What the garbage collector of pods does.
                        if found.metadata.deletion_timestamp.is_some() {
                            self.remove(pod).await;
                        }
                        return None;
                    }
                    Some(())
                })
                .await;
                self.node(&node).await;
                self.offer("1").await;
            }
        }
    }
}

/// SplitMix64.
fn shuffled(seed: u64, many: u64) -> Vec<u64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let mut all: Vec<(u64, u64)> = (0..many).map(|number| (next(), number)).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, number)| number).collect()
}

/// Kills at `most` of the calls of each daemon, drawn by the seed.
async fn kills(most: usize) {
    let seed = std::env::var("BATON_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed} (BATON_SEED sets it)");
    let mut pair = Pair::start().await;
    for victim in [Victim::Controller, Victim::Scheduler] {
        let (calls, undisturbed) = pair.calm(victim).await;
        assert_eq!((undisturbed.stage, undisturbed.restarts), (Some(Stage::Succeeded), 1));
        let (mut struck, mut missed) = (0, 0);
        for effect in [Effect::Hang, Effect::HangAfter] {
            for call in shuffled(seed, calls).into_iter().take(most) {
                let (end, killed) = pair.strike(victim, &effect, call).await;
                assert_eq!(end, undisturbed, "{victim:?} killed at call {call}, {effect:?}");
                if killed { struck += 1 } else { missed += 1 }
            }
        }
        // The number of calls is not the same in each run: watches and rounds come as they come.
        println!("{victim:?}: {calls} calls in an undisturbed run, killed at {struck}, {missed} came after the end");
        assert!(struck > missed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_daemon_is_killed_at_some_of_its_calls_the_job_ends_as_undisturbed() {
    kills(3).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "some hundred whole runs"]
async fn whichever_daemon_is_killed_at_any_of_its_calls_the_job_ends_as_undisturbed() {
    kills(usize::MAX).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn losses_and_storms_end_as_an_undisturbed_run() {
    let mut pair = Pair::start().await;
    let (undisturbed, _) = pair.run(Loss::Fails, None).await;
    for loss in [Loss::Evicted, Loss::NodeGone] {
        assert_eq!(pair.run(loss, None).await.0, undisturbed, "{loss:?}");
    }
    for effect in [
        Effect::Answer(409, None),
        Effect::Answer(410, None),
        Effect::Answer(429, Some(1)),
        Effect::Answer(500, None),
        Effect::DropBefore,
        Effect::DropAfter,
    ] {
        for victim in [Victim::Controller, Victim::Scheduler] {
            let mut rule = FaultRule::on("", "").with_probability(0.15);
            victim.user().clone_into(&mut rule.user);
            pair.cluster.server().faults().add(rule, effect.clone());
        }
        pair.cluster.server().compact();
        pair.cluster.server().faults().break_watches();
        assert_eq!(pair.run(Loss::Fails, None).await.0, undisturbed, "{effect:?}");
        pair.cluster.server().faults().clear();
    }
}
