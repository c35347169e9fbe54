//! The controller as a process: it waits for leadership, and works through one term after the other.

use std::net::SocketAddr;
use std::time::Duration;

use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::admin;
use super::attend::Hands;
use super::event_loop::{Pace, Term, TermEnd};
use super::metrics::Metrics;
use super::options::Options;
use crate::cluster::client::{ConnectError, connect_as};
use crate::cluster::job_feed::start_job_feeds;
use crate::cluster::job_writer::JobWriter;
use crate::cluster::leadership::{Standing, campaign, identity};
use crate::cluster::lease::{Candidate, LeaseConfig};
use crate::cluster::notice::Notices;
use crate::runtime::admin::{AdminError, bind, serve};
use crate::runtime::clock;
use crate::runtime::options::OptionError;

/// Messages that the watches may be ahead of the loop.
const BACKLOG: usize = 4096;
/// The Lease is given away within this time at shutdown.
const GRACE: Duration = Duration::from_secs(5);
/// The loop comes around at least this often.
const ROUND: Duration = Duration::from_secs(1);

/// Why the controller cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A setting that cannot work.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// No API server to talk to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The admin address cannot be used.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A task that never ends has ended.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
}

/// A controller that is set up and not yet started.
pub struct Controller {
    options: Options,
    client: Client,
    listener: Option<TcpListener>,
}

impl Controller {
    /// Checks the options, opens the admin address. An API server that is not there yet is waited for later.
    pub async fn new(options: Options) -> Result<Self, ControllerError> {
        options.validate()?;
        let client = connect_as("baton-controller", options.kubeconfig.as_deref()).await?;
        let listener = match options.listen {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        Ok(Self { options, client, listener })
    }

    /// Where the admin HTTP is.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Runs until `stop`, then gives the Lease away.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ControllerError> {
        let address = self.admin_address();
        let Self { options, client, listener } = self;
        let metrics = Metrics::new();
        let (pulse, felt) = watch::channel(clock::mono());
        if let (Some(listener), Some(address)) = (listener, address) {
            tracing::info!(%address, "admin HTTP");
            tokio::spawn(serve(listener, admin::router(metrics.clone(), felt), stop.clone()));
        }
        let name = identity(&options.identity, "controller");
        let (changed_out, mut changed) = watch::channel(0);
        let standing = if options.leader_elect { Standing::default() } else { Standing::forever() };
        let retire = CancellationToken::new();
        let campaigning = options.leader_elect.then(|| {
            let candidate = Candidate::new(client.clone(), lease_config(&options, &name));
            tokio::spawn(campaign(candidate, standing.clone(), changed_out, retire.clone()))
        });
        let (notices, _writer) = Notices::start(client.clone(), &options.lease_name, &name, || std::future::ready(()));
        let hands = Hands {
            writer: JobWriter::new(client.clone()),
            notices,
            standing: standing.clone(),
            metrics: metrics.clone(),
            scheduler_name: options.scheduler_name.as_str().into(),
        };
        let pace = Pace {
            backoff: (options.backoff, options.backoff_max),
            resync: options.resync,
            concurrency: options.concurrency,
        };
        let result = loop {
            pulse.send_replace(clock::mono());
            if standing.leads(clock::mono()) {
                tokio::select! {
                    () = stop.cancelled() => break Ok(()),
                    end = term(&client, hands.clone(), pace, &pulse) => {
                        metrics.deposed();
                        if end == TermEnd::Blind {
                            break Err(ControllerError::Ended("the watches"));
                        }
                        tracing::warn!("this term is over: what it knew is forgotten");
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => break Ok(()),
                Ok(()) = changed.changed() => {}
                () = tokio::time::sleep(ROUND) => {}
            }
        };
        if let Some(campaigning) = campaigning {
            retire.cancel();
            tokio::time::timeout(GRACE, campaigning).await.ok();
        }
        result
    }
}

/// One term: fresh watches, so that nothing is judged by what was true before the former leader's last write.
async fn term(client: &Client, hands: Hands, pace: Pace, pulse: &watch::Sender<Duration>) -> TermEnd {
    let (out, mut messages) = mpsc::channel(BACKLOG);
    let mut tasks = JoinSet::new();
    start_job_feeds(client, &out, &mut tasks);
    drop(out);
    let mut term = Term::new(hands, pace);
    let beat = async {
        loop {
            pulse.send_replace(clock::mono());
            tokio::time::sleep(ROUND).await;
        }
    };
    tokio::select! {
        end = term.run(&mut messages) => end,
        () = beat => TermEnd::Deposed,
    }
}

fn lease_config(options: &Options, identity: &str) -> LeaseConfig {
    LeaseConfig {
        duration: options.lease_duration,
        renew_deadline: options.lease_renew_deadline,
        retry: options.lease_retry,
        ..LeaseConfig::new(&options.namespace, &options.lease_name, identity)
    }
}
