//! Labels of pods, kept as far as the scheduler needs them. A pod may carry a megabyte of labels that no selector names: of more than
//! 16 KiB only those are kept whose key some selector names. When a selector brings a new key, these pods are read again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use tokio::sync::{Notify, mpsc};

use super::feed::FeedMessage;
use super::pod::LightPod;
use baton_contract::hint::LabelSelector;
use baton_contract::tyjob::keys;
use baton_contract::{PodKey, gang};
use baton_decide::world::spec::Labels;
use baton_decide::world::{PodFacts, PodSpec, WorldEvent};
use baton_runtime::words;

/// Bytes of keys and values of one pod that are kept in any case. It is also the most that is kept.
const WHOLE: usize = 16 << 10;
/// Keys of selectors that are remembered; further ones select nothing of pods with more labels than [`WHOLE`].
const MOST_KEYS: usize = 10_000;
/// Pods are read again at most this often.
const PAUSE: Duration = Duration::from_secs(5);

/// The keys that selectors name, shared by all that read pods.
#[derive(Debug, Clone, Default)]
pub struct SelectedLabels(Arc<Selected>);

#[derive(Debug, Default)]
struct Selected {
    known: Mutex<KnownLabels>,
    new_key: Notify,
}

#[derive(Debug)]
struct KnownLabels {
    keys: BTreeSet<Box<str>>,
    /// Pods of which some labels are left out.
    trimmed: BTreeSet<PodKey>,
}

/// Labels that the scheduler itself reads.
impl Default for KnownLabels {
    fn default() -> Self {
        let keys = [gang::key::SUB_PRIORITY, keys::ROLE, keys::INDEX].map(Box::from);
        Self { keys: keys.into(), trimmed: BTreeSet::new() }
    }
}

impl SelectedLabels {
    fn known(&self) -> MutexGuard<'_, KnownLabels> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of a pod, with the labels that may be needed.
    pub fn facts(&self, pod: LightPod) -> PodFacts {
        let mut facts = pod.facts();
        self.note(&facts.spec);
        let size: usize = facts.spec.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        let mut known = self.known();
        if size > WHOLE {
            let mut left = WHOLE;
            // In a new map: the old one keeps its room.
            let labels = std::mem::take(&mut facts.spec.labels).into_iter();
            let selected = labels.filter(|(key, value)| {
                let size = key.len() + value.len();
                let kept = known.keys.contains(&**key) && size <= left;
                left -= if kept { size } else { 0 };
                kept
            });
            facts.spec.labels = selected.collect::<Labels>();
            known.trimmed.insert(facts.handoff.pod.key.clone());
        } else if !known.trimmed.is_empty() {
            known.trimmed.remove(&facts.handoff.pod.key);
        }
        drop(known);
        facts
    }

    /// Forgets a pod that is gone.
    pub fn gone(&self, pod: &PodKey) {
        self.known().trimmed.remove(pod);
    }

    /// Notes the keys that selectors of a pod name.
    pub fn note(&self, spec: &PodSpec) {
        let terms = spec.affinity.iter().chain(&spec.anti_affinity);
        let terms = terms.chain(spec.pods_preferred.iter().map(|(_, term)| term)).map(|term| &term.selector);
        for selector in terms.chain(spec.spread.iter().map(|spread| &spread.selector)).flatten() {
            self.note_selector(selector);
        }
    }

    /// Notes the keys that a selector of pods names.
    pub fn note_selector(&self, selector: &LabelSelector) {
        let expressions = selector.match_expressions.iter().map(|requirement| &requirement.key);
        let mut known = self.known();
        let mut news = false;
        for key in selector.match_labels.keys().chain(expressions) {
            if !known.keys.contains(&**key) && known.keys.len() < MOST_KEYS {
                known.keys.insert(key.as_str().into());
                news = true;
            }
        }
        if news && !known.trimmed.is_empty() {
            self.0.new_key.notify_one();
        }
    }

    /// Reads pods again whose labels were left out, whenever a selector has brought a new key.
    pub async fn read_again(self, client: Client, out: mpsc::Sender<FeedMessage<WorldEvent>>) {
        loop {
            tokio::select! {
                () = self.0.new_key.notified() => {}
                () = out.closed() => return,
            }
            let trimmed: Vec<PodKey> = self.known().trimmed.iter().cloned().collect();
            tracing::info!(
                pods = trimmed.len(),
                "a selector names a new key: pods with very many labels are read again"
            );
            for key in trimmed {
                let pods: Api<LightPod> = Api::namespaced(client.clone(), &key.namespace);
                match pods.get_opt(&key.name).await {
                    Ok(Some(pod)) => {
                        let event = WorldEvent::PodRead(Box::new(self.facts(pod)));
                        if out.send(FeedMessage::Event(event)).await.is_err() {
                            return;
                        }
                    }
                    // The watch says that it is gone.
                    Ok(None) => {}
                    Err(error) => {
                        tracing::warn!(pod = %key, error = words(&error), "a pod with very many labels cannot be read again; trying again");
                        self.0.new_key.notify_one();
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value, json};

    fn pod(labels: usize, more: Value) -> LightPod {
        let mut all: Map<String, Value> = (0..labels).map(|n| (format!("key-{n:05}"), "x".repeat(50).into())).collect();
        all.insert("app".to_owned(), "web".into());
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ml", "uid": "u", "labels": all},
            "spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": more}}},
        }))
        .unwrap()
    }

    #[test]
    fn of_very_many_labels_those_are_kept_that_a_selector_names() {
        let selected = SelectedLabels::default();
        assert_eq!(selected.facts(pod(200, json!([]))).spec.labels.len(), 201, "12 KiB: all");
        assert_eq!(selected.facts(pod(20_000, json!([]))).spec.labels.len(), 0);
        let term = |key: &str| json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {key: "web"}}});
        selected.facts(pod(1, json!([term("app"), term("key-00007")])));
        assert!(selected.known().trimmed.is_empty(), "the pod of this name has few labels now");
        let facts = selected.facts(pod(20_000, json!([])));
        assert_eq!(facts.spec.labels.keys().collect::<Vec<_>>(), ["app", "key-00007"]);
        assert_eq!(selected.known().trimmed.len(), 1);
        selected.gone(&facts.handoff.pod.key);
        assert!(selected.known().trimmed.is_empty());
    }

    #[test]
    fn selectors_that_name_everything_keep_no_more_than_the_limit() {
        let selected = SelectedLabels::default();
        let keys = (0..20_000).map(|n| (format!("key-{n:05}"), String::new())).collect();
        selected.note_selector(&LabelSelector { match_labels: keys, match_expressions: Vec::new() });
        let labels = &selected.facts(pod(20_000, json!([]))).spec.labels;
        let size: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!((WHOLE - 60..=WHOLE).contains(&size), "{size} bytes are kept");
        assert_eq!(selected.known().keys.len(), MOST_KEYS);
    }
}
