//! The command line of `baton ui`, and its start.

use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use http::Uri;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::ask::{LeadingScheduler, NodeDaemons};
use super::door::{self, Door};
use super::feed::RowFeed;
use super::model::Model;
use super::server::{STREAMS, Ui, router};
use crate::audit::{AuditRules, SchedulersArgs};
use crate::get::RulesArgs;
use crate::leader::LeaderArgs;
use crate::live::{self, Access};
use crate::say::{UsageError, remark, say};
use crate::values;
use crate::view::Follower;
use baton_runtime::http::{HttpServer, Limits};
use baton_runtime::shutdown;

/// Pages and their questions; a stream takes one connection.
const LIMITS: Limits =
    Limits { connections: 4 * STREAMS, one_request: false, head: Duration::from_secs(60), answer: None, age: None };

#[derive(Debug, Args)]
pub struct UiArgs {
    /// Where the browser reaches it; port 0 is a free one.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// --listen may be another address than loopback. What the pages show then goes over the network in plain text.
    #[arg(long)]
    pub insecure_listen: bool,
    /// Open it in the browser.
    #[arg(long)]
    pub open: bool,
    /// Namespace that the pages show first; else all.
    #[arg(short, long, value_parser = values::namespace)]
    pub namespace: Option<String>,
    /// Admin address of the node daemon of a node, as of a port-forward: NODE=http://127.0.0.1:9412. Others are asked through the API
    /// server. May be repeated.
    #[arg(long, value_name = "NODE=URL", value_parser = node_url)]
    pub node_url: Vec<(String, Uri)>,
    /// Where the pages link a node and a GPU to: {node}, {device} (gpu-3), {gpu} (its number in nvidia-smi) and {uuid} are filled in, of
    /// a node as a whole with $__all. As http://grafana/d/gpus?var-node={node}&var-gpu={gpu}.
    #[arg(long, value_name = "URL", value_parser = grafana_url)]
    pub grafana_url: Option<String>,
    #[command(flatten)]
    pub access: Access,
    #[command(flatten)]
    pub daemons: RulesArgs,
    #[command(flatten)]
    pub schedulers: SchedulersArgs,
    #[command(flatten)]
    pub scheduler: LeaderArgs,
}

fn node_url(text: &str) -> Result<(String, Uri), String> {
    let parts = text.split_once('=').filter(|(_, url)| url.starts_with("http://"));
    let (node, url) = parts.ok_or_else(|| format!("{text:?}: expected NODE=http://ADDRESS:PORT"))?;
    Ok((node.to_owned(), url.parse().map_err(|error| format!("{url:?}: {error}"))?))
}

/// What is filled into `--grafana-url`.
const PLACES: [&str; 4] = ["node", "device", "gpu", "uuid"];

fn grafana_url(text: &str) -> Result<String, String> {
    let filled = PLACES.iter().fold(text.to_owned(), |url, place| url.replace(&format!("{{{place}}}"), "x"));
    if let Some(at) = filled.find(['{', '}']) {
        let known = PLACES.map(|place| format!("{{{place}}}")).join(", ");
        return Err(format!("{text:?}: {:?} is none of {known}", &filled[at..]));
    }
    let url: Option<Uri> = filled.parse().ok();
    if !url.is_some_and(|url| matches!(url.scheme_str(), Some("http" | "https"))) {
        return Err(format!("{text:?}: expected http://… or https://…"));
    }
    if !text.contains("{node}") {
        return Err(format!("{text:?}: {{node}} is missing, so every link would be the same"));
    }
    Ok(text.to_owned())
}

/// Serves until Ctrl-C.
pub async fn run(args: UiArgs) -> anyhow::Result<ExitCode> {
    let stop = shutdown::on_signals()?;
    serve(args, stop, |url| {
        say(format_args!("{url}\n\nOpen this URL; its token lets the browser in. Ctrl-C ends it.\n"))
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// Serves until `stop`; `announce` gets the URL to open.
pub async fn serve(
    args: UiArgs,
    stop: CancellationToken,
    announce: impl FnOnce(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if !args.listen.ip().is_loopback() && !args.insecure_listen {
        let text = format!(
            "--listen {}: the pages would go over the network in plain text; --insecure-listen allows it",
            args.listen
        );
        return Err(UsageError(text).into());
    }
    let client = args.access.connect().await?;
    let namespace = args.scheduler.home.namespace.clone();
    live::elsewhere(client.clone(), &namespace).await.into_iter().for_each(remark);
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    let door = Arc::new(Door::new(address)?);
    let feed = Arc::new(RowFeed::new());
    let scheduler = Arc::new(LeadingScheduler::new(args.scheduler, args.access));
    let (reports, heard) = watch::channel(Arc::default());
    let (questions, asked) = mpsc::channel(STREAMS);
    let ui = Arc::new(Ui {
        client: client.clone(),
        scheduler: scheduler.clone(),
        daemons: NodeDaemons::new(client.clone(), namespace.clone(), args.node_url.into_iter().collect()),
        feed: feed.clone(),
        questions,
        namespace: args.namespace,
        grafana: args.grafana_url,
        audit: (
            namespace.clone(),
            AuditRules {
                lock_key: args.daemons.node_lock_key.clone(),
                schedulers: args.schedulers.scheduler_names,
                ..AuditRules::default()
            },
        ),
        auditing: Mutex::new(()),
        streams: Arc::new(Semaphore::new(STREAMS)),
        epoch: door::random()?,
        stop: stop.clone(),
    });
    let follower = Follower::of_everything(&client, &namespace);
    let model = Model::new(args.daemons.rules(), feed.clone());
    let url = format!("http://{address}{}", door.path());
    announce(&url)?;
    let page = if args.open { open(&url)? } else { None };
    let server = HttpServer { name: "ui", listener, tls: None, limits: LIMITS };
    tokio::select! {
        () = server.serve(router(ui, door), stop) => {}
        () = model.run(follower, heard, asked) => {}
        () = scheduler.follow(&client, &feed, reports) => {}
    }
    page.iter().for_each(|page| drop(std::fs::remove_file(page)));
    Ok(())
}

/// Opens the URL by a file that only this user can read: a command line is there for every user of the machine to read.
fn open(url: &str) -> anyhow::Result<Option<PathBuf>> {
    let display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if !display && !cfg!(target_os = "macos") {
        remark("no display here: open the URL above in a browser of this machine");
        return Ok(None);
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let page = folder.join(format!("baton-ui-{}.html", door::random()?));
    let text = format!(
        "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content='0;url={url}'><title>baton</title>"
    );
    let write = |path: &Path| -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        std::io::Write::write_all(&mut file, text.as_bytes())
    };
    write(&page).with_context(|| format!("cannot write {}", page.display()))?;
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let quiet = || Stdio::null();
    let started = std::process::Command::new(program).arg(&page).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn();
    if let Err(error) = started {
        remark(format_args!("cannot open the browser with {program} ({error}): open the URL above"));
    }
    Ok(Some(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_of_links_is_a_url_with_a_node_and_no_unknown_part() {
        let good = "https://g.example/d/x?var-node={node}&var-gpu={gpu}&u={uuid}";
        assert_eq!(grafana_url(good).as_deref(), Ok(good));
        for (bad, why) in [
            ("http://g/d/x?n={nodes}", "{nodes}"),
            ("http://g/d/x?n={node}&g={gpu", "{gpu"),
            ("javascript:alert({node})", "javascript:alert"),
            ("grafana/d/x?n={node}", "http://"),
            ("http://g/d/x", "{node} is missing"),
        ] {
            let error = grafana_url(bad).unwrap_err();
            assert!(error.contains(why) && error.contains(bad), "{error}");
        }
    }
}
