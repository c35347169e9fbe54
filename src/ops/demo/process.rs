//! The daemons as they ship: child processes of this very binary, with their logs in files, ended with the demo.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::say::remark;

/// Time from SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// Where a daemon's log goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonLog {
    /// To `<folder>/<name>.log`.
    File,
    /// And to standard error.
    FileAndStderr,
}

pub struct Daemon {
    /// For messages: `scheduler`, `node-0`.
    pub name: String,
    /// Monotonic time when it starts again.
    pub again: Option<Duration>,
    /// It was stopped on purpose and is not started again.
    pub stays_away: bool,
    args: Vec<String>,
    folder: PathBuf,
    log: DaemonLog,
    child: Child,
}

impl Daemon {
    /// Starts `baton <args>` with nothing of this process's environment.
    pub fn start(name: &str, args: Vec<String>, folder: &Path, log: DaemonLog) -> anyhow::Result<Self> {
        let child = spawn(name, &args, folder, log)?;
        let (name, folder) = (name.to_owned(), folder.to_owned());
        Ok(Self { name, again: None, stays_away: false, args, folder, log, child })
    }

    /// Starts it again after it has ended.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.child = spawn(&self.name, &self.args, &self.folder, self.log)?;
        Ok(())
    }

    /// How it ended; `None` while it runs.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Why the daemon is not running any more, with the end of its log; `None` while it runs.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.status()?;
        Some(format!("{} ended with {status}; its last lines:\n{}", self.name, self.last_lines(12)))
    }

    /// The end of its log.
    pub fn last_lines(&self, count: usize) -> String {
        let text = std::fs::read_to_string(self.folder.join(format!("{}.log", self.name))).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(count)..].iter();
        last.flat_map(|line| ["  ", line, "\n"]).collect()
    }

    /// Asks it to end and waits; kills it when it does not.
    pub async fn stop(&mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
            // A process that just ended cannot be signalled; that is what is wanted.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(GRACE, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

/// Its log is appended to, and its process id goes to `<folder>/<name>.pid`.
fn spawn(name: &str, args: &[String], folder: &Path, log: DaemonLog) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let path = folder.join(format!("{name}.log"));
    let file = File::options().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new(&program);
    // The user's KUBECONFIG or MIG_STRATEGY must not reach a simulated node. Backtraces may.
    command
        .args(args)
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "RUST_BACKTRACE"));
    // A group of its own: Ctrl-C in the terminal is for the demo, which then ends its daemons in order.
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).process_group(0);
    command.stderr(match log {
        DaemonLog::File => Stdio::from(file.try_clone()?),
        DaemonLog::FileAndStderr => Stdio::piped(),
    });
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    if let Some(stderr) = child.stderr.take() {
        forward(name.to_owned(), stderr, file);
    }
    if let Some(pid) = child.id() {
        std::fs::write(folder.join(format!("{name}.pid")), pid.to_string())?;
    }
    Ok(child)
}

fn forward(name: String, stderr: tokio::process::ChildStderr, mut file: File) {
    tokio::spawn(async move {
        let mut lines = BufReader::new(stderr).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            use std::io::Write;
            remark(format_args!("[{name}] {line}"));
            let _ = writeln!(file, "{line}");
        }
    });
}
