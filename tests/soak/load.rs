//! The stream of pods: a fixed number at once, each of a kind drawn from the seed, replaced when it ends.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use baton::contract::key;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::Value;

use crate::harness::pods::pod;

/// How far the test is with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is the pod's own: only an end or the hour changes that.
    Lives,
    /// It is counted and its deletion was sent, perhaps with the answer lost: what was not answered may have been done.
    Asked,
    /// The API server has taken the deletion.
    Leaves,
}

/// A pod that was created and is not gone.
struct Out {
    /// When the test deletes it, whatever it does.
    delete_at: Option<Duration>,
    stage: Stage,
}

pub struct Load {
    api: Api<Pod>,
    random: fastrand::Rng,
    run_seconds: Range<u32>,
    at_once: usize,
    out: BTreeMap<String, Out>,
    created: u64,
    /// Pods that ran to their end.
    pub served: u64,
    /// Pods that failed, by reason.
    pub failed: BTreeMap<String, u64>,
    /// Pods that the test deleted before their end.
    pub deleted: u64,
    /// The last message of a failed pod, by reason.
    pub messages: BTreeMap<String, String>,
}

impl Load {
    pub fn new(client: Client, random: fastrand::Rng, run_seconds: Range<u32>, at_once: usize) -> Self {
        Self {
            api: Api::namespaced(client, "default"),
            random,
            run_seconds,
            at_once,
            out: BTreeMap::new(),
            created: 0,
            served: 0,
            failed: BTreeMap::new(),
            deleted: 0,
            messages: BTreeMap::new(),
        }
    }

    /// Pods that are not gone.
    pub fn outstanding(&self) -> usize {
        self.out.len()
    }

    /// Every pod ever created is accounted for as served, failed, deleted or outstanding.
    pub fn is_complete(&self) -> bool {
        self.created == self.served + self.failed.values().sum::<u64>() + self.deleted + self.out.len() as u64
    }

    fn draw(&mut self) -> Pod {
        let name = format!("p{}", self.created);
        let whole = [(key::NVIDIA_GPU, "1")];
        let spec = match self.random.u8(0..8) {
            0 => pod(&name).app("main", &[(key::NVIDIA_GPU, "2")]),
            1 => pod(&name).app("a", &whole).app("b", &whole),
            2 => pod(&name).init("prepare", &whole).app("main", &whole),
            3 => pod(&name).app("main", &[(key::GPU, "50")]),
            4 => pod(&name).app("main", &[(key::GPU_CORE, "30"), (key::GPU_MEMORY_RATIO, "40")]),
            5 => pod(&name).app("a", &[(key::GPU, "25")]).sidecar("side", &[(key::RDMA, "20")]),
            6 => pod(&name).app("main", &[(key::NVIDIA_GPU, "1"), (key::RDMA, "100")]).joint(),
            _ => pod(&name).app("main", &whole),
        };
        let mut object = spec.build();
        let seconds = self.random.u32(self.run_seconds.clone()).to_string();
        for container in object.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
            container.command = Some(vec!["/bin/sleep".to_owned(), seconds.clone()]);
        }
        object
    }

    /// Accounts for what ended in `pods`, deletes it, and creates pods up to the number at once (none unless `more`).
    pub async fn step(&mut self, pods: &[Value], more: bool, now: Duration) {
        let by_name: BTreeMap<&str, &Value> =
            pods.iter().filter_map(|pod| Some((pod["metadata"]["name"].as_str()?, pod))).collect();
        let names: Vec<String> = self.out.keys().cloned().collect();
        for name in names {
            let Some(pod) = by_name.get(name.as_str()) else {
                let stage = self.out.remove(&name).map(|out| out.stage);
                assert_ne!(stage, Some(Stage::Lives), "{name} was deleted by another");
                continue;
            };
            let out = self.out.get_mut(&name).unwrap();
            let status = &pod["status"];
            let phase = status["phase"].as_str().unwrap_or_default();
            let over = matches!(phase, "Succeeded" | "Failed");
            let due = out.delete_at.is_some_and(|at| now >= at);
            if out.stage == Stage::Lives && (over || due) {
                out.stage = Stage::Asked;
                match phase {
                    "Succeeded" => self.served += 1,
                    "Failed" => {
                        let reason = status["reason"].as_str().unwrap_or("(container)").to_owned();
                        self.messages.insert(reason.clone(), status["message"].as_str().unwrap_or_default().to_owned());
                        *self.failed.entry(reason).or_default() += 1;
                    }
                    _ => self.deleted += 1,
                }
            }
            if out.stage == Stage::Asked {
                let how = DeleteParams::default();
                match tokio::time::timeout(Duration::from_secs(2), self.api.delete(&name, &how)).await {
                    Ok(Ok(_)) => out.stage = Stage::Leaves,
                    lost => println!("soak: deletion of {name} is sent again: {lost:?}"),
                }
            }
        }
        while more && self.out.len() < self.at_once {
            let object = self.draw();
            let how = PostParams::default();
            let create = self.api.create(&how, &object);
            let created = match tokio::time::timeout(Duration::from_secs(2), create).await {
                Ok(Ok(_)) => true,
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => true, // an earlier try got through
                _ => false,
            };
            if !created {
                return;
            }
            let name = object.metadata.name.unwrap_or_default();
            let soon = Duration::from_millis(self.random.u64(0..1500));
            let delete_at = (self.random.u8(0..25) == 0).then_some(now + soon);
            self.out.insert(name, Out { delete_at, stage: Stage::Lives });
            self.created += 1;
        }
    }
}
