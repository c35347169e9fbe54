//! Installs Baton in the simulated cluster as an operator does: namespace, CRDs and RBAC of `baton manifests`, by server-side
//! apply. The workloads are left out: no controller would start them, the demo runs the daemons itself.

use anyhow::Context;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use serde_json::{Value, from_value};

use crate::ops::manifests::{Values, files};

const WORKLOADS: [&str; 3] = ["DaemonSet", "Deployment", "PodDisruptionBudget"];

/// Applies everything and answers how many objects that were.
pub async fn install(client: &Client) -> anyhow::Result<usize> {
    let mut applied = 0;
    for file in files(&Values::default())?.into_iter().filter(|file| file.applied) {
        let unread = || format!("generated file {} cannot be read back", file.path);
        let objects: Vec<Value> = serde_saphyr::from_str_multiple(&file.text).with_context(unread)?;
        for object in objects {
            let object: DynamicObject = from_value(object).with_context(unread)?;
            let Some(types) = object.types.clone().filter(|types| !WORKLOADS.contains(&types.kind.as_str())) else {
                continue;
            };
            apply(client, &types, &object).await?;
            applied += 1;
        }
    }
    Ok(applied)
}

async fn apply(client: &Client, types: &TypeMeta, object: &DynamicObject) -> anyhow::Result<()> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams::apply("baton-demo").force();
    api.patch(name, &params, &Patch::Apply(object))
        .await
        .with_context(|| format!("cannot apply {} {name}", types.kind))?;
    Ok(())
}
