//! A bare HTTP/1.1 client: nothing between the test and the bytes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    /// Headers, lower case.
    pub headers: BTreeMap<String, String>,
    /// Body, without transfer coding.
    pub body: String,
}

/// A request to `address`; the connection is closed after it.
pub async fn send(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, String)],
    body: Option<&str>,
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address).await?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    if let Some(body) = body {
        let _ = write!(head, "Content-Length: {}\r\n", body.len());
    }
    head.push_str("\r\n");
    head.push_str(body.unwrap_or_default());
    stream.write_all(head.as_bytes()).await?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    Ok(parse(&bytes))
}

fn parse(bytes: &[u8]) -> Answer {
    let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head ends with an empty line");
    let head = String::from_utf8_lossy(&bytes[..at]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|l| l.split(' ').nth(1)).and_then(|s| s.parse().ok()).expect("a status line");
    let headers: BTreeMap<String, String> =
        lines.filter_map(|l| l.split_once(':')).map(|(k, v)| (k.trim().to_lowercase(), v.trim().to_owned())).collect();
    let rest = &bytes[at + 4..];
    let chunked = headers.get("transfer-encoding").is_some_and(|v| v == "chunked");
    let body = if chunked { dechunk(rest) } else { rest.to_vec() };
    Answer { status, headers, body: String::from_utf8(body).expect("bodies are UTF-8") }
}

fn dechunk(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap_or_default().trim(), 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        out.extend_from_slice(&rest[at + 2..at + 2 + size]);
        rest = &rest[at + 2 + size + 2..];
    }
    out
}
