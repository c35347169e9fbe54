//! All resource names of this node: one plugin each, as many as the lists name, and what the kubelet made of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::advertised::{Advertised, TooMany};
use super::directory::{self, DirectoryState};
use super::plugin::{OnRegistration, PluginState, PluginStates, ResourcePlugin, StateReporter};
use super::service::{DeviceCalls, PluginService, Streams};
use super::socket::{self, SocketNames};
use crate::error::AgentError;
use baton_contract::DeviceId;
use baton_runtime::{Backoff, clock};

/// What all plugins share.
#[derive(Clone)]
pub struct PluginsConfig {
    /// The kubelet's device-plugins directory.
    pub directory: PathBuf,
    /// How often it is looked at beside inotify.
    pub poll: Duration,
    /// Time for one Register call.
    pub register_timeout: Duration,
    /// Waits after failed registrations.
    pub backoff: Backoff,
    /// Longest time for one call.
    pub budget: Duration,
    /// Time for calls in hand at the end.
    pub grace: Duration,
    /// The decisions.
    pub calls: Arc<dyn DeviceCalls>,
    /// Called when registrations come about and when they are lost.
    pub on_registration: OnRegistration,
}

/// The plugins.
pub struct ResourcePlugins {
    config: PluginsConfig,
    start: u32,
    stop: CancellationToken,
    seen: watch::Receiver<DirectoryState>,
    lists: BTreeMap<Box<str>, watch::Sender<Arc<Advertised>>>,
    states: Arc<watch::Sender<PluginStates>>,
    newest: Arc<watch::Sender<Option<PathBuf>>>,
    tasks: JoinSet<()>,
}

impl ResourcePlugins {
    /// Watches the directory; registers nothing before the first [`ResourcePlugins::update`]. Must be called inside the runtime.
    pub fn start(config: PluginsConfig) -> Self {
        let stop = CancellationToken::new();
        // Another number at each start: wall time is enough, because two starts are never in the same nanosecond.
        let start = clock::wall().as_nanosecond() as u32;
        socket::remove_stale(&config.directory, start);
        let seen = directory::watch(config.directory.clone(), config.poll, stop.clone());
        let states = Arc::new(watch::Sender::new(PluginStates::new()));
        let newest = Arc::new(watch::Sender::new(None));
        Self { config, start, stop, seen, lists: BTreeMap::new(), states, newest, tasks: JoinSet::new() }
    }

    /// Offers exactly `lists`. A name that is new is served and registered; one that is no longer among them offers
    /// nothing from now on, and stays registered. Nothing changes when a list is too large.
    pub fn update(&mut self, lists: BTreeMap<Box<str>, Advertised>) -> Result<(), TooMany> {
        for (resource, list) in &lists {
            list.check_size(resource)?;
        }
        for (resource, sender) in &self.lists {
            if !lists.contains_key(resource) {
                let none = Advertised::none(sender.borrow().units);
                replace(sender, Arc::new(none));
            }
        }
        let mut made: Vec<Arc<Advertised>> = Vec::new();
        for (resource, list) in lists {
            // Names that offer the same send the same bytes.
            let list = made.iter().find(|same| ***same == list).cloned().unwrap_or_else(|| Arc::new(list));
            made.push(list.clone());
            match self.lists.get(&resource) {
                Some(sender) => replace(sender, list),
                None => self.add(resource, list),
            }
        }
        Ok(())
    }

    fn add(&mut self, resource: Box<str>, list: Arc<Advertised>) {
        let (sender, list) = watch::channel(list);
        let stop = self.stop.child_token();
        let (opened, streams) = watch::channel(Streams::default());
        let service = PluginService {
            resource: resource.as_ref().into(),
            list,
            calls: self.config.calls.clone(),
            streams: Arc::new(opened),
            stop: stop.clone(),
            budget: self.config.budget,
            permits: PluginService::permits(),
            starts: PluginService::starts(),
        };
        let report = StateReporter::new(resource.clone(), self.states.clone(), self.config.on_registration.clone());
        report.set(PluginState::Waiting("starting".into()));
        let plugin = ResourcePlugin {
            directory: self.config.directory.clone(),
            names: SocketNames::new(self.start, self.lists.len()),
            used: false,
            newest: self.newest.clone(),
            service,
            seen: self.seen.clone(),
            streams,
            report,
            backoff: self.config.backoff,
            register_timeout: self.config.register_timeout,
            grace: self.config.grace,
            stop,
        };
        self.tasks.spawn(plugin.run());
        self.lists.insert(resource, sender);
    }

    /// State of every name, now and on every change.
    pub fn states(&self) -> watch::Receiver<PluginStates> {
        self.states.subscribe()
    }

    /// Path of the socket that was opened last, for a call to ourselves; `None` before the first one.
    pub fn newest_socket(&self) -> watch::Receiver<Option<PathBuf>> {
        self.newest.subscribe()
    }

    /// What is offered now: healthy ids and all ids, by resource name.
    pub fn counts(&self) -> BTreeMap<Box<str>, (usize, usize)> {
        self.lists.iter().map(|(resource, list)| (resource.clone(), list.borrow().counts())).collect()
    }

    /// Everything that is offered is healthy, and each of `wanted`, a name with a device, is among it.
    pub fn offer_in_health<'a>(&self, mut wanted: impl Iterator<Item = (&'a str, &'a DeviceId)>) -> bool {
        let is_well = |list: &watch::Sender<Arc<Advertised>>| list.borrow().devices.iter().all(|device| device.healthy);
        let has = |(name, id): (&str, &DeviceId)| {
            let list = self.lists.get(name);
            list.is_some_and(|list| list.borrow().devices.iter().any(|device| device.id == *id))
        };
        self.lists.values().all(is_well) && wanted.all(has)
    }

    /// Resolves when a plugin's task ended by a panic, or the kubelet's directory is not the one that is mounted here.
    pub async fn failed(&mut self) -> AgentError {
        let panicked = async {
            loop {
                match self.tasks.join_next().await {
                    Some(Err(error)) if error.is_panic() => return error.to_string(),
                    Some(_) => {}
                    None => std::future::pending().await,
                }
            }
        };
        tokio::select! {
            text = panicked => AgentError::Panicked(text),
            Ok(_) = self.seen.wait_for(|directory| directory.removed) => {
                AgentError::KubeletDirectory(self.config.directory.clone())
            }
        }
    }

    /// Stops accepting, lets the calls in hand end, closes and removes the sockets.
    pub async fn finish(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

fn replace(sender: &watch::Sender<Arc<Advertised>>, list: Arc<Advertised>) {
    sender.send_if_modified(|now| {
        let changed = **now != *list;
        if changed {
            *now = list;
        }
        changed
    });
}
