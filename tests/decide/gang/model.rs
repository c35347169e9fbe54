//! Gangs and node locks, model-checked over the scheduler that ships: two gangs of two pods, two nodes with one lock each, room for
//! one gang; requests that arrive in any order, agents that serve in any order, and a scheduler that dies and starts again.
//!
//! A state is the cluster with the scheduler as it stands, reached by a path that is run again to go on from it. Left alone, every
//! state heals: one gang is bound whole, no member of the other one. The same pods without their gang keys, one by one as any
//! scheduler would take them, must fail that.
#![allow(clippy::disallowed_methods)] // it prints how long it took

use std::hash::{Hash, Hasher};
use std::time::Instant;

use stateright::{Checker, Model, Property};

use crate::prelude::*;

/// What may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// The request at this place of those under way reaches the API server and is answered.
    Answer(usize),
    /// The agent of this node serves the bound pod that holds its lock.
    Serve(u8),
    /// The scheduler dies, its requests with it, and another one starts.
    Crash,
}

#[derive(Debug, Clone)]
struct State {
    path: Vec<Step>,
    crashes: u8,
    /// Everything that tells states apart.
    look: String,
    heals: bool,
    /// A gang has some but not all of its pods bound.
    half: bool,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        (self.crashes, &self.look) == (other.crashes, &other.look)
    }
}
impl Eq for State {}
impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.crashes, &self.look).hash(state);
    }
}

struct Gangs {
    /// With gang keys; without them each pod is taken by itself.
    keys: bool,
    crashes: u8,
}

const NODES: [&str; 2] = ["n0", "n1"];

impl Gangs {
    fn start(&self) -> TestScheduler {
        let mut cluster = TestScheduler::new();
        cluster.step_down();
        NODES.iter().for_each(|node| _ = cluster.node(node, 1));
        // The pods come in turns, so that taking them one by one gives each gang a half.
        for (name, gang) in [("a-0", "a"), ("b-0", "b"), ("a-1", "a"), ("b-1", "b")] {
            let mut facts = pod(name, &[(key::NVIDIA_GPU, "1")], cluster.now);
            if self.keys {
                let own = "gang.scheduling.koordinator.sh/";
                let words = [("name", gang), ("min-available", "2")];
                let annotations: BTreeMap<String, String> =
                    words.iter().map(|(key, value)| (format!("{own}{key}"), (*value).to_owned())).collect();
                let source = DeclarationSource {
                    namespace: "ml",
                    labels: None,
                    annotations: Some(&annotations),
                    scheduling_group: None,
                };
                facts.spec.gang = Declared::read(&source, || None).map(Arc::new);
            }
            cluster.later(1).submit(facts);
        }
        cluster.hold(true).lead().settle();
        cluster
    }

    fn run(&self, path: &[Step]) -> TestScheduler {
        let mut cluster = self.start();
        for step in path {
            match step {
                Step::Answer(at) => _ = cluster.deliver_one(*at),
                Step::Serve(node) => _ = cluster.agent_releases(NODES[usize::from(*node)]),
                Step::Crash => {
                    cluster.later(1).restart();
                }
            }
            cluster.settle();
        }
        cluster
    }

    fn state(&self, path: Vec<Step>, crashes: u8) -> State {
        let mut cluster = self.run(&path);
        let look = look(&cluster);
        let half = bound(&cluster).contains(&1);
        State { heals: heals(&mut cluster), path, crashes, look, half }
    }
}

/// Bound pods of each gang.
fn bound(cluster: &TestScheduler) -> [usize; 2] {
    ["a-", "b-"].map(|gang| {
        let pods = cluster.pods.values().filter(|facts| facts.handoff.pod.key.name.starts_with(gang));
        pods.filter(|facts| facts.handoff.node.is_some()).count()
    })
}

fn look(cluster: &TestScheduler) -> String {
    let pods: Vec<_> = cluster.pods.values().map(|facts| (&facts.handoff.pod.key.name, &facts.handoff.node)).collect();
    let locks: Vec<_> = cluster.locks.keys().map(|node| (node, cluster.holder(node))).collect();
    let held: Vec<String> = cluster.held.iter().map(request).collect();
    let flights: Vec<_> =
        cluster.scheduler.binder().attempts().values().map(|f| (&f.pod.key.name, &f.node_name, stage(f))).collect();
    format!("{pods:?} {locks:?} {held:?} {flights:?}")
}

/// The stage of a flight, without the number of its request.
fn stage(flight: &baton::decide::scheduler::BindAttempt) -> String {
    format!("{:?}", flight.phase).chars().take_while(|c| c.is_alphanumeric()).collect()
}

fn request(effect: &Effect) -> String {
    match effect {
        Effect::Lock { node, new, .. } => format!("lock {node} for {:?}", new.split(',').nth(2)),
        Effect::Release { node, old, .. } => format!("release {node} of {:?}", old.split(',').nth(2)),
        Effect::Bind { pod, node, .. } => format!("bind {} to {node}", pod.key),
        other => format!("{other:?}"),
    }
}

/// Left alone, with requests answered and agents serving: one gang is whole and no member of the other one is bound.
fn heals(cluster: &mut TestScheduler) -> bool {
    for _ in 0..200 {
        cluster.deliver().settle();
        for node in NODES {
            let served = cluster.holder(node).is_some_and(|holder| cluster.node_of(holder) == Some(node));
            if served {
                cluster.agent_releases(node);
            }
        }
        cluster.settle();
        let found = bound(cluster);
        if (found == [2, 0] || found == [0, 2]) && cluster.locks.is_empty() {
            return true;
        }
        if found == [1, 1] && cluster.locks.is_empty() {
            return false;
        }
        cluster.wait(1);
    }
    false
}

impl Model for Gangs {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.state(Vec::new(), 0)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        let cluster = self.run(&state.path);
        actions.extend((0..cluster.held.len()).map(Step::Answer));
        for (at, node) in NODES.iter().enumerate() {
            if cluster.holder(node).is_some_and(|holder| cluster.node_of(holder) == Some(*node)) {
                actions.push(Step::Serve(u8::try_from(at).unwrap()));
            }
        }
        if state.crashes < self.crashes {
            actions.push(Step::Crash);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let path = state.path.iter().copied().chain([step]).collect();
        Some(self.state(path, state.crashes + u8::from(step == Step::Crash)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("left alone, one gang is bound whole and no member of the other", |_, state: &State| {
                state.heals
            }),
            Property::sometimes("half of a gang is bound on the way", |_, state: &State| state.half),
            Property::sometimes("a scheduler died with half of a gang bound", |_, state: &State| {
                state.half && state.crashes > 0
            }),
        ]
    }
}

fn check(keys: bool, crashes: u8) -> Vec<&'static str> {
    let began = Instant::now();
    let checker = Gangs { keys, crashes }.checker().threads(2).spawn_bfs().join();
    println!(
        "gang keys {keys}, {crashes} crashes: {} states, {} transitions, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64()
    );
    for (name, path) in checker.discoveries() {
        println!("  {name}: {:?}", path.last_state().path);
    }
    checker.discoveries().into_keys().collect()
}

const WHOLE: &str = "left alone, one gang is bound whole and no member of the other";

#[test]
fn two_gangs_that_need_the_same_two_nodes_never_block_each_other_whatever_dies() {
    let found = check(true, 2);
    assert!(!found.contains(&WHOLE), "a state does not heal");
    assert_eq!(found.len(), 2, "half a gang was seen, with and without a crash: {found:?}");
}

#[test]
fn the_same_pods_one_by_one_block_each_other() {
    assert!(check(false, 0).contains(&WHOLE), "the model would not see a deadlock");
}
