//! TLS with client certificates, and the refusal of plain HTTP where others could reach it.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::process::{Extender, answer, head};
use crate::prelude::*;

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// An authority, and files of a server's and a client's certificate under it.
fn certificates(folder: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::<String>::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    write(folder, "ca.crt", &ca.clone().self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(ca, key);
    // As kubeadm makes kube-scheduler's certificate: a common name, and no alternative ones.
    for (name, common, alternative) in [
        ("tls", "server", Some("localhost")),
        ("kube-scheduler", "system:kube-scheduler", None),
        ("node", "system:node:a", None),
        ("by-alternative-name", "some client", Some("scheduler.example")),
    ] {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(alternative.map(str::to_owned).into_iter().collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, common);
        write(folder, &format!("{name}.crt"), &params.signed_by(&key, &issuer).unwrap().pem());
        write(folder, &format!("{name}.key"), &key.serialize_pem());
    }
}

async fn livez(extender: &Extender, folder: &Path, client: Option<&str>) -> Option<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.crt")).unwrap()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_file(folder.join(format!("{name}.crt"))).unwrap()];
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key"))).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let stream = TcpStream::connect(extender.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
    stream.write_all(head("GET", "/livez", 0).as_bytes()).await.ok()?;
    let mut first = [0; 1];
    // TLS 1.3: a refused certificate shows at the first read.
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first).await.ok()?;
    let (status, _) = answer(&mut stream).await;
    Some(status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_clients_with_a_certificate_of_the_authority_are_served() {
    let (folder, strangers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(folder.path());
    certificates(strangers.path());
    let flag = format!("--extender-tls-dir={}", folder.path().display());
    let extender = Extender::start_with(&["n1"], "", &[&flag]).await;
    assert_eq!(livez(&extender, folder.path(), Some("kube-scheduler")).await, Some(200));
    assert_eq!(livez(&extender, folder.path(), None).await, None);
    std::fs::copy(folder.path().join("ca.crt"), strangers.path().join("ca.crt")).unwrap();
    assert_eq!(livez(&extender, strangers.path(), Some("kube-scheduler")).await, None);
    assert_eq!(livez(&extender, folder.path(), Some("kube-scheduler")).await, Some(200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_files_count_from_the_next_connection_on_and_unusable_ones_change_nothing() {
    let (folder, renewed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certificates(folder.path());
    certificates(renewed.path());
    let flag = format!("--extender-tls-dir={}", folder.path().display());
    let former = tempfile::tempdir().unwrap();
    for name in ["ca.crt", "kube-scheduler.crt", "kube-scheduler.key"] {
        std::fs::copy(folder.path().join(name), former.path().join(name)).unwrap();
    }
    let extender = Extender::start_with(&["n1"], "", &[&flag]).await;
    assert_eq!(livez(&extender, former.path(), Some("kube-scheduler")).await, Some(200));
    // A key that does not belong to the certificate: a renewal that is half done.
    std::fs::copy(renewed.path().join("tls.key"), folder.path().join("tls.key")).unwrap();
    assert_eq!(livez(&extender, former.path(), Some("kube-scheduler")).await, Some(200));
    for name in ["tls.crt", "ca.crt"] {
        std::fs::copy(renewed.path().join(name), folder.path().join(name)).unwrap();
    }
    assert_eq!(livez(&extender, renewed.path(), Some("kube-scheduler")).await, Some(200));
    assert_eq!(
        livez(&extender, former.path(), Some("kube-scheduler")).await,
        None,
        "the former authority counts no more"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_authoritys_clients_only_those_with_an_admitted_name_are_served() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let flag = format!("--extender-tls-dir={}", folder.path().display());
    for (names, served) in [
        (None, ["kube-scheduler"].as_slice()),
        (
            Some("--extender-client-name=dns:scheduler.example,system:kube-scheduler"),
            &["kube-scheduler", "by-alternative-name"],
        ),
    ] {
        let flags: Vec<&str> = std::iter::once(&*flag).chain(names).collect();
        let extender = Extender::start_with(&["n1"], "", &flags).await;
        for client in ["kube-scheduler", "node", "by-alternative-name"] {
            let expected = served.contains(&client).then_some(200);
            assert_eq!(livez(&extender, folder.path(), Some(client)).await, expected, "{client}, {names:?}");
        }
    }
}

#[test]
fn plain_http_outside_loopback_and_a_list_of_no_client_end_the_start() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        let output = command.env_clear().arg("scheduler").args(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["--extender-listen=0.0.0.0:9443"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("0.0.0.0:9443") && said.contains("extender-tls-dir"), "{said}");
    let (code, said) = run(&["--extender-listen=127.0.0.1:9443", "--extender-client-name="]);
    assert_eq!(code, Some(2), "{said}");
    tells(said, ["extender-client-name is empty"]);
}
