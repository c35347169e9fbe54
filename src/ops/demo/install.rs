//! Installs Baton as an operator does: the objects of `baton manifests`, by server-side apply.

use anyhow::Context;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use serde_json::{Value, from_value};

use crate::manifests::{Values, files};

/// Kinds of manifests that are not installed: no controller would start them.
const WORKLOADS: [&str; 3] = ["DaemonSet", "Deployment", "PodDisruptionBudget"];

/// Installs namespaces, CRDs, RBAC and admission policies; returns the number of objects. The workloads are left out.
pub async fn install(client: &Client, values: &Values) -> anyhow::Result<usize> {
    let mut applied = 0;
    for file in files(values).into_iter().filter(|file| file.applied) {
        applied += apply_all(client, &file.text).await.with_context(|| file.path)?;
    }
    Ok(applied)
}

/// Applies the objects of a text of `baton manifests`, workloads aside; returns their number.
pub async fn apply_all(client: &Client, text: &str) -> anyhow::Result<usize> {
    let objects: Vec<Value> = serde_saphyr::from_str_multiple(text).context("manifests cannot be read")?;
    let mut applied = 0;
    for object in objects {
        let object: DynamicObject = from_value(object).context("a manifest is no object")?;
        let Some(types) = object.types.clone().filter(|types| !WORKLOADS.contains(&types.kind.as_str())) else {
            continue;
        };
        apply(client, &types, &object).await?;
        applied += 1;
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
