//! Who may ask: the token of a request stands for a user, and the user needs the right to the path. A judge (the API server) says
//! both; its word is remembered for a while.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;

use super::http::Peer;

/// Audience of tokens that are made for asking Baton's daemons and are good for nothing else.
pub const AUDIENCE: &str = "baton-admin";
/// The header of such a token. The API server's pod proxy strips `Authorization`, and lets this one through.
pub const HEADER: &str = "x-baton-token";

/// What a token stands for is remembered this long.
const IDENTITY: Duration = Duration::from_secs(120);
/// A right is remembered this long.
const ALLOWED: Duration = Duration::from_secs(300);
/// A missing right is remembered this long: an operator who grants it does not wait.
const DENIED: Duration = Duration::from_secs(30);
/// A token that stands for no user is remembered this long: the authenticator may have been ill.
const UNKNOWN: Duration = Duration::from_secs(10);
/// After a failure of the judge it is left alone this long.
const PAUSE: Duration = Duration::from_secs(1);
/// Questions to the judge at once.
const AT_ONCE: usize = 4;
/// The judge answers within this time.
const PATIENCE: Duration = Duration::from_secs(3);
/// Answers of each kind that are remembered.
const REMEMBERED: usize = 4096;
/// Questions to the judge within a second about what comes from one machine, and about all, beside those about users who were right
/// before: invented tokens do not become a stream of requests to the API server, and shut out no client of another machine.
const STRANGERS: (u32, u32) = (10, 50);
/// Longest token, and longest path, in bytes.
const LONGEST: (usize, usize) = (16 << 10, 1 << 10);

/// A user, as the judge names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// `system:serviceaccount:baton-system:baton-viewer`
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// What else the token says.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Who knows tokens and rights. An error says why there is no answer, and what to do.
pub trait AccessJudge: Send + Sync {
    /// The user that a token for this audience (the API server's own when `None`) stands for.
    fn identify<'a>(&'a self, token: &'a str, audience: Option<&'a str>)
    -> BoxFuture<'a, Result<Option<User>, String>>;
    /// Whether the user may do this to a path that is no resource.
    fn allows<'a>(&'a self, user: &'a User, verb: &'a str, path: &'a str) -> BoxFuture<'a, Result<bool, String>>;
}

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthRefusal {
    /// There is no token.
    NoToken,
    /// The token stands for no user, or is for others.
    BadToken,
    /// The user lacks the right.
    Forbidden(String),
    /// Too many tokens and users that were never right.
    Strangers,
    /// No token and no path is that long.
    TooLong,
    /// The judge gave no answer.
    Unjudged(String),
}

impl fmt::Display for AuthRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoToken => f.write_str(
                "send a token of the cluster as `Authorization: Bearer …`; the commands of baton do this by themselves",
            ),
            Self::BadToken => write!(
                f,
                "the API server does not know the token, or it has expired, or it is not for this: X-Baton-Token takes tokens of the audience {AUDIENCE}"
            ),
            Self::Forbidden(user) => {
                write!(
                    f,
                    "user {user:?} may not read this path: bind it to a ClusterRole with this path in nonResourceURLs"
                )
            }
            Self::Strangers => f.write_str("too many tokens and users without rights in this second: ask again"),
            Self::TooLong => write!(f, "a token has at most {} bytes, and a path {}", LONGEST.0, LONGEST.1),
            Self::Unjudged(why) => write!(f, "the API server cannot be asked who you are: {why}"),
        }
    }
}

impl IntoResponse for AuthRefusal {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::NoToken | Self::BadToken => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Strangers => StatusCode::TOO_MANY_REQUESTS,
            Self::TooLong => StatusCode::URI_TOO_LONG,
            Self::Unjudged(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let text = format!("{self}\n");
        match status {
            StatusCode::UNAUTHORIZED => (status, [(header::WWW_AUTHENTICATE, "Bearer")], text).into_response(),
            StatusCode::TOO_MANY_REQUESTS => (status, [(header::RETRY_AFTER, "1")], text).into_response(),
            status => (status, text).into_response(),
        }
    }
}

/// What is remembered, and until when.
struct Remembered<K, V>(BTreeMap<K, (Duration, V)>);

impl<K: Ord + Clone, V: Clone> Remembered<K, V> {
    fn recall(&self, key: &K, now: Duration) -> Option<V> {
        self.0.get(key).filter(|(until, _)| now < *until).map(|(_, value)| value.clone())
    }

    fn has(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    fn keep(&mut self, key: K, value: V, now: Duration, span: Duration) {
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&key) {
            self.0.retain(|_, (until, _)| now < *until);
            // Full of what still counts: what ends first goes.
            if self.0.len() >= REMEMBERED
                && let Some(first) = self.0.iter().min_by_key(|(_, (until, _))| *until).map(|(key, _)| key.clone())
            {
                self.0.remove(&first);
            }
        }
        self.0.insert(key, (now + span, value));
    }
}

/// Digest of a token, or of a user, verb and path: none of them is kept, nor is there a limit to how many there are.
type Digest = [u8; 32];

fn digest(parts: &[&[u8]]) -> Digest {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(&part.len().to_le_bytes());
        context.update(part);
    }
    let mut key = Digest::default();
    key.copy_from_slice(context.finish().as_ref());
    key
}

/// Lets requests of users through that have the right to the path. Cheap to clone.
#[derive(Clone)]
pub struct Guard {
    judge: Arc<dyn AccessJudge>,
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    memory: Arc<Mutex<KnownTokens>>,
    patience: Duration,
    at_once: Arc<Semaphore>,
}

/// What is right and what is not are kept apart, so that no number of strangers takes the place of a user.
struct KnownTokens {
    users: Remembered<Digest, User>,
    unknown: Remembered<Digest, ()>,
    allowed: Remembered<Digest, ()>,
    denied: Remembered<Digest, ()>,
    /// A second, and the questions about strangers in it by machine.
    strangers: (u64, BTreeMap<Option<Peer>, u32>),
    /// Until when the judge is left alone, and what it said.
    failed: Option<(Duration, String)>,
}

impl Guard {
    /// Asks this judge; `clock` is monotonic.
    pub fn new(judge: Arc<dyn AccessJudge>, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        let memory = KnownTokens {
            users: Remembered(BTreeMap::new()),
            unknown: Remembered(BTreeMap::new()),
            allowed: Remembered(BTreeMap::new()),
            denied: Remembered(BTreeMap::new()),
            strangers: Default::default(),
            failed: None,
        };
        let (memory, at_once) = (Arc::new(Mutex::new(memory)), Arc::new(Semaphore::new(AT_ONCE)));
        Self { judge, clock: Arc::new(clock), memory, patience: PATIENCE, at_once }
    }

    /// Whether a request of these headers from this machine may be served.
    pub async fn check(
        &self,
        headers: &HeaderMap,
        verb: &str,
        path: &str,
        from: Option<Peer>,
    ) -> Result<(), AuthRefusal> {
        let (token, audience) = token(headers).ok_or(AuthRefusal::NoToken)?;
        if token.len() > LONGEST.0 || path.len() > LONGEST.1 {
            return Err(AuthRefusal::TooLong);
        }
        let user = self.identify(token, audience, from).await?.ok_or(AuthRefusal::BadToken)?;
        let name = user.name.clone();
        if self.allows(user, verb, path, from).await? { Ok(()) } else { Err(AuthRefusal::Forbidden(name)) }
    }

    async fn identify(
        &self,
        token: &str,
        audience: Option<&str>,
        from: Option<Peer>,
    ) -> Result<Option<User>, AuthRefusal> {
        let key = digest(&[audience.unwrap_or_default().as_bytes(), token.as_bytes()]);
        {
            let (mut known, now) = (self.known(), (self.clock)());
            if let Some(user) = known.users.recall(&key, now) {
                return Ok(Some(user));
            }
            if known.unknown.recall(&key, now).is_some() {
                return Ok(None);
            }
            if !known.users.has(&key) {
                known.count_stranger(from, now)?;
            }
        }
        let found = self.answer(|| self.judge.identify(token, audience)).await?;
        let (mut known, now) = (self.known(), (self.clock)());
        match found.clone() {
            Some(user) => known.users.keep(key, user, now, IDENTITY),
            None => known.unknown.keep(key, (), now, UNKNOWN),
        }
        Ok(found)
    }

    async fn allows(&self, user: User, verb: &str, path: &str, from: Option<Peer>) -> Result<bool, AuthRefusal> {
        let key = digest(&[format!("{user:?}").as_bytes(), verb.as_bytes(), path.as_bytes()]);
        {
            let (mut known, now) = (self.known(), (self.clock)());
            if known.allowed.recall(&key, now).is_some() {
                return Ok(true);
            }
            if known.denied.recall(&key, now).is_some() {
                return Ok(false);
            }
            if !known.allowed.has(&key) {
                known.count_stranger(from, now)?;
            }
        }
        let allowed = self.answer(|| self.judge.allows(&user, verb, path)).await?;
        let (mut known, now) = (self.known(), (self.clock)());
        if allowed {
            known.allowed.keep(key, (), now, ALLOWED);
        } else {
            known.denied.keep(key, (), now, DENIED);
        }
        Ok(allowed)
    }

    /// After a failure every question gets the same answer for a moment, so that clients do not all ask a failing API server at once.
    async fn answer<'a, T>(
        &self,
        question: impl FnOnce() -> BoxFuture<'a, Result<T, String>>,
    ) -> Result<T, AuthRefusal> {
        let failed = self.known().failed.clone().filter(|(until, _)| (self.clock)() < *until);
        if let Some((_, why)) = failed {
            return Err(AuthRefusal::Unjudged(why));
        }
        let asked = async {
            let _turn = self.at_once.acquire().await;
            question().await
        };
        let answer = tokio::time::timeout(self.patience, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {:?}", self.patience)));
        answer.map_err(|why| {
            self.known().failed = Some(((self.clock)() + PAUSE, why.clone()));
            AuthRefusal::Unjudged(why)
        })
    }

    /// Held for a few instructions only.
    fn known(&self) -> MutexGuard<'_, KnownTokens> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownTokens {
    fn count_stranger(&mut self, from: Option<Peer>, now: Duration) -> Result<(), AuthRefusal> {
        let (second, counts) = &mut self.strangers;
        if *second != now.as_secs() {
            (*second, *counts) = (now.as_secs(), BTreeMap::new());
        }
        let all: u32 = counts.values().sum();
        if all >= STRANGERS.1 {
            return Err(AuthRefusal::Strangers);
        }
        let count = counts.entry(from).or_default();
        if *count >= STRANGERS.0 {
            return Err(AuthRefusal::Strangers);
        }
        *count += 1;
        Ok(())
    }
}

/// The token of a request and the audience that it must be for.
fn token(headers: &HeaderMap) -> Option<(&str, Option<&'static str>)> {
    let word = |value: &'static str| headers.get(value).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(token) = word(HEADER).filter(|token| !token.is_empty()) {
        return Some((token, Some(AUDIENCE)));
    }
    let (scheme, token) = word("authorization")?.split_once(' ')?;
    let token = Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())?;
    Some((token, claims_audience(token).then_some(AUDIENCE)))
}

/// Whether a token says of itself that it is for Baton's daemons. The judge finds out whether that is true; this chooses only what
/// the judge is asked.
fn claims_audience(token: &str) -> bool {
    let payload = token.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
    let claims = payload.and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    claims.is_some_and(|claims| match &claims["aud"] {
        serde_json::Value::Array(list) => list.iter().any(|audience| audience == AUDIENCE),
        one => one == AUDIENCE,
    })
}

/// Refuses what a guard refuses, before anything of the body is read.
pub(super) async fn guarded(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let verb = request.method().as_str().to_ascii_lowercase();
    let from = request.extensions().get::<Peer>().copied();
    match guard.check(request.headers(), &verb, request.uri().path(), from).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            tracing::debug!(%refusal, path = request.uri().path(), "a request is refused");
            refusal.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// Knows the token `good`, and a right to `/metrics`.
    #[derive(Default)]
    struct Registrar {
        tokens: AtomicUsize,
        rights: AtomicUsize,
        /// The audience that was asked for last.
        audience: Mutex<Option<String>>,
        fails: bool,
    }

    impl AccessJudge for Registrar {
        fn identify<'a>(
            &'a self,
            token: &'a str,
            audience: Option<&'a str>,
        ) -> BoxFuture<'a, Result<Option<User>, String>> {
            self.tokens.fetch_add(1, Ordering::Relaxed);
            *self.audience.lock().unwrap() = audience.map(str::to_owned);
            Box::pin(async move {
                if self.fails {
                    return Err("403: tokenreviews is forbidden".to_owned());
                }
                let known = token.starts_with("good");
                Ok(known.then(|| User { name: token.to_owned(), ..User::default() }))
            })
        }
        fn allows<'a>(&'a self, _: &'a User, _: &'a str, path: &'a str) -> BoxFuture<'a, Result<bool, String>> {
            self.rights.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { Ok(path == "/metrics") })
        }
    }

    /// Gives no answer.
    struct Silent;
    impl AccessJudge for Silent {
        fn identify<'a>(&'a self, _: &'a str, _: Option<&'a str>) -> BoxFuture<'a, Result<Option<User>, String>> {
            Box::pin(std::future::pending())
        }
        fn allows<'a>(&'a self, _: &'a User, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<bool, String>> {
            Box::pin(std::future::pending())
        }
    }

    /// A guard in virtual time, in milliseconds.
    fn guard(registrar: Registrar) -> (Guard, Arc<Registrar>, Arc<AtomicU64>) {
        let (judge, time) = (Arc::new(registrar), Arc::new(AtomicU64::new(0)));
        let clock = time.clone();
        let guard = Guard::new(judge.clone(), move || Duration::from_millis(clock.load(Ordering::Relaxed)));
        (guard, judge, time)
    }

    fn bearer(token: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap())])
    }

    async fn get(guard: &Guard, token: &str, path: &str) -> Result<(), AuthRefusal> {
        guard.check(&bearer(token), "get", path, None).await
    }

    #[tokio::test]
    async fn a_token_and_a_right_are_needed_and_the_refusal_says_which_is_missing() {
        let (guard, ..) = guard(Registrar::default());
        assert_eq!(guard.check(&HeaderMap::new(), "get", "/metrics", None).await, Err(AuthRefusal::NoToken));
        assert_eq!(get(&guard, "bad", "/metrics").await, Err(AuthRefusal::BadToken));
        assert_eq!(get(&guard, "good", "/metrics").await, Ok(()));
        assert_eq!(get(&guard, "good", "/queue").await, Err(AuthRefusal::Forbidden("good".into())));
        let basic = HeaderMap::from_iter([(header::AUTHORIZATION, "Basic good".parse().unwrap())]);
        assert_eq!(guard.check(&basic, "get", "/metrics", None).await, Err(AuthRefusal::NoToken));
    }

    #[tokio::test]
    async fn a_token_in_our_own_header_is_for_us_alone_and_another_one_for_whom_it_says() {
        let (guard, judge, _) = guard(Registrar::default());
        let asked = || judge.audience.lock().unwrap().clone();
        let own = HeaderMap::from_iter([(HEADER.parse().unwrap(), "good".parse().unwrap())]);
        assert_eq!(guard.check(&own, "get", "/metrics", None).await, Ok(()));
        assert_eq!(asked().as_deref(), Some(AUDIENCE));
        // The same token in the other header is another question.
        assert_eq!(get(&guard, "good", "/metrics").await, Ok(()));
        assert_eq!(asked(), None);
        for (claims, audience) in [(r#"{"aud":["x","baton-admin"]}"#, Some(AUDIENCE)), (r#"{"aud":"x"}"#, None)] {
            let token = format!("good.{}.signature", URL_SAFE_NO_PAD.encode(claims));
            assert_eq!(get(&guard, &token, "/metrics").await, Ok(()));
            assert_eq!(asked().as_deref(), audience, "{claims}");
        }
    }

    #[tokio::test]
    async fn an_answer_counts_for_minutes_and_a_missing_right_for_half_a_minute() {
        let (guard, judge, time) = guard(Registrar::default());
        let asked = || (judge.tokens.load(Ordering::Relaxed), judge.rights.load(Ordering::Relaxed));
        for (at, path, tokens, rights) in [
            (0, "/metrics", 1, 1),
            (119, "/metrics", 1, 1),
            (120, "/metrics", 2, 1),
            (121, "/queue", 2, 2),
            (150, "/queue", 2, 2),
            (151, "/queue", 2, 3),
            (299, "/metrics", 3, 3),
            (300, "/metrics", 3, 4),
        ] {
            time.store(at * 1000, Ordering::Relaxed);
            let _ = get(&guard, "good", path).await;
            assert_eq!(asked(), (tokens, rights), "{path} at {at} s");
        }
    }

    #[tokio::test]
    async fn invented_tokens_cost_few_reviews_and_shut_no_user_out_who_was_right_before() {
        let (guard, judge, time) = guard(Registrar::default());
        assert_eq!(get(&guard, "good", "/metrics").await, Ok(()));
        let mut refused = 0;
        for minute in 0..10 {
            for n in 0..1000 {
                time.store(minute * 60_000 + 1000 + n * 60, Ordering::Relaxed);
                let outcome = get(&guard, &format!("bad-{minute}-{n}"), "/metrics").await;
                refused += usize::from(outcome == Err(AuthRefusal::Strangers));
            }
            assert_eq!(get(&guard, "good", "/metrics").await, Ok(()), "minute {minute}");
        }
        let reviews = judge.tokens.load(Ordering::Relaxed);
        println!("10,000 invented tokens in 10 minutes: {reviews} reviews, {refused} refused without one");
        assert!(reviews <= 6100 && refused >= 3900, "{reviews} reviews");
        let known = guard.known();
        assert!([&known.unknown.0, &known.allowed.0, &known.denied.0].iter().all(|memory| memory.len() <= REMEMBERED));
    }

    #[tokio::test]
    async fn strangers_of_one_machine_shut_out_no_client_of_another() {
        let (guard, judge, _) = guard(Registrar::default());
        let from = |last: u8| Some(Peer([10, 0, 0, last].into()));
        let mut refused = 0;
        for n in 0..1000 {
            let outcome = guard.check(&bearer(&format!("bad-{n}")), "get", "/metrics", from(1)).await;
            refused += usize::from(outcome == Err(AuthRefusal::Strangers));
        }
        assert_eq!((judge.tokens.load(Ordering::Relaxed), refused), (10, 990));
        // A command brings a new token each time.
        assert_eq!(guard.check(&bearer("good-1"), "get", "/metrics", from(2)).await, Ok(()));
        let long = bearer(&"x".repeat(20_000));
        assert_eq!(guard.check(&long, "get", "/metrics", from(2)).await, Err(AuthRefusal::TooLong));
        let path = "/".repeat(2000);
        assert_eq!(guard.check(&bearer("good-1"), "get", &path, from(2)).await, Err(AuthRefusal::TooLong));
    }

    /// Prometheus scrapes every node daemon every 30 s.
    #[tokio::test]
    async fn five_thousand_scraped_daemons_cause_few_reviews() {
        let (guard, judge, time) = guard(Registrar::default());
        for scrape in 0..120 {
            time.store(scrape * 30_000, Ordering::Relaxed);
            assert_eq!(get(&guard, "good", "/metrics").await, Ok(()));
        }
        let per_second = |count: &AtomicUsize| 5000.0 * count.load(Ordering::Relaxed) as f64 / 3600.0;
        let (tokens, rights) = (per_second(&judge.tokens), per_second(&judge.rights));
        println!("5,000 daemons scraped every 30 s: {tokens:.1} TokenReviews/s, {rights:.1} SubjectAccessReviews/s");
        assert!(tokens < 42.0 && rights < 17.0);
    }

    #[tokio::test]
    async fn a_judge_that_refuses_or_hangs_is_named_and_not_remembered() {
        let (refusing, judge, time) = guard(Registrar { fails: true, ..Registrar::default() });
        for _ in 0..2 {
            let said = get(&refusing, "good", "/metrics").await.unwrap_err().to_string();
            assert!(said.contains("403: tokenreviews is forbidden"), "{said}");
        }
        assert_eq!(judge.tokens.load(Ordering::Relaxed), 1, "it is left alone for a moment");
        time.store(1000, Ordering::Relaxed);
        assert!(get(&refusing, "good", "/metrics").await.is_err());
        assert_eq!(judge.tokens.load(Ordering::Relaxed), 2);

        let mut silent = Guard::new(Arc::new(Silent), || Duration::ZERO);
        silent.patience = Duration::from_millis(1);
        let said = get(&silent, "good", "/metrics").await.unwrap_err().to_string();
        assert!(said.contains("no answer within 1ms"), "{said}");
    }
}
