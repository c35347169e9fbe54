//! Requests and clients that do not behave. None may harm the process or another client.

use tokio::io::AsyncWriteExt;

use super::process::{Extender, answer, head, request};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_bodies_get_400_with_the_reason_and_the_process_lives() {
    let mut extender = Extender::start(&["n1"]).await;
    let deep = format!("{{\"Pod\": {}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let pod = |spec: &str| {
        format!("{{\"Pod\": {{\"metadata\": {{\"name\": \"p\"}}, \"spec\": {spec}}}, \"NodeNames\": [\"n1\"]}}")
    };
    for (path, body, reason) in [
        ("/filter", String::new(), "EOF"),
        ("/filter", "{".to_owned(), "EOF"),
        ("/filter", "[]".to_owned(), "invalid"),
        ("/filter", "null".to_owned(), "null"),
        ("/filter", "{\"NodeNames\": [\"n1\"]}".to_owned(), "Pod"),
        ("/filter", "{\"Pod\": null, \"NodeNames\": [\"n1\"]}".to_owned(), "Pod is not an object"),
        ("/filter", "{\"Pod\": {}, \"NodeNames\": \"n1\"}".to_owned(), "sequence"),
        ("/filter", "{\"Pod\": {}, \"Nodes\": {\"items\": [{}]}}".to_owned(), "metadata.name"),
        ("/filter", pod("{\"containers\": 7}"), "Pod cannot be read"),
        ("/filter", pod("{\"priority\": \"high\"}"), "Pod cannot be read"),
        ("/filter", deep.clone(), "recursion limit"),
        ("/prioritize", "{\"Pod\": 1}".to_owned(), "Pod is not an object"),
        ("/preempt", "{\"Pod\": {}, \"NodeNameToMetaVictims\": []}".to_owned(), "map"),
        ("/bind", "{\"PodName\": \"p\"}".to_owned(), "PodNamespace"),
        (
            "/bind",
            json!({"PodName": "", "PodNamespace": "ml", "PodUID": "u", "Node": "n1"}).to_string(),
            "PodName is empty",
        ),
        ("/bind", json!({"PodName": "../x", "PodNamespace": "ml", "PodUID": "u", "Node": "n1"}).to_string(), "PodName"),
        ("/bind", deep, "missing field"),
    ] {
        let (status, text) = request(extender.address, "POST", path, &body).await.unwrap();
        let shown: String = body.chars().take(60).collect();
        assert_eq!(status, 400, "{path} {shown}: {text}");
        assert!(text.contains(reason), "{path} {shown}: {text:?} does not say {reason:?}");
        extender.lives().await;
    }
    assert_eq!(request(extender.address, "GET", "/filter", "").await.unwrap().0, 405);
    assert_eq!(request(extender.address, "POST", "/other", "{}").await.unwrap().0, 404);
    let mut stream = TcpStream::connect(extender.address).await.unwrap();
    stream.write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n").await.unwrap();
    answer(&mut stream).await;
    extender.lives().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_8_mib_is_413_whether_announced_or_streamed_and_just_below_is_read() {
    let mut extender = Extender::start(&["n1"]).await;
    let padded = |size: usize| {
        let body =
            json!({"Pod": {"metadata": {"name": "p", "annotations": {"x": "y".repeat(size)}}}, "NodeNames": ["n1"]});
        body.to_string()
    };
    let (status, text) = request(extender.address, "POST", "/filter", &padded(8 << 20)).await.unwrap();
    assert_eq!(status, 413, "{text}");
    let mut stream = TcpStream::connect(extender.address).await.unwrap();
    let start = "POST /filter HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    stream.write_all(start.as_bytes()).await.unwrap();
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
    for _ in 0..9 {
        // The server may answer and close at any point of this.
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let (status, text) = answer(&mut stream).await;
    assert_eq!(status, 413, "{text}");
    let (status, text) = request(extender.address, "POST", "/filter", &padded((8 << 20) - 200)).await.unwrap();
    assert_eq!(status, 200, "{text}");
    extender.lives().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_hold_up_nobody_and_are_cut_off() {
    let extender = Extender::start(&["n1"]).await;
    let body = json!({"Pod": {"metadata": {"name": "p"}}, "NodeNames": ["n1"]}).to_string();
    let mut slow = Vec::new();
    for at in 0..100 {
        let mut stream = TcpStream::connect(extender.address).await.unwrap();
        // Half of them stop inside the head, half inside the body.
        let head = head("POST", "/filter", body.len());
        let sent = if at % 2 == 0 { &head[..20] } else { &format!("{head}{}", &body[..10]) };
        stream.write_all(sent.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let start = tokio::time::Instant::now();
    for _ in 0..20 {
        let (status, text) = request(extender.address, "POST", "/filter", &body).await.unwrap();
        assert_eq!(status, 200, "{text}");
    }
    let taken = start.elapsed();
    println!("20 calls beside 100 slow clients: {taken:?}");
    assert!(taken < Duration::from_secs(4), "{taken:?}: they waited for the slow ones");
    let (status, text) = answer(&mut slow[1]).await;
    assert_eq!(status, 408, "{text}");
}
