//! What all handlers share: store, registry, users, faults, counters, clock, randomness.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use jiff::Timestamp;

use super::auth::Users;
use super::counts::Counts;
use super::failure::Failure;
use super::faults::Faults;
use super::policies::{Asked, Policies};
use super::registry::Registry;
use super::store::Store;

/// The wall time; tests may pass their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The state of one server. It outlives restarts of the listeners.
pub struct Core {
    /// Objects.
    pub store: Arc<Store>,
    /// Served resources; swapped whole.
    pub registry: ArcSwap<Registry>,
    /// Tokens and permissions.
    pub users: Arc<Users>,
    policies: Policies,
    /// Injected faults.
    pub faults: Faults,
    /// Requests seen.
    pub counts: Counts,
    clock: Clock,
    random: Mutex<fastrand::Rng>,
    address: Mutex<String>,
}

impl Core {
    /// A fresh core with an empty store.
    pub fn new(clock: Clock, seed: u64, secret: &str) -> Arc<Self> {
        Arc::new(Self {
            store: Store::new(200),
            registry: ArcSwap::from_pointee(Registry::built_in()),
            users: Arc::new(Users::new(secret)),
            policies: Policies::default(),
            faults: Faults::new(seed),
            counts: Counts::default(),
            clock,
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            address: Mutex::default(),
        })
    }

    /// Whether any admission policy is in force.
    pub fn has_policies(&self) -> bool {
        self.policies.any(&self.store)
    }

    /// Refuses what an admission policy denies.
    pub fn judge(&self, asked: &Asked<'_>) -> Result<(), Failure> {
        self.policies.judge(&self.users, &self.store, asked)
    }

    /// Has the objects of another core, serves what it serves, and goes on with its random numbers: no uid comes twice.
    pub fn copy(&self, of: &Self) {
        self.store.copy(&of.store);
        self.registry.store(of.registry.load_full());
        let random = of.random.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *self.random.lock().unwrap_or_else(PoisonError::into_inner) = random;
    }

    /// Now, as objects carry it: RFC 3339, seconds.
    pub fn now(&self) -> String {
        rfc3339(self.time())
    }

    /// Now.
    pub fn time(&self) -> Timestamp {
        (self.clock)()
    }

    /// `host:port` of the TLS listener, as discovery shows it.
    pub fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_address(&self, address: String) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    /// A random UUID (version 4).
    pub fn uuid(&self) -> String {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let bits = (random.u128(..) & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
        let hex = format!("{bits:032x}");
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// The five characters that `generateName` appends.
    pub fn suffix(&self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        (0..5).map(|_| char::from(ALPHABET[random.usize(..ALPHABET.len())])).collect()
    }
}

/// RFC 3339 in whole seconds, as objects carry times.
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
