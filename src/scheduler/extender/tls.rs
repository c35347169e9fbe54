//! TLS with client certificates: only kube-scheduler may request binds.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::options::{ExtenderError, ExtenderOptions};

/// TLS from three files, which are read again when they change: certificates are renewed while the process runs.
pub(super) struct Renewed {
    files: TlsFiles,
    state: Mutex<TlsState>,
    /// Held by the connection that checks the files; connections that come meanwhile use what was read before.
    checking: Mutex<()>,
}

struct TlsFiles {
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
}

struct TlsState {
    acceptor: TlsAcceptor,
    /// The files when they were last read, whether they could be used or not.
    read: Fingerprints,
}

/// A lock that is held for a few instructions only.
fn lock(state: &Mutex<TlsState>) -> MutexGuard<'_, TlsState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of each file what changes with its content: inode, length, time of change. A missing file has none.
type Fingerprints = [Option<(u64, u64, i64, i64)>; 3];

impl Renewed {
    /// Reads the files that the options name; `None` for plain HTTP.
    pub fn open(options: &ExtenderOptions) -> Result<Option<Self>, ExtenderError> {
        let (Some(cert), Some(key), Some(ca)) = (&options.tls_cert, &options.tls_key, &options.client_ca) else {
            return Ok(None);
        };
        let files = TlsFiles { cert: cert.clone(), key: key.clone(), ca: ca.clone() };
        let read = files.fingerprints();
        let acceptor = files.acceptor()?;
        Ok(Some(Self { files, state: Mutex::new(TlsState { acceptor, read }), checking: Mutex::default() }))
    }

    /// For the next connection; blocks as long as the files do. Files that cannot be used, half-written ones too, leave what was
    /// read before in force.
    pub fn acceptor(&self) -> TlsAcceptor {
        let _checking = match self.checking.try_lock() {
            Ok(checking) => checking,
            Err(TryLockError::Poisoned(checking)) => checking.into_inner(),
            Err(TryLockError::WouldBlock) => return lock(&self.state).acceptor.clone(),
        };
        let now = self.files.fingerprints();
        let changed = std::mem::replace(&mut lock(&self.state).read, now) != now;
        if changed {
            match self.files.acceptor() {
                Ok(acceptor) => {
                    lock(&self.state).acceptor = acceptor;
                    tracing::info!(certificate = %self.files.cert.display(), "the extender's TLS files were read again");
                }
                Err(error) => {
                    tracing::warn!(%error, "the extender's TLS files have changed; the former ones stay in use");
                }
            }
        }
        lock(&self.state).acceptor.clone()
    }
}

impl TlsFiles {
    fn fingerprints(&self) -> Fingerprints {
        [&self.cert, &self.key, &self.ca].map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()))
        })
    }

    fn acceptor(&self) -> Result<TlsAcceptor, ExtenderError> {
        let Self { cert, key, ca } = self;
        let chain = certificates("extender-tls-cert", cert)?;
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("extender-tls-key", key, &error.to_string()))?;
        let mut roots = RootCertStore::empty();
        for authority in certificates("extender-client-ca", ca)? {
            roots.add(authority).map_err(|error| unusable("extender-client-ca", ca, &error.to_string()))?;
        }
        let provider = Arc::new(ring::default_provider());
        let tls = |error: &dyn std::fmt::Display| ExtenderError::Tls(error.to_string());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| tls(&error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| tls(&error))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, private)
            .map_err(|error| tls(&error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ExtenderError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| unusable(key, path, &error.to_string()))?;
    if found.is_empty() { Err(unusable(key, path, "it holds no certificate")) } else { Ok(found) }
}

fn unusable(key: &'static str, path: &Path, problem: &str) -> ExtenderError {
    ExtenderError::File { key, path: path.to_owned(), problem: problem.to_owned() }
}
