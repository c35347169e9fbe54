//! The feeds of the scheduler: every object that placement uses.

use std::collections::BTreeSet;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::{LimitRange, Namespace, PersistentVolume, PersistentVolumeClaim, ResourceQuota};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use kube::api::{Api, DynamicObject, ObjectMeta};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::agent_lease::{LightLease, agent_node};
use super::device::RawDevice;
use super::feed::{Feed, FeedMessage, WatchedObject, watch_config};
use super::node::LightNode;
use super::node_lock::NodeLocks;
use super::pod::LightPod;
use super::pod_group::RawPodGroup;
use super::pod_size::{self, MOST_PARTS};
use super::resource_slice::LightSlice;
use super::selected_labels::SelectedLabels;
use super::spec_part::selector;
use super::tyjob::{RawTyJob, job_facts};
use super::volume::{capacity_facts, claim_facts, class_facts, driver_counts, volume_facts};
use baton_contract::gang::{GangId, NETWORK_TOPOLOGY, PodGroupApi, layers_of};
use baton_contract::quota::{LimitRangeRules, QuotaRules};
use baton_contract::{AgentStatus, PodKey, PodUid};
use baton_decide::devices::NodePool;
use baton_decide::tyjob::placement::{JobIdentity, PriorityClassFacts};
use baton_decide::world::{BudgetFacts, WorldEvent};

/// Settings of the feeds.
#[derive(Debug, Clone)]
pub struct FeedSettings {
    /// Annotation of the node lock.
    pub lock_key: String,
    /// Namespace of the daemons; the agents' Leases are in [`AgentStatus::lease_namespace`].
    pub namespace: String,
    /// PodGroups of `scheduling.k8s.io` are read.
    pub scheduling_groups: bool,
}

/// Starts one feed after the other.
struct Starter<'a> {
    client: &'a Client,
    out: &'a mpsc::Sender<FeedMessage<WorldEvent>>,
    tasks: &'a mut JoinSet<()>,
    names: BTreeSet<&'static str>,
}

impl Starter<'_> {
    /// Starts the feed of an API that every cluster has.
    fn required<K>(
        &mut self,
        name: &'static str,
        on_apply: impl Fn(K) -> Option<WorldEvent> + Send + Sync + 'static,
        on_delete: impl Fn(&WatchedObject) -> Option<WorldEvent> + Send + Sync + 'static,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let (on_apply, on_delete) = (Box::new(on_apply), Box::new(on_delete));
        let (apis, config) = (vec![Api::all(self.client.clone())], watch_config());
        self.start(Feed { name, apis, config, optional: false, on_access: None, on_apply, on_delete });
    }

    /// Starts the feed of an API that may be missing: it counts as empty then. `api`: its versions.
    fn optional<K>(
        &mut self,
        name: &'static str,
        api: impl Into<Vec<Api<K>>>,
        on_apply: impl Fn(K) -> Option<WorldEvent> + Send + Sync + 'static,
        on_delete: impl Fn(&WatchedObject) -> Option<WorldEvent> + Send + Sync + 'static,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let (on_apply, on_delete) = (Box::new(on_apply), Box::new(on_delete));
        let (apis, config) = (api.into(), watch_config());
        self.start(Feed { name, apis, config, optional: true, on_access: None, on_apply, on_delete });
    }

    /// Starts the feed of an API without whose objects TYJobs get no places: where it is forbidden, `on_access` says so.
    fn limits<K>(
        &mut self,
        name: &'static str,
        on_access: fn(bool) -> WorldEvent,
        on_apply: impl Fn(K) -> Option<WorldEvent> + Send + Sync + 'static,
        on_delete: impl Fn(&WatchedObject) -> Option<WorldEvent> + Send + Sync + 'static,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let (on_apply, on_delete) = (Box::new(on_apply), Box::new(on_delete));
        let (apis, config, on_access) = (vec![self.all()], watch_config(), Some(on_access));
        self.start(Feed { name, apis, config, optional: true, on_access, on_apply, on_delete });
    }

    fn start<K>(&mut self, feed: Feed<K, WorldEvent>)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        self.names.insert(feed.name);
        self.tasks.spawn(feed.run(self.out.clone()));
    }

    fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Nodes; `locks` hears what their watch shows.
    fn nodes(&mut self, lock_key: &str, locks: &NodeLocks) {
        let (lock_key, locks) = (lock_key.to_owned(), locks.clone());
        self.required(
            "nodes",
            move |node: LightNode| {
                locks.observe(&node.metadata);
                Some(WorldEvent::Node(node.facts(&lock_key)))
            },
            |gone| Some(WorldEvent::NodeGone(gone.name().into())),
        );
    }

    /// Pods, with those of their labels that are selected.
    fn pods(&mut self, labels: &SelectedLabels) {
        self.required(
            "pods",
            {
                let labels = labels.clone();
                move |pod: LightPod| Some(WorldEvent::Pod(Box::new(labels.facts(pod))))
            },
            {
                let labels = labels.clone();
                move |gone| {
                    labels.gone(&key(gone));
                    Some(WorldEvent::PodGone(key(gone), PodUid::new(gone.uid())))
                }
            },
        );
    }

    /// What node daemons and device drivers say of nodes. Slices are served since Kubernetes 1.34.
    fn devices(&mut self, namespace: &str) {
        self.optional(
            "devices",
            [self.all()],
            |object: RawDevice| {
                let (device, skipped) = object.read_for_scheduler();
                let (_, unusable) = NodePool::from_device(&device);
                let unusable = unusable.iter().map(ToString::to_string);
                for problem in skipped.into_iter().chain(unusable) {
                    let node = device.metadata.name.as_deref().unwrap_or_default();
                    tracing::warn!(node, problem, "an entry of the Device object is not used");
                }
                Some(WorldEvent::Devices(Box::new(device)))
            },
            |gone| Some(WorldEvent::DevicesGone(gone.name().into())),
        );
        self.optional(
            "agents",
            [Api::namespaced(self.client.clone(), &AgentStatus::lease_namespace(namespace))],
            LightLease::event,
            |gone| agent_node(gone.name()).map(|node| WorldEvent::AgentGone(node.into())),
        );
        self.optional(
            "resource slices",
            [self.all()],
            |slice: LightSlice| Some(WorldEvent::Slice(slice.metadata.name.clone()?.into(), slice.facts())),
            |gone| Some(WorldEvent::Slice(gone.name().into(), None)),
        );
    }

    /// Namespaces.
    fn namespaces(&mut self) {
        self.optional(
            "namespaces",
            [self.all()],
            |namespace: Namespace| {
                let labels = namespace.metadata.labels.unwrap_or_default();
                Some(WorldEvent::Namespace(namespace.metadata.name?.into(), labels))
            },
            |gone| Some(WorldEvent::NamespaceGone(gone.name().into())),
        );
    }

    /// Volumes, and where new ones can be made.
    fn volumes(&mut self) {
        self.optional(
            "volumes",
            [self.all()],
            |volume: PersistentVolume| {
                Some(WorldEvent::Volume(volume.metadata.name.clone()?.into(), volume_facts(&volume)))
            },
            |gone| Some(WorldEvent::VolumeGone(gone.name().into())),
        );
        self.optional(
            "claims",
            [self.all()],
            |claim: PersistentVolumeClaim| {
                let (key, facts) = claim_facts(&claim);
                Some(WorldEvent::Claim(key, facts))
            },
            |gone| Some(WorldEvent::ClaimGone(key(gone))),
        );
        self.optional(
            "storage classes",
            [self.all()],
            |class: StorageClass| Some(WorldEvent::Class(class.metadata.name.clone()?.into(), class_facts(&class))),
            |gone| Some(WorldEvent::ClassGone(gone.name().into())),
        );
        self.optional(
            "CSI drivers",
            [self.all()],
            |driver: CSIDriver| Some(WorldEvent::Driver(driver.metadata.name.clone()?.into(), driver_counts(&driver))),
            |gone| Some(WorldEvent::Driver(gone.name().into(), false)),
        );
        self.optional(
            "storage capacities",
            [self.all()],
            |capacity: CSIStorageCapacity| {
                let facts = capacity_facts(&capacity);
                let meta = capacity.metadata;
                Some(WorldEvent::Capacity(PodKey::new(&meta.namespace?, &meta.name?), facts))
            },
            |gone| Some(WorldEvent::Capacity(key(gone), None)),
        );
    }

    /// Disruption budgets, which select pods by labels.
    fn budgets(&mut self, labels: &SelectedLabels) {
        let labels = labels.clone();
        self.optional(
            "budgets",
            [self.all()],
            move |budget: PodDisruptionBudget| {
                let (key, facts) = budget_facts(&budget);
                facts.selector.iter().for_each(|selector| labels.note_selector(selector));
                Some(WorldEvent::Budget(key, facts))
            },
            |gone| Some(WorldEvent::BudgetGone(key(gone))),
        );
    }

    /// What admission allows the pods of TYJobs.
    fn quotas(&mut self) {
        self.limits(
            "quotas",
            |readable| WorldEvent::Readable("ResourceQuotas", readable),
            |quota: ResourceQuota| {
                Some(WorldEvent::Quota(key_of(&quota.metadata), Some(Box::new(QuotaRules::read(&quota)))))
            },
            |gone| Some(WorldEvent::Quota(key(gone), None)),
        );
        self.limits(
            "limit ranges",
            |readable| WorldEvent::Readable("LimitRanges", readable),
            |range: LimitRange| {
                let rules = LimitRangeRules::read(&range);
                Some(WorldEvent::LimitRange(key_of(&range.metadata), Some(Box::new(rules))))
            },
            |gone| Some(WorldEvent::LimitRange(key(gone), None)),
        );
    }

    /// TYJobs, whose pods select others by labels, and the priorities that admission gives to them.
    fn jobs(&mut self, labels: &SelectedLabels) {
        let labels = labels.clone();
        self.optional(
            "tyjobs",
            [self.all()],
            move |job| tyjob_event(job, &labels),
            |gone| Some(WorldEvent::JobGone(JobIdentity { key: key(gone), uid: gone.uid().into() })),
        );
        self.optional(
            "priority classes",
            [self.all()],
            |class: PriorityClass| {
                let value = class.value.unwrap_or_default();
                let never_preempts = class.preemption_policy.as_deref() == Some("Never");
                let facts =
                    PriorityClassFacts { value, default: class.global_default.unwrap_or(false), never_preempts };
                Some(WorldEvent::PriorityClass(class.metadata.name?.into(), facts))
            },
            |gone| Some(WorldEvent::PriorityClassGone(gone.name().into())),
        );
    }

    /// PodGroups, and the layers in which they are gathered.
    fn pod_groups(&mut self, settings: &FeedSettings) {
        for api in PodGroupApi::ALL {
            let name = match api {
                PodGroupApi::Sigs => "podgroups.scheduling.sigs.k8s.io",
                PodGroupApi::Community => "podgroups.scheduling.x-k8s.io",
                PodGroupApi::Kubernetes if settings.scheduling_groups => "podgroups.scheduling.k8s.io",
                PodGroupApi::Kubernetes => continue,
            };
            self.optional(
                name,
                api.versions()
                    .iter()
                    .map(|version| Api::all_with(self.client.clone(), &api.resource_of(version)))
                    .collect::<Vec<_>>(),
                move |object: RawPodGroup| Some(WorldEvent::PodGroup(Box::new(object.facts(api)?))),
                move |gone| Some(WorldEvent::PodGroupGone(api, GangId::new(gone.namespace(), gone.name()).ok()?)),
            );
        }
        let topologies = ApiResource::from_gvk(&GroupVersionKind::gvk(
            "scheduling.koordinator.sh",
            "v1alpha1",
            "ClusterNetworkTopology",
        ));
        self.optional(
            "network topologies",
            [Api::all_with(self.client.clone(), &topologies)],
            |object: DynamicObject| network_topology_event(&object),
            |gone| (gone.name() == NETWORK_TOPOLOGY).then_some(WorldEvent::Layers(None)),
        );
    }
}

/// Starts every feed; `locks` hears what the watch of nodes shows, and `labels` which labels of pods are selected. Returns the names
/// whose [`FeedMessage::Synced`] completes the world.
pub fn start_feeds(
    client: &Client,
    settings: &FeedSettings,
    locks: &NodeLocks,
    labels: &SelectedLabels,
    out: &mpsc::Sender<FeedMessage<WorldEvent>>,
    tasks: &mut JoinSet<()>,
) -> BTreeSet<&'static str> {
    let mut feeds = Starter { client, out, tasks, names: BTreeSet::new() };
    feeds.nodes(&settings.lock_key, locks);
    feeds.pods(labels);
    feeds.devices(&settings.namespace);
    feeds.namespaces();
    feeds.volumes();
    feeds.budgets(labels);
    feeds.quotas();
    feeds.jobs(labels);
    feeds.pod_groups(settings);
    feeds.tasks.spawn(labels.clone().read_again(client.clone(), out.clone()));
    feeds.names
}

fn key(object: &WatchedObject) -> PodKey {
    PodKey::new(object.namespace(), object.name())
}

fn key_of(meta: &ObjectMeta) -> PodKey {
    PodKey::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn network_topology_event(object: &DynamicObject) -> Option<WorldEvent> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    if name != NETWORK_TOPOLOGY {
        tracing::warn!(name, "this ClusterNetworkTopology is not read; only {NETWORK_TOPOLOGY} is");
        return None;
    }
    match layers_of(&object.data["spec"]) {
        Ok(layers) => {
            let names: Vec<String> = layers.iter().map(ToString::to_string).collect();
            tracing::info!(layers = names.join(" "), "the ClusterNetworkTopology states the layers");
            Some(WorldEvent::Layers(Some(layers.into())))
        }
        Err(problem) => {
            tracing::error!(%problem, "the ClusterNetworkTopology cannot be used: the layers stay as they are");
            None
        }
    }
}

fn tyjob_event(job: RawTyJob, labels: &SelectedLabels) -> Option<WorldEvent> {
    let meta = &job.metadata;
    let name =
        format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    match job_facts(job) {
        Ok(facts) => {
            let parts = facts.spec.iter().flat_map(|spec| &spec.parts);
            parts.for_each(|part| labels.note(&part.pod.spec));
            Some(WorldEvent::Job(Box::new(facts)))
        }
        Err(problem) => {
            tracing::warn!(job = name, %problem, "the status of this TYJob cannot be read: the TYJob is left alone");
            None
        }
    }
}

fn budget_facts(budget: &PodDisruptionBudget) -> (PodKey, BudgetFacts) {
    let meta = &budget.metadata;
    let key = key_of(meta);
    let stated = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    // The API server judges every eviction by it all the same.
    let selects = stated.filter(|stated| pod_size::selector(Some(stated)) <= MOST_PARTS).map(selector);
    let allowed = budget.status.as_ref().map_or(0, |status| i64::from(status.disruptions_allowed.unwrap_or(0)));
    (key, BudgetFacts { selector: selects, allowed })
}
