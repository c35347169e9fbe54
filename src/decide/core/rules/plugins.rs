//! The rules, one file each: what the rule looks at, its trait implementations, its pure function. Here is every one by name, which are
//! enabled unless the configuration says otherwise, and how a configuration changes that.

pub mod balanced_allocation;
pub mod default_preemption;
pub mod device_fit;
pub mod device_topology;
pub mod dynamic_resources;
pub mod gpu_patience;
pub mod host_ports;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_name;
pub mod queue_sort;
pub mod requested_to_capacity_ratio;
pub mod resources_fit;
pub mod scheduling_gates;
pub mod taints;
pub mod topology_spread;
pub mod unschedulable;
mod usage;
pub mod volumes;

use std::collections::BTreeMap;

use crate::core::rules::points::QueueSort;
use crate::core::rules::registry::{Enabled, Extension, Points, RegistryError};
use baton_contract::LockWord;
use baton_contract::word::word_enum;

use crate::world::MixPolicy;

use balanced_allocation::NodeResourcesBalancedAllocation;
use default_preemption::DefaultPreemption;
use device_fit::DeviceFit;
use device_topology::DeviceTopology;
use dynamic_resources::DynamicResources;
use gpu_patience::GpuPatience;
use host_ports::NodePorts;
use image_locality::ImageLocality;
use node_affinity::NodeAffinity;
use node_name::NodeName;
use queue_sort::{PrioritySort, QoSSort};
use requested_to_capacity_ratio::RequestedToCapacityRatio;
use resources_fit::NodeResourcesFit;
use scheduling_gates::SchedulingGates;
use taints::TaintToleration;
use topology_spread::PodTopologySpread;
use unschedulable::NodeUnschedulable;
use volumes::VolumeBinding;

pub use super::registry::Point;
pub use device_fit::NodesWithoutAgent;
pub use inter_pod_affinity::InterPodAffinity;
pub use requested_to_capacity_ratio::{RatioConfig, RatioError};
pub use resources_fit::Strategy;
pub use usage::{WeightError, Weights, of_gpus};

/// What of the set can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefaultSet {
    /// For `DeviceFit`.
    pub without_agent: NodesWithoutAgent,
    /// How the scheduler locks nodes.
    pub lock: LockWord,
    /// For `RequestedToCapacityRatio`.
    pub ratio: RatioConfig,
    /// Which plugins, and the others' arguments.
    pub choice: PluginChoice,
}

/// Which plugins are enabled, and the arguments of those that have some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginChoice {
    /// The enabled plugins.
    pub lists: PluginLists,
    /// For `NodeResourcesFit`.
    pub strategy: Strategy,
    /// For `NodeResourcesBalancedAllocation`.
    pub balanced: Weights,
    /// For `InterPodAffinity`.
    pub affinity: InterPodAffinity,
    /// For `VolumeBinding`.
    pub volumes: VolumeBinding,
    /// For `GpuPatience`.
    pub patience: MixPolicy,
}

impl Default for PluginChoice {
    fn default() -> Self {
        Self {
            lists: PluginLists::default(),
            strategy: Strategy::default(),
            balanced: Weights::cpu_and_memory(),
            affinity: InterPodAffinity::default(),
            volumes: VolumeBinding::default(),
            patience: MixPolicy::default(),
        }
    }
}

/// A plugin that the configuration can name.
struct PluginEntry {
    /// As [`Plugin::name`](crate::core::rules::Plugin::name) says it.
    name: &'static str,
    /// kube-scheduler has this rule too, and applies it itself where Baton is its extender.
    is_stock: bool,
    /// What a user can do about a refusal that names no help of its own; empty where its text says it.
    advice: &'static str,
    /// Its points. The weights are those of the lists.
    make: fn(&DefaultSet) -> Points,
}

const fn stock(name: &'static str, advice: &'static str, make: fn(&DefaultSet) -> Points) -> PluginEntry {
    PluginEntry { name, is_stock: true, advice, make }
}

const fn ours(name: &'static str, advice: &'static str, make: fn(&DefaultSet) -> Points) -> PluginEntry {
    PluginEntry { name, is_stock: false, advice, make }
}

const PLUGINS: &[PluginEntry] = &[
    stock("PrioritySort", "", |_| Extension::new(PrioritySort).queue_sort().into()),
    ours("QoSSort", "", |_| Extension::new(QoSSort).queue_sort().into()),
    stock(
        "SchedulingGates",
        "The controller that set the gates removes them from spec.schedulingGates when the pod may start",
        |_| Extension::new(SchedulingGates).pre_filter().into(),
    ),
    stock("DynamicResources", "", |_| Extension::new(DynamicResources).pre_filter().into()),
    stock("NodeUnschedulable", "Let the node take pods again with `kubectl uncordon`", |_| {
        Extension::new(NodeUnschedulable).filter().into()
    }),
    stock("NodeName", "The pod names another node: leave spec.nodeName out", |_| {
        Extension::new(NodeName).filter().into()
    }),
    stock(
        "TaintToleration",
        "Give the pod a toleration of that taint, or remove the taint from the nodes (`kubectl taint`)",
        |_| Extension::new(TaintToleration).filter().score(1).into(),
    ),
    stock(
        "NodeAffinity",
        "Correct nodeSelector or node affinity and create the pod again (in the pod they cannot be changed), or label nodes so that they \
         match",
        |_| Extension::new(NodeAffinity).filter().score(1).into(),
    ),
    stock("NodePorts", "Another pod has that host port: use another one, or none", |_| {
        Extension::new(NodePorts).filter().into()
    }),
    stock(
        "NodeResourcesFit",
        "Ask for less, wait for pods to end, or add nodes: `kubectl describe node` shows what is requested",
        |set| Extension::new(NodeResourcesFit { strategy: set.choice.strategy.clone() }).filter().score(1).into(),
    ),
    stock("NodeResourcesBalancedAllocation", "", |set| {
        Extension::new(NodeResourcesBalancedAllocation(set.choice.balanced.clone())).score(1).into()
    }),
    stock("VolumeBinding", "See what the claim and its provisioner say: `kubectl describe pvc`", |set| {
        Extension::new(set.choice.volumes).pre_filter().filter().reserve().pre_bind().into()
    }),
    stock(
        "InterPodAffinity",
        "Pod affinity or anti-affinity, of this pod or of those that run, excludes the nodes: change the terms",
        |set| Extension::new(set.choice.affinity).pre_filter().filter().pre_score().score(1).into(),
    ),
    stock(
        "PodTopologySpread",
        "A topology spread constraint excludes the nodes: raise maxSkew, or use ScheduleAnyway",
        |_| Extension::new(PodTopologySpread).pre_filter().filter().pre_score().score(1).into(),
    ),
    ours(
        "DeviceFit",
        "Change the pod's limits or device annotations: they cannot be met as they stand, on any node (docs/request.md)",
        |set| {
            Extension::new(DeviceFit { without_agent: set.without_agent, lock: set.lock.clone() })
                .pre_filter()
                .filter()
                .reserve()
                .into()
        },
    ),
    stock("DefaultPreemption", "", |_| Extension::new(DefaultPreemption).post_filter().into()),
    ours("RequestedToCapacityRatio", "", |set| {
        Extension::new(RequestedToCapacityRatio(set.ratio.clone())).score(1).into()
    }),
    ours("DeviceTopology", "", |_| Extension::new(DeviceTopology).score(1).into()),
    stock("ImageLocality", "", |_| Extension::new(ImageLocality).score(1).into()),
    ours(gpu_patience::NAME, "", |_| Extension::new(GpuPatience).score(1).into()),
];

fn entry(name: &str) -> Option<&'static PluginEntry> {
    PLUGINS.iter().find(|entry| entry.name == name)
}

/// Whether kube-scheduler has this rule too; of a rule of one's own, `None`.
pub fn is_stock(name: &str) -> Option<bool> {
    entry(name).map(|entry| entry.is_stock)
}

/// What a user can do about a refusal of this rule.
pub fn advice(name: &str) -> Option<&'static str> {
    entry(name).map(|entry| entry.advice).filter(|advice| !advice.is_empty())
}

/// The default set in its order, scores with their weights: cheap filters first, devices last. Scores pack GPUs, then CPU and memory;
/// preferences weigh as in kube-scheduler.
const DEFAULTS: [(Point, &str); 8] = [
    (Point::QueueSort, "PrioritySort"),
    (Point::PreFilter, "SchedulingGates DynamicResources DeviceFit VolumeBinding InterPodAffinity PodTopologySpread"),
    (
        Point::Filter,
        "NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeBinding InterPodAffinity \
         PodTopologySpread DeviceFit",
    ),
    (Point::PostFilter, "DefaultPreemption"),
    (Point::PreScore, "PodTopologySpread InterPodAffinity"),
    (
        Point::Score,
        "RequestedToCapacityRatio=3 DeviceTopology=1 NodeAffinity=2 TaintToleration=3 PodTopologySpread=2 InterPodAffinity=2",
    ),
    (Point::Reserve, "DeviceFit VolumeBinding"),
    (Point::PreBind, "VolumeBinding"),
];

word_enum! {
    /// What scores are for.
    #[derive(Default)]
    Profile {
        /// Nodes are filled one after the other.
        #[default]
        Binpack = "binpack",
        /// Nodes keep their worth to the pods that usually come, so that more GPUs can be handed out.
        Utilization = "utilization",
    }
}

/// Weight of `GpuPatience` in its profile: a step of it is worth a tenth of what devices that lie apart cost, and a preference of the
/// pod about a quarter of a GPU.
const PATIENCE: i64 = 10;

/// Points that a plugin has only together: it prepares at the second what it needs at the first, or carries out there what it
/// planned.
const TOGETHER: [(Point, Point); 4] = [
    (Point::Filter, Point::PreFilter),
    (Point::Score, Point::PreScore),
    (Point::Filter, Point::Reserve),
    (Point::Filter, Point::PreBind),
];

/// Names of the plugins that can be enabled at `point`.
pub fn names_at(point: Point) -> impl Iterator<Item = &'static str> {
    let set = DefaultSet::default();
    let has_point = move |entry: &&PluginEntry| (entry.make)(&set).all().any(|(at, _)| at == point);
    PLUGINS.iter().filter(has_point).map(|entry| entry.name)
}

/// Extension points of the plugin of that name, by their keys; empty when there is none.
pub fn points_of(name: &str) -> Vec<&'static str> {
    let Some(entry) = entry(name) else { return Vec::new() };
    let mut points: Vec<Point> = (entry.make)(&DefaultSet::default()).all().map(|(point, _)| point).collect();
    points.sort_unstable();
    points.into_iter().map(Point::key).collect()
}

/// A plugin in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// As the catalogue calls it.
    pub name: &'static str,
    /// Weight of its score, 1 to 100; 1 at other extension points.
    pub weight: i64,
}

/// Which plugins a configuration takes out of a default list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disabled {
    /// All: `*`.
    All,
    /// These.
    These(Vec<&'static str>),
}

/// The enabled plugins by extension point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginLists(BTreeMap<Point, Vec<Listed>>);

impl Default for PluginLists {
    /// The default set.
    fn default() -> Self {
        let listed = |word: &'static str| match word.split_once('=') {
            Some((name, weight)) => Listed { name, weight: weight.parse().expect("a weight of the default set") },
            None => Listed { name: word, weight: 1 },
        };
        Self(DEFAULTS.iter().map(|(point, words)| (*point, words.split_whitespace().map(listed).collect())).collect())
    }
}

impl PluginLists {
    /// What is enabled at `point`, in the order in which it runs.
    pub fn at(&self, point: Point) -> &[Listed] {
        self.0.get(&point).map_or(&[], Vec::as_slice)
    }

    /// Changes one extension point: takes out what is disabled, gives what is enabled again its new weight in its place, and
    /// adds the rest at the end.
    pub fn change(&mut self, point: Point, enabled: Vec<Listed>, disabled: &Disabled) {
        let list = self.0.entry(point).or_default();
        list.retain(|listed| match disabled {
            Disabled::All => false,
            Disabled::These(names) => !names.contains(&listed.name),
        });
        let kept = list.len();
        for new in enabled {
            match list[..kept].iter_mut().find(|old| old.name == new.name) {
                Some(old) => *old = new,
                None => list.push(new),
            }
        }
    }

    /// The lists of a profile: the scores that pack give way to `GpuPatience`, unless a list names it already.
    #[must_use]
    pub fn of_profile(mut self, profile: Profile) -> Self {
        if profile == Profile::Utilization {
            let kept = self.at(Point::Score).iter().find(|listed| listed.name == gpu_patience::NAME).copied();
            let patience = kept.unwrap_or(Listed { name: gpu_patience::NAME, weight: PATIENCE });
            self.change(Point::Score, vec![patience], &Disabled::These(vec!["RequestedToCapacityRatio"]));
        }
        self
    }

    /// Makes the plugins, and checks that they can work together.
    fn build(&self, set: &DefaultSet) -> Result<Enabled, RegistryError> {
        let made: BTreeMap<&str, Points> = PLUGINS.iter().map(|entry| (entry.name, (entry.make)(set))).collect();
        let mut enabled = Enabled::default();
        for (point, list) in &self.0 {
            for listed in list {
                if let Some(rule) = made.get(listed.name) {
                    enabled.add(rule, *point, listed.weight)?;
                }
            }
        }
        for (point, other) in TOGETHER {
            let apart = names_at(other).find(|name| self.has(point, name) && !self.has(other, name));
            if let Some(name) = apart {
                return Err(RegistryError::Apart { name, point: point.key(), other: other.key() });
            }
        }
        if !self.has(Point::Filter, "DeviceFit") {
            return Err(RegistryError::NoDevices);
        }
        match enabled.queue_sort.as_slice() {
            [] => Err(RegistryError::NoQueueSort),
            [_] => Ok(enabled),
            several => Err(RegistryError::QueueSorts(several.iter().map(|rule| rule.name()).collect())),
        }
    }

    fn has(&self, point: Point, name: &str) -> bool {
        self.at(point).iter().any(|listed| listed.name == name)
    }
}

/// The rules of a scheduler: the default set as a configuration changes it, and rules of one's own.
#[derive(Clone)]
pub struct Plugins {
    enabled: Enabled,
    own: Vec<Points>,
}

impl Default for Plugins {
    fn default() -> Self {
        default_plugins(&DefaultSet::default()).expect("the default set can work")
    }
}

impl Plugins {
    /// Adds a rule of one's own, behind those that are there; an order of the queue takes the place of that which is there. Whether
    /// all can work together is checked by [`Plugins::configured`], and so at the scheduler's start.
    #[must_use]
    pub fn with<R>(mut self, extension: Extension<R>) -> Self {
        let rule = Points::from(extension);
        // `configured` reports what is wrong with it.
        drop(self.add(&rule));
        self.own.push(rule);
        self
    }

    /// The set that a configuration asks for, with the rules of one's own.
    pub fn configured(&self, set: &DefaultSet) -> Result<Self, RegistryError> {
        let mut made = default_plugins(set)?;
        for rule in &self.own {
            let name = rule.name();
            if entry(name).is_some() || made.own.iter().any(|other| other.name() == name) {
                return Err(RegistryError::Taken(name));
            }
            made.add(rule)?;
            made.own.push(rule.clone());
        }
        Ok(made)
    }

    fn add(&mut self, rule: &Points) -> Result<(), RegistryError> {
        for (point, weight) in rule.all() {
            if point == Point::QueueSort {
                self.enabled.queue_sort.clear();
            }
            self.enabled.add(rule, point, weight)?;
        }
        Ok(())
    }

    /// The order of the queue.
    pub fn queue_sort(&self) -> &dyn QueueSort {
        &*self.enabled.queue_sort[0]
    }

    /// Every rule by extension point.
    pub fn enabled(&self) -> &Enabled {
        &self.enabled
    }
}

/// The plugins of a set.
pub fn default_plugins(set: &DefaultSet) -> Result<Plugins, RegistryError> {
    Ok(Plugins { enabled: set.choice.lists.build(set)?, own: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::rules::{Plugin, Queued, Score, Slots, SortKey, View};
    use crate::world::{Node, NodeId, Pod};

    fn plus(name: &'static str, weight: i64) -> Listed {
        Listed { name, weight }
    }
    fn these(names: &[&'static str]) -> Disabled {
        Disabled::These(names.to_vec())
    }
    fn error(lists: &PluginLists) -> String {
        lists.build(&DefaultSet::default()).err().expect("a set that cannot work").to_string()
    }

    #[test]
    fn a_list_is_changed_in_place_and_added_to_at_the_end() {
        let mut lists = PluginLists::default();
        let enabled = vec![plus("GpuPatience", 5), plus("NodeAffinity", 9)];
        lists.change(Point::Score, enabled, &these(&["DeviceTopology"]));
        let names: Vec<_> = lists.at(Point::Score).iter().map(|listed| (listed.name, listed.weight)).collect();
        let expected = [
            ("RequestedToCapacityRatio", 3),
            ("NodeAffinity", 9),
            ("TaintToleration", 3),
            ("PodTopologySpread", 2),
            ("InterPodAffinity", 2),
            ("GpuPatience", 5),
        ];
        assert_eq!(names, expected);
        lists.change(Point::Score, vec![plus("NodeResourcesFit", 1)], &Disabled::All);
        assert_eq!(lists.at(Point::Score), [plus("NodeResourcesFit", 1)]);
        let plugins = lists.build(&DefaultSet::default()).unwrap();
        assert_eq!(plugins.score.len(), 1);
    }

    #[test]
    fn what_cannot_work_together_is_a_start_up_error() {
        let mut lists = PluginLists::default();
        lists.change(Point::QueueSort, vec![plus("QoSSort", 1)], &these(&[]));
        assert!(error(&lists).contains("PrioritySort and QoSSort"), "{}", error(&lists));
        let mut lists = PluginLists::default();
        lists.change(Point::PreFilter, vec![], &these(&["VolumeBinding"]));
        assert!(error(&lists).contains("VolumeBinding"), "{}", error(&lists));
        let mut lists = PluginLists::default();
        lists.change(Point::Reserve, vec![], &these(&["DeviceFit"]));
        assert!(error(&lists).contains("DeviceFit is enabled at filter and not at reserve"), "{}", error(&lists));
        let mut lists = PluginLists::default();
        lists.change(Point::Filter, vec![], &Disabled::All);
        assert!(error(&lists).contains("DeviceFit"), "{}", error(&lists));
        let mut lists = PluginLists::default();
        lists.change(Point::QueueSort, vec![plus("QoSSort", 1)], &Disabled::All);
        assert_eq!(lists.build(&DefaultSet::default()).unwrap().queue_sort[0].name(), "QoSSort");
        lists.change(Point::QueueSort, vec![], &Disabled::All);
        assert_eq!(lists.build(&DefaultSet::default()).err(), Some(RegistryError::NoQueueSort));
        let mut lists = PluginLists::default();
        lists.change(Point::Score, vec![plus("TaintToleration", 0)], &these(&[]));
        assert!(error(&lists).contains("TaintToleration has the weight 0"), "{}", error(&lists));
    }
    #[test]
    fn every_plugin_calls_itself_by_its_name_in_the_catalogue() {
        for entry in PLUGINS {
            assert_eq!((entry.make)(&DefaultSet::default()).name(), entry.name);
            assert!(!points_of(entry.name).is_empty(), "{} has no extension point", entry.name);
        }
    }

    /// A rule of one's own.
    struct Own(&'static str);

    impl Plugin for Own {
        fn name(&self) -> &'static str {
            self.0
        }
    }

    impl QueueSort for Own {
        fn key(&self, item: &Queued) -> SortKey {
            SortKey { ranks: [0; 4], id: item.id.clone() }
        }
    }

    impl Score for Own {
        fn score(&self, _: View<'_>, _: &Pod, _: (NodeId, &Node), _: &mut Slots) -> i64 {
            0
        }
    }

    #[test]
    fn rules_of_ones_own_come_last_and_a_queue_order_of_ones_own_stands_alone() {
        let own = Plugins::default().with(Extension::new(Own("Own")).queue_sort().score(7));
        let set =
            DefaultSet { choice: PluginChoice { lists: without_scores(), ..Default::default() }, ..Default::default() };
        for (plugins, scores) in [(own.clone(), 7), (own.configured(&set).unwrap(), 1)] {
            assert_eq!(plugins.queue_sort().name(), "Own");
            let all = &plugins.enabled().score;
            assert_eq!(
                (all.len(), all.last().map(|(rule, weight)| (rule.name(), *weight))),
                (scores, Some(("Own", 7)))
            );
        }
    }

    fn without_scores() -> PluginLists {
        let mut lists = PluginLists::default();
        lists.change(Point::Score, vec![], &Disabled::All);
        lists
    }

    #[test]
    fn a_rule_of_ones_own_needs_a_name_of_its_own_one_order_per_point_and_a_weight() {
        let error = |plugins: Plugins| plugins.configured(&DefaultSet::default()).err();
        let one = |name, weight| Plugins::default().with(Extension::new(Own(name)).score(weight));
        assert_eq!(error(one("Own", 1)), None);
        assert_eq!(error(one("DeviceFit", 1)), Some(RegistryError::Taken("DeviceFit")));
        assert_eq!(error(one("Own", 1).with(Extension::new(Own("Own")))), Some(RegistryError::Taken("Own")));
        assert_eq!(error(one("Own", 0)), Some(RegistryError::Weight { name: "Own", weight: 0 }));
        let twice = Plugins::default().with(Extension::new(Own("Own")).score(1).score(1));
        assert_eq!(error(twice), Some(RegistryError::Twice { name: "Own", point: "score" }));
    }
}
