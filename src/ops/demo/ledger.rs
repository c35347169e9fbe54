//! The node daemon's ledger, read over its admin HTTP.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::report::Devices;

const LIMIT: Duration = Duration::from_secs(5);

/// One line of `/ledger`, as far as the demo compares it.
#[derive(Debug, Deserialize)]
struct Line {
    uid: String,
    /// Devices that were served, by type.
    served: BTreeMap<String, Vec<String>>,
}

/// What the daemon at `address` served, by pod uid.
pub async fn read(address: &str) -> anyhow::Result<BTreeMap<String, Devices>> {
    let body = tokio::time::timeout(LIMIT, get(address, "/ledger"))
        .await
        .with_context(|| format!("no answer from http://{address}/ledger within {} s", LIMIT.as_secs()))?
        .with_context(|| format!("cannot read http://{address}/ledger"))?;
    parse(&body).with_context(|| format!("http://{address}/ledger answered something else than a ledger: {body}"))
}

fn parse(body: &str) -> anyhow::Result<BTreeMap<String, Devices>> {
    let lines: Vec<Line> = serde_json::from_str(body)?;
    let mut pods: BTreeMap<String, Devices> = BTreeMap::new();
    for line in lines {
        let devices = pods.entry(line.uid).or_default();
        for (kind, ids) in line.served {
            match kind.as_str() {
                "gpu" => devices.gpu.extend(ids),
                "rdma" => devices.rdma.extend(ids),
                other => bail!("device type {other:?} is not known"),
            }
        }
    }
    Ok(pods)
}

/// One GET without keep-alive: the smallest client that suffices for our own admin address.
async fn get(address: &str, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        bail!("answered {status}");
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containers_of_a_pod_are_put_together() {
        let body = r#"[{"namespace":"d","pod":"p","uid":"u","container":"a","resource":"nvidia.com/gpu","ids":["GPU-b"],"served":{"gpu":["GPU-a"]}},
            {"namespace":"d","pod":"p","uid":"u","container":"b","resource":"koordinator.sh/rdma","ids":["x::1"],"served":{"rdma":["0000:3c:00.0"]}}]"#;
        let pods = parse(body).unwrap();
        assert_eq!(super::super::report::list(&pods["u"]), "GPU-a 0000:3c:00.0");
        assert!(parse("{}").is_err());
    }
}
