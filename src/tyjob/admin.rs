//! Admin HTTP of the controller: probes and metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::sync::watch;

use super::metrics::Metrics;
use crate::runtime::admin::{self, Admin};
use crate::runtime::clock;

/// The daemon's loop shows itself at least this often, or the process is not live.
const PULSE: Duration = Duration::from_secs(60);

/// The routes. `pulse` is the monotonic time at which the daemon's loop last came around.
pub fn router(metrics: Metrics, pulse: watch::Receiver<Duration>) -> Router {
    let (stood, scraped) = (metrics.clone(), metrics);
    admin::router(Admin {
        live: Arc::new(move || {
            let silent = clock::mono().saturating_sub(*pulse.borrow());
            Box::pin(async move {
                if silent > PULSE {
                    return Err(format!("the loop has not come around for {} s", silent.as_secs()));
                }
                Ok("alive".to_owned())
            })
        }),
        ready: Arc::new(move || {
            let standing = stood.standing();
            Box::pin(async move {
                match standing {
                    (false, _) => Ok("following".to_owned()),
                    (true, true) => Ok("leading".to_owned()),
                    (true, false) => Err("waiting for the first lists of jobs, pods and nodes".to_owned()),
                }
            })
        }),
        metrics: Arc::new(move || scraped.print()),
        more: &[],
    })
}
