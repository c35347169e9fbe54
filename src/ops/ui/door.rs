//! Who is let in: the browser that opened the printed URL, and no page of another origin.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// A page that another origin shows in a frame, or that loads anything from elsewhere, is refused by the browser.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The page behind the printed URL. It goes on by itself, because a cookie that is `SameSite=Strict` is not sent by a redirect of a
/// navigation that began elsewhere, for example in a file.
const ON: &str = "<!doctype html><meta charset=utf-8><link rel=icon href=icon.svg><meta http-equiv=refresh content='0;url=./'><title>baton</title>";

/// What lets a request in.
pub struct Door {
    token: String,
    /// Cookies are shared by all ports of a host, so the name has the port.
    cookie: String,
    /// The values of `Host` by which this server is reached; every value where it is empty.
    hosts: Vec<String>,
}

/// 128 random bits.
pub fn random() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| anyhow!("this machine gives no random numbers"))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

impl Door {
    /// Of the server at `address`, with a new token. On loopback a request has to name it: a page whose name was pointed to this machine (DNS
    /// rebinding) does not.
    pub fn new(address: SocketAddr) -> anyhow::Result<Self> {
        let port = address.port();
        let mut hosts = Vec::new();
        if address.ip().is_loopback() {
            hosts = vec![address.to_string(), format!("localhost:{port}")];
            // A browser leaves out the port of the scheme.
            let bare = hosts.iter().filter_map(|host| host.strip_suffix(":80").map(str::to_owned));
            hosts.extend(bare.collect::<Vec<_>>());
        }
        Ok(Self { token: random()?, cookie: format!("baton-ui-{port}"), hosts })
    }

    /// What is behind the address in the URL to open.
    pub fn path(&self) -> String {
        format!("/?token={}", self.token)
    }

    /// Compared by digest, so that the time says nothing of the token.
    fn knows(&self, token: &str) -> bool {
        digest(&SHA256, token.as_bytes()).as_ref() == digest(&SHA256, self.token.as_bytes()).as_ref()
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, value)| name == self.cookie && self.knows(value))
    }

    /// Refuses, or the cookie for the printed URL; `None` lets the request in.
    fn answer(&self, request: &Request) -> Option<Response> {
        let headers = request.headers();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let refuse = |status: StatusCode, why: String| Some((status, why + "\n").into_response());
        let host = text(header::HOST);
        if !self.hosts.is_empty() && !self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host)) {
            let here = self.hosts.join(" or ");
            return refuse(StatusCode::MISDIRECTED_REQUEST, format!("host {host:?} is not this server: it is {here}"));
        }
        let query = request.uri().query().unwrap_or_default();
        if let Some(token) = query.strip_prefix("token=").filter(|_| request.uri().path() == "/") {
            if !self.knows(token) {
                return refuse(
                    StatusCode::UNAUTHORIZED,
                    "this token is of an earlier `baton ui`: open the URL that it printed last".to_owned(),
                );
            }
            // Without a path it holds for the folder of the URL, also below a sub-path of a proxy.
            let cookie = format!("{}={}; HttpOnly; SameSite=Strict", self.cookie, self.token);
            return Some(([(header::SET_COOKIE, cookie)], Html(ON)).into_response());
        }
        if !self.has_cookie(headers) {
            return refuse(StatusCode::UNAUTHORIZED, "open the URL that `baton ui` printed: it has a token".to_owned());
        }
        // The cookie of a page at another port of this machine is ours, too.
        let site = text(header::HeaderName::from_static("sec-fetch-site"));
        if !matches!(site, "" | "none" | "same-origin") {
            return refuse(StatusCode::FORBIDDEN, format!("a request of another origin ({site}) is not answered"));
        }
        // An older browser says the origin alone. Behind a proxy that is the proxy's, and a browser that says both is judged above.
        let origin = text(header::ORIGIN);
        let own = |origin: &str| origin.strip_prefix("http://").is_some_and(|of| of.eq_ignore_ascii_case(host));
        if site.is_empty() && !origin.is_empty() && !own(origin) {
            return refuse(StatusCode::FORBIDDEN, format!("a request of another origin ({origin}) is not answered"));
        }
        None
    }
}

/// Lets a request in or answers it, and says what the browser may do with our pages.
pub async fn check(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let mut response = match door.answer(&request) {
        Some(response) => response,
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn status(door: &Door, uri: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = door.answer(&request.body(Body::empty()).unwrap());
        answer.map_or(200, |response| response.status().as_u16())
    }

    #[test]
    fn only_the_browser_that_opened_the_url_is_let_in() {
        let door = Door::new("127.0.0.1:7070".parse().unwrap()).unwrap();
        let (host, cookie) = (("host", "127.0.0.1:7070"), format!("a=b; baton-ui-7070={}", door.token));
        let cookie = ("cookie", cookie.as_str());
        assert_eq!(status(&door, "/", &[host]), 401);
        assert_eq!(status(&door, "/?token=0", &[host]), 401);
        assert_eq!(status(&door, "/", &[host, cookie]), 200);
        assert_eq!(status(&door, "/", &[("host", "localhost:7070"), cookie]), 200);
        assert_eq!(status(&door, "/api/stream", &[host, cookie, ("sec-fetch-site", "same-origin")]), 200);
        for site in ["cross-site", "same-site"] {
            assert_eq!(status(&door, "/api/stream", &[host, cookie, ("sec-fetch-site", site)]), 403);
        }
        for (origin, expected) in [("http://127.0.0.1:7070", 200), ("http://127.0.0.1:7071", 403), ("null", 403)] {
            assert_eq!(status(&door, "/api/what-if", &[host, cookie, ("origin", origin)]), expected, "{origin}");
        }
        let proxied = [host, cookie, ("origin", "https://proxy.example"), ("sec-fetch-site", "same-origin")];
        assert_eq!(status(&door, "/api/what-if", &proxied), 200, "a proxy's own page");
        for stranger in ["evil.example:7070", "127.0.0.1", "127.0.0.1:80", ""] {
            assert_eq!(status(&door, "/", &[("host", stranger), cookie]), 421, "{stranger}");
            assert_eq!(status(&door, &door.path(), &[("host", stranger)]), 421, "{stranger}");
        }
        assert_eq!(status(&door, "/api/stream", &[host, ("cookie", "baton-ui-7070=")]), 401);
        let request = Request::get(door.path()).header("host", host.1).body(Body::empty()).unwrap();
        let answer = door.answer(&request).unwrap();
        let set = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
        assert_eq!(set, format!("baton-ui-7070={}; HttpOnly; SameSite=Strict", door.token));
        // A cookie of the same value for another port is not ours.
        let other = format!("baton-ui-7071={}", door.token);
        assert_eq!(status(&door, "/", &[host, ("cookie", &other)]), 401);
        for (address, hosts) in [
            ("[::1]:7070", &["[::1]:7070", "localhost:7070"][..]),
            ("127.0.0.1:80", &["127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost", "LOCALHOST"]),
            // Everything, where --insecure-listen has it: the token alone counts.
            ("0.0.0.0:7070", &["10.0.0.1:7070", "host.example:7070"]),
        ] {
            let door = Door::new(address.parse().unwrap()).unwrap();
            let port = address.rsplit_once(':').unwrap().1;
            let cookie = format!("baton-ui-{port}={}", door.token);
            for host in hosts {
                assert_eq!(status(&door, "/", &[("host", host), ("cookie", &cookie)]), 200, "{address} {host}");
            }
            assert_eq!(status(&door, "/", &[("host", hosts[0])]), 401, "{address}");
        }
        assert_ne!(door.token, Door::new("127.0.0.1:7070".parse().unwrap()).unwrap().token);
    }
}
