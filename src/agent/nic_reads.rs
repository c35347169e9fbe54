//! Reading of NICs that may hang: sysfs asks a NIC's firmware for the state of its ports, and one that is stuck answers after a
//! minute or never. A read past its deadline is left behind with its thread, the NIC is out of service until that read comes
//! back, and the others are read by another thread.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_hardware::nic::Port;
use baton_hardware::rdma::{RdmaEntry, ReadRdmaEntry};
use baton_hardware::{Bdf, NicFault, NicInfo};
use baton_runtime::clock;

/// Reads that are left behind before no more are begun: each keeps a thread.
const MAX_HUNG: usize = 8;
/// Stack of a thread that reads NICs; only touched pages count.
const STACK: usize = 256 << 10;

/// Why nothing is known of the ports of a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NicReadError {
    /// The kernel says no.
    Unreadable(String),
    /// A read of it does not come back, or is not tried because too many do not.
    Hangs(String),
}

/// The reads under way. Clones share them.
#[derive(Debug, Clone)]
pub struct NicReads {
    deadline: Duration,
    state: Arc<Mutex<ReadState>>,
}

#[derive(Debug, Default)]
struct ReadState {
    next: u64,
    under_way: BTreeMap<u64, PendingRead>,
}

#[derive(Debug)]
struct PendingRead {
    /// `None` where an entry of the class does not say whose it is.
    bdf: Option<Bdf>,
    began: Duration,
    left_behind: bool,
}

/// A read under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReadTicket(u64);

/// Reads the ports of one NIC; `None` when it is not in view any more.
pub type ReadPorts = Arc<dyn Fn(&Bdf) -> PortsInView + Send + Sync>;
type PortsInView = Option<Result<Vec<Port>, String>>;

/// NICs whose ports were read. Those that are not in view any more are left out: a scan judges that.
pub type PortReads = Vec<(Bdf, Result<Vec<Port>, NicReadError>)>;

impl NicReads {
    /// Reads are left behind after `deadline`.
    pub fn new(deadline: Duration) -> Self {
        Self { deadline, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, ReadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to read a NIC, unless a read of it hangs.
    fn begin(&self, bdf: Option<Bdf>) -> Result<ReadTicket, NicReadError> {
        let mut state = self.lock();
        let hung = || state.under_way.values().filter(|read| read.left_behind);
        if hung().any(|read| read.bdf == bdf) {
            return Err(self.hangs());
        }
        if hung().count() >= MAX_HUNG {
            let what =
                format!("not read: reads of {MAX_HUNG} NICs do not come back, and no more are tried until one does");
            return Err(NicReadError::Hangs(what));
        }
        let ticket = state.next;
        state.next += 1;
        state.under_way.insert(ticket, PendingRead { bdf, began: clock::mono(), left_behind: false });
        Ok(ReadTicket(ticket))
    }

    /// A read came back. `false` when it was left behind: its thread has to end.
    fn end(&self, ticket: ReadTicket) -> bool {
        self.lock().under_way.remove(&ticket.0).is_some_and(|read| !read.left_behind)
    }

    /// Leaves a read behind that has not come back, when it is past its deadline.
    fn leave_behind(&self, ticket: ReadTicket) -> Option<NicReadError> {
        let mut state = self.lock();
        let read = state.under_way.get_mut(&ticket.0)?;
        // The wait may have ended a moment before the clock says so.
        let is_late = clock::mono() + Duration::from_millis(1) >= read.began + self.deadline;
        if read.left_behind || !is_late {
            return None;
        }
        read.left_behind = true;
        Some(self.hangs())
    }

    fn hangs(&self) -> NicReadError {
        let deadline = self.deadline;
        NicReadError::Hangs(format!(
            "a read of its state in sysfs has not come back after {deadline:?}; its firmware may be stuck"
        ))
    }

    /// Reads all entries; as `each` does it.
    pub fn entries(&self, entries: &[RdmaEntry], read: &ReadRdmaEntry) -> Vec<Result<Option<NicInfo>, NicFault>> {
        let answers = self.each(entries, |entry| entry.bdf, read).into_iter().zip(entries);
        let fault = |(answer, entry): (Result<_, NicReadError>, &RdmaEntry)| match answer {
            Ok(answer) => answer,
            Err(NicReadError::Hangs(why)) => Err(NicFault { hangs: true, ..entry.fault(why) }),
            Err(NicReadError::Unreadable(why)) => Err(entry.fault(why)),
        };
        answers.map(fault).collect()
    }

    /// Reads the ports of all NICs; as `each` does it.
    pub fn ports(&self, nics: &[Bdf], read: &ReadPorts) -> PortReads {
        let answers = nics.iter().copied().zip(self.each(nics, |bdf| Some(*bdf), read));
        let in_view = |(bdf, answer): (Bdf, Result<PortsInView, _>)| match answer {
            Ok(ports) => Some((bdf, ports?.map_err(NicReadError::Unreadable))),
            Err(error) => Some((bdf, Err(error))),
        };
        answers.filter_map(in_view).collect()
    }

    /// Reads one after another on a thread of its own, and goes on without those that hang. Blocks, for each that hangs up to the
    /// deadline.
    fn each<T: Clone + Send + 'static, A: Send + 'static>(
        &self,
        items: &[T],
        bdf: fn(&T) -> Option<Bdf>,
        read: &Arc<dyn Fn(&T) -> A + Send + Sync>,
    ) -> Vec<Result<A, NicReadError>> {
        let mut answers = Vec::with_capacity(items.len());
        while let Some(left) = items.get(answers.len()..).filter(|left| !left.is_empty()) {
            if let Some(error) = self.each_of_one_thread(left, bdf, read, &mut answers) {
                answers.push(Err(error));
            }
        }
        answers
    }

    /// The answers of `left` up to the one that hangs.
    fn each_of_one_thread<T: Clone + Send + 'static, A: Send + 'static>(
        &self,
        left: &[T],
        bdf: fn(&T) -> Option<Bdf>,
        read: &Arc<dyn Fn(&T) -> A + Send + Sync>,
        answers: &mut Vec<Result<A, NicReadError>>,
    ) -> Option<NicReadError> {
        let (sender, messages) = mpsc::channel();
        let (reads, work, read) = (self.clone(), left.to_vec(), read.clone());
        let body = move || {
            for item in work {
                let begun = reads.begin(bdf(&item));
                if sender.send(ReadMessage::Begun(begun.clone())).is_err() {
                    if let Ok(ticket) = begun {
                        reads.end(ticket);
                    }
                    return;
                }
                let Ok(ticket) = begun else { continue };
                let answer = read(&item);
                if !reads.end(ticket) || sender.send(ReadMessage::Read(answer)).is_err() {
                    return;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("nic-read".to_owned()).stack_size(STACK).spawn(body) {
            return Some(NicReadError::Unreadable(format!("no thread to read it: {error}")));
        }
        let ended = || Some(NicReadError::Unreadable("its read ended unexpectedly".to_owned()));
        for _ in left {
            let ticket = match messages.recv() {
                Ok(ReadMessage::Begun(Ok(ticket))) => ticket,
                Ok(ReadMessage::Begun(Err(error))) => {
                    answers.push(Err(error));
                    continue;
                }
                Ok(ReadMessage::Read(_)) | Err(_) => return ended(),
            };
            loop {
                match messages.recv_timeout(self.deadline) {
                    Ok(ReadMessage::Read(answer)) => break answers.push(Ok(answer)),
                    Ok(ReadMessage::Begun(_)) | Err(RecvTimeoutError::Disconnected) => return ended(),
                    Err(RecvTimeoutError::Timeout) => {
                        if let Some(error) = self.leave_behind(ticket) {
                            return Some(error);
                        }
                    }
                }
            }
        }
        None
    }
}

/// What a reading thread reports.
enum ReadMessage<A> {
    Begun(Result<ReadTicket, NicReadError>),
    Read(A),
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    fn entry(at: u32) -> RdmaEntry {
        RdmaEntry { ibdev: format!("mlx5_{at}"), bdf: Some(format!("0000:{at:02x}:00.0").parse().unwrap()) }
    }

    /// Answers "no hardware" for each entry but those named, which wait for the gate.
    fn stuck(at: &'static [u32], gate: Receiver<()>) -> ReadRdmaEntry {
        let gate = Mutex::new(gate);
        Arc::new(move |read: &RdmaEntry| {
            if at.iter().any(|at| entry(*at) == *read) {
                let _ = gate.lock().unwrap().recv();
            }
            Ok(None)
        })
    }

    fn why(answer: &Result<Option<NicInfo>, NicFault>) -> Option<&str> {
        answer.as_ref().err().filter(|fault| fault.hangs).map(|fault| fault.reason.as_str())
    }

    #[test]
    fn a_nic_whose_read_hangs_fails_alone_and_is_read_again_when_that_read_ends() {
        let (open, gate) = channel();
        let (reads, read) = (NicReads::new(SHORT), stuck(&[1], gate));
        let all: Vec<RdmaEntry> = (0..4).map(entry).collect();
        let first = reads.entries(&all, &read);
        assert_eq!(first.iter().map(|answer| why(answer).is_some()).collect::<Vec<_>>(), [false, true, false, false]);
        assert!(why(&first[1]).unwrap().contains("has not come back after 30ms"), "{first:?}");
        let again = reads.entries(&all, &read);
        assert_eq!(again, first, "it is not asked again, so nothing waits for it");
        assert_eq!(reads.lock().under_way.len(), 1, "one thread is left behind");
        drop(open);
        let begin = clock::mono();
        while !reads.lock().under_way.is_empty() {
            assert!(
                clock::mono().saturating_sub(begin) < Duration::from_secs(20),
                "the read that came back is still under way"
            );
            std::thread::yield_now();
        }
        assert!(reads.entries(&all, &read).iter().all(Result::is_ok));
    }

    #[test]
    fn ports_of_a_nic_that_hangs_hide_no_other_and_one_out_of_view_is_left_out() {
        let (_open, gate) = channel::<()>();
        let gate = Mutex::new(gate);
        let nics: Vec<Bdf> = (0..4).filter_map(|at| entry(at).bdf).collect();
        let at = nics.clone();
        let read: ReadPorts = Arc::new(move |bdf: &Bdf| match at.iter().position(|nic| nic == bdf)? {
            0 => Some(Err("denied".to_owned())),
            1 => gate.lock().unwrap().recv().ok().map(|()| Ok(Vec::new())),
            2 => None,
            _ => Some(Ok(Vec::new())),
        });
        let reads = NicReads::new(SHORT);
        let hangs = |answer: &Result<Vec<Port>, NicReadError>| matches!(answer, Err(NicReadError::Hangs(_)));
        for _ in 0..2 {
            let ports = reads.ports(&nics, &read);
            let [(first, denied), (second, stuck), (last, read)] = &ports[..] else { panic!("{ports:?}") };
            assert_eq!((*first, *second, *last), (nics[0], nics[1], nics[3]));
            assert_eq!(*denied, Err(NicReadError::Unreadable("denied".to_owned())));
            assert!(hangs(stuck), "{stuck:?}");
            assert_eq!(*read, Ok(Vec::new()));
        }
        assert_eq!(reads.lock().under_way.len(), 1, "it is not asked again");
    }

    #[test]
    fn no_read_is_begun_when_too_many_hang() {
        static ALL: [u32; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        let (_open, gate) = channel();
        let reads = NicReads::new(Duration::from_millis(2));
        // The gate is a lock as well: the second read hangs before it.
        let answers = reads.entries(&ALL.map(entry), &stuck(&ALL, gate));
        assert!(answers.iter().all(|answer| why(answer).is_some()), "{answers:?}");
        assert!(why(&answers[9]).unwrap().starts_with("not read: reads of 8 NICs"), "{answers:?}");
        assert_eq!(reads.lock().under_way.len(), MAX_HUNG);
    }
}
