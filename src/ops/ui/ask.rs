//! Questions to the leading scheduler and to node daemons, and what the scheduler is asked again and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use http::Uri;
use kube::Client;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, watch};

use super::feed::RowFeed;
use crate::leader::{LeaderArgs, LeaderClient};
use crate::live::Access;
use crate::view::GangItems;
use baton_agent::node_handoff::{LedgerLine, ListedLine};
use baton_decide::explain::{GangView, QueueReport};
use baton_runtime::{clock, words};

/// The scheduler is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// A node daemon is looked for again.
const LOOK: Duration = Duration::from_secs(20);
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same of a node daemon: the rest of its page waits for it.
const DAEMON_PATIENCE: Duration = Duration::from_secs(3);

/// The leading scheduler, found again when it does not answer.
pub struct LeadingScheduler {
    args: LeaderArgs,
    access: Access,
    leader: Mutex<Option<Arc<LeaderClient>>>,
}

/// What a node daemon says, or why it says nothing.
pub struct AgentRecords {
    /// What it has served.
    pub ledger: Result<Vec<LedgerLine>, String>,
    /// What the kubelet lists.
    pub listed: Result<Vec<ListedLine>, String>,
}

/// The node daemons that were asked of late.
pub struct NodeDaemons {
    client: Client,
    namespace: String,
    /// Admin addresses of those that are not asked through the API server.
    urls: BTreeMap<String, Uri>,
    known: Mutex<BTreeMap<String, (Duration, Arc<LeaderClient>)>>,
}

impl NodeDaemons {
    /// Those in `namespace`.
    pub fn new(client: Client, namespace: String, urls: BTreeMap<String, Uri>) -> Self {
        Self { client, namespace, urls, known: Mutex::default() }
    }

    async fn of(&self, node: &str) -> anyhow::Result<Arc<LeaderClient>> {
        let now = clock::mono();
        let mut known = self.known.lock().await;
        known.retain(|_, (found, _)| now.saturating_sub(*found) <= LOOK);
        if let Some((_, daemon)) = known.get(node) {
            return Ok(daemon.clone());
        }
        drop(known);
        let found = LeaderClient::of_node(self.client.clone(), &self.namespace, node, self.urls.get(node)).await?;
        let daemon = Arc::new(found);
        self.known.lock().await.insert(node.to_owned(), (now, daemon.clone()));
        Ok(daemon)
    }

    /// What the daemon of a node says of what it has handed out.
    pub async fn records(&self, node: &str) -> AgentRecords {
        let asking = async {
            let daemon = self.of(node).await?;
            anyhow::Ok((daemon.get("/ledger").await, daemon.get("/kubelet").await))
        };
        let asked = tokio::time::timeout(DAEMON_PATIENCE, asking).await;
        let asked = asked.with_context(|| format!("no answer within {} s", DAEMON_PATIENCE.as_secs()));
        let why = |error: anyhow::Error| words(error.as_ref());
        let (ledger, listed) = match asked.and_then(|asked| asked) {
            Ok((ledger, listed)) => (ledger.map_err(why), listed.map_err(why)),
            Err(error) => {
                let why = why(error);
                (Err(why.clone()), Err(why))
            }
        };
        if ledger.is_err() {
            self.known.lock().await.remove(node);
        }
        AgentRecords { ledger, listed }
    }
}

/// What the scheduler says, and what is wrong.
#[derive(Default)]
pub struct Report {
    /// Its queue, and what it has reserved.
    pub queue: QueueReport,
    pub gangs: Vec<GangView>,
    /// Where it was asked.
    pub leader: Option<String>,
    /// Why it could not be asked.
    pub problem: Option<String>,
    /// Why the API server does not answer.
    pub no_server: Option<String>,
}

impl LeadingScheduler {
    /// Nothing is asked yet.
    pub fn new(args: LeaderArgs, access: Access) -> Self {
        Self { args, access, leader: Mutex::default() }
    }

    async fn leader(&self) -> anyhow::Result<Arc<LeaderClient>> {
        let mut known = self.leader.lock().await;
        if let Some(leader) = &*known {
            return Ok(leader.clone());
        }
        let leader = Arc::new(LeaderClient::find(&self.args, &self.access).await?);
        Ok(known.insert(leader).clone())
    }

    /// The answer to a GET, or to a POST of `body`. A refusal is an error with the scheduler's text.
    pub async fn ask<T: DeserializeOwned>(&self, path: &str, body: Option<String>) -> anyhow::Result<T> {
        let asking = async {
            let leader = self.leader().await?;
            match body {
                Some(body) => leader.post(path, body).await,
                None => leader.get(path).await,
            }
        };
        let asked = tokio::time::timeout(PATIENCE, asking).await;
        asked.with_context(|| format!("the scheduler does not answer within {} s", PATIENCE.as_secs()))?
    }

    async fn heard(&self, leader: &LeaderClient) -> anyhow::Result<(QueueReport, Vec<GangView>)> {
        let queue: QueueReport = self.ask("/queue", None).await?;
        if !queue.leading {
            bail!("the scheduler at {} follows and has no queue", leader.place());
        }
        let GangItems { items } = self.ask("/gangs", None).await?;
        Ok((queue, items))
    }

    async fn report(&self) -> Report {
        let problem = |error: anyhow::Error| Report { problem: Some(words(error.as_ref())), ..Report::default() };
        let leader = match self.leader().await {
            Ok(leader) => leader,
            Err(error) => return problem(error),
        };
        match self.heard(&leader).await {
            Ok((queue, gangs)) => Report { queue, gangs, leader: Some(leader.place()), ..Report::default() },
            Err(error) => {
                // It is another one now.
                *self.leader.lock().await = None;
                problem(error)
            }
        }
    }

    /// Asks again and again, while a page is open.
    pub async fn follow(&self, client: &Client, feed: &RowFeed, out: watch::Sender<Arc<Report>>) {
        loop {
            let mut report = self.report().await;
            let version = tokio::time::timeout(PATIENCE, client.apiserver_version()).await;
            report.no_server = match version {
                // A refusal is an answer, too.
                Ok(Ok(_) | Err(kube::Error::Api(_))) => None,
                Ok(Err(error)) => Some(words(&error)),
                Err(_) => Some(format!("no answer within {} s", PATIENCE.as_secs())),
            };
            out.send_replace(Arc::new(report));
            tokio::time::sleep(AGAIN).await;
            while !feed.has_readers() {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
