//! Every write of the TYJob controller, each with the precondition that makes it harmless to repeat.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Client, Resource};
use serde_json::{Value, json};

use super::client::{said, status_code};
use super::pod::LightPod;
use super::tyjob::RawTyJob;
use baton_contract::tyjob::{TyJob, TyJobStatus, keys};
use baton_decide::controller::{ControllerReport, JobRequest, OwnedPod};
use baton_decide::tyjob::stages::{CreateFailure, PodEffect};

/// Writes jobs and their pods.
#[derive(Clone)]
pub struct JobWriter(Client);

impl JobWriter {
    /// By this client.
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// Performs one request for a job.
    pub async fn perform(&self, job: &TyJob, request: &JobRequest) -> Result<ControllerReport, kube::Error> {
        match request {
            JobRequest::ReadNode(name) => Ok(ControllerReport::NodeRead(self.has_node(name).await?)),
            JobRequest::ReadPod(name) => Ok(ControllerReport::PodRead(self.own_pod(job, name).await?.map(Box::new))),
            JobRequest::WriteStatus(status) => self.status(job, status).await,
            JobRequest::AddFinalizer => self.own_finalizer(job, Some(keys::FINALIZER)).await,
            JobRequest::ListPods => Ok(ControllerReport::PodsListed(self.own_pods(job).await?)),
            JobRequest::RemoveFinalizer => self.own_finalizer(job, None).await,
            JobRequest::Pod(PodEffect::Create { name, body }) => self.create(job, name, body).await,
            JobRequest::Pod(PodEffect::Delete { name, uid, version, force }) => {
                let resource_version = (*version > 0).then(|| version.to_string());
                let preconditions = Preconditions { uid: Some(uid.clone()), resource_version };
                self.delete(job, name, preconditions, force.then_some(0)).await
            }
            JobRequest::Pod(PodEffect::Reserve { name, uid, node }) => self.reserve(job, name, uid, node).await,
        }
    }

    fn jobs(&self, job: &TyJob) -> Api<RawTyJob> {
        Api::namespaced(self.0.clone(), job.metadata.namespace.as_deref().unwrap_or_default())
    }

    fn pods<K>(&self, job: &TyJob) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.0.clone(), job.metadata.namespace.as_deref().unwrap_or_default())
    }

    /// Applies the controller's half of the status, if the job is still as it was read.
    async fn status(&self, job: &TyJob, status: &TyJobStatus) -> Result<ControllerReport, kube::Error> {
        let meta = &job.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let body = json!({
            "apiVersion": keys::API_VERSION,
            "kind": keys::KIND,
            "metadata": {
                "name": name, "namespace": meta.namespace, "uid": meta.uid, "resourceVersion": meta.resource_version,
            },
            "status": status.of_controller(),
        });
        let apply = PatchParams::apply(keys::CONTROLLER_MANAGER).force();
        written(self.jobs(job).patch_status(name, &apply, &Patch::Apply(body)).await)
    }

    /// Puts the finalizer on the job, or with `None` takes it off, if the job is still as it was read.
    async fn own_finalizer(&self, job: &TyJob, own: Option<&str>) -> Result<ControllerReport, kube::Error> {
        let meta = &job.metadata;
        let others = meta.finalizers.iter().flatten().filter(|name| *name != keys::FINALIZER);
        let finalizers: Vec<&str> = others.map(String::as_str).chain(own).collect();
        let patch = json!({ "metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers,
        }});
        let params = PatchParams { field_manager: Some(keys::CONTROLLER_MANAGER.to_owned()), ..PatchParams::default() };
        let name = meta.name.as_deref().unwrap_or_default();
        written(self.jobs(job).patch(name, &params, &Patch::Merge(patch)).await)
    }

    /// Makes a pod. A pod of the name counts as made when it is of this TYJob and attempt and is not being deleted.
    async fn create(&self, job: &TyJob, name: &str, body: &Value) -> Result<ControllerReport, kube::Error> {
        let params = PostParams { field_manager: Some(keys::CONTROLLER_MANAGER.to_owned()), ..PostParams::default() };
        // The body goes out as it is: a typed pod would drop fields that this version does not know.
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        let request = Request::new(Pod::url_path(&(), Some(namespace)));
        let bytes = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
        let mut request = request.create(&params, bytes).map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert("create");
        let made: Result<LightPod, kube::Error> = self.0.request(request).await;
        let error = match made {
            Ok(pod) => return Ok(ControllerReport::Made(Box::new(pod.owned()))),
            Err(error) => error,
        };
        match status_code(&error) {
            Some(409) => self.holder(job, name, body).await,
            Some(400 | 422) if !is_policy(&error) => {
                Ok(ControllerReport::NotMade(CreateFailure::Invalid(said(&error))))
            }
            // From 500 on: a webhook does not answer, or the server could not store it. A pod that is there after all is found by its name.
            Some(400 | 403 | 404 | 422 | 500..) => Ok(ControllerReport::NotMade(CreateFailure::Refused(said(&error)))),
            _ => Err(error),
        }
    }

    /// The pod that has the name.
    async fn holder(&self, job: &TyJob, name: &str, wanted: &Value) -> Result<ControllerReport, kube::Error> {
        let pod = self.pods::<LightPod>(job).get_opt(name).await?;
        Ok(pod.map_or(ControllerReport::Conflict, |pod| held_by(job, pod, wanted)))
    }

    /// Deletes a pod, with its own grace period where none is given; one that is gone, replaced or changed is left alone.
    async fn delete(
        &self,
        job: &TyJob,
        name: &str,
        preconditions: Preconditions,
        grace_period_seconds: Option<u32>,
    ) -> Result<ControllerReport, kube::Error> {
        let uid = preconditions.uid.clone().unwrap_or_default();
        let params =
            DeleteParams { preconditions: Some(preconditions), grace_period_seconds, ..DeleteParams::default() };
        match self.pods::<Pod>(job).delete(name, &params).await {
            Ok(_) => Ok(ControllerReport::Deleted),
            Err(error) if matches!(status_code(&error), Some(404 | 409)) => self.gone_or_changed(job, name, uid).await,
            Err(error) => Err(error),
        }
    }

    /// Whether the pod of this uid is there, and is another one by now than the watch has shown.
    async fn gone_or_changed(&self, job: &TyJob, name: &str, uid: String) -> Result<ControllerReport, kube::Error> {
        let found = self.pods::<LightPod>(job).get_opt(name).await?;
        let is_there = found.is_some_and(|pod| pod.metadata.uid.as_ref() == Some(&uid));
        Ok(if is_there { ControllerReport::Conflict } else { ControllerReport::PodGone(uid) })
    }

    /// Writes the node that is reserved for the pod of this uid.
    async fn reserve(&self, job: &TyJob, name: &str, uid: &str, node: &str) -> Result<ControllerReport, kube::Error> {
        let patch = json!({ "metadata": { "uid": uid, "annotations": { keys::ALLOCATION: node } } });
        let written =
            self.pods::<LightPod>(job).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop);
        match written {
            Ok(()) => Ok(ControllerReport::Reserved),
            // With 422 the server refuses to change the uid: another pod has the name by now.
            Err(error) if matches!(status_code(&error), Some(404 | 409 | 422)) => {
                self.gone_or_changed(job, name, uid.to_owned()).await
            }
            Err(error) => Err(error),
        }
    }

    /// The pod of a name, if this TYJob controls it: read from the API server, not from a watch.
    async fn own_pod(&self, job: &TyJob, name: &str) -> Result<Option<OwnedPod>, kube::Error> {
        let pod = self.pods::<LightPod>(job).get_opt(name).await?.map(LightPod::owned);
        Ok(pod.filter(|pod| pod.job_uid.is_some() && pod.job_uid == job.metadata.uid))
    }

    /// Whether there is a node of this name: read from the API server, not from a watch.
    async fn has_node(&self, name: &str) -> Result<bool, kube::Error> {
        let nodes: Api<Node> = Api::all(self.0.clone());
        Ok(nodes.get_metadata_opt(name).await?.is_some())
    }

    /// Every pod that this TYJob controls: read from the API server, not from a watch.
    async fn own_pods(&self, job: &TyJob) -> Result<Vec<OwnedPod>, kube::Error> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let list =
            self.pods::<LightPod>(job).list(&ListParams::default().labels(&format!("{}={name}", keys::JOB))).await?;
        let all = list.items.into_iter().map(LightPod::owned);
        Ok(all.filter(|pod| pod.job_uid.is_some() && pod.job_uid == job.metadata.uid).collect())
    }
}

/// What a pod that has the name of a wanted one means for the job.
fn held_by(job: &TyJob, pod: LightPod, wanted: &Value) -> ControllerReport {
    let is_watched = pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(keys::JOB));
    let facts = pod.owned();
    if facts.job_uid.is_none() || facts.job_uid != job.metadata.uid {
        let whose = facts.job_uid.map_or("no TYJob".to_owned(), |uid| format!("the TYJob of uid {uid}"));
        let why = CreateFailure::Foreign(format!("a pod of this name is controlled by {whose}"));
        return ControllerReport::NotMade(why);
    }
    if !is_watched {
        // No watch would show its end.
        let why =
            format!("this job's pod of the name has lost its label {}: put it back, or delete the pod", keys::JOB);
        return ControllerReport::NotMade(CreateFailure::Foreign(why));
    }
    let attempt = wanted["metadata"]["labels"][keys::ATTEMPT].as_str().and_then(|attempt| attempt.parse().ok());
    let same = facts.view.attempt == attempt && facts.view.deleting.is_none();
    if same { ControllerReport::Made(Box::new(facts)) } else { ControllerReport::Held(Box::new(facts)) }
}

/// An admission policy or webhook has refused the object, with the code of an invalid one. Both may be changed: the API server says "is
/// forbidden" for the one and "denied the request" for the other, and "is invalid" of an object that can never be.
fn is_policy(error: &kube::Error) -> bool {
    let words = [" is forbidden: ", " denied the request"];
    matches!(error, kube::Error::Api(status) if words.iter().any(|words| status.message.contains(words)))
}

/// A conflict is an answer, not a failure.
fn written(result: Result<RawTyJob, kube::Error>) -> Result<ControllerReport, kube::Error> {
    match result {
        // Unless another client has made its status unreadable meanwhile.
        Ok(job) => {
            Ok(job.shown().map_or(ControllerReport::Conflict, |shown| ControllerReport::Written(Box::new(shown))))
        }
        Err(error) => match status_code(&error) {
            Some(409) => Ok(ControllerReport::Conflict),
            Some(404) => Ok(ControllerReport::Gone),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_no_watch_shows_is_not_called_made() {
        let job = json!({ "metadata": { "name": "rl", "namespace": "a", "uid": "job" }, "spec": {} });
        let (job, _) = TyJob::read(&job).unwrap();
        let wanted = json!({ "metadata": { "labels": { keys::JOB: "rl", keys::ATTEMPT: "2" } } });
        let answer = |labels: Value, uid: &str| {
            let owner = json!({ "apiVersion": keys::API_VERSION, "kind": "TYJob", "name": "rl", "uid": uid, "controller": true });
            let meta = json!({ "name": "rl-actor-0", "namespace": "a", "uid": "u", "labels": labels, "ownerReferences": [owner] });
            let pod = json!({ "metadata": meta, "spec": { "containers": [{ "name": "c" }] }, "status": {} });
            held_by(&job, serde_json::from_value(pod).unwrap(), &wanted)
        };
        let all = || json!({ keys::JOB: "rl", keys::ATTEMPT: "2" });
        assert!(matches!(answer(all(), "job"), ControllerReport::Made(_)));
        assert!(matches!(answer(json!({ keys::JOB: "rl", keys::ATTEMPT: "1" }), "job"), ControllerReport::Held(_)));
        let foreign = |report| match report {
            ControllerReport::NotMade(CreateFailure::Foreign(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(foreign(answer(json!({ keys::ATTEMPT: "2" }), "job")).contains("has lost its label"));
        assert!(foreign(answer(all(), "other")).contains("the TYJob of uid other"));
    }

    #[test]
    fn a_policy_or_webhook_refuses_with_the_code_of_an_invalid_object_and_other_words() {
        let said = |message: &str| {
            let status: kube::core::Status = serde_json::from_value(
                json!({ "status": "Failure", "code": 422, "reason": "Invalid", "message": message }),
            )
            .unwrap();
            is_policy(&kube::Error::Api(Box::new(status)))
        };
        assert!(said(
            "pods \"rl-learner\" is forbidden: ValidatingAdmissionPolicy 'images' with binding 'all' denied request: no tag"
        ));
        // A webhook that gives no code denies with 400, one that gives no reason adds nothing (kubernetes#77022).
        assert!(said("admission webhook \"validate.policies.example\" denied the request: images need a digest"));
        assert!(said("admission webhook \"validate.policies.example\" denied the request without explanation"));
        assert!(!said("Pod \"rl-learner\" is invalid: spec.containers[0].image: Required value"));
    }
}
