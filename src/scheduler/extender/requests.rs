//! Requests of kube-scheduler on their way to the event loop and back: HTTP handlers put them to a [`Front`], the event loop
//! answers them through its [`PendingRequests`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::options::GangPods;
use baton_cluster::pod_writer::PodWriter;
use baton_contract::{PodRef, PodUid};
use baton_decide::scheduler::{BindVerdict, DeviceFits, Effects, Moment, NodeVictims, RequestId, Scheduler};
use baton_decide::world::PodFacts;

/// Why there is no answer: the process starts, ends, or does not lead.
pub type Unavailable = String;
type AnswerSender<T> = oneshot::Sender<Result<T, Unavailable>>;

/// One request to the event loop.
#[derive(Debug)]
pub enum ExtenderRequest {
    /// Which nodes fit.
    Fit(Box<PodFacts>, Vec<String>, AnswerSender<DeviceFits>),
    /// How good nodes are, 0..=100.
    Rate(Box<PodFacts>, Vec<String>, AnswerSender<Vec<(String, i64)>>),
    /// Which victims make room.
    Room(Box<PodFacts>, BTreeMap<String, Vec<PodUid>>, AnswerSender<BTreeMap<String, NodeVictims>>),
    /// Bind this pod to this node.
    Bind {
        /// Names the request.
        ask: RequestId,
        /// Pod.
        pod: PodRef,
        /// Node.
        node: String,
        /// For the answer.
        answer: oneshot::Sender<BindVerdict>,
    },
    /// The client that requested this bind has left.
    Cancel(RequestId),
}

/// Puts requests of HTTP handlers to the event loop. Cheap to clone.
#[derive(Clone)]
pub struct Front {
    requests: mpsc::UnboundedSender<ExtenderRequest>,
    pods: PodWriter,
    serial: Arc<AtomicU64>,
}

const ENDED: &str = "the scheduler is shutting down";
/// A pod that exists, and that the watch is yet to show, is asked for so often, with this pause between.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Cancels a bind when its handler is dropped, which happens when the client leaves.
struct CancelOnDrop {
    ask: RequestId,
    requests: mpsc::UnboundedSender<ExtenderRequest>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        // The loop ends before the front does only at shutdown.
        self.requests.send(ExtenderRequest::Cancel(self.ask)).ok();
    }
}

impl Front {
    /// A front, and what the event loop must receive. Waiting requests are bounded by the connections that the server takes.
    pub fn new(pods: PodWriter) -> (Self, mpsc::UnboundedReceiver<ExtenderRequest>) {
        let (requests, received) = mpsc::unbounded_channel();
        (Self { requests, pods, serial: Arc::default() }, received)
    }

    /// Puts a request other than a bind, which `request` makes around the channel of its answer.
    pub async fn ask<T>(&self, request: impl FnOnce(AnswerSender<T>) -> ExtenderRequest) -> Result<T, Unavailable> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).map_err(|_| ENDED.to_owned())?;
        answered.await.map_err(|_| ENDED.to_owned())?
    }

    /// Binds a pod; the error says why not. Dropping the future takes the bind back when it is not posted yet.
    pub async fn bind(&self, pod: PodRef, node: &str) -> Result<(), String> {
        for _ in 0..TRIES {
            match self.bind_once(&pod, node).await? {
                BindVerdict::Bound => return Ok(()),
                BindVerdict::Failed(why) => return Err(why),
                BindVerdict::Unknown => {}
            }
            let read = self.pods.read(&pod.key).await;
            let found = read.map_err(|error| format!("pod {} could not be read: {error}", pod.key))?;
            let Some(found) = found else { return Err(format!("pod {} does not exist", pod.key)) };
            let uid = &found.handoff.pod.uid;
            if *uid != pod.uid {
                return Err(format!("pod {} has uid {uid}, not {}: it was created again", pod.key, pod.uid));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(format!("the watch does not show pod {} yet: ask again", pod.key))
    }

    async fn bind_once(&self, pod: &PodRef, node: &str) -> Result<BindVerdict, String> {
        let ask = RequestId(self.serial.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = oneshot::channel();
        let request = ExtenderRequest::Bind { ask, pod: pod.clone(), node: node.to_owned(), answer };
        self.requests.send(request).map_err(|_| ENDED.to_owned())?;
        let _cancel = CancelOnDrop { ask, requests: self.requests.clone() };
        answered.await.map_err(|_| ENDED.to_owned())
    }
}

/// Bind requests that wait for their answer, on the event loop's side.
pub struct PendingRequests {
    wait: Duration,
    gang: GangPods,
    binds: BTreeMap<RequestId, oneshot::Sender<BindVerdict>>,
}

const NOT_YET: &str = "this scheduler does not lead, or does not know the whole cluster yet: ask again";

/// Every node is refused to a pod of a gang.
fn refused(gang: &str, nodes: &[String]) -> DeviceFits {
    let why = format!(
        "gang pod ({gang}): an extender is asked for one pod at a time; give it the schedulerName of the standalone scheduler, or run the \
         extender with --extender-gang=ignore"
    );
    DeviceFits { never: nodes.iter().map(|node| (node.clone(), why.clone())).collect(), ..DeviceFits::default() }
}

impl PendingRequests {
    /// A bind waits for its node's lock for at most `wait`; `gang`: treatment of gang pods.
    pub fn new(wait: Duration, gang: GangPods) -> Self {
        Self { wait, gang, binds: BTreeMap::new() }
    }

    /// Puts one request to the scheduler. An answer whose receiver is gone is dropped: the client has left.
    pub fn handle(&mut self, request: ExtenderRequest, scheduler: &mut Scheduler, now: Moment) -> Effects {
        // Only the leader knows what is assumed: a follower would send pods to devices that are already promised.
        let not_yet = (!scheduler.is_leading()).then(|| NOT_YET.to_owned());
        let gang_of = |scheduler: &Scheduler, pod: &PodFacts| {
            scheduler.together_with(pod).filter(|_| self.gang == GangPods::Refuse)
        };
        match request {
            ExtenderRequest::Fit(pod, nodes, answer) => {
                let mut fits = || match gang_of(scheduler, &pod) {
                    Some(gang) => refused(&gang, &nodes),
                    None => scheduler.fit_devices(&pod, &nodes, now),
                };
                drop(answer.send(not_yet.map_or_else(|| Ok(fits()), Err)));
            }
            ExtenderRequest::Rate(pod, nodes, answer) => {
                let mut rated = || scheduler.rate_devices(&pod, &nodes, now);
                drop(answer.send(not_yet.map_or_else(|| Ok(rated()), Err)));
            }
            ExtenderRequest::Room(pod, victims, answer) => {
                let mut room = || match gang_of(scheduler, &pod) {
                    // No eviction helps it.
                    Some(_) => BTreeMap::new(),
                    None => scheduler.make_room(&pod, &victims, now),
                };
                drop(answer.send(not_yet.map_or_else(|| Ok(room()), Err)));
            }
            ExtenderRequest::Bind { ask, pod, node, answer } => {
                self.binds.insert(ask, answer);
                return scheduler.request_bind(ask, &pod, &node, self.wait, now);
            }
            ExtenderRequest::Cancel(ask) => {
                if self.binds.remove(&ask).is_some() {
                    return scheduler.cancel_request(ask, now);
                }
            }
        }
        Effects::new()
    }

    /// Sends the scheduler's answers to the binds that wait for them.
    pub fn deliver(&mut self, scheduler: &mut Scheduler) {
        for answer in scheduler.take_answers() {
            if let Some(bind) = self.binds.remove(&answer.request) {
                drop(bind.send(answer.verdict));
            }
        }
    }
}
