//! Gangs on the simulated API server: nodes of CPUs, members, PodGroups, and what they come to.

use baton::contract::gang::pod_group::crd;
use kube::api::ApiResource;

use crate::prelude::*;
use crate::scheduler::verbs::until;

impl SchedulerCluster {
    /// A node of so many CPUs, without devices.
    pub async fn cpus(&self, name: &str, cpus: u32) {
        let amounts = json!({"cpu": cpus.to_string(), "memory": "512Gi", "pods": "110"});
        let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}});
        self.nodes().create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        let status = json!({"status": {"capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]}});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    /// A member of one CPU.
    pub async fn member(&self, name: &str, labels: Value, annotations: Value) -> Pod {
        self.member_in("ml", name, labels, annotations).await
    }

    pub async fn member_in(&self, namespace: &str, name: &str, labels: Value, annotations: Value) -> Pod {
        let pod = json!({"metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
            "spec": {"schedulerName": "baton-scheduler", "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}]}});
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
    }

    /// Members `<gang>-0` … by Koordinator's annotations.
    pub async fn members(&self, gang: &str, count: usize, min: usize, more: Value) {
        for n in 0..count {
            self.member(&format!("{gang}-{n}"), json!({}), keys(gang, min, &more)).await;
        }
    }

    /// Ours, with its status subresource.
    pub async fn pod_group_crd(&self, api: PodGroupApi) {
        self.serve(definition(api, &served(api).version), &served(api)).await;
    }

    /// In the newest version that is read.
    pub async fn newest_pod_group_crd(&self, api: PodGroupApi) {
        self.serve(definition(api, api.versions()[0]), &api.resource()).await;
    }

    async fn serve(&self, definition: CustomResourceDefinition, resource: &ApiResource) {
        self.create_crds([definition]).await;
        let groups: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), "ml", resource);
        until("the PodGroup CRD", || async { groups.list(&Default::default()).await.ok() }).await;
    }

    /// Koordinator's own, which has no status subresource.
    pub async fn plain_pod_group_crd(&self) {
        let mut text = serde_json::to_value(crd()).unwrap();
        text["spec"]["versions"][0].as_object_mut().unwrap().remove("subresources").unwrap();
        self.serve(serde_json::from_value(text).unwrap(), &served(PodGroupApi::Sigs)).await;
    }

    pub fn pod_groups(&self, api: PodGroupApi) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), "ml", &served(api))
    }

    pub async fn pod_group(&self, name: &str, spec: Value) {
        self.pod_group_of(PodGroupApi::Sigs, name, spec).await;
    }

    pub async fn pod_group_of(&self, api: PodGroupApi, name: &str, spec: Value) {
        let resource = served(api);
        let object = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
        self.pod_groups(api).create(&PostParams::default(), &object).await.unwrap();
    }

    pub async fn status(&self, name: &str) -> Value {
        self.pod_groups(PodGroupApi::Sigs).get(name).await.unwrap().data["status"].clone()
    }

    /// Names of the bound pods that begin so.
    pub async fn bound_of(&self, prefix: &str) -> Vec<String> {
        let pods = self.pods().list(&Default::default()).await.unwrap();
        let bound = pods.items.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
        bound.map(ResourceExt::name_any).filter(|name| name.starts_with(prefix)).collect()
    }

    pub async fn all_bound(&self, prefix: &str, count: usize) {
        until(&format!("{count} pods {prefix}* are bound"), || async {
            (self.bound_of(prefix).await.len() == count).then_some(())
        })
        .await;
    }

    /// The condition `PodScheduled` of a pod that has no node: reason and message.
    pub async fn why(&self, name: &str) -> Option<(String, String)> {
        let status = self.get(name).await?.status?;
        let condition = status.conditions?.into_iter().find(|condition| condition.type_ == "PodScheduled")?;
        (condition.status == "False")
            .then(|| (condition.reason.unwrap_or_default(), condition.message.unwrap_or_default()))
    }

    /// Waits until a pod's condition says this.
    pub async fn waits_with(&self, name: &str, reason: &str, part: &str) {
        let mut last = None;
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            let why = self.why(name).await;
            if why.as_ref().is_some_and(|(found, message)| found == reason && message.contains(part)) {
                return;
            }
            last = why.or(last);
            assert!(
                tokio::time::Instant::now() < deadline,
                "{name}: {reason} with {part:?} did not come; last {last:?}"
            );
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    pub async fn finish(&self, name: &str, phase: &str) {
        let patch = json!({"status": {"phase": phase}});
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Reasons of the events in namespace `ml`.
    pub async fn events(&self) -> Vec<String> {
        let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(self.client.clone(), "ml");
        events.list(&Default::default()).await.unwrap().items.into_iter().filter_map(|event| event.reason).collect()
    }

    pub async fn event(&self, reason: &str) {
        until(&format!("an event {reason}"), || async {
            self.events().await.iter().any(|r| r == reason).then_some(())
        })
        .await;
    }

    pub async fn delete_crd(&self, api: PodGroupApi) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let name = format!("podgroups.{}", api.group());
        crds.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

/// Koordinator's annotations of a member.
pub fn keys(gang: &str, min: usize, more: &Value) -> Value {
    let mut all = json!({"gang.scheduling.koordinator.sh/name": gang, "gang.scheduling.koordinator.sh/min-available": min.to_string()});
    for (key, value) in more.as_object().into_iter().flatten() {
        all[format!("gang.scheduling.koordinator.sh/{key}")] = value.clone();
    }
    all
}

/// Ours, or the community's: the same under another name, and without what only ours has in its status.
/// The API in the oldest of its versions that is read: the feed has to look for it.
fn served(api: PodGroupApi) -> ApiResource {
    api.resource_of(api.versions().last().unwrap())
}

fn definition(api: PodGroupApi, version: &str) -> CustomResourceDefinition {
    if api == PodGroupApi::Sigs {
        return crd();
    }
    let mut text = serde_json::to_value(crd()).unwrap();
    if api == PodGroupApi::Kubernetes {
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        text["spec"]["versions"][0]["name"] = version.into();
        text["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
        text["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
            json!({"type": "object", "properties": {"spec": open, "status": open}});
    }
    text["metadata"]["name"] = format!("podgroups.{}", api.group()).into();
    // Whoever defines something in a group of Kubernetes' own must say who allows it.
    text["metadata"]["annotations"] =
        json!({"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/135500"});
    text["spec"]["group"] = api.group().into();
    if api == PodGroupApi::Kubernetes {
        return serde_json::from_value(text).unwrap();
    }
    let status = &mut text["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"];
    let kept = ["phase", "occupiedBy", "running", "succeeded", "failed", "scheduleStartTime"];
    status.as_object_mut().unwrap().retain(|name, _| kept.contains(&name.as_str()));
    serde_json::from_value(text).unwrap()
}
