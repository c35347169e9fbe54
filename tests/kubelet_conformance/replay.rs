//! Plays a recording and compares as it goes.

use super::cluster::Cluster;
use super::compare::Tally;
use super::plugin::{Log, Plugin};
use super::prelude::*;
use super::recording::{Act, Scenario, Snapshot};
use super::renaming::{Ids, Renaming};
use super::waiting::{DEADLINE, wait};
use super::{compare, recording};

/// Real seconds for a kubelet's second.
const SCALE: f64 = 0.04;

struct World {
    cluster: Cluster,
    kubelet: Kubelet,
    plugins: BTreeMap<&'static str, Plugin>,
    log: Log,
    renaming: Renaming,
    tally: Tally,
    outcomes: usize,
    /// Calls compared so far: none may go by between two steps.
    seen: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recorded_scenarios_run_as_recorded() {
    replay(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recorded_scenarios_run_as_recorded_with_other_random_choices() {
    replay(2).await;
}

async fn replay(default_seed: u64) {
    let offset: u64 = std::env::var("BATON_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let seed = default_seed + offset;
    println!("seed {seed} (BATON_SEED shifts it)");
    let dir = crate::directory::directory();
    let cluster = Cluster::start().await;
    let mut options = KubeletOptions::new("node-a", dir.path(), cluster.client());
    options.seed = seed;
    options.periods = Periods { scale: SCALE, ..Periods::default() };
    let kubelet = Kubelet::start(options).await.unwrap();
    let log = Log::default();
    let plugin = |name, count| (name, Plugin::new(name, count, dir.path(), log.clone()));
    let plugins = BTreeMap::from([plugin("nic", 4), plugin("gpu", 8)]);
    let renaming = fresh_renaming();
    let mut world = World { cluster, kubelet, plugins, log, renaming, tally: Tally::default(), outcomes: 0, seen: 0 };

    let scenarios = recording::read();
    let mut played = 0;
    for scenario in &scenarios {
        world.play(scenario).await;
        played += usize::from(scenario.label != "0" && !scenario.label.ends_with('b') && scenario.title != "end");
    }
    let World { tally, outcomes, plugins, log, seen, .. } = world;
    assert_eq!(log.since(seen), [json!(null); 0], "calls that nothing explains");
    plugins.values().for_each(Plugin::stop);
    println!(
        "{played} scenarios: {} calls, {} PodResources views and {outcomes} pod and node outcomes compared",
        tally.calls, tally.views,
    );
    println!(
        "left out: times; the order of resources within a container and of entries in lists; which ids are taken at random"
    );
    tally.left_out.iter().for_each(|what| println!("left out by chance of this seed: {what}"));
    let steps = || scenarios.iter().flat_map(|scenario| &scenario.steps);
    assert_eq!(
        tally.calls + tally.skipped,
        steps().map(|step| step.calls.len()).sum::<usize>(),
        "every recorded call counts"
    );
    let recorded = scenarios.iter().flat_map(|scenario| &scenario.snapshots).map(|snapshot| snapshot.lines.len());
    assert_eq!(outcomes, recorded.sum::<usize>(), "every recorded outcome counts");
    assert_eq!(played, 15, "the recording has 15 scenarios");
}

/// Shows a test that fails what came since then.
struct Tail<'a>(&'a Log, usize);

impl Drop for Tail<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.since(self.1).iter().for_each(|call| println!("{call}"));
        }
    }
}

fn fresh_renaming() -> Renaming {
    let all = (0..8).map(|n| format!("gpu-{n}")).chain((0..4).map(|n| format!("nic-{n}")));
    Renaming::identity(all)
}

impl World {
    async fn play(&mut self, scenario: &Scenario) {
        println!("scenario {}", scenario.title);
        if !scenario.label.ends_with('b') {
            self.cluster.delete_pods().await;
            self.renaming = fresh_renaming();
        }
        let places = places(scenario);
        for (at, step) in scenario.steps.iter().enumerate() {
            for snapshot in places.iter().filter(|(place, _)| *place == Place::Before(at)).map(|(_, snapshot)| snapshot)
            {
                self.outcome(snapshot).await;
            }
            let from = self.seen;
            self.act(step.act.as_ref(), &scenario.label).await;
            for snapshot in
                places.iter().filter(|(place, _)| *place == Place::WhileSlow(at)).map(|(_, snapshot)| snapshot)
            {
                self.log_has("a slow Allocate", |log| log.since(from).iter().any(|call| call["answer"] == "slow"))
                    .await;
                self.outcome(snapshot).await;
                self.plugins.values().for_each(Plugin::release);
            }
            let pods = match &step.act {
                Some(Act::Pods(pods)) => pods.as_slice(),
                _ => &[],
            };
            self.settle(pods).await;
            let expected = step.calls.len();
            self.log_has("the recorded calls", |log| log.len() >= from + expected).await;
            let seen = self.log.since(from);
            self.seen += seen.len();
            compare::step(&step.calls, &seen, pods, &mut self.renaming, &mut self.tally);
        }
        for snapshot in places.iter().filter(|(place, _)| *place == Place::End).map(|(_, snapshot)| snapshot) {
            self.outcome(snapshot).await;
        }
    }

    async fn act(&mut self, act: Option<&Act>, label: &str) {
        match act {
            None if label == "0" => {
                for plugin in self.plugins.values() {
                    plugin.start().await;
                }
            }
            None => {}
            Some(Act::Pods(pods)) => {
                for pod in pods {
                    self.cluster.create_pod(pod).await;
                }
            }
            Some(Act::Control(plugin, set)) => self.plugins[plugin.as_str()].control(set.clone()),
            Some(Act::PluginRestart(plugin)) => {
                let resource = format!("example.com/{plugin}");
                let plugin = &self.plugins[plugin.as_str()];
                let offers = async |none: bool| {
                    let node = self.cluster.node("node-a").await;
                    ((node["status"]["allocatable"][&resource] == "0") == none).then_some(())
                };
                plugin.stop();
                // A process takes longer to start than the kubelet to see its stream end.
                wait("the kubelet to notice the plugin's end", async || offers(true).await).await;
                plugin.start().await;
                // The recorded pods came seconds after it: until then a kubelet refuses them without a call.
                wait("the kubelet to take the plugin's list", async || offers(false).await).await;
            }
            Some(Act::KubeletRestart) => {
                let from = self.log.len();
                self.kubelet.stop().await;
                // The recorded plugins saw their streams end long before the new kubelet deleted their sockets.
                let ended = |log: &Log| log.since(from).iter().filter(|call| call["event"] == "ended").count();
                self.log_has("both streams to end", |log| ended(log) == 2).await;
                self.kubelet.start_again().await.unwrap();
            }
        }
    }

    /// Waits until the kubelet has decided on the pods: containers in their status, or a failure. A pod that restarts
    /// always and runs shortly must have been restarted.
    async fn settle(&self, pods: &[Value]) {
        for pod in pods {
            let name = pod["name"].as_str().unwrap();
            let short = pod["spec"]["containers"][0]["command"][1].as_str().is_some_and(|seconds| seconds.len() == 1);
            let restarts = i64::from(short && pod["spec"]["restartPolicy"] == "Always");
            wait(&format!("pod {name} to be admitted or refused"), async || {
                let status = self.cluster.pod(name).await["status"].clone();
                let restarted = status["containerStatuses"][0]["restartCount"].as_i64() >= Some(restarts);
                (status["phase"] == "Failed" || !status["containerStatuses"].is_null() && restarted).then_some(())
            })
            .await;
        }
    }

    async fn log_has(&self, what: &str, condition: impl Fn(&Log) -> bool) {
        let _tail = Tail(&self.log, self.seen.saturating_sub(6));
        wait(what, async || condition(&self.log).then_some(())).await;
    }

    /// Waits until pods and node look as recorded.
    async fn outcome(&mut self, snapshot: &Snapshot) {
        for line in &snapshot.lines {
            let deadline = clock::mono() + DEADLINE;
            loop {
                let shown = match line["pod"].as_str() {
                    Some(pod) => pod_outcome(&self.cluster.pod(pod).await),
                    None => node_outcome(&self.cluster.node("node-a").await),
                };
                if same_outcome(line, &shown, &self.renaming) {
                    break;
                }
                assert!(clock::mono() < deadline, "scenario {}: recorded {line}\nsimulated {shown}", snapshot.label);
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            self.outcomes += 1;
        }
    }
}

/// When a snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Before(usize),
    WhileSlow(usize),
    End,
}

/// The last snapshot was taken before the plugins were reset (unless the reset is what it shows), an earlier one before the
/// last control; the one of scenario 9 while an answer was slow, the one of scenario 10 before its pod.
fn places(scenario: &Scenario) -> Vec<(Place, &Snapshot)> {
    let steps = &scenario.steps;
    let acts = |test: &dyn Fn(&Act) -> bool| steps.iter().position(|step| step.act.as_ref().is_some_and(test));
    let last_acts = |test: &dyn Fn(&Act) -> bool| steps.iter().rposition(|step| step.act.as_ref().is_some_and(test));
    let first_pods = acts(&|act| !act.is_control());
    let last_pods = last_acts(&|act| !act.is_control()).unwrap_or(0);
    let reset = (last_pods..steps.len())
        .find(|at| steps[*at].calls.is_empty() && steps[*at].act.as_ref().is_some_and(Act::is_reset));
    let last = scenario.snapshots.len().saturating_sub(1);
    let place = |(n, snapshot)| {
        let place = match scenario.label.as_str() {
            _ if n == last => reset.map_or(Place::End, Place::Before),
            "9" => Place::WhileSlow(first_pods.unwrap()),
            "10" => Place::Before(first_pods.unwrap()),
            _ => Place::Before(last_acts(&|act| act.is_control()).unwrap()),
        };
        (place, snapshot)
    };
    scenario.snapshots.iter().enumerate().map(place).collect()
}

/// A pod in the recording's words.
fn pod_outcome(pod: &Value) -> Value {
    let status = &pod["status"];
    let all =
        ["initContainerStatuses", "containerStatuses"].map(|key| status[key].as_array().cloned().unwrap_or_default());
    let containers = all.concat().into_iter().map(|container| {
        let states: Vec<String> =
            container["state"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
        let state = states.first().map_or(Value::Null, |key| container["state"][key].clone());
        json!({
            "name": container["name"], "state": states, "reason": state["reason"], "message": state["message"],
            "allocated": container["allocatedResourcesStatus"],
        })
    });
    json!({
        "phase": status["phase"], "reason": status["reason"], "message": status["message"],
        "containers": containers.collect::<Vec<_>>(),
    })
}

/// A node in the recording's words.
fn node_outcome(node: &Value) -> Value {
    let of = |key: &str| {
        let amounts = node["status"][key].as_object().cloned().unwrap_or_default();
        json!(amounts.into_iter().filter(|(name, _)| name.starts_with("example.com/")).collect::<BTreeMap<_, _>>())
    };
    json!({"node": {"capacity": of("capacity"), "allocatable": of("allocatable")}})
}

fn same_outcome(recorded: &Value, shown: &Value, renaming: &Renaming) -> bool {
    if recorded["pod"].is_null() {
        return recorded["node"] == shown["node"];
    }
    let containers = |outcome: &Value| outcome["containers"].as_array().cloned().unwrap_or_default();
    let (r, s) = (containers(recorded), containers(shown));
    ["phase", "reason", "message"].iter().all(|field| recorded[field] == shown[field])
        && r.len() == s.len()
        && r.iter().zip(&s).all(|(r, s)| {
            ["name", "state", "reason", "message"].iter().all(|field| r[field] == s[field])
                && same_devices(&r["allocated"], &s["allocated"], renaming)
        })
}

/// Resource → health → ids.
fn same_devices(recorded: &Value, shown: &Value, renaming: &Renaming) -> bool {
    let flat = |list: &Value| {
        let mut devices: BTreeMap<(String, String), Ids> = BTreeMap::new();
        for resource in list.as_array().into_iter().flatten() {
            for device in resource["resources"].as_array().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let key = (text(&resource["name"]), text(&device["health"]));
                assert!(devices.entry(key).or_default().insert(text(&device["resourceID"])), "an id is listed twice");
            }
        }
        devices
    };
    let (recorded, shown) = (flat(recorded), flat(shown));
    let keys = |devices: &BTreeMap<(String, String), Ids>| devices.keys().cloned().collect::<BTreeSet<_>>();
    keys(&recorded) == keys(&shown) && recorded.iter().all(|(key, ids)| renaming.same(ids, &shown[key]))
}
