//! The controller as a process: it waits for leadership and works through one term after the other. It answers probes and
//! collectors of metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::event_loop::{Performer, Term, TermEnd};
use super::metrics::ControllerMetrics;
use super::options::ControllerOptions;
use baton_cluster::client::{ConnectError, connect_counted};
use baton_cluster::controller_feed::start_controller_feeds;
use baton_cluster::controller_writer::JobWriter;
use baton_cluster::leadership::{Campaign, identity};
use baton_cluster::notice::Notices;
use baton_cluster::restored::Restored;
use baton_decide::controller::ControllerPolicy;
use baton_runtime::admin::{Answers, OpenPorts, PortError};
use baton_runtime::clock;
use baton_runtime::metrics::RequestMetrics;
use baton_runtime::options::OptionError;

/// Messages that the watches may be ahead of the loop.
const BACKLOG: usize = 4096;
/// The loop makes a round at least this often.
const ROUND: Duration = Duration::from_secs(1);
/// Without a round for this long, the process is not live.
const PULSE: Duration = Duration::from_secs(60);

/// Why the controller cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A setting that cannot work.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// No API server to talk to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Its addresses cannot be served.
    #[error(transparent)]
    Ports(#[from] PortError),
    /// The API server's store was restored from a backup.
    #[error(transparent)]
    Restored(#[from] Restored),
    /// A task that never ends has ended.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
}

/// A controller that is set up and not yet started.
pub struct Controller {
    options: ControllerOptions,
    client: Client,
    metrics: ControllerMetrics,
    ports: OpenPorts,
}

impl Controller {
    /// Checks the options, opens the addresses. An API server that is not there yet is waited for later.
    pub async fn new(options: ControllerOptions) -> Result<Self, ControllerError> {
        options.validate()?;
        let requests = RequestMetrics::default();
        let (client, _) = connect_counted("baton-controller", options.kubeconfig.as_deref(), &requests).await?;
        let ports = OpenPorts::open(&options.ports)?;
        Ok(Self { options, client, metrics: ControllerMetrics::new(&requests), ports })
    }

    /// Runs until `stop`, then gives the Lease away.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ControllerError> {
        let Self { options, client, metrics, ports } = self;
        let (pulse, last_pulse) = watch::channel(clock::mono());
        tokio::spawn(ports.serve(answers(metrics.clone(), last_pulse), stop.clone()));
        let name = identity(&options.leader.identity, "controller");
        let lease = options.leader.elect.then(|| options.leader.config(&options.namespace, &name));
        let mut campaign = Campaign::start(client.clone(), lease);
        let (leadership, mut changed) = (campaign.leadership.clone(), campaign.changed.clone());
        let (notices, _writer) =
            Notices::start(client.clone(), &options.leader.lease_name, &name, || std::future::ready(()));
        let performer = Performer {
            writer: JobWriter::new(client.clone()),
            notices,
            leadership: leadership.clone(),
            metrics: metrics.clone(),
        };
        let result = loop {
            pulse.send_replace(clock::mono());
            if leadership.leads(clock::mono()) {
                tokio::select! {
                    () = stop.cancelled() => break Ok(()),
                    restored = campaign.restored() => break Err(restored.into()),
                    end = term(&client, performer.clone(), options.settings(), &pulse) => {
                        metrics.term_ended();
                        if end == TermEnd::WatchesEnded {
                            break Err(ControllerError::Ended("the watches"));
                        }
                        tracing::warn!("this term of leadership is over: its cache is dropped");
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => break Ok(()),
                restored = campaign.restored() => break Err(restored.into()),
                Ok(()) = changed.changed() => {}
                () = tokio::time::sleep(ROUND) => {}
            }
        };
        campaign.end().await;
        result
    }
}

/// One term. Its watches are fresh, so that no decision rests on what was true before the former leader's last write.
async fn term(
    client: &Client,
    performer: Performer,
    settings: ControllerPolicy,
    pulse: &watch::Sender<Duration>,
) -> TermEnd {
    let (out, mut messages) = mpsc::channel(BACKLOG);
    let mut tasks = JoinSet::new();
    let missing = start_controller_feeds(client, &out, &mut tasks);
    drop(out);
    let mut term = Term::new(performer, settings, missing);
    let beat = async {
        loop {
            pulse.send_replace(clock::mono());
            tokio::time::sleep(ROUND).await;
        }
    };
    tokio::select! {
        end = term.run(&mut messages) => end,
        () = beat => TermEnd::LeadershipLost,
    }
}

/// What probes and collectors are answered. `pulse` is the monotonic time of the loop's last round.
fn answers(metrics: ControllerMetrics, pulse: watch::Receiver<Duration>) -> Answers {
    let (ready, scraped) = (metrics.clone(), metrics);
    Answers {
        live: Arc::new(move || {
            let silent = clock::mono().saturating_sub(*pulse.borrow());
            Box::pin(async move {
                if silent > PULSE {
                    return Err(format!("the last round of the loop was {} s ago", silent.as_secs()));
                }
                Ok("alive".to_owned())
            })
        }),
        ready: Arc::new(move || {
            let readiness = ready.readiness();
            Box::pin(async move {
                match readiness {
                    (false, _) => Ok("following".to_owned()),
                    (true, true) => Ok("leading".to_owned()),
                    (true, false) => Err("waiting for the first lists of TYJobs, pods and nodes".to_owned()),
                }
            })
        }),
        leading: None,
        metrics: Arc::new(move || scraped.print()),
        questions: Router::new(),
        paths: &[],
    }
}
