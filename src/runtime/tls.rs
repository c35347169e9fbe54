//! The TLS of an address: files that are read again when they change, and the clients' certificates, which name who is served.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Why an address cannot be served over TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be used.
    #[error("{key}: {path} cannot be used: {problem}")]
    File {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// Files that do not go together.
    #[error("TLS cannot be set up: {0}; do certificate and key belong together?")]
    Setup(String),
}

/// A file, and the setting that names it.
pub type Named = (&'static str, PathBuf);

/// The files of an address.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate chain, PEM.
    pub cert: Named,
    /// Its private key, PEM.
    pub key: Named,
    /// The clients that are served.
    pub clients: Clients,
}

/// The clients that are served: those with a certificate of these authorities that has one of these names.
#[derive(Debug, Clone)]
pub struct Clients {
    /// The authorities, PEM.
    pub authorities: Named,
    /// Names of subjects (CN), or alternative names; and the setting that lists them.
    pub names: (&'static str, Vec<String>),
}

/// The TLS of an address, from files that are read again when they change: certificates are renewed while the process runs.
#[derive(Clone)]
pub struct Tls(Arc<Renewed>);

impl Tls {
    /// Reads the files.
    pub fn files(files: TlsFiles) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(Renewed::open(files)?)))
    }

    /// Shakes hands with a client; one that is not served is an error.
    pub async fn accept<S>(&self, stream: S) -> std::io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // Files may be on a mount that hangs: they are not read on the accepting task.
        let reading = self.0.clone();
        let acceptor = tokio::task::spawn_blocking(move || reading.acceptor()).await.map_err(std::io::Error::other)?;
        let stream = acceptor.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let names = shown.map(names).unwrap_or_default();
        let (key, admitted) = &self.0.files.clients.names;
        if !names.iter().any(|name| admitted.contains(name)) {
            let admitted = admitted.join(",");
            let why = format!("the client's certificate names {names:?}, and {key} admits {admitted}");
            return Err(std::io::Error::other(why));
        }
        Ok(stream)
    }
}

/// Names of a certificate: its last common name, which is what the API server takes for the user, and the alternative names as
/// `dns:…` and `uri:…`, which a requester may choose more freely.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().last().and_then(|name| name.as_str().ok());
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|found| &found.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(format!("dns:{name}")),
        GeneralName::URI(name) => Some(format!("uri:{name}")),
        _ => None,
    });
    common.map(str::to_owned).into_iter().chain(alternative).collect()
}

struct Renewed {
    files: TlsFiles,
    state: Mutex<TlsState>,
    /// Held by the connection that checks the files; connections that come meanwhile use what was read before.
    checking: Mutex<()>,
}

struct TlsState {
    acceptor: TlsAcceptor,
    /// The files when they were last read, whether they could be used or not.
    read: Vec<Fingerprint>,
}

/// A lock that is held for a few instructions only.
fn lock(state: &Mutex<TlsState>) -> MutexGuard<'_, TlsState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Of a file what changes with its content: inode, length, time of change. A missing file has none.
type Fingerprint = Option<(u64, u64, i64, i64)>;

impl Renewed {
    fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let read = files.fingerprints();
        let acceptor = files.acceptor()?;
        Ok(Self { files, state: Mutex::new(TlsState { acceptor, read }), checking: Mutex::default() })
    }

    /// For the next connection; blocks as long as the files do. Files that cannot be used, half-written ones too, leave what was
    /// read before in force.
    fn acceptor(&self) -> TlsAcceptor {
        let _checking = match self.checking.try_lock() {
            Ok(checking) => checking,
            Err(TryLockError::Poisoned(checking)) => checking.into_inner(),
            Err(TryLockError::WouldBlock) => return lock(&self.state).acceptor.clone(),
        };
        let now = self.files.fingerprints();
        let changed = lock(&self.state).read != now;
        if changed {
            lock(&self.state).read = now;
            match self.files.acceptor() {
                Ok(acceptor) => {
                    lock(&self.state).acceptor = acceptor;
                    tracing::info!(certificate = %self.files.cert.1.display(), "the TLS files were read again");
                }
                Err(error) => tracing::warn!(%error, "the TLS files have changed; the former ones stay in use"),
            }
        }
        lock(&self.state).acceptor.clone()
    }
}

impl TlsFiles {
    fn fingerprints(&self) -> Vec<Fingerprint> {
        let print = |(_, path): &Named| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec()))
        };
        [&self.cert, &self.key, &self.clients.authorities].map(print).into()
    }

    fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let chain = certificates(&self.cert)?;
        let private = PrivateKeyDer::from_pem_file(&self.key.1).map_err(|error| unusable(&self.key, &error))?;
        let mut roots = RootCertStore::empty();
        for authority in certificates(&self.clients.authorities)? {
            roots.add(authority).map_err(|error| unusable(&self.clients.authorities, &error))?;
        }
        acceptor(chain, private, roots)
    }
}

fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    private: PrivateKeyDer<'static>,
    clients: RootCertStore,
) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let setup = |error: &dyn std::fmt::Display| TlsError::Setup(error.to_string());
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| setup(&error))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(clients), provider).build();
    let config = config.with_client_cert_verifier(verifier.map_err(|error| setup(&error))?);
    let mut config = config.with_single_cert(chain, private).map_err(|error| setup(&error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(file: &Named) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(Path::new(&file.1)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| unusable(file, &error))?;
    if found.is_empty() { Err(unusable(file, &"it holds no certificate")) } else { Ok(found) }
}

fn unusable((key, path): &Named, problem: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { key, path: path.clone(), problem: problem.to_string() }
}
