//! TLS with client certificates: only kube-scheduler may ask for binds.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::options::{ExtenderError, ExtenderOptions};

/// The acceptor that the options ask for; `None` for plain HTTP. Files are read once, here.
pub(super) fn acceptor(options: &ExtenderOptions) -> Result<Option<TlsAcceptor>, ExtenderError> {
    let (Some(cert), Some(key), Some(ca)) = (&options.tls_cert, &options.tls_key, &options.client_ca) else {
        return Ok(None);
    };
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
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ExtenderError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| unusable(key, path, &error.to_string()))?;
    if found.is_empty() { Err(unusable(key, path, "it holds no certificate")) } else { Ok(found) }
}

fn unusable(key: &'static str, path: &Path, problem: &str) -> ExtenderError {
    ExtenderError::File { key, path: path.to_owned(), problem: problem.to_owned() }
}
