//! Completions of the shell: `baton completion bash` prints the script, which asks this program for the words, names of the
//! cluster's objects among them.

use std::ffi::OsStr;
use std::time::Duration;

use clap::{Args, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use super::leader::{LeaderArgs, LeaderClient};
use super::live::{Access, Home};
use super::say::{UsageError, say};
use super::view::gangs as gangs_of;
use baton_cluster::device::RawDevice;
use baton_contract::inventory::device_names;

/// The variable by which the script asks.
const VARIABLE: &str = "BATON_COMPLETE";
/// A person waits for the words.
const PATIENCE: Duration = Duration::from_secs(2);
/// Objects that are read: more words than this are no help.
const MOST: u32 = 1000;

#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell.
    #[arg(value_parser = ["bash", "elvish", "fish", "powershell", "zsh"])]
    pub shell: String,
}

pub fn run(args: &CompletionArgs) -> anyhow::Result<()> {
    let shells = Shells::builtins();
    let Some(shell) = shells.completer(&args.shell) else {
        return Err(UsageError(format!("no completions for {:?}", args.shell)).into());
    };
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "baton", "baton", "baton", &mut script)?;
    say(String::from_utf8_lossy(&script))
}

/// Answers the script and ends the process, where it is the script that calls.
pub fn answer(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

pub fn nodes() -> ArgValueCompleter {
    ArgValueCompleter::new(|given: &OsStr| asked(given, async |client, _| node_names(&client).await))
}

/// `namespace/name` of pods.
pub fn pods() -> ArgValueCompleter {
    ArgValueCompleter::new(|given: &OsStr| asked(given, async |client, given| pod_names(&client, &given).await))
}

/// `node/gpu-3`.
pub fn devices() -> ArgValueCompleter {
    ArgValueCompleter::new(|given: &OsStr| {
        asked(given, async |client, given| match given.split_once('/') {
            None => Ok(node_names(&client).await?.into_iter().map(|node| node + "/").collect()),
            Some((node, _)) => {
                let (device, _) = Api::<RawDevice>::all(client).get(node).await?.read();
                Ok(device_names(&device.spec.devices).into_iter().map(|name| format!("{node}/{name}")).collect())
            }
        })
    })
}

/// `namespace/name` of gangs, by the leading scheduler.
pub fn gangs() -> ArgValueCompleter {
    ArgValueCompleter::new(|given: &OsStr| asked(given, async |_, _| gang_names().await))
}

/// Names of what `baton get` lists, by the word before.
pub fn names() -> ArgValueCompleter {
    ArgValueCompleter::new(|given: &OsStr| {
        let line: Vec<String> = std::env::args().collect();
        let asks = |words: &[&str]| line.iter().any(|word| words.contains(&word.as_str()));
        if asks(&["pods", "pod", "po"]) {
            return asked(given, async |client, given| pod_names(&client, &given).await);
        }
        if asks(&["gangs", "gang"]) {
            return asked(given, async |_, _| gang_names().await);
        }
        asked(given, async |client, _| node_names(&client).await)
    })
}

async fn node_names(client: &Client) -> anyhow::Result<Vec<String>> {
    let nodes = Api::<Node>::all(client.clone()).list_metadata(&ListParams::default().limit(MOST)).await?;
    Ok(nodes.items.iter().map(ResourceExt::name_any).collect())
}

async fn pod_names(client: &Client, given: &str) -> anyhow::Result<Vec<String>> {
    let pods = match given.split_once('/') {
        Some((namespace, _)) => Api::<Pod>::namespaced(client.clone(), namespace),
        None => Api::<Pod>::all(client.clone()),
    };
    let pods = pods.list_metadata(&ListParams::default().limit(MOST)).await?;
    Ok(pods.items.iter().map(|pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())).collect())
}

async fn gang_names() -> anyhow::Result<Vec<String>> {
    let args = LeaderArgs { admin_url: None, home: Home { namespace: "baton-system".to_owned() } };
    let leader = LeaderClient::find(&args, &Access::default()).await?;
    Ok(gangs_of(&leader, None).await?.iter().map(|gang| format!("{}/{}", gang.namespace, gang.name)).collect())
}

/// What the cluster answers in time; nothing where it does not: a shell that completes is no place for errors.
fn asked(
    given: &OsStr,
    ask: impl AsyncFnOnce(Client, String) -> anyhow::Result<Vec<String>>,
) -> Vec<CompletionCandidate> {
    let given = given.to_string_lossy().into_owned();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let answer = async {
        let client = Access::default().connect().await?;
        ask(client, given.clone()).await
    };
    let names = runtime.block_on(async { tokio::time::timeout(PATIENCE, answer).await });
    let names = names.ok().and_then(Result::ok).unwrap_or_default();
    names.into_iter().filter(|name| name.starts_with(&given)).map(CompletionCandidate::new).collect()
}
