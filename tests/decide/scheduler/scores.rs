//! Ratings by the figures that kube-scheduler's rules give, worked out by hand; and those that only know devices.

use baton::contract::image::ImageName;
use baton::decide::core::rules::plugins::{
    Disabled, InterPodAffinity, Listed, Point, RatioConfig, Strategy as Scoring, Weights, default_plugins,
};
use baton::decide::core::rules::{NodeScore, Slots, View};
use baton::decide::world::{Qos, Rated};
use proptest::prelude::*;

use crate::prelude::*;

const HALF: &[(&str, &str)] = &[(key::GPU, "50")];
const CPU: &[(&str, &str)] = &[("cpu", "16"), ("memory", "64Gi")];

/// The default set with these scores and no others.
pub fn scored(scores: &[(&'static str, i64)]) -> DefaultSet {
    let mut set = DefaultSet::default();
    let listed = scores.iter().map(|(name, weight)| Listed { name, weight: *weight });
    set.choice.lists.change(Point::Score, listed.collect(), &Disabled::All);
    set
}

fn cluster(set: DefaultSet) -> TestScheduler {
    TestScheduler::with(Config::default(), set)
}

/// What the set's first score says of every node that fits, raw and normalised.
fn rate(cluster: &TestScheduler, set: &DefaultSet, name: &str) -> Vec<(String, i64, i64)> {
    let (world, plugins) = (cluster.world(), default_plugins(set).unwrap());
    let view = View { world, now: cluster.now };
    let pod = world.pod_by_key(&PodKey::new("ml", name)).unwrap();
    let (enabled, mut slots) = (plugins.enabled(), Slots::default());
    assert!(enabled.pre_filter.iter().all(|plugin| plugin.pre_filter(view, pod, &mut slots).is_fit()));
    let mut fitting = Vec::new();
    for (id, node) in world.nodes() {
        if enabled.filter.iter().all(|plugin| plugin.filter(view, pod, (id, node), &mut slots).is_fit()) {
            fitting.push((id, node));
        }
    }
    let ids: Vec<_> = fitting.iter().map(|(id, _)| *id).collect();
    for plugin in &enabled.pre_score {
        assert!(plugin.pre_score(view, pod, &ids, &mut slots).is_fit());
    }
    let score = &enabled.score[0].0;
    let raw: Vec<NodeScore> = fitting.iter().map(|node| (node.0, score.score(view, pod, *node, &mut slots))).collect();
    let mut normal = raw.clone();
    if !score.is_absolute() {
        score.normalize(view, pod, &mut normal);
    }
    let both = fitting.iter().zip(raw.iter().zip(&normal));
    both.map(|((_, node), (raw, normal))| (node.name.to_string(), raw.1, normal.1)).collect()
}

fn normal(rated: &[(String, i64, i64)]) -> Vec<(&str, i64)> {
    rated.iter().map(|(node, _, score)| (node.as_str(), *score)).collect()
}

impl TestScheduler {
    fn runs_on(&mut self, mut facts: PodFacts, node: &str) -> &mut Self {
        facts.handoff.node = Some(node.into());
        self.submit(facts)
    }

    /// The node lists these images, of so many MiB.
    fn lists(&mut self, node: &str, images: &[(&str, i64)]) -> &mut Self {
        let listed = |(name, size): &(&str, i64)| (ImageName::listed(name), *size << 20);
        let mut listed: Vec<_> = images.iter().map(listed).collect();
        listed.sort_unstable();
        self.change_node(node, |facts| facts.images = listed.into())
    }

    /// Puts a pod with these limits on the node.
    fn put(&mut self, node: &str, name: &str, limits: &[(&str, &str)]) -> &mut Self {
        let mut facts = pod(name, limits, self.now);
        facts.spec.node_selector = labels_of("only", node);
        self.change_node(node, |facts| facts.labels = labels_of("only", node)).enters(facts);
        assert_eq!(self.node_of(name), Some(node));
        self.serves(node)
    }

    /// Nodes without devices, each with its zone (none when empty) and its own hostname.
    fn zones(&mut self, nodes: &[(&str, &str)]) -> &mut Self {
        for (name, zone) in nodes {
            self.plain_node(name, 0).change_node(name, |facts| {
                facts.labels.insert("kubernetes.io/hostname".into(), (*name).into());
                if !zone.is_empty() {
                    facts.labels.insert("zone".into(), (*zone).into());
                }
            });
        }
        self
    }

    /// A node of so many whole GPUs and MIG devices of one profile, seven to a parent.
    fn cut(&mut self, node: &str, whole: u32, migs: i32) -> &mut Self {
        let mut device = gpu_device(node, whole);
        let parent = |at: i32| format!("GPU-{node}-{}", whole as i32 + at / 7);
        device.spec.devices.extend((0..migs).map(|at| DeviceInfo {
            id: baton::contract::DeviceId::parse(&format!("MIG-{node}-{at}")).unwrap(),
            minor: whole as i32 + at / 7,
            labels: [(key::MIG_PROFILE.to_owned(), "1g.10gb".to_owned()), (key::PARENT.to_owned(), parent(at))].into(),
            resources: [(MIG.to_owned(), "1".parse().unwrap())].into(),
            ..gpu_device(node, 1).spec.devices.remove(0)
        }));
        self.plain_node(node, whole);
        self.change_node(node, |facts| facts.allocatable.set(MIG, baton::contract::Quantity::units(i64::from(migs))));
        self.event(WorldEvent::Devices(Box::new(device)));
        self.beat(node, Identity::Lock, &[key::NVIDIA_GPU, MIG])
    }
}

#[test]
fn an_image_draws_pods_by_its_size_and_by_how_many_nodes_have_it() {
    let set = scored(&[("ImageLocality", 1)]);
    let mut cluster = cluster(set.clone());
    ["a", "b", "c", "d"].iter().for_each(|name| _ = cluster.plain_node(name, 0));
    cluster.lists("a", &[("train:latest", 1000), ("small:1", 22)]);
    let mut facts = labelled("p", "x");
    facts.spec.images = ["train", "small:1"].map(ImageName::asked).into();
    cluster.submit(facts);
    let score =
        |cluster: &TestScheduler| normal(&rate(cluster, &set, "p")).iter().map(|(_, score)| *score).collect::<Vec<_>>();
    assert_eq!(score(&cluster), [23, 0, 0, 0], "a quarter of 1000 and of 22 MiB");
    cluster.lists("b", &[("train:latest", 7000)]);
    assert_eq!(score(&cluster), [49, 48, 0, 0], "half of the size that was reported first");
    cluster.event(WorldEvent::NodeGone("d".into()));
    assert_eq!(score(&cluster), [66, 65, 0], "two of three nodes");
    cluster.lists("a", &[]);
    assert_eq!(score(&cluster), [0, 31, 0], "one of three nodes");
    cluster.lists("b", &[]).lists("c", &[("train:latest", 7000)]);
    assert_eq!(score(&cluster), [0, 0, 100], "its size is reported again once no node has it");
}

#[test]
fn images_are_forgotten_where_no_rule_asks_for_them() {
    let mut cluster = cluster(DefaultSet::default());
    cluster.plain_node("a", 0).lists("a", &[("train:latest", 1000)]);
    let mut facts = labelled("p", "x");
    facts.spec.images = [ImageName::asked("train")].into();
    cluster.submit(facts);
    let world = cluster.world();
    assert!(world.nodes().all(|(_, node)| node.facts.as_ref().is_some_and(|facts| facts.images.is_empty())));
    assert!(world.pod_by_key(&PodKey::new("ml", "p")).is_some_and(|pod| pod.facts.spec.images.is_empty()));
    assert_eq!(world.image(ImageName::listed("train:latest")), None);
}

fn labelled(name: &str, app: &str) -> PodFacts {
    let mut facts = pod(name, &[("cpu", "1")], std::time::Duration::from_secs(1));
    facts.spec.labels.insert("app".into(), app.into());
    facts.handoff.scheduler_name = "other".into();
    facts
}

fn anyway(topology_key: &str) -> Spread {
    Spread { required: false, ..spread("x", topology_key) }
}

#[test]
fn soft_spreading_prefers_empty_domains_and_weighs_constraints_by_their_number() {
    let set = scored(&[("PodTopologySpread", 1)]);
    let mut cluster = cluster(set.clone());
    cluster.zones(&[("a", "z0"), ("b", "z0"), ("c", "z1"), ("d", "")]);
    for (name, node) in [("x1", "a"), ("x2", "a"), ("x3", "b"), ("x4", "c"), ("x5", "d")] {
        cluster.runs_on(labelled(name, "x"), node);
    }
    let mut facts = labelled("new", "x");
    facts.spec.spread = vec![anyway("zone")];
    cluster.submit(facts.clone());
    // 3 and 1 pods times ln(2 zones + 2), rounded: 4 and 1. 100 * (4 + 1 - 4) / 4 = 25. A node without a zone is last.
    assert_eq!(normal(&rate(&cluster, &set, "new")), [("a", 25), ("b", 25), ("c", 100), ("d", 0)]);
    facts.spec.spread.push(anyway("kubernetes.io/hostname"));
    cluster.submit(facts);
    // Plus the node's own pods times ln(3 nodes + 2): 7.4, 5.8, 3.0.
    let rated = rate(&cluster, &set, "new");
    assert_eq!(rated.iter().map(|node| node.1).collect::<Vec<_>>(), [7, 6, 3, -1]);
    assert_eq!(normal(&rated), [("a", 42), ("b", 57), ("c", 100), ("d", 0)]);
}

#[test]
fn a_pod_without_soft_constraints_is_rated_alike_everywhere() {
    let set = scored(&[("PodTopologySpread", 1)]);
    let mut cluster = cluster(set.clone());
    cluster.zones(&[("a", "z0"), ("b", "z1")]).runs_on(labelled("x1", "x"), "a").submit(labelled("new", "x"));
    assert_eq!(normal(&rate(&cluster, &set, "new")), [("a", 100), ("b", 100)]);
}

#[test]
fn preferences_draw_and_push_whoever_has_them() {
    let mut set = scored(&[("InterPodAffinity", 1)]);
    let mut cluster = cluster(set.clone());
    cluster.zones(&[("a", "z0"), ("b", "z1"), ("c", "z2")]).runs_on(labelled("x", "x"), "a");
    cluster.runs_on(labelled("y", "y"), "b");
    let mut new = labelled("new", "new");
    new.spec.pods_preferred = vec![(10, near("x", "zone")), (-5, near("y", "zone"))];
    cluster.submit(new);
    // 10, -5, 0.
    assert_eq!(normal(&rate(&cluster, &set, "new")), [("a", 100), ("b", 0), ("c", 33)]);
    let mut fan = labelled("fan", "fan");
    fan.spec.pods_preferred = vec![(20, near("new", "zone"))];
    cluster.runs_on(fan, "c");
    // 10, -5, 20.
    assert_eq!(normal(&rate(&cluster, &set, "new")), [("a", 60), ("b", 0), ("c", 100)]);
    let mut shy = labelled("shy", "shy");
    shy.spec.affinity = vec![near("new", "zone")];
    cluster.runs_on(shy, "b");
    let raw = |set: &DefaultSet, cluster: &TestScheduler| {
        rate(cluster, set, "new").iter().map(|node| node.1).collect::<Vec<_>>()
    };
    assert_eq!(raw(&set, &cluster), [10, -4, 20], "a pod that requires company counts 1");
    set.choice.affinity = InterPodAffinity { hard_weight: 50, ignore_preferred_of_others: false };
    assert_eq!(raw(&set, &cluster), [10, 45, 20]);
    cluster.change_pod("new", |facts| facts.spec.pods_preferred.clear());
    assert_eq!(raw(&set, &cluster), [0, 50, 20], "what others want counts for a pod without wishes");
    set.choice.affinity.ignore_preferred_of_others = true;
    assert_eq!(raw(&set, &cluster), [0, 0, 0]);
}

#[test]
fn pods_that_others_draw_are_drawn_by_the_engine_too() {
    let mut cluster = cluster(DefaultSet::default());
    cluster.zones(&[("a", "z0"), ("b", "z1"), ("c", "z2")]);
    let mut fan = labelled("fan", "fan");
    fan.spec.pods_preferred = vec![(20, near("new", "zone"))];
    cluster.runs_on(fan, "c");
    for at in 0..3 {
        let mut facts = labelled(&format!("new{at}"), "new");
        facts.handoff.scheduler_name = crate::harness::OURS.into();
        assert_eq!(cluster.enters(facts).node_of(&format!("new{at}")), Some("c"));
    }
}

/// A pod of one container that names what it asks for.
fn rated(name: &str, amounts: &[(&str, &str)]) -> PodFacts {
    let mut facts = pod(name, amounts, std::time::Duration::from_secs(1));
    facts.spec.rated = Rated::from(&facts.spec.requests);
    facts.handoff.scheduler_name = "other".into();
    facts
}

#[test]
fn least_most_and_balanced_give_kube_schedulers_figures() {
    let weights = |list: &[(&str, i64)]| Weights::new(list.iter().map(|(n, w)| ((*n).to_owned(), *w))).unwrap();
    let both = || weights(&[("cpu", 1), ("memory", 1)]);
    let fit = |strategy| {
        let mut set = scored(&[("NodeResourcesFit", 1)]);
        set.choice.strategy = strategy;
        set
    };
    let mut cluster = cluster(DefaultSet::default());
    cluster.plain_node("n", 0).submit(rated("new", CPU));
    let score = |cluster: &TestScheduler, set: &DefaultSet, name: &str| rate(cluster, set, name)[0].2;
    // 64 CPUs, 512Gi: 75% and 87.5% stay free.
    assert_eq!(score(&cluster, &fit(Scoring::LeastAllocated(both())), "new"), 81);
    assert_eq!(score(&cluster, &fit(Scoring::MostAllocated(both())), "new"), 18);
    assert_eq!(score(&cluster, &fit(Scoring::MostAllocated(weights(&[("cpu", 3), ("memory", 1)]))), "new"), 21);
    // An extended resource that the pod does not ask for is left out.
    assert_eq!(score(&cluster, &fit(Scoring::MostAllocated(weights(&[("cpu", 1), (key::NVIDIA_GPU, 9)]))), "new"), 25);
    // 25% and 12.5%: a deviation of 6.25%; before, there was none.
    let balanced = scored(&[("NodeResourcesBalancedAllocation", 1)]);
    assert_eq!(score(&cluster, &balanced, "new"), 50 + (50 + 93 - 100) / 2);
    cluster.runs_on(rated("old", &[("memory", "64Gi")]), "n");
    // Before, 0% and 12.5%: 93. With the pod, 25% and 25%: 100.
    assert_eq!(score(&cluster, &balanced, "new"), 50 + (50 + 100 - 93) / 2);
    cluster.submit(rated("idle", &[]));
    assert_eq!(score(&cluster, &balanced, "idle"), 0);
}

#[test]
fn gpus_weigh_by_what_their_devices_have_left_whatever_name_asks_for_them() {
    let mut set = scored(&[("NodeResourcesFit", 1)]);
    set.choice.strategy = Scoring::MostAllocated(Weights::new([(key::NVIDIA_GPU.to_owned(), 1)]).unwrap());
    let mut cluster = cluster(set.clone());
    cluster.node("n", 8).submit(rated("two", &[(key::NVIDIA_GPU, "2")])).submit(rated("half", HALF));
    assert_eq!((rate(&cluster, &set, "two")[0].2, rate(&cluster, &set, "half")[0].2), (25, 6));
}

#[test]
fn a_share_goes_to_a_rest_and_cpu_is_not_taken_from_gpus() {
    let set = scored(&[("GpuPatience", 1)]);
    let mut cluster = cluster(set.clone());
    ["a", "b"].into_iter().for_each(|node| _ = cluster.node(node, 8));
    cluster.plain_node("plain", 0);
    for at in 0..3 {
        let facts = rated(&format!("whole{at}"), &[(key::NVIDIA_GPU, "1"), ("cpu", "4")]);
        cluster.submit(facts);
    }
    let mut first = rated("first", HALF);
    first.handoff.assignment.device_allocated =
        Some(r#"{"gpu":[{"minor":0,"id":"GPU-a-0","resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"40Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#.into());
    cluster.runs_on(first, "a").submit(rated("new", HALF));
    let new = rate(&cluster, &set, "new");
    assert_eq!(new.iter().map(|(node, ..)| node.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(new[0].1 > new[1].1 + 20, "half a GPU is left over on a, on b a whole one is broken up: {new:?}");
    assert_eq!((new[0].2, new[1].2), (100, (100 - (new[0].1 - new[1].1)).max(0)), "a point a step");
    // 62 of 64 CPUs: the eight GPUs beside them would serve no pod any more.
    cluster.submit(rated("cpu", &[("cpu", "62")]));
    let cpu = rate(&cluster, &set, "cpu");
    assert!(cpu[1].1 <= -20, "{cpu:?}");
    assert_eq!(cpu[2], ("plain".into(), 0, 100));
}

#[test]
fn a_new_leader_learns_from_the_live_pods_in_order_of_creation() {
    let set = scored(&[("GpuPatience", 1)]);
    let mut cluster = cluster(set);
    cluster.node("a", 8);
    let typical = |cluster: &TestScheduler| cluster.world().mix().worth().map(|worth| worth.tables().kinds.clone());
    let first = typical(&cluster).expect("tables before the first pod");
    assert!(first[0].iter().all(|(kind, part)| (kind.gpus, kind.share, *part) == (1, 100, 1.0)), "{first:?}");
    (0..100).for_each(|at| _ = cluster.enters(rated(&format!("p{at}"), &[(key::GPU, "30"), ("cpu", "1")])));
    let learned = typical(&cluster).unwrap();
    assert_eq!(learned[0][0].0.share, 30, "{learned:?}");
    let epoch = cluster.world().mix().epoch();
    cluster.step_down().lead();
    assert!(cluster.settled().world().mix().epoch() > epoch);
    let again = typical(&cluster).unwrap();
    assert_eq!(again[0][0].0.share, 30);
    assert!(again[0][0].1 > 100.0 / 130.0 && again[0][0].1 < 0.8, "100 pods beside a prior of 30: {again:?}");
}

#[test]
fn nodes_that_many_pods_must_use_are_spared_by_the_others() {
    let set = scored(&[("GpuPatience", 1)]);
    let mut cluster = cluster(set.clone());
    let model = |cluster: &mut TestScheduler, node: &str, model: &str| {
        let labels = [("model".to_owned(), model.to_owned())];
        cluster.change_node(node, |facts| facts.labels = labels.clone().into());
    };
    for (node, of) in [("a", "A"), ("b", "B")] {
        cluster.node(node, 8);
        model(&mut cluster, node, of);
    }
    for at in 0..60 {
        let mut facts = rated(&format!("only-a-{at}"), &[(key::NVIDIA_GPU, "1"), ("cpu", "1")]);
        facts.spec.node_selector = labels_of("model", "A");
        cluster.submit(facts);
    }
    cluster.submit(rated("any", &[(key::NVIDIA_GPU, "1"), ("cpu", "1")]));
    let any = rate(&cluster, &set, "any");
    assert!(any[1].1 > any[0].1, "{any:?}");
    model(&mut cluster, "b", "A");
    let any = rate(&cluster, &set, "any");
    assert_eq!(any[0].1, any[1].1, "b has the label too: {any:?}");
}

#[test]
fn nothing_is_learned_where_no_rule_asks_for_it() {
    let mut cluster = cluster(DefaultSet::default());
    assert!(cluster.node("a", 8).enters(rated("new", HALF)).world().mix().worth().is_none());
}

#[test]
fn quality_of_service_and_assumed_amounts_are_kubernetes_own() {
    let facts = |spec: serde_json::Value| {
        let object = json!({"metadata": {"name": "a", "namespace": "ml", "uid": "u"}, "spec": spec});
        serde_json::from_value::<LightPod>(object).unwrap().facts().spec
    };
    let container = |resources: serde_json::Value| json!({"name": "c", "resources": resources});
    let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    for (parts, qos) in [
        (json!({"containers": [container(json!({}))]}), Qos::BestEffort),
        (json!({"containers": [container(json!({"limits": {"nvidia.com/gpu": "1"}}))]}), Qos::BestEffort),
        (json!({"containers": [container(full.clone())]}), Qos::Guaranteed),
        (json!({"containers": [container(full.clone()), container(json!({}))]}), Qos::Burstable),
        (json!({"containers": [container(json!({"limits": {"cpu": "1"}}))]}), Qos::Burstable),
        (
            json!({"containers": [container(json!({"requests": {"cpu": "500m"}, "limits": full["limits"]}))]}),
            Qos::Burstable,
        ),
        (json!({"initContainers": [container(json!({}))], "containers": [container(full.clone())]}), Qos::Burstable),
        (json!({"resources": full, "containers": [container(json!({}))]}), Qos::Guaranteed),
    ] {
        assert_eq!(facts(parts.clone()).qos, qos, "{parts}");
    }
    let spec = facts(json!({"containers": [
        container(json!({"requests": {"cpu": "0"}})), container(json!({"requests": {"memory": "1Gi"}})),
    ]}));
    assert_eq!(spec.rated, Rated { milli_cpu: 100, memory: (1 << 30) + (200 << 20) });
    assert_eq!((spec.requests.milli_cpu, spec.requests.memory), (0, 1 << 30));
}

#[test]
fn with_qos_sort_the_better_served_class_goes_first_among_equal_priorities() {
    let mut set = DefaultSet::default();
    set.choice.lists.change(Point::QueueSort, vec![Listed { name: "QoSSort", weight: 1 }], &Disabled::All);
    for (set, expected) in [(set, "guaranteed"), (DefaultSet::default(), "best-effort")] {
        let mut cluster = cluster(set);
        cluster.plain_node("n", 0).change_node("n", |facts| facts.unschedulable = true);
        for (name, qos) in
            [("best-effort", Qos::BestEffort), ("burstable", Qos::Burstable), ("guaranteed", Qos::Guaranteed)]
        {
            let mut facts = rated(name, &[("cpu", "64")]);
            facts.handoff.scheduler_name = crate::harness::OURS.into();
            facts.spec.qos = qos;
            cluster.submit(facts).later(1);
        }
        assert_eq!(cluster.settled().bound(), 0);
        // All three are woken at once; there is room for one.
        cluster.change_node("n", |facts| facts.unschedulable = false);
        assert_eq!(cluster.settled().node_of(expected), Some("n"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever rates the nodes, no node holds more than it offers, and the same pods end up in the same places.
    #[test]
    fn no_rating_fills_a_node_beyond_its_capacity(
        which in 0..4usize, pods in proptest::collection::vec((0..4usize, 1..40i64), 1..60)
    ) {
        let place = || {
            let mut cluster = cluster(sets().swap_remove(which));
            ["a", "b", "c"].into_iter().for_each(|name| _ = cluster.node(name, 4));
            for (at, (request, cpu)) in pods.iter().enumerate() {
                let cpu = cpu.to_string();
                let gpu: &[(&str, &str)] = [&[][..], ONE, HALF, &[(key::NVIDIA_GPU, "2")]][*request];
                let amounts: Vec<(&str, &str)> = gpu.iter().copied().chain([("cpu", cpu.as_str())]).collect();
                let mut facts = rated(&format!("p{at:02}"), &amounts);
                facts.handoff.scheduler_name = crate::harness::OURS.into();
                cluster.enters(facts);
                for node in ["a", "b", "c"] {
                    while cluster.holder(node).is_some() {
                        cluster.serves(node);
                    }
                }
            }
            cluster
        };
        let (one, other) = (place(), place());
        for (_, node) in one.world().nodes() {
            let have = &node.facts.as_ref().unwrap().allocatable;
            prop_assert!(node.used.milli_cpu <= have.milli_cpu && node.used.memory <= have.memory);
            for (name, used) in node.used.scalar.iter() {
                prop_assert!(used <= have.scalar(name), "{}: {used} of {name}", node.name);
            }
        }
        let places = |cluster: &TestScheduler| cluster.pods.values().map(|pod| pod.handoff.node.clone()).collect::<Vec<_>>();
        prop_assert_eq!(places(&one), places(&other));
    }
}

/// Sets that differ in what they rate by.
pub fn sets() -> Vec<DefaultSet> {
    let mut packing = scored(&[("NodeResourcesFit", 5), ("PodTopologySpread", 2), ("InterPodAffinity", 2)]);
    packing.choice.strategy = Scoring::MostAllocated(Weights::gpus_first());
    let spreading = scored(&[
        ("NodeResourcesFit", 1),
        ("NodeResourcesBalancedAllocation", 1),
        ("InterPodAffinity", 2),
        ("PodTopologySpread", 2),
        ("NodeAffinity", 2),
        ("TaintToleration", 3),
    ]);
    let fragments = scored(&[("GpuPatience", 10), ("RequestedToCapacityRatio", 1), ("TaintToleration", 3)]);
    let images = scored(&[("ImageLocality", 10), ("NodeResourcesFit", 1), ("TaintToleration", 3)]);
    vec![DefaultSet::default(), packing, spreading, fragments, images]
}

const MIG: &str = "nvidia.com/mig-1g.10gb";

#[test]
fn a_request_for_mig_devices_fills_a_node_by_as_many_as_it_asks_for() {
    let mut set = scored(&[("RequestedToCapacityRatio", 1)]);
    set.ratio = RatioConfig::new(vec![(0, 0), (100, 10)], vec![(key::NVIDIA_GPU.to_owned(), 1)]).unwrap();
    let mut cluster = cluster(set.clone());
    cluster.cut("a", 0, 7).cut("b", 0, 14).put("a", "three", &[(MIG, "3")]);
    cluster.put("b", "seven", &[(MIG, "7")]).hold(true).pod("asks", &[(MIG, "1")]);
    let rated = rate(&cluster, &set, "asks");
    assert_eq!(rated, [("a".to_owned(), 57, 57), ("b".to_owned(), 57, 57)], "4 of 7 and 8 of 14");
}

#[test]
fn on_a_mixed_node_mig_requests_look_at_mig_devices_and_others_at_whole_gpus() {
    let mut set = scored(&[("RequestedToCapacityRatio", 1)]);
    set.ratio = RatioConfig::new(vec![(0, 0), (100, 10)], vec![(key::NVIDIA_GPU.to_owned(), 1)]).unwrap();
    let mut cluster = cluster(set.clone());
    cluster.cut("m", 4, 7).put("m", "whole", &[(key::NVIDIA_GPU, "1")]);
    cluster.put("m", "parts", &[(MIG, "5")]).hold(true);
    for (name, asked, score) in [("mig", MIG, 86), ("gpu", key::NVIDIA_GPU, 50)] {
        cluster.pod(name, &[(asked, "1")]);
        assert_eq!(rate(&cluster, &set, name), [("m".to_owned(), score, score)], "{name}: 6 of 7, 2 of 4");
    }
}
