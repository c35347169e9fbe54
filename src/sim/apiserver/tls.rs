//! A certificate authority of its own for every server, and the server's certificate under it.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Why no certificate could be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate library refused.
    #[error("could not make the server's certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library refused.
    #[error("could not use the server's certificate: {0}")]
    Config(#[from] tokio_rustls::rustls::Error),
}

/// The server's side of TLS and what clients need to trust it.
#[derive(Clone)]
pub struct Tls {
    /// PEM of the authority's certificate.
    pub ca: String,
    /// Configuration with HTTP/2 and HTTP/1.1.
    pub config: Arc<ServerConfig>,
}

impl Tls {
    /// Makes an authority and a certificate for localhost.
    pub fn new() -> Result<Self, TlsError> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::new(Vec::<String>::new())?;
        ca.distinguished_name.push(DnType::CommonName, "baton-simulated-ca");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let ca_certificate = ca.self_signed(&ca_key)?;
        let issuer = Issuer::new(ca, ca_key);
        let names = ["localhost", "127.0.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let mut server = CertificateParams::new(names.map(str::to_owned).to_vec())?;
        server.distinguished_name.push(DnType::CommonName, "baton-simulated-apiserver");
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &issuer)?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { ca: ca_certificate.pem(), config: Arc::new(config) })
    }
}
