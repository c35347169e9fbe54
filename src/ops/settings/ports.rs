//! The settings that daemons share: their two addresses, and how they run for leadership.

use crate::config::Value;
use baton_runtime::admin::AdminAuth;

/// The words of [`AdminAuth`].
const WORDS: [(&str, AdminAuth); 2] = [("token", AdminAuth::Token), ("none", AdminAuth::None)];

impl Value for AdminAuth {
    fn read(text: &str) -> Result<Self, String> {
        let found = WORDS.iter().find(|(word, _)| *word == text);
        let words = WORDS.map(|(word, _)| word).join(", ");
        found.map(|(_, auth)| *auth).ok_or_else(|| format!("{text:?} is none of {words}"))
    }
    fn show(&self) -> String {
        WORDS.iter().find(|(_, auth)| auth == self).map_or("", |(word, _)| word).to_owned()
    }
}

/// The settings of `options.ports`; `$paths` are what the daemon answers.
macro_rules! ports {
    ($($paths:literal)?) => {
        $crate::settings::log::settings! {
            "listen" "ADDRESS" options.ports.listen
                concat!("The admin address: /metrics", $($paths,)? " over HTTPS, for clients with a token of the cluster; [::] is every address of both families, none opens no port");
            "probe-listen" "ADDRESS" options.ports.probe_listen
                "Address of the probes over plain HTTP; none opens no port";
            "admin-auth" "token|none" options.ports.auth
                "Who is served on the admin address: users whose token may read the path, or every client of this machine over plain HTTP, on a loopback address only";
            "admin-tls-cert" "FILE" options.ports.tls_cert
                "Certificate chain of the admin address, PEM, read again when it changes; none makes one that clients cannot verify";
            "admin-tls-key" "FILE" options.ports.tls_key "The private key of that certificate, PEM";
        }
    };
}
pub(super) use ports;

/// The settings of `options.leader`.
macro_rules! leading {
    () => {
        $crate::settings::log::settings! {
            "leader-elect" "BOOL" options.leader.elect "Work only while holding the Lease";
        }
    };
}
pub(super) use leading;
