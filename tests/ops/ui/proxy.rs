//! Something in front of `baton ui`: a proxy below a sub-path, which can play a stream of its own instead of the real one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use super::http::Ui;

/// Writes the events of a stream until its reader leaves.
pub type Play = Arc<dyn Fn(&mut TcpStream) -> std::io::Result<()> + Send + Sync>;

/// Opens a proxy to `ui`, and answers its URL. It has the cookie, as a proxy that has logged in.
pub fn open(ui: &Ui, play: Option<Play>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/a/b/", listener.local_addr().unwrap());
    let (address, cookie) = (ui.address.clone(), ui.cookie.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (address, cookie, play) = (address.clone(), cookie.clone(), play.clone());
            // A browser that leaves is no error.
            std::thread::spawn(move || drop(answer(stream, &address, &cookie, play)));
        }
    });
    url
}

fn answer(mut stream: TcpStream, address: &str, cookie: &str, play: Option<Play>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        header.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut words = line.split(' ');
    let (Some(method), Some(path)) = (words.next(), words.next().and_then(|path| path.strip_prefix("/a/b"))) else {
        return stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n");
    };
    if let Some(play) = play.filter(|_| path == "/api/stream") {
        stream.write_all(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")?;
        return play(&mut stream);
    }
    let mut upstream = TcpStream::connect(address)?;
    write!(
        upstream,
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nCookie: {cookie}\r\nContent-Length: {length}\r\n\r\n"
    )?;
    upstream.write_all(&body)?;
    let mut buffer = [0; 16 << 10];
    loop {
        let count = upstream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count])?;
        stream.flush()?;
    }
}
