//! Polls the ports of the NICs: on the poll thread, because sysfs may block, and reported only when there is something to judge.
//! When a NIC makes the poll thread hang, the thread is replaced, and the old one is left to that NIC.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::nic_reads::{NicReadError, NicReads, ReadTicket};
use super::scan::Ports;
use baton_hardware::Bdf;
use baton_hardware::nic::{Port, PortState};
use baton_runtime::PollThread;
use baton_runtime::alarm::{Alarm, Rings, alarm};

/// Reads the ports of one NIC; `None` when it is not in view any more.
pub type ReadPorts = Box<dyn Fn(Bdf) -> Option<Result<Vec<Port>, String>> + Send + Sync>;

/// What is looked at, and what came of it.
pub struct PortMonitor {
    watched: Arc<Watched>,
    poll_thread: PollThread,
    period: Duration,
    found: mpsc::Receiver<Ports>,
    late: Rings,
}

struct Watched {
    nics: ArcSwap<Vec<Bdf>>,
    /// A NIC is out of service: every look counts.
    ailing: AtomicBool,
    read: ReadPorts,
    reads: NicReads,
    /// The read in hand.
    in_hand: Mutex<Option<(Bdf, ReadTicket)>>,
    /// Rings when it is late.
    alarm: Alarm,
    reported: Mutex<Option<Ports>>,
    sender: mpsc::Sender<Ports>,
}

impl PortMonitor {
    /// Looks every `period`; at nothing before [`PortMonitor::watch`]. Must be called on a runtime.
    pub fn start(
        poll_thread: &PollThread,
        read: ReadPorts,
        reads: NicReads,
        period: Duration,
    ) -> std::io::Result<Self> {
        // One waits while another is judged. What finds no room is looked at again.
        let (sender, found) = mpsc::channel(1);
        let (alarm, late) = alarm()?;
        let watched = Watched {
            nics: ArcSwap::default(),
            ailing: AtomicBool::default(),
            read,
            reads,
            in_hand: Mutex::default(),
            alarm,
            reported: Mutex::default(),
            sender,
        };
        let links = Self { watched: Arc::new(watched), poll_thread: poll_thread.clone(), period, found, late };
        links.post();
        Ok(links)
    }

    fn post(&self) {
        let watched = self.watched.clone();
        self.poll_thread.every(self.period, Box::new(move || watched.look()));
    }

    /// Looks at these from now on; at all of them each time while one is `ailing`.
    pub fn watch(&self, nics: Vec<Bdf>, ailing: bool) {
        self.watched.nics.store(Arc::new(nics));
        self.watched.ailing.store(ailing, Ordering::Release);
    }

    /// The next look that has to be judged. The error is the system's lack of threads. Cancel-safe.
    pub async fn next(&mut self) -> std::io::Result<Ports> {
        loop {
            tokio::select! {
                // This has a sender of its own.
                Some(found) = self.found.recv() => return Ok(found),
                () = self.late.next() => {}
            }
            if let Some((bdf, trouble)) = self.watched.leave_behind() {
                self.poll_thread.replace()?;
                self.post();
                return Ok(vec![(bdf, Err(trouble))]);
            }
        }
    }
}

impl Drop for PortMonitor {
    fn drop(&mut self) {
        self.found.close();
    }
}

impl Watched {
    /// `false` when no other look is wanted.
    fn look(&self) -> bool {
        let mut ports = Ports::new();
        for bdf in self.nics.load().iter().copied() {
            match self.reads.begin(Some(bdf)) {
                Err(trouble) => ports.push((bdf, Err(trouble))),
                Ok(ticket) => {
                    self.hold(Some((bdf, ticket)));
                    self.alarm.set(self.reads.deadline());
                    let read = (self.read)(bdf);
                    if !self.reads.end(ticket) {
                        // Another look was posted in the place of this one.
                        return false;
                    }
                    ports.extend(read.map(|read| (bdf, read.map_err(NicReadError::Unreadable))));
                }
            }
        }
        self.alarm.clear();
        self.hold(None);
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = all_active(&ports) && !self.ailing.load(Ordering::Acquire) && reported.as_ref() == Some(&ports);
        let is_news = !ports.is_empty() && !quiet;
        if is_news && self.sender.try_send(ports.clone()).is_ok() {
            *reported = Some(ports);
        }
        !self.sender.is_closed()
    }

    fn hold(&self, read: Option<(Bdf, ReadTicket)>) {
        *self.in_hand.lock().unwrap_or_else(PoisonError::into_inner) = read;
    }

    /// Gives up the read in hand when it is late.
    fn leave_behind(&self) -> Option<(Bdf, NicReadError)> {
        let (bdf, ticket) = (*self.in_hand.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some((bdf, self.reads.leave_behind(ticket)?))
    }
}

fn all_active(ports: &Ports) -> bool {
    ports.iter().all(|(_, ports)| {
        ports.as_ref().is_ok_and(|ports| !ports.is_empty() && ports.iter().all(|port| port.state == PortState::Active))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn nic(at: u32) -> Bdf {
        format!("0000:{at:02x}:00.0").parse().unwrap()
    }

    fn port(state: PortState) -> Port {
        Port { number: 1, state, phys_state: None, link_layer: None, rate: None }
    }

    #[tokio::test]
    async fn a_nic_that_hangs_is_told_at_its_deadline_and_the_others_are_still_looked_at() {
        let poll_thread = PollThread::start().unwrap();
        let (open, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let down = Arc::new(AtomicBool::new(false));
        let seen = down.clone();
        let read = move |bdf| {
            if bdf == nic(0) {
                let _ = gate.lock().unwrap().recv();
            }
            let is_down = bdf == nic(1) && seen.load(Ordering::Acquire);
            Some(Ok(vec![port(if is_down { PortState::Down } else { PortState::Active })]))
        };
        let period = Duration::from_millis(5);
        let reads = NicReads::new(Duration::from_millis(40));
        let mut links = PortMonitor::start(&poll_thread, Box::new(read), reads, period).unwrap();
        links.watch(vec![nic(0), nic(1)], false);
        let patience = Duration::from_secs(20);
        let mut next = async || tokio::time::timeout(patience, links.next()).await.expect("a look").unwrap();
        let first = next().await;
        assert!(matches!(&first[..], [(bdf, Err(NicReadError::Hangs(_)))] if *bdf == nic(0)), "{first:?}");
        down.store(true, Ordering::Release);
        let is_down = |ports: &Ports| {
            matches!(&ports[..], [(_, Err(NicReadError::Hangs(_))), (bdf, Ok(ports))]
                if *bdf == nic(1) && ports[0].state == PortState::Down)
        };
        while !is_down(&next().await) {}
        drop(open);
        while next().await.iter().any(|(_, ports)| ports.is_err()) {}
    }
}
