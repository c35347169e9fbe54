//! Whether the admission policies that were installed are there and deny: what `baton doctor` and `baton audit` say of them.

use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use serde::Serialize;

use super::manifests::{NODE_LOCKS, PINNED_PODS, POLICIES, VISIBLE_DEVICES, Values, altered};
use baton_cluster::client::status_code;

/// The policies of one installation, as the API server has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "problems")]
pub enum InstalledPolicies {
    /// Each is there as it was installed.
    InForce,
    /// None is there: a choice (the chart's `admission`), or not installed yet.
    Absent,
    /// The API server has no ValidatingAdmissionPolicies.
    Unsupported,
    /// Some are missing or do not deny what they did when they were installed, each with what is wrong.
    Broken(Vec<String>),
}

/// What is believed where nothing denies it.
const RISK: &str =
    "what tenants and nodes write of assignments, node locks and devices is not refused (docs/security.md)";

impl InstalledPolicies {
    /// Reads the policies of the installation in `namespace`, whose daemons lock nodes by the annotation `lock_key`.
    pub async fn read(client: &Client, namespace: &str, lock_key: &str) -> Result<Self, kube::Error> {
        let values = Values { namespace: namespace.to_owned(), ..Values::default() };
        let (mut found, mut problems) = (0, Vec::new());
        for policy in POLICIES.into_iter().chain([VISIBLE_DEVICES]) {
            let name = values.cluster_name(policy);
            match get(client, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", &name).await? {
                Got::NoSuchKind => return Ok(Self::Unsupported),
                // Left out where pods without an assignment are served, and there by choice.
                Got::Missing if [PINNED_PODS, VISIBLE_DEVICES].contains(&policy) => {}
                Got::Missing => problems.push(format!("{name} is missing")),
                Got::Object(object) => {
                    found += 1;
                    let binding =
                        get(client, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", &name)
                            .await?;
                    let binding = if let Got::Object(binding) = binding { Some(binding) } else { None };
                    problems.extend(altered(&object, binding.as_deref()).map(|why| format!("{name} {why}")));
                    if policy.starts_with(NODE_LOCKS) && !object["spec"].to_string().contains(&format!("'{lock_key}'"))
                    {
                        problems.push(format!(
                            "{name} protects another annotation than the node lock {lock_key}: set the chart's nodeLockKey={lock_key}"
                        ));
                    }
                }
            }
        }
        Ok(match problems.len() {
            _ if found == 0 => Self::Absent,
            0 => Self::InForce,
            _ => Self::Broken(problems),
        })
    }

    /// How many of them do not deny what they did.
    pub fn broken(&self) -> usize {
        if let Self::Broken(problems) = self { problems.len() } else { 0 }
    }

    /// What is wrong and follows from it, in a sentence each; nothing where the policies are in force.
    pub fn words(&self) -> Vec<String> {
        match self {
            Self::InForce => Vec::new(),
            Self::Absent => vec![format!("no admission policy of Baton is installed: {RISK}")],
            Self::Unsupported => vec![format!(
                "this API server has no ValidatingAdmissionPolicies (Kubernetes 1.30 and later have): {RISK}"
            )],
            Self::Broken(problems) => {
                problems.iter().map(|problem| format!("admission policy {problem}: {RISK}")).collect()
            }
        }
    }
}

/// What there is under a name.
enum Got {
    Object(Box<serde_json::Value>),
    Missing,
    NoSuchKind,
}

async fn get(client: &Client, kind: &str, plural: &str, name: &str) -> Result<Got, kube::Error> {
    let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, plural));
    match api.get(name).await {
        Ok(object) => Ok(Got::Object(Box::new(serde_json::to_value(object).map_err(kube::Error::SerdeError)?))),
        // A path that is not served answers without the name of an object.
        Err(kube::Error::Api(status)) if status.code == 404 && !status.message.contains(name) => Ok(Got::NoSuchKind),
        Err(error) if status_code(&error) == Some(404) => Ok(Got::Missing),
        Err(error) => Err(error),
    }
}
