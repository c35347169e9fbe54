//! Events on pods and nodes, for `kubectl describe`. Written off the hot path; a lost event is only logged.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::mpsc;

use baton_contract::{EventReason, PodRef, tyjob};
use baton_runtime::clock;

/// Events that may wait to be written; further ones are dropped. A gang of a thousand has two for each member at once: how many came,
/// and why they wait.
const BACKLOG: usize = 8192;
/// Events of which it is known what was written last.
const KEPT: usize = 2048;

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
pub struct Notices(mpsc::Sender<(Timestamp, Notice)>);

/// Longest `reportingInstance`.
const MAX_INSTANCE: usize = 128;
/// Longest name of an object.
const MAX_NAME: usize = 253;
/// An event that comes again within this time is counted in the series of the last one.
const SERIES: Duration = Duration::from_secs(6 * 60);

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
        let (component, instance) = (component.to_owned(), instance.to_owned());
        let mut events = EventWriter { client, component, instance, written: HashMap::new() };
        let (sender, mut receiver) = mpsc::channel::<(Timestamp, Notice)>(BACKLOG);
        let writer = tokio::spawn(async move {
            while let Some((at, notice)) = receiver.recv().await {
                calm().await;
                let reason = notice.reason.word();
                if let Err(error) = events.write(notice, at).await {
                    tracing::debug!(reason, %error, "event not written");
                }
            }
        });
        (Self(sender), writer)
    }

    /// Queues a notice; drops it when too many wait.
    pub fn post(&self, notice: Notice) {
        if let Err(error) = self.0.try_send((clock::wall(), notice)) {
            tracing::debug!(%error, "event dropped");
        }
    }
}

/// The events that were written last, by subject and reason.
struct EventWriter {
    client: Client,
    component: String,
    instance: String,
    written: HashMap<(Subject, EventReason), Event>,
}

impl EventWriter {
    /// Writes what happened at `now`, or counts one more in the series of the last event, where that is young, has the same words and has
    /// not been deleted.
    async fn write(&mut self, notice: Notice, now: Timestamp) -> Result<(), kube::Error> {
        let Notice { subject, warning, reason, action, message } = notice;
        let (note, type_) = (Some(cut(message)), if warning { "Warning" } else { "Normal" });
        let regarding = reference(&subject);
        let api: Api<Event> = Api::namespaced(self.client.clone(), regarding.namespace.as_deref().unwrap_or("default"));
        let is_same = |event: &&mut Event| {
            let last = event.series.as_ref().map(|series| &series.last_observed_time).or(event.event_time.as_ref());
            let is_young = last.is_some_and(|last| now.duration_since(last.0).unsigned_abs() < SERIES);
            is_young && event.note == note && event.type_.as_deref() == Some(type_)
        };
        if let Some(event) = self.written.get_mut(&(subject.clone(), reason)).filter(is_same) {
            let count = event.series.as_ref().map_or(2, |series| series.count + 1);
            let series = EventSeries { count, last_observed_time: MicroTime(now) };
            let patch = Patch::Merge(json!({"series": series}));
            let patched = api.patch(&event.name_any(), &PatchParams::default(), &patch).await.map(|_| series);
            match patched {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                patched => {
                    event.series = Some(patched?);
                    return Ok(());
                }
            }
        }
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name(regarding.name.as_deref().unwrap_or_default(), now)),
                namespace: regarding.namespace.clone(),
                ..ObjectMeta::default()
            },
            action: Some(action.to_owned()),
            event_time: Some(MicroTime(now)),
            note,
            reason: Some(reason.word().to_owned()),
            regarding: Some(regarding),
            reporting_controller: Some(self.component.clone()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(type_.to_owned()),
            ..Event::default()
        };
        api.create(&PostParams::default(), &event).await?;
        if self.written.len() >= KEPT {
            self.written.clear();
        }
        self.written.insert((subject, reason), event);
        Ok(())
    }
}

/// The subject's name, cut where an event's could be too long, and the time in nanoseconds.
fn name(subject: &str, now: Timestamp) -> String {
    let time = format!("{:x}", now.as_nanosecond());
    let room = MAX_NAME - 1 - time.len();
    let kept = &subject[..subject.floor_char_boundary(room)];
    format!("{}.{time}", kept.trim_end_matches(['-', '.']))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_event_is_a_valid_one_however_long_that_of_its_pod_is() {
        let now: Timestamp = "2026-11-28T10:00:00.123456789Z".parse().unwrap();
        assert_eq!(name("worker-0", now), "worker-0.18ec2d27bdb10d15");
        let long = name(&"a".repeat(253), now);
        assert_eq!((long.len(), &long[235..]), (253, "a.18ec2d27bdb10d15"));
        let cut = name(&format!("{}-.-{}", "a".repeat(234), "b".repeat(16)), now);
        assert_eq!(&cut[233..], "a.18ec2d27bdb10d15");
    }
}
