//! Pauses between the tries of a watch.

use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::runtime::watcher::{self, Event};

use baton_runtime::backoff::Backoff;

/// After the first failure, and after an expired version.
const SHORTEST: Duration = Duration::from_millis(800);
/// Longest pause of the few programs that decide for the whole cluster: they see that late that the API server is back.
pub const CENTRAL: Duration = Duration::from_secs(8);
/// Longest pause of a program that runs on every node: thousands of them wait for the same API server.
pub const ON_EVERY_NODE: Duration = Duration::from_secs(15);

/// The stream, with a pause after each error: doubling, with jitter, up to `longest`. An API server that reports an expired
/// version is up (it reports it for every watch after its own restart), so the failures before do not delay the list that
/// follows.
pub fn patient<K: Send>(
    stream: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    longest: Duration,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send {
    let start = (Box::pin(stream), Backoff::new(SHORTEST, longest), Duration::ZERO);
    futures::stream::unfold(start, |(mut stream, mut backoff, pause)| async move {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let next = stream.next().await?;
        let pause = pause_after(&next, &mut backoff);
        Some((next, (stream, backoff, pause)))
    })
}

fn pause_after<K>(next: &watcher::Result<Event<K>>, backoff: &mut Backoff) -> Duration {
    match next {
        // It announces a list, which may still fail.
        Ok(Event::Init) => Duration::ZERO,
        Ok(_) => {
            backoff.succeed();
            Duration::ZERO
        }
        Err(error) => {
            if is_expired(error) {
                backoff.succeed();
            }
            backoff.fail_randomly()
        }
    }
}

fn is_expired(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status)
        | watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn failed(code: u16) -> watcher::Result<Event<()>> {
        let status = Status::failure("no", "Reason").with_code(code).boxed();
        Err(match code {
            410 => watcher::Error::WatchError(status),
            _ => watcher::Error::WatchStartFailed(kube::Error::Api(status)),
        })
    }

    fn after(results: &[watcher::Result<Event<()>>]) -> Duration {
        let mut backoff = Backoff::new(SHORTEST, CENTRAL);
        results.iter().map(|next| pause_after(next, &mut backoff)).last().unwrap_or_default()
    }

    fn outage() -> Vec<watcher::Result<Event<()>>> {
        (0..10).flat_map(|_| [Ok(Event::Init), failed(503)]).collect()
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        assert!(after(&[failed(503)]) <= SHORTEST);
        let long = after(&outage());
        assert!(long >= CENTRAL / 2 && long <= CENTRAL, "{long:?}");
    }

    #[test]
    fn after_an_expired_version_the_list_follows_at_once_after_any_absence() {
        let mut results = outage();
        results.push(failed(410));
        assert!(after(&results) <= SHORTEST);
    }

    #[test]
    fn a_watch_that_worked_begins_with_the_shortest_pause() {
        let mut results = outage();
        results.extend([Ok(Event::InitDone), failed(503)]);
        assert!(after(&results) <= SHORTEST);
        assert_eq!(after(&[Ok(Event::Apply(()))]), Duration::ZERO);
    }
}
