//! Questions to the event loop, and the front that HTTP handlers put them to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::gang::GangPods;
use crate::cluster::bind::Binder;
use crate::contract::{PodRef, PodUid};
use crate::decide::scheduler::{AskId, BindVerdict, Fits, Room};
use crate::decide::world::PodFacts;

/// Why there is no answer: the process starts, ends, or does not lead.
pub type NoAnswer = String;
type Answer<T> = oneshot::Sender<Result<T, NoAnswer>>;

/// One question.
#[derive(Debug)]
pub enum Ask {
    /// Which nodes fit.
    Fit(Box<PodFacts>, Vec<String>, Answer<Fits>),
    /// How good nodes are, 0..=100.
    Rate(Box<PodFacts>, Vec<String>, Answer<Vec<(String, i64)>>),
    /// Which victims make room.
    Room(Box<PodFacts>, BTreeMap<String, Vec<PodUid>>, Answer<BTreeMap<String, Room>>),
    /// Bind this pod to this node. `found` is what a live read of the pod has shown.
    Bind {
        /// Names the request.
        ask: AskId,
        /// Pod.
        pod: PodRef,
        /// Node.
        node: String,
        /// The pod, when it was read because no watch had shown it.
        found: Option<Box<PodFacts>>,
        /// For the answer.
        answer: oneshot::Sender<BindVerdict>,
    },
    /// Whoever asked for this bind is gone.
    Leave(AskId),
}

/// Where HTTP handlers ask. Cheap to clone.
#[derive(Clone)]
pub struct Front {
    asks: mpsc::UnboundedSender<Ask>,
    binder: Binder,
    serial: Arc<AtomicU64>,
    /// What becomes of gang pods.
    pub gang: GangPods,
}

const ENDED: &str = "the scheduler is shutting down";

/// Tells the loop when the handler of a bind is dropped, which is what happens when its client leaves.
struct Attendance {
    ask: AskId,
    asks: mpsc::UnboundedSender<Ask>,
}

impl Drop for Attendance {
    fn drop(&mut self) {
        // The loop ends before the front does only at shutdown.
        self.asks.send(Ask::Leave(self.ask)).ok();
    }
}

impl Front {
    /// A front, and what the event loop must receive. Waiting questions are bounded by the connections that the server takes.
    pub fn new(binder: Binder, gang: GangPods) -> (Self, mpsc::UnboundedReceiver<Ask>) {
        let (asks, received) = mpsc::unbounded_channel();
        (Self { asks, binder, serial: Arc::default(), gang }, received)
    }

    /// Asks which nodes fit.
    pub async fn fit(&self, pod: PodFacts, nodes: Vec<String>) -> Result<Fits, NoAnswer> {
        self.ask(|answer| Ask::Fit(Box::new(pod), nodes, answer)).await
    }

    /// Asks how good nodes are.
    pub async fn rate(&self, pod: PodFacts, nodes: Vec<String>) -> Result<Vec<(String, i64)>, NoAnswer> {
        self.ask(|answer| Ask::Rate(Box::new(pod), nodes, answer)).await
    }

    /// Asks which victims make room.
    pub async fn room(
        &self,
        pod: PodFacts,
        victims: BTreeMap<String, Vec<PodUid>>,
    ) -> Result<BTreeMap<String, Room>, NoAnswer> {
        self.ask(|answer| Ask::Room(Box::new(pod), victims, answer)).await
    }

    /// Binds a pod, or says why not. Dropping the future takes the bind back when it is not posted yet.
    pub async fn bind(&self, pod: PodRef, node: &str) -> Result<(), String> {
        match self.bind_once(&pod, node, None).await? {
            BindVerdict::Bound => return Ok(()),
            BindVerdict::Failed(why) => return Err(why),
            BindVerdict::Unknown => {}
        }
        let read = self.binder.read(&pod.key).await;
        let found = read.map_err(|error| format!("pod {} could not be read: {error}", pod.key))?;
        let Some(found) = found else { return Err(format!("pod {} does not exist", pod.key)) };
        let uid = &found.handoff.pod.uid;
        if *uid != pod.uid {
            return Err(format!("pod {} has uid {uid}, not {}: it was created anew", pod.key, pod.uid));
        }
        match self.bind_once(&pod, node, Some(Box::new(found))).await? {
            BindVerdict::Bound => Ok(()),
            BindVerdict::Failed(why) => Err(why),
            BindVerdict::Unknown => Err(format!("pod {} is gone", pod.key)),
        }
    }

    async fn bind_once(&self, pod: &PodRef, node: &str, found: Option<Box<PodFacts>>) -> Result<BindVerdict, String> {
        let ask = AskId(self.serial.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = oneshot::channel();
        let question = Ask::Bind { ask, pod: pod.clone(), node: node.to_owned(), found, answer };
        self.asks.send(question).map_err(|_| ENDED.to_owned())?;
        let _attendance = Attendance { ask, asks: self.asks.clone() };
        answered.await.map_err(|_| ENDED.to_owned())
    }

    async fn ask<T>(&self, question: impl FnOnce(Answer<T>) -> Ask) -> Result<T, NoAnswer> {
        let (answer, answered) = oneshot::channel();
        self.asks.send(question(answer)).map_err(|_| ENDED.to_owned())?;
        answered.await.map_err(|_| ENDED.to_owned())?
    }
}
