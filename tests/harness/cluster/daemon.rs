//! A daemon as it ships: the real binary as a child process that tests kill, freeze and start again.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// One `baton …` process. Killed when dropped.
pub struct Daemon {
    binary: OsString,
    args: Vec<OsString>,
    log: PathBuf,
    /// Variables of its environment, from its next start on.
    pub env: Vec<(&'static str, OsString)>,
    child: Option<Child>,
}

impl Daemon {
    /// Starts `baton args…`; its output is appended to `log`.
    pub fn start(args: Vec<OsString>, log: PathBuf) -> Self {
        let mut daemon = Self::idle(args, log);
        daemon.restart();
        daemon
    }

    /// The same, not started yet.
    pub fn idle(args: Vec<OsString>, log: PathBuf) -> Self {
        Self { binary: binary(), args, log, env: Vec::new(), child: None }
    }

    /// Kills what runs and starts the same command of another build.
    pub fn restart_as(&mut self, binary: impl Into<OsString>) {
        self.binary = binary.into();
        self.restart();
    }

    /// Kills what runs and starts the same command again.
    pub fn restart(&mut self) {
        self.kill();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).expect("log file");
        let err = log.try_clone().expect("log file");
        let (program, args) = self.command();
        let child = Command::new(program)
            .args(args)
            .envs(self.env.iter().cloned())
            // Not by flags: earlier versions do not know them.
            .env("BATON_METRICS_LISTEN", "127.0.0.1:0")
            .env("BATON_PROBE_LISTEN", "127.0.0.1:0")
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::from(err))
            .spawn()
            .expect("baton starts");
        self.child = Some(child);
    }

    /// The node daemon is a program of its own beside `baton`; earlier builds have only the command.
    fn command(&self) -> (PathBuf, &[OsString]) {
        let baton = PathBuf::from(&self.binary);
        let alone = baton.with_file_name("baton-device-plugin");
        match self.args.split_first() {
            Some((command, args)) if command == "device-plugin" && alone.exists() => (alone, args),
            _ => (baton, &self.args),
        }
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    /// Sends it a signal, by its name.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().expect("it runs").to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs").success());
    }

    /// Process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The address that it has logged last: `probes`, `metrics` or `admin HTTP`.
    pub fn address(&self, what: &str) -> Option<SocketAddr> {
        self.output().rsplit_once(&format!("{what} address="))?.1.split_whitespace().next()?.parse().ok()
    }

    /// What its admin HTTP answers to GET `path`: status line and body; `None` while it does not answer.
    pub async fn get(&self, path: &str) -> Option<String> {
        self.get_at("admin HTTP", path).await
    }

    /// The same of another address.
    pub async fn get_at(&self, what: &str, path: &str) -> Option<String> {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(self.address(what)?).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }

    /// Everything it has written so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Times by which a killed leader is replaced soon: beside what else [`timings`] names.
pub const QUICK_LEASE: &str = "lease_duration: 3s, lease_renew_deadline: 2s, lease_retry: 200ms";

/// The argument that shortens times which a daemon fixes, such as `lease_retry: 500ms, backoff: 100ms`: a file with the hidden key.
pub fn timings(words: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name: String = words.chars().filter(char::is_ascii_alphanumeric).collect();
    let path = folder.join(format!("timings-{name}.yaml"));
    let file = tempfile::NamedTempFile::new_in(folder).expect("a file");
    std::fs::write(file.path(), format!("timings: {{{words}}}\n")).expect("is written");
    // Another test may have written the same.
    file.persist(&path).expect("is named");
    format!("--config-file={}", path.display())
}

/// The binary under test: the one that `BATON_BINARY` names (the image's build, say), or else this build's.
pub fn binary() -> OsString {
    std::env::var_os("BATON_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_baton").into())
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let output = self.output();
            let tail = output.lines().rev().take(40).collect::<Vec<_>>();
            eprintln!("--- last lines of {}", self.log.display());
            for line in tail.iter().rev() {
                eprintln!("{line}");
            }
        }
    }
}
