//! Client certificates as old as X.509 version 1, which `openssl x509 -req` makes when it is given no extensions. API servers
//! and kubectl take them. The TLS library reads version 3 only, and it reads the client's own certificate for one reason: to
//! compare its key with the private one. The server finds out anyway.

use std::sync::Arc;

use k8s_openapi::ByteString;
use kube::Config;
use tokio_rustls::rustls::crypto::{CryptoProvider, KeyProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::{Signer, SigningKey};
use tokio_rustls::rustls::{Error, SignatureAlgorithm, SignatureScheme};

/// Before the first client is made: lets this process show the certificate of `config` when it is of version 1.
pub(super) fn allow_for(config: &Config) {
    if certificate(config).is_some_and(|found| is_version_1(&found)) && provider().install_default().is_ok() {
        tracing::debug!("the client certificate is of X.509 version 1: it is not compared with its key");
    }
}

fn certificate(config: &Config) -> Option<CertificateDer<'static>> {
    let auth = &config.auth_info;
    let pem = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => serde_json::from_value::<ByteString>(data.as_str().into()).ok()?.0,
        (None, Some(path)) => std::fs::read(path).ok()?,
        (None, None) => return None,
    };
    CertificateDer::from_pem_slice(&pem).ok()
}

/// `Certificate ::= SEQUENCE { TBSCertificate ::= SEQUENCE { version [0] EXPLICIT DEFAULT v1, … } … }`
fn is_version_1(certificate: &[u8]) -> bool {
    let first = inside(certificate).and_then(inside).and_then(<[u8]>::first);
    first.is_some_and(|tag| *tag != 0xa0)
}

/// The content of a DER sequence, and what follows it.
fn inside(der: &[u8]) -> Option<&[u8]> {
    let [0x30, length, ..] = *der else { return None };
    let more = if length < 0x80 { 0 } else { usize::from(length & 0x7f) };
    der.get(2 + more..)
}

fn provider() -> CryptoProvider {
    CryptoProvider { key_provider: &Keys, ..ring::default_provider() }
}

#[derive(Debug)]
struct Keys;

impl KeyProvider for Keys {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        Ok(Arc::new(Undisclosed(ring::default_provider().key_provider.load_private_key(key)?)))
    }
}

/// A key without its public half: there is nothing to compare a certificate with.
#[derive(Debug)]
struct Undisclosed(Arc<dyn SigningKey>);

impl SigningKey for Undisclosed {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.0.choose_scheme(offered)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    use super::*;

    /// `openssl x509 -req -in c.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 36500`
    const VERSION_1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tls/version-1.crt");
    const ITS_KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tls/version-1.key");

    fn presented(provider: CryptoProvider) -> Result<ClientConfig, Error> {
        let chain = vec![CertificateDer::from_pem_file(VERSION_1).unwrap()];
        let key = PrivateKeyDer::from_pem_file(ITS_KEY).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
        config.with_root_certificates(RootCertStore::empty()).with_client_auth_cert(chain, key)
    }

    #[test]
    fn a_certificate_of_version_1_can_be_shown_to_a_server() {
        assert!(presented(ring::default_provider()).is_err(), "the library takes it by itself: this file can go");
        presented(provider()).unwrap();
    }

    #[test]
    fn versions_are_distinguished() {
        assert!(is_version_1(&CertificateDer::from_pem_file(VERSION_1).unwrap()));
        for other in [&[][..], &[0x30, 0x03], &[0x30, 0xff, 0x30], &[0x30, 0x05, 0x30, 0x03, 0xa0, 0x01, 0x02]] {
            assert!(!is_version_1(other), "{other:?}");
        }
    }

    #[test]
    fn the_certificate_is_found_as_a_file_and_as_data() {
        let mut config = Config::new("https://localhost".parse().unwrap());
        assert!(certificate(&config).is_none());
        config.auth_info.client_certificate = Some(VERSION_1.to_owned());
        assert!(certificate(&config).is_some_and(|found| is_version_1(&found)));
        let data = serde_json::to_value(ByteString(std::fs::read(VERSION_1).unwrap())).unwrap();
        config.auth_info.client_certificate_data = data.as_str().map(str::to_owned);
        config.auth_info.client_certificate = None;
        assert!(certificate(&config).is_some_and(|found| is_version_1(&found)));
    }
}
