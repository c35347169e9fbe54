//! Events on pods and nodes, for `kubectl describe`. Written off the hot path; a lost event is only logged.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use baton_contract::{EventReason, PodRef, tyjob};

/// Events that may wait to be written; further ones are dropped. A gang of a thousand has two for each member at once: how many came,
/// and why they wait.
const BACKLOG: usize = 8192;
/// Recorders that are kept.
const RECORDERS: usize = 1024;

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A pod.
    Pod(PodRef),
    /// A node, by name.
    Node(Box<str>),
    /// A TYJob.
    Job {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
        /// Uid.
        uid: String,
    },
}

/// One event, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The object it is about.
    pub subject: Subject,
    /// `true` for `Warning`, `false` for `Normal`.
    pub warning: bool,
    /// Reason.
    pub reason: EventReason,
    /// What was being done, e.g. `Allocate`.
    pub action: &'static str,
    /// What happened, why, what to do. Cut at 1 KiB.
    pub message: String,
}

/// The queue of notices; cheap to clone, never blocks.
#[derive(Clone)]
pub struct Notices(mpsc::Sender<Notice>);

/// Longest `reportingInstance`.
const MAX_INSTANCE: usize = 128;

impl Notices {
    /// Starts the writer. `component` shows in `kubectl describe` as the source; `instance` is the pod or node name.
    /// Before each event it waits for `calm`. The writer ends when the last handle is dropped.
    pub fn start<C>(
        client: Client,
        component: &str,
        instance: &str,
        calm: impl Fn() -> C + Send + 'static,
    ) -> (Self, tokio::task::JoinHandle<()>)
    where
        C: Future<Output = ()> + Send + 'static,
    {
        // An event with a longer one is refused.
        let instance = &instance[..instance.floor_char_boundary(MAX_INSTANCE)];
        let reporter = Reporter { controller: component.to_owned(), instance: Some(instance.to_owned()) };
        // A recorder counts repetitions of an event and keeps its first words. Other words are another event.
        let mut recorders: HashMap<(Subject, EventReason), (String, Recorder)> = HashMap::new();
        let (sender, mut receiver) = mpsc::channel::<Notice>(BACKLOG);
        let writer = tokio::spawn(async move {
            while let Some(notice) = receiver.recv().await {
                calm().await;
                let subject = reference(&notice.subject);
                let words = cut(notice.message);
                let event = Event {
                    type_: if notice.warning { EventType::Warning } else { EventType::Normal },
                    reason: notice.reason.word().to_owned(),
                    note: Some(words.clone()),
                    action: notice.action.to_owned(),
                    secondary: None,
                };
                let key = (notice.subject, notice.reason);
                if recorders.len() > RECORDERS {
                    recorders.clear();
                }
                let fresh = || (words.clone(), Recorder::new(client.clone(), reporter.clone()));
                let (said, recorder) = recorders.entry(key).or_insert_with(fresh);
                if *said != words {
                    (*said, *recorder) = fresh();
                }
                if let Err(error) = recorder.publish(&event, &subject).await {
                    tracing::debug!(reason = notice.reason.word(), %error, "event not written");
                }
            }
        });
        (Self(sender), writer)
    }

    /// Queues a notice; drops it when too many wait.
    pub fn post(&self, notice: Notice) {
        if let Err(error) = self.0.try_send(notice) {
            tracing::debug!(%error, "event dropped");
        }
    }
}

fn reference(subject: &Subject) -> ObjectReference {
    let of = |kind: &str, name: &str, namespace: Option<&str>, uid: &str| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    };
    match subject {
        Subject::Pod(pod) => of("Pod", &pod.key.name, Some(&pod.key.namespace), pod.uid.as_str()),
        // As the kubelet does, node events carry the name as uid: `kubectl describe node` finds them by it.
        Subject::Node(name) => of("Node", name, None, name),
        Subject::Job { namespace, name, uid } => ObjectReference {
            api_version: Some(tyjob::keys::API_VERSION.to_owned()),
            ..of(tyjob::keys::KIND, name, Some(namespace), uid)
        },
    }
}

fn cut(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(1020));
    message
}
