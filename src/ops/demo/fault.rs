//! `baton demo fault`: what breaks in a kept demo. The command sends its words to the demo's process, which breaks it.

use std::fmt;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::live::Access;
use crate::say::{UsageError, say};

/// Name of the demo's socket, beside its kubeconfig.
pub const SOCKET: &str = "faults.sock";
/// Longest time for a fault to be made.
const LIMIT: Duration = Duration::from_secs(30);

/// What is to break.
#[derive(Debug, Clone, Args)]
pub struct FaultArgs {
    /// `NODE/gpu-3 xid 79`, `NODE/gpu-3 lose`, `NODE/gpu-3 find`, `NODE/nic-0 down`, `NODE/nic-0 up`, `NODE daemon stop`,
    /// `NODE daemon start`, `NODE kubelet stop`, `NODE kubelet start`, `NODE lock`.
    #[arg(required = true, num_args = 1.., value_name = "NODE[/DEVICE] FAULT")]
    pub words: Vec<String>,
    /// Which kept demo: that of KUBECONFIG.
    #[command(flatten)]
    pub access: Access,
}

/// A fault of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoFault {
    pub node: String,
    pub what: FaultKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The driver reports a critical error of a GPU.
    Xid(usize, u64),
    /// A GPU falls off the bus, or comes back.
    Lost(usize, bool),
    /// The port of a NIC goes down, or comes up.
    Down(usize, bool),
    /// The node daemon ends and stays away, or starts.
    Daemon(bool),
    /// The kubelet ends, or starts.
    Kubelet(bool),
    /// A lock is left behind by a pod that does not exist.
    Lock,
}

impl DemoFault {
    /// Reads the words of the command line.
    pub fn parse(words: &[&str]) -> Result<Self, UsageError> {
        let bad = || {
            let faults = "xid NUMBER, lose, find of NODE/gpu-3; down, up of NODE/nic-0; daemon stop|start, kubelet stop|start, lock of NODE";
            UsageError(format!("{:?} is no fault: expected {faults}", words.join(" ")))
        };
        // `NODE gpu-3 lose` as `NODE/gpu-3 lose`.
        let mut parts = words.iter().flat_map(|word| word.split('/'));
        let node = parts.next().filter(|node| !node.is_empty()).ok_or_else(bad)?.to_owned();
        let rest: Vec<&str> = parts.collect();
        let number =
            |name: &str, kind: &str| name.strip_prefix(kind).and_then(|number| number.parse().ok()).ok_or_else(bad);
        let what = match &*rest {
            [gpu, "xid", xid] => FaultKind::Xid(number(gpu, "gpu-")?, xid.parse().map_err(|_| bad())?),
            [gpu, word @ ("lose" | "find")] => FaultKind::Lost(number(gpu, "gpu-")?, *word == "lose"),
            [nic, word @ ("down" | "up")] => FaultKind::Down(number(nic, "nic-")?, *word == "down"),
            ["daemon", word @ ("stop" | "start")] => FaultKind::Daemon(*word == "stop"),
            ["kubelet", word @ ("stop" | "start")] => FaultKind::Kubelet(*word == "stop"),
            ["lock"] => FaultKind::Lock,
            _ => return Err(bad()),
        };
        Ok(Self { node, what })
    }
}

impl fmt::Display for DemoFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.node;
        match self.what {
            FaultKind::Xid(gpu, xid) => write!(f, "the driver of {node} reports XID {xid} of gpu-{gpu}"),
            FaultKind::Lost(gpu, true) => write!(f, "gpu-{gpu} of {node} falls off the bus"),
            FaultKind::Lost(gpu, false) => write!(f, "gpu-{gpu} of {node} is back on the bus"),
            FaultKind::Down(nic, true) => write!(f, "the port of nic-{nic} of {node} goes down"),
            FaultKind::Down(nic, false) => write!(f, "the port of nic-{nic} of {node} comes up"),
            FaultKind::Daemon(true) => write!(f, "the node daemon of {node} ends, and stays away"),
            FaultKind::Daemon(false) => write!(f, "the node daemon of {node} starts"),
            FaultKind::Kubelet(true) => write!(f, "the kubelet of {node} ends"),
            FaultKind::Kubelet(false) => write!(f, "the kubelet of {node} starts"),
            FaultKind::Lock => write!(f, "{node} is locked by a pod that does not exist"),
        }
    }
}

/// Sends the words to the kept demo and prints its answer.
pub fn run(args: &FaultArgs) -> anyhow::Result<()> {
    let words: Vec<&str> = args.words.iter().flat_map(|word| word.split_whitespace()).collect();
    DemoFault::parse(&words)?;
    let config = args.access.kubeconfig.clone().or_else(|| Some(std::env::var_os("KUBECONFIG")?.into()));
    let folder = config.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
    let socket = folder.join(SOCKET);
    let absent = || {
        format!(
            "{} is not the socket of a kept demo: run `baton demo --keep`, and export the KUBECONFIG that it prints",
            socket.display()
        )
    };
    let mut stream = UnixStream::connect(&socket).with_context(absent)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(words.join(" ").as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the demo does not answer")?;
    match answer.strip_prefix("error: ") {
        Some(why) => bail!("{why}"),
        None => say(format!("{answer}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_documented() {
        let read =
            |line: &str| DemoFault::parse(&line.split(' ').collect::<Vec<_>>()).map(|fault| (fault.node, fault.what));
        for (line, what) in [
            ("node-1/gpu-3 xid 79", FaultKind::Xid(3, 79)),
            ("node-1/gpu-3 lose", FaultKind::Lost(3, true)),
            ("node-1/gpu-3 find", FaultKind::Lost(3, false)),
            ("node-1/nic-0 down", FaultKind::Down(0, true)),
            ("node-1 nic-0 up", FaultKind::Down(0, false)),
            ("node-1 daemon stop", FaultKind::Daemon(true)),
            ("node-1 kubelet start", FaultKind::Kubelet(false)),
            ("node-1 lock", FaultKind::Lock),
        ] {
            assert_eq!(read(line).unwrap(), ("node-1".to_owned(), what), "{line}");
        }
        let bad = "|node-1|node-1 explode|node-1/gpu-x lose|node-1/nic-0 lose|node-1/gpu-3 xid|/gpu-3 lose";
        for bad in bad.split('|') {
            assert!(read(bad).unwrap_err().to_string().contains("is no fault"), "{bad}");
        }
    }
}
