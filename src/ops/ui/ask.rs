//! Questions to the leading scheduler, and what it is asked again and again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use kube::Client;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, watch};

use super::feed::Feed;
use crate::leader::{Leader, LeaderArgs};
use crate::live::Access;
use baton_decide::explain::{GangView, QueueReport};
use baton_runtime::{clock, words};

/// The scheduler is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// The pods are asked again who leads, because several may.
const LOOK: Duration = Duration::from_secs(20);
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The leading scheduler, found again when it does not answer.
pub struct Scheduler {
    args: LeaderArgs,
    access: Access,
    leader: Mutex<Option<Arc<Leader>>>,
}

/// What it says, and what is wrong.
#[derive(Default)]
pub struct Report {
    /// Its queue, and what it has reserved.
    pub queue: QueueReport,
    /// Its gangs.
    pub gangs: Vec<GangView>,
    /// Where it was asked.
    pub leader: Option<String>,
    /// What is wrong where several lead.
    pub rivals: Option<String>,
    /// Why it could not be asked.
    pub problem: Option<String>,
    /// Why the API server does not answer.
    pub no_server: Option<String>,
}

impl Scheduler {
    /// Nothing is asked yet.
    pub fn new(args: LeaderArgs, access: Access) -> Self {
        Self { args, access, leader: Mutex::default() }
    }

    async fn leader(&self) -> anyhow::Result<Arc<Leader>> {
        let mut known = self.leader.lock().await;
        if let Some(leader) = &*known {
            return Ok(leader.clone());
        }
        let leader = Arc::new(Leader::find(&self.args, &self.access).await?);
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

    async fn report(&self) -> anyhow::Result<Report> {
        #[derive(serde::Deserialize)]
        struct Items {
            items: Vec<GangView>,
        }
        let queue: QueueReport = self.ask("/queue", None).await?;
        let leader = self.leader().await?;
        if !queue.leading {
            bail!("the scheduler at {} follows and has no queue", leader.place());
        }
        let Items { items } = self.ask("/gangs", None).await?;
        let (place, rivals) = (leader.place().to_owned(), leader.rivals());
        Ok(Report { queue, gangs: items, leader: Some(place), rivals, ..Report::default() })
    }

    /// Asks again and again, while a page is open.
    pub async fn follow(&self, client: &Client, feed: &Feed, out: watch::Sender<Arc<Report>>) {
        let mut looked = clock::mono();
        loop {
            if clock::mono().saturating_sub(looked) > LOOK {
                looked = clock::mono();
                *self.leader.lock().await = None;
            }
            let mut report = match self.report().await {
                Ok(report) => report,
                Err(error) => {
                    // It is another one now, or its token has ended.
                    *self.leader.lock().await = None;
                    Report { problem: Some(words(error.as_ref())), ..Report::default() }
                }
            };
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
