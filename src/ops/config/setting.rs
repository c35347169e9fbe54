//! One key of a configuration, how the types of options are read and written, and the configuration printed as a file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value as Json;

use super::tree::{Misplaced, YamlNode};
use super::yaml;

/// Variables of NVIDIA's device plugin and of Kubernetes that mean the same here.
pub const THEIRS: [&str; 12] = [
    "CONFIG_FILE",
    "DEVICE_ID_STRATEGY",
    "DEVICE_LIST_STRATEGY",
    "DP_DISABLE_HEALTHCHECKS",
    "DP_ENABLE_HEALTHCHECKS",
    "FAIL_ON_INIT_ERROR",
    "KUBECONFIG",
    "MIG_STRATEGY",
    "MPS_ROOT",
    "NODE_NAME",
    "NVIDIA_DRIVER_ROOT",
    "PASS_DEVICE_SPECS",
];

/// The environment variables of the key with this name: our own, and the one of other programs that means the same.
pub fn variables(name: &str) -> impl Iterator<Item = String> + use<> {
    let bare = bare(name);
    [format!("BATON_{bare}")].into_iter().chain(THEIRS.contains(&bare.as_str()).then_some(bare))
}

fn bare(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

/// One key: `name` is the flag and the key of the file; in capitals, with `_` and `BATON_`, it is the environment variable.
pub struct Setting<O: 'static> {
    /// `mig-strategy`
    pub name: &'static str,
    /// Other names with the same meaning, in flags, environment and file.
    pub aliases: &'static [&'static str],
    /// Form of a value, for the help; `BOOL` makes it a switch: the bare flag means `true`.
    pub value: &'static str,
    /// Its effect, in one or two sentences.
    pub help: &'static str,
    /// Reads a value into the options, or says what is wrong with it.
    pub set: fn(&mut O, &str) -> Result<(), String>,
    /// The present value, as [`Self::set`] reads it.
    pub show: fn(&O) -> String,
}

impl<O> Setting<O> {
    /// The name and its aliases.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    /// The flag may stand without a value and then means `true`.
    pub fn is_switch(&self) -> bool {
        self.value == "BOOL"
    }

    /// The flag may stand more than once, as NVIDIA's lists may; the values then count as one comma list.
    pub fn is_list(&self) -> bool {
        self.value.ends_with("LIST") || self.value.ends_with('…')
    }

    /// The environment variables, of which the first that is set counts: `BATON_MIG_STRATEGY`, `MIG_STRATEGY`.
    pub fn variables(&self) -> impl Iterator<Item = String> {
        self.names().flat_map(variables)
    }
}

/// The longest duration: a clock cannot reach one of a billion years.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// A type that an option may have.
pub trait Value: Sized {
    /// Reads what a user wrote; the error says what was expected.
    fn read(text: &str) -> Result<Self, String>;
    /// Writes what [`Self::read`] reads.
    fn show(&self) -> String;
}

impl Value for bool {
    fn read(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "on" | "yes" | "t" | "1" => Ok(true),
            "false" | "off" | "no" | "f" | "0" => Ok(false),
            _ => Err(format!("{text:?} is neither true nor false")),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

impl Value for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("an empty path".to_owned()) } else { Ok(text.into()) }
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Value for Duration {
    fn read(text: &str) -> Result<Self, String> {
        let duration = humantime::parse_duration(text)
            .map_err(|error| format!("{text:?} is no duration ({error}); expected for example 500ms, 30s or 5m"))?;
        if duration > LONGEST { Err(format!("{text:?} is too long; at most 365days")) } else { Ok(duration) }
    }
    fn show(&self) -> String {
        humantime::format_duration(*self).to_string()
    }
}

impl Value for SocketAddr {
    fn read(text: &str) -> Result<Self, String> {
        // `:9412`, as Go programs write it, is every address of this machine, of both families.
        let full = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
        full.parse().map_err(|_| format!("{text:?} is no address; expected for example 127.0.0.1:9412 or :9412"))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

macro_rules! numbers {
    ($($number:ty),+ => $whole:literal) => {$(
        impl Value for $number {
            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("{text:?} is no {} from {} to {}", $whole, Self::MIN, Self::MAX))
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )+};
}
numbers!(i32, i64, u16, u32, u64, usize => "whole number");
numbers!(f64 => "number");

/// `none` (or nothing) is the absent value.
impl<T: Value> Value for Option<T> {
    fn read(text: &str) -> Result<Self, String> {
        if matches!(text, "" | "none") { Ok(None) } else { T::read(text).map(Some) }
    }
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), T::show)
    }
}

/// A comma list.
impl<T: Value> Value for Vec<T> {
    fn read(text: &str) -> Result<Self, String> {
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(T::read).collect()
    }
    fn show(&self) -> String {
        self.iter().map(T::show).collect::<Vec<_>>().join(",")
    }
}

/// `key=value`.
impl<K: Value, V: Value> Value for (K, V) {
    fn read(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not key=value"))?;
        Ok((K::read(key.trim())?, V::read(value.trim())?))
    }
    fn show(&self) -> String {
        format!("{}={}", self.0.show(), self.1.show())
    }
}

/// A comma list of `key=value`.
impl<K: Value + Ord + Clone, V: Value + Clone> Value for BTreeMap<K, V> {
    fn read(text: &str) -> Result<Self, String> {
        Vec::<(K, V)>::read(text).map(|pairs| pairs.into_iter().collect())
    }
    fn show(&self) -> String {
        self.iter().map(|(key, value)| (key.clone(), value.clone()).show()).collect::<Vec<_>>().join(",")
    }
}

/// One key of the file whose value has a form of its own: more than a flag can say.
pub struct Section<O: 'static> {
    /// As written in the file.
    pub name: &'static str,
    /// Keys that must stand in the same file.
    pub needs: &'static [&'static str],
    /// What to do when one of them does not.
    pub advice: &'static str,
    /// Reads the value into the options.
    pub read: fn(&mut O, &YamlNode) -> Result<(), Misplaced>,
}

/// Keys and values in their order.
struct Document(Vec<(&'static str, Json)>);

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// The effective configuration as a file that reads back as itself: `head`, then every setting with its present value.
pub fn print<O>(
    head: Vec<(&'static str, Json)>,
    settings: &[Setting<O>],
    options: &O,
) -> Result<String, serde_saphyr::ser::Error> {
    let flat = settings.iter().map(|setting| (setting.name, plain(&(setting.show)(options))));
    yaml::print(&Document(head.into_iter().chain(flat).collect()))
}

/// Switches and whole numbers without quotes.
fn plain(text: &str) -> Json {
    match (text.parse::<bool>(), text.parse::<i64>()) {
        (Ok(switch), _) => switch.into(),
        (_, Ok(number)) if number.to_string() == text => number.into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn round<T: Value + PartialEq + std::fmt::Debug>(text: &str, value: T) {
        assert_eq!(T::read(text), Ok(value));
        let shown = T::read(text).unwrap().show();
        assert_eq!(T::read(&shown).unwrap().show(), shown);
    }

    #[test]
    fn what_is_shown_reads_back() {
        round("on", true);
        // As Go reads them.
        round("T", true);
        round("f", false);
        round("1m 30s", Duration::from_secs(90));
        round(":9412", SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 9412)));
        round("none", None::<PathBuf>);
        round("/a", Some(PathBuf::from("/a")));
        round("a, b,", vec!["a".to_owned(), "b".to_owned()]);
        round("48=ignore,94=warn", BTreeMap::from([(48u64, "ignore".to_owned()), (94, "warn".to_owned())]));
    }

    #[test]
    fn what_cannot_be_read_says_what_was_expected() {
        assert!(bool::read("maybe").unwrap_err().contains("true nor false"));
        assert!(Duration::read("10").unwrap_err().contains("30s"));
        assert!(Duration::read("-1s").is_err());
        assert!(Duration::read("500000000000y").unwrap_err().contains("365days"));
        assert!(SocketAddr::read("9412").unwrap_err().contains(":9412"));
        assert!(BTreeMap::<u64, String>::read("48").unwrap_err().contains("key=value"));
        assert_eq!(u16::read("-1").unwrap_err(), "\"-1\" is no whole number from 0 to 65535");
    }
}
