//! The feeds of the scheduler: every object that placement looks at.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use kube::Client;
use kube::api::Api;
use kube::runtime::watcher::Config;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::feed::{Feed, FeedMessage};
use super::feed_device::RawDevice;
use super::feed_lease::{FeedLease, agent_node};
use super::feed_node::FeedNode;
use super::feed_pod::FeedPod;
use super::feed_pod_group::pod_groups;
use super::feed_term::budget_facts;
use super::feed_tyjob::{priority_classes, tyjobs};
use super::feed_volume::{capacity_facts, claim_facts, class_facts, driver_counts, volume_facts};
use super::node_lock::NodeLocks;
use crate::contract::gang::PodGroupApi;
use crate::contract::{PodKey, PodUid};
use crate::decide::devices::NodePool;
use crate::decide::world::WorldEvent;

/// What the feeds need to know.
#[derive(Debug, Clone)]
pub struct FeedSettings {
    /// Annotation of the node lock.
    pub lock_key: String,
    /// Namespace of the agents' Leases.
    pub agent_namespace: String,
    /// PodGroups of `scheduling.k8s.io` are read.
    pub scheduling_groups: bool,
}

/// Starts every feed; `locks` is told what the watch of nodes shows. Returns the names whose [`FeedMessage::Synced`] completes the world.
pub fn start_feeds(
    client: &Client,
    settings: &FeedSettings,
    locks: &NodeLocks,
    out: &mpsc::Sender<FeedMessage>,
    tasks: &mut JoinSet<()>,
) -> BTreeSet<&'static str> {
    let (lock_key, locks) = (settings.lock_key.clone(), locks.clone());
    let nodes = Feed {
        name: "nodes",
        api: Api::<FeedNode>::all(client.clone()),
        config: watched(),
        optional: false,
        told: Box::new(move |node: FeedNode| {
            locks.saw(&node.metadata);
            Some(WorldEvent::Node(node.facts(&lock_key)))
        }),
        gone: Box::new(|seen| Some(WorldEvent::NodeGone(seen.name().into()))),
    };
    let pods = Feed {
        name: "pods",
        api: Api::<FeedPod>::all(client.clone()),
        config: watched(),
        optional: false,
        told: Box::new(|pod| Some(WorldEvent::Pod(Box::new(pod.facts())))),
        gone: Box::new(|seen| {
            Some(WorldEvent::PodGone(PodKey::new(seen.namespace(), seen.name()), PodUid::new(seen.uid())))
        }),
    };
    let devices = Feed {
        name: "devices",
        api: Api::<RawDevice>::all(client.clone()),
        config: watched(),
        optional: true,
        told: Box::new(|object: RawDevice| {
            let (device, skipped) = object.read();
            let (_, unusable) = NodePool::from_device(&device);
            let unusable = unusable.iter().map(ToString::to_string);
            for problem in skipped.into_iter().chain(unusable) {
                let node = device.metadata.name.as_deref().unwrap_or_default();
                tracing::warn!(node, problem, "an entry of the Device object is not used");
            }
            Some(WorldEvent::Devices(Box::new(device)))
        }),
        gone: Box::new(|seen| Some(WorldEvent::DevicesGone(seen.name().into()))),
    };
    let agents = Feed {
        name: "agents",
        api: Api::<FeedLease>::namespaced(client.clone(), &settings.agent_namespace),
        config: watched(),
        optional: true,
        told: Box::new(FeedLease::event),
        gone: Box::new(|seen| agent_node(seen.name()).map(|node| WorldEvent::AgentGone(node.into()))),
    };
    let namespaces = Feed {
        name: "namespaces",
        api: Api::<Namespace>::all(client.clone()),
        config: watched(),
        optional: true,
        told: Box::new(|namespace| {
            let labels = namespace.metadata.labels.unwrap_or_default();
            Some(WorldEvent::Namespace(namespace.metadata.name?.into(), labels))
        }),
        gone: Box::new(|seen| Some(WorldEvent::NamespaceGone(seen.name().into()))),
    };
    let volumes = Feed {
        name: "volumes",
        api: Api::<PersistentVolume>::all(client.clone()),
        config: watched(),
        optional: true,
        told: Box::new(|volume| {
            let name = volume.metadata.name.clone()?;
            Some(WorldEvent::Volume(name.into(), volume_facts(&volume)))
        }),
        gone: Box::new(|seen| Some(WorldEvent::VolumeGone(seen.name().into()))),
    };
    let claims = Feed {
        name: "claims",
        api: Api::<PersistentVolumeClaim>::all(client.clone()),
        config: watched(),
        optional: true,
        told: Box::new(|claim| {
            let (key, facts) = claim_facts(&claim);
            Some(WorldEvent::Claim(key, facts))
        }),
        gone: Box::new(|seen| Some(WorldEvent::ClaimGone(PodKey::new(seen.namespace(), seen.name())))),
    };
    let classes = Feed {
        name: "storage classes",
        api: Api::<StorageClass>::all(client.clone()),
        config: watched(),
        optional: true,
        told: Box::new(|class| {
            let facts = class_facts(&class);
            Some(WorldEvent::Class(class.metadata.name?.into(), facts))
        }),
        gone: Box::new(|seen| Some(WorldEvent::ClassGone(seen.name().into()))),
    };
    let drivers = Feed {
        name: "CSI drivers",
        api: Api::<CSIDriver>::all(client.clone()),
        config: watched(),
        optional: true,
        told: Box::new(|driver| {
            let counts = driver_counts(&driver);
            Some(WorldEvent::Driver(driver.metadata.name?.into(), counts))
        }),
        gone: Box::new(|seen| Some(WorldEvent::Driver(seen.name().into(), false))),
    };
    let capacities = Feed {
        name: "storage capacities",
        api: Api::<CSIStorageCapacity>::all(client.clone()),
        config: watched(),
        optional: true,
        told: Box::new(|capacity| {
            let facts = capacity_facts(&capacity);
            let meta = capacity.metadata;
            Some(WorldEvent::Capacity(PodKey::new(&meta.namespace?, &meta.name?), facts))
        }),
        gone: Box::new(|seen| Some(WorldEvent::Capacity(PodKey::new(seen.namespace(), seen.name()), None))),
    };
    let budgets = Feed {
        name: "budgets",
        api: Api::<PodDisruptionBudget>::all(client.clone()),
        config: watched(),
        optional: true,
        told: Box::new(|budget| {
            let (key, facts) = budget_facts(&budget);
            Some(WorldEvent::Budget(key, facts))
        }),
        gone: Box::new(|seen| Some(WorldEvent::BudgetGone(PodKey::new(seen.namespace(), seen.name())))),
    };
    let mut names: BTreeSet<&'static str> = [
        nodes.name,
        pods.name,
        devices.name,
        agents.name,
        namespaces.name,
        volumes.name,
        claims.name,
        classes.name,
        drivers.name,
        capacities.name,
        budgets.name,
    ]
    .into();
    tasks.spawn(nodes.run(out.clone()));
    tasks.spawn(pods.run(out.clone()));
    tasks.spawn(devices.run(out.clone()));
    tasks.spawn(agents.run(out.clone()));
    tasks.spawn(namespaces.run(out.clone()));
    tasks.spawn(volumes.run(out.clone()));
    tasks.spawn(claims.run(out.clone()));
    tasks.spawn(classes.run(out.clone()));
    tasks.spawn(drivers.run(out.clone()));
    tasks.spawn(capacities.run(out.clone()));
    tasks.spawn(budgets.run(out.clone()));
    let jobs = tyjobs(client, watched());
    names.insert(jobs.name);
    tasks.spawn(jobs.run(out.clone()));
    let priorities = priority_classes(client, watched());
    names.insert(priorities.name);
    tasks.spawn(priorities.run(out.clone()));
    for api in PodGroupApi::ALL {
        if api != PodGroupApi::Kubernetes || settings.scheduling_groups {
            let groups = pod_groups(client, api, watched());
            names.insert(groups.name);
            tasks.spawn(groups.run(out.clone()));
        }
    }
    names
}

/// A watch is closed by the server after this many seconds and goes on where it was. One that is silent for half a minute
/// longer is taken for dead.
const WATCH_SECONDS: u32 = 120;

fn watched() -> Config {
    Config::default().timeout(WATCH_SECONDS)
}
