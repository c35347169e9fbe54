//! Options of the extender, and its address.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use baton_contract::word::word_enum;
use baton_runtime::admin::{PortError, listen};
use baton_runtime::http::{HttpServer, Limits};
use baton_runtime::tls::{Clients, Tls, TlsFiles};

/// Each pod that kube-scheduler is binding has a connection. How long an answer may take is the verbs' own business.
const LIMITS: Limits =
    Limits { connections: 1024, one_request: false, head: Duration::from_secs(60), answer: None, age: None };

word_enum! {
    /// Treatment of gang pods. kube-scheduler asks for one pod at a time, so an extender cannot hold a gang together.
    #[derive(Default)]
    GangPods {
        /// They fit nowhere, and the refusal names the scheduler that places them.
        #[default]
        Refuse = "refuse",
        /// They are placed one by one.
        Ignore = "ignore",
    }
}

/// The extender's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtenderOptions {
    /// Address of the verbs; `None` serves none.
    pub listen: Option<SocketAddr>,
    /// Directory of the PEM files `tls.crt`, `tls.key` and `ca.crt`, as a Secret is mounted; `None` for plain HTTP.
    pub tls_dir: Option<PathBuf>,
    /// Names of which the client's certificate has one.
    pub client_names: Vec<String>,
    /// Treatment of gang pods.
    pub gang: GangPods,
    /// `spec.schedulerName` of the pods that kube-scheduler binds through us.
    pub scheduler_names: Vec<String>,
}

impl Default for ExtenderOptions {
    fn default() -> Self {
        Self {
            listen: None,
            tls_dir: None,
            client_names: vec!["system:kube-scheduler".to_owned()],
            gang: GangPods::default(),
            scheduler_names: vec!["default-scheduler".to_owned()],
        }
    }
}

/// Why the extender cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    /// Plain HTTP outside loopback: any client that reaches the address could bind pods.
    #[error(
        "extender-listen {0} is not a loopback address, and plain HTTP would let any client that reaches it bind pods: give extender-tls-dir, or listen on 127.0.0.1"
    )]
    PlainOutside(SocketAddr),
    /// No client would be served.
    #[error(
        "extender-client-name is empty: name the client certificates that are accepted, such as system:kube-scheduler"
    )]
    NoName,
    /// The address is taken, or its TLS files cannot be used.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl ExtenderOptions {
    /// Scheduler names of the pods that are bound by request; none while nothing is served.
    pub fn asking_names(&self) -> BTreeSet<Box<str>> {
        let served = self.listen.iter().flat_map(|_| &self.scheduler_names);
        served.map(|name| name.as_str().into()).collect()
    }

    /// Opens the address; `None` when there is none. Port 0 takes a free port.
    pub fn open(&self) -> Result<Option<HttpServer>, ExtenderError> {
        self.validate()?;
        let Some(address) = self.listen else { return Ok(None) };
        let tls = self.tls()?;
        let listener = listen(address, "kube-scheduler", "--extender-listen")?;
        tracing::info!(%address, tls = tls.is_some(), "serving kube-scheduler's extender calls");
        Ok(Some(HttpServer { name: "extender", listener, tls, limits: LIMITS }))
    }

    /// TLS by the files; `None` for plain HTTP.
    fn tls(&self) -> Result<Option<Tls>, ExtenderError> {
        let Some(dir) = &self.tls_dir else { return Ok(None) };
        let file = |name: &str| ("extender-tls-dir", dir.join(name));
        let files = TlsFiles {
            cert: file("tls.crt"),
            key: file("tls.key"),
            clients: Clients {
                authorities: file("ca.crt"),
                names: ("extender-client-name", self.client_names.clone()),
            },
        };
        Ok(Some(Tls::files(files).map_err(PortError::from)?))
    }

    /// Checks what types cannot.
    pub fn validate(&self) -> Result<(), ExtenderError> {
        let Some(address) = self.listen else { return Ok(()) };
        if self.client_names.is_empty() {
            return Err(ExtenderError::NoName);
        }
        if self.tls_dir.is_none() && !address.ip().is_loopback() {
            return Err(ExtenderError::PlainOutside(address));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_gang_pods_are_read_as_they_are_printed() {
        for word in [GangPods::Refuse, GangPods::Ignore] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        assert!("maybe".parse::<GangPods>().unwrap_err().to_string().contains("refuse, ignore"));
    }

    #[test]
    fn plain_http_is_served_on_loopback_only_and_elsewhere_with_tls() {
        let on = |address: &str| ExtenderOptions { listen: Some(address.parse().unwrap()), ..Default::default() };
        for address in ["127.0.0.1:9443", "[::1]:9443"] {
            assert!(on(address).validate().is_ok(), "{address}");
        }
        for address in ["0.0.0.0:9443", "[::]:9443", "10.0.0.1:9443"] {
            let said = on(address).validate().unwrap_err().to_string();
            assert!(said.contains(address) && said.contains("extender-tls-dir"), "{said}");
        }
        let secured = ExtenderOptions { tls_dir: Some("/tls".into()), ..on("0.0.0.0:9443") };
        assert!(secured.validate().is_ok());
    }
}
