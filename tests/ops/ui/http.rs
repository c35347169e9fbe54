//! HTTP by hand, as a browser or a stranger speaks it, and a running `baton ui`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Longest wait for anything that must come.
pub const SOON: Duration = Duration::from_secs(60);

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Sends a request on a connection of its own.
pub fn send(address: &str, line: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut stream = BufReader::new(begin(address, &format!("{line} HTTP/1.1"), headers, body));
    let (mut head, mut text) = (String::new(), String::new());
    while stream.read_line(&mut head).unwrap() > 2 {}
    // chromedriver keeps a connection open, whatever it is asked.
    let length = head
        .to_lowercase()
        .split_once("content-length:")
        .and_then(|(_, rest)| rest.lines().next()?.trim().parse().ok());
    stream.take(length.unwrap_or(u64::MAX)).read_to_string(&mut text).unwrap();
    let status = head.split(' ').nth(1).unwrap_or_else(|| panic!("{line}: no answer")).parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: text }
}

fn begin(address: &str, line: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(stream, "{line}\r\nConnection: close\r\nContent-Length: {}\r\n", body.len()).unwrap();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        write!(stream, "Host: {address}\r\n").unwrap();
    }
    headers.iter().for_each(|(name, value)| write!(stream, "{name}: {value}\r\n").unwrap());
    write!(stream, "\r\n{body}").unwrap();
    stream
}

#[derive(Debug, Default, Clone)]
pub struct Event {
    pub name: String,
    pub id: String,
    pub data: Value,
    /// Of its data.
    pub bytes: usize,
}

pub struct Stream(BufReader<TcpStream>);

impl Stream {
    pub fn next(&mut self) -> Option<Event> {
        let mut event = Event::default();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let line = line.trim_end();
            match line.split_once(": ") {
                Some(("event", name)) => name.clone_into(&mut event.name),
                Some(("id", id)) => id.clone_into(&mut event.id),
                Some(("data", data)) => (event.data, event.bytes) = (serde_json::from_str(data).unwrap(), data.len()),
                _ if line.is_empty() && !event.name.is_empty() => return Some(event),
                _ => {}
            }
        }
    }

    /// The next event for which this holds.
    pub fn until(&mut self, what: &str, holds: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.next().unwrap_or_else(|| panic!("the stream ended without {what}"));
            if holds(&event) {
                return event;
            }
        }
    }
}

pub struct Ui {
    pub child: Child,
    /// The URL that it printed.
    pub url: String,
    /// `127.0.0.1:7070`.
    pub address: String,
    /// Its cookie.
    pub cookie: String,
}

impl Ui {
    pub fn start(kubeconfig: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(crate::harness::daemon::binary());
        command.arg("ui").args(args).env("KUBECONFIG", kubeconfig).env_remove("BATON_ADMIN_URL");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (address, cookie) = parts(&line);
        Self { child, url: line.trim().to_owned(), address, cookie }
    }

    /// A request with the cookie.
    pub fn get(&self, path: &str) -> Answer {
        send(&self.address, &format!("GET {path}"), &[("Cookie", &self.cookie)], "")
    }

    pub fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{path}: {error}: {}", answer.body))
    }

    pub fn stream(&self, last: Option<&str>) -> Stream {
        let cookie = ("Cookie", self.cookie.as_str());
        let headers: Vec<_> = [cookie].into_iter().chain(last.map(|id| ("Last-Event-ID", id))).collect();
        // HTTP/1.0: the body comes without chunks.
        Stream(BufReader::new(begin(&self.address, "GET /api/stream HTTP/1.0", &headers, "")))
    }

    /// Ctrl-C.
    pub fn interrupt(&self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }
}

/// Address and cookie by the URL.
pub fn parts(url: &str) -> (String, String) {
    let (address, token) = url
        .trim()
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once("/?token="))
        .unwrap_or_else(|| panic!("no URL: {url:?}"));
    let port = address.rsplit_once(':').unwrap().1;
    (address.to_owned(), format!("baton-ui-{port}={token}"))
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
