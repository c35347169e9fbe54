//! Every run of every policy, on as many threads as there are cores.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use baton_runtime::clock;

use super::cluster::{OnFailure, SimulatedCluster};
use super::experiment::{self, RunFigures};
use super::stream::Arrival;
use super::trace::Trace;
use crate::say::remark;

/// The pods of one run, and the time that is measured; the latter where pods end.
pub type ArrivalStream = (Vec<Arrival>, Option<Range<f64>>);

/// Makes the empty cluster of one run from an order of the machines; a policy that draws has its own randomness.
pub type Decider<'a> = Box<dyn Fn(&[usize], fastrand::Rng) -> Box<dyn SimulatedCluster + 'a> + Sync + 'a>;

/// Pause between two lines on standard error.
const PAUSE: Duration = Duration::from_secs(2);

/// What every policy is given.
pub struct Replay<'a> {
    /// Machines and pods.
    pub trace: &'a Trace,
    /// What becomes of a pod for which there is no room.
    pub on_failure: OnFailure,
    /// One run for each.
    pub seeds: Vec<u64>,
    /// The pods of a run, as this randomness orders them.
    pub arrivals: &'a (dyn Fn(&mut fastrand::Rng) -> ArrivalStream + Sync),
}

impl Replay<'_> {
    /// The runs of each policy, by seed. Runs that were stopped are left out.
    pub fn run(&self, deciders: &[Decider<'_>], stop: &CancellationToken) -> Vec<Vec<RunFigures>> {
        let count = deciders.len() * self.seeds.len();
        let next = AtomicUsize::new(0);
        let started = clock::mono();
        // The runs, and when a line on standard error said how many there are.
        let done: Mutex<(Vec<(usize, RunFigures)>, Duration)> = Mutex::new((Vec::new(), started));
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count || stop.is_cancelled() {
                    return;
                }
                let (decider, seed) = (&deciders[at / self.seeds.len()], self.seeds[at % self.seeds.len()]);
                if let Some(run) = self.run_one(decider, seed, stop)
                    && let Ok(mut done) = done.lock()
                {
                    done.0.push((at, run));
                    let (now, count_done) = (clock::mono(), done.0.len());
                    if now.saturating_sub(done.1) >= PAUSE {
                        done.1 = now;
                        let seconds = now.saturating_sub(started).as_secs();
                        remark(format_args!("{count_done} of {count} runs done in {seconds} s"));
                    }
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(count);
        std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
        let (mut done, _) = done.into_inner().unwrap_or_default();
        done.sort_by_key(|(at, _)| *at);
        let mut runs: Vec<Vec<RunFigures>> = deciders.iter().map(|_| Vec::new()).collect();
        done.into_iter().for_each(|(at, run)| runs[at / self.seeds.len()].push(run));
        runs
    }

    /// The same arrivals and the same order of nodes for every policy.
    fn run_one(&self, decider: &Decider<'_>, seed: u64, stop: &CancellationToken) -> Option<RunFigures> {
        let mut random = fastrand::Rng::with_seed(seed);
        let (arrivals, measured) = (self.arrivals)(&mut random);
        let mut order: Vec<usize> = (0..self.trace.machines.len()).collect();
        random.shuffle(&mut order);
        let mut cluster = decider(&order, random.fork());
        experiment::run(self.trace, &arrivals, measured, self.on_failure, &mut *cluster, stop)
    }
}
