//! The regular look at the ports of the NICs: by the sentry, because sysfs may block, and told only when there is something to
//! judge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::look::{self, Ports};
use crate::hardware::nic::PortState;
use crate::hardware::{Bdf, Roots};
use crate::runtime::Sentry;

/// What is looked at, and what came of it.
pub struct Links {
    watched: Arc<Watched>,
    found: mpsc::Receiver<Ports>,
}

#[derive(Default)]
struct Watched {
    nics: ArcSwap<Vec<Bdf>>,
    /// A NIC is out of service: every look counts.
    ailing: AtomicBool,
}

impl Links {
    /// Looks every `period`; at nothing before [`Links::watch`].
    pub fn start(sentry: &Sentry, roots: Roots, period: Duration) -> Self {
        let watched = Arc::new(Watched::default());
        // One waits while another is judged. What finds no room is looked at again.
        let (tell, found) = mpsc::channel(1);
        let of = watched.clone();
        let mut told: Option<Ports> = None;
        let look = move || {
            let nics = of.nics.load();
            if nics.is_empty() {
                return !tell.is_closed();
            }
            let ports = look::ports(&roots, &nics);
            let quiet = all_active(&ports) && !of.ailing.load(Ordering::Acquire) && told.as_ref() == Some(&ports);
            if !quiet && tell.try_send(ports.clone()).is_ok() {
                told = Some(ports);
            }
            !tell.is_closed()
        };
        sentry.every(period, Box::new(look));
        Self { watched, found }
    }

    /// Looks at these from now on; at all of them each time while one is `ailing`.
    pub fn watch(&self, nics: Vec<Bdf>, ailing: bool) {
        self.watched.nics.store(Arc::new(nics));
        self.watched.ailing.store(ailing, Ordering::Release);
    }

    /// The next look that has to be judged; `None` when the sentry is gone.
    pub async fn next(&mut self) -> Option<Ports> {
        self.found.recv().await
    }
}

fn all_active(ports: &Ports) -> bool {
    ports.iter().all(|(_, ports)| {
        ports.as_ref().is_ok_and(|ports| !ports.is_empty() && ports.iter().all(|port| port.state == PortState::Active))
    })
}
