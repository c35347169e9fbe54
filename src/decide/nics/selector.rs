//! `--rdma-select`: terms that a NIC must match, or with `!` must not.

use std::fmt;
use std::str::FromStr;

use baton_contract::word::word_enum;

/// What is known of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NicFacts {
    /// Name of its RDMA device.
    pub name: String,
    /// Its network interfaces.
    pub interfaces: Vec<String>,
    /// Link layers of its ports, as the kernel writes them.
    pub link_layers: Vec<String>,
    /// PCI vendor.
    pub vendor: Option<u16>,
    /// Kernel driver.
    pub driver: Option<String>,
    /// PCI address.
    pub address: String,
    /// The interface of the host's default route that goes over it; `None` where none does, and where that is not known.
    pub carries: Option<String>,
    /// A port has a link, or had one since the daemon started.
    pub alive: bool,
}

word_enum! {
    /// What a term looks at. The words are those of the selectors of the SR-IOV and the shared RDMA device plugin.
    NicProperty {
        /// The RDMA device or one of its network interfaces.
        Name = "name",
        /// A network interface.
        Interface = "ifName",
        /// `infiniband` or `ethernet`.
        LinkType = "linkType",
        /// PCI vendor, `15b3`.
        Vendor = "vendor",
        /// Kernel driver, `mlx5_core`.
        Driver = "driver",
        /// `0000:3b:00.0`.
        PciAddress = "pciAddress",
    }
}

/// A selector that cannot be used; the text names the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A key that is none.
    #[error("{term:?}: {key:?} is no property of a NIC; expected {}", words().join(", "))]
    Key {
        /// The term.
        term: String,
        /// The key.
        key: String,
    },
    /// A value that its key cannot have.
    #[error("{term:?}: {problem}")]
    Value {
        /// The term.
        term: String,
        /// What was expected.
        problem: &'static str,
    },
    /// A term that another one takes back.
    #[error("{include:?} selects what {exclude:?} excludes: take one of them out")]
    Contradiction {
        /// The term that selects.
        include: String,
        /// The one that excludes.
        exclude: String,
    },
    /// Nothing can be left.
    #[error("{0:?} excludes every NIC: --rdma=false offers none")]
    Nothing(String),
}

fn words() -> Vec<&'static str> {
    NicProperty::ALL.iter().map(|property| property.word()).collect()
}

/// One term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicTerm {
    excludes: bool,
    property: NicProperty,
    pattern: NamePattern,
}

/// All terms. Empty, it leaves the choice to the defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NicSelector {
    terms: Vec<NicTerm>,
}

impl NicSelector {
    /// No term at all.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The term that excludes a NIC.
    pub fn excludes(&self, nic: &NicFacts) -> Option<&NicTerm> {
        self.terms.iter().find(|term| term.excludes && term.matches(nic))
    }

    /// Whether a NIC is asked for: of the properties that are named, each must match one of its terms. `None` where no term
    /// asks for NICs.
    pub fn asks_for(&self, nic: &NicFacts) -> Option<bool> {
        let wanted = || self.terms.iter().filter(|term| !term.excludes);
        let of = |property: &NicProperty| wanted().any(|term| term.property == *property);
        let named: Vec<&NicProperty> = NicProperty::ALL.iter().filter(|property| of(property)).collect();
        let met = |property: &&NicProperty| wanted().any(|term| term.property == **property && term.matches(nic));
        (!named.is_empty()).then(|| named.iter().all(met))
    }

    /// Terms that match none of `nics`.
    pub fn idle<'a>(&'a self, nics: &'a [NicFacts]) -> impl Iterator<Item = &'a NicTerm> {
        self.terms.iter().filter(|term| !nics.iter().any(|nic| term.matches(nic)))
    }

    fn check(&self) -> Result<(), SelectorError> {
        let (excluding, asking): (Vec<&NicTerm>, Vec<&NicTerm>) = self.terms.iter().partition(|term| term.excludes);
        let everything = excluding.iter().find(|term| term.pattern.text == "*");
        if let Some(term) = everything {
            return Err(SelectorError::Nothing(term.to_string()));
        }
        let pairs = asking.iter().flat_map(|include| excluding.iter().map(move |exclude| (include, exclude)));
        for (include, exclude) in pairs.filter(|(include, exclude)| include.property == exclude.property) {
            let same = include.pattern == exclude.pattern;
            if same || (include.pattern.is_plain() && exclude.pattern.matches(&include.pattern.text)) {
                return Err(SelectorError::Contradiction {
                    include: include.to_string(),
                    exclude: exclude.to_string(),
                });
            }
        }
        Ok(())
    }
}

impl NicTerm {
    fn matches(&self, nic: &NicFacts) -> bool {
        let any = |values: &[String]| values.iter().any(|value| self.pattern.matches(value));
        match self.property {
            NicProperty::Name => self.pattern.matches(&nic.name) || any(&nic.interfaces),
            NicProperty::Interface => any(&nic.interfaces),
            NicProperty::LinkType => nic.link_layers.iter().any(|layer| layer.eq_ignore_ascii_case(&self.pattern.text)),
            NicProperty::Vendor => nic.vendor.is_some_and(|vendor| format!("{vendor:04x}") == self.pattern.text),
            NicProperty::Driver => nic.driver.as_ref().is_some_and(|driver| self.pattern.matches(driver)),
            NicProperty::PciAddress => self.pattern.matches(&nic.address),
        }
    }
}

/// A key by the word of this program, or as one of the device plugins writes it (`pciAddresses`), or in another case.
fn property(key: &str) -> Option<NicProperty> {
    let plain: String = key.to_ascii_lowercase().chars().filter(|c| !matches!(c, '-' | '_')).collect();
    let known = [
        (NicProperty::Name, &["name", "names"][..]),
        (NicProperty::Interface, &["ifname", "ifnames", "interface", "interfaces"]),
        (NicProperty::LinkType, &["linktype", "linktypes", "linklayer", "linklayers"]),
        (NicProperty::Vendor, &["vendor", "vendors"]),
        (NicProperty::Driver, &["driver", "drivers"]),
        (NicProperty::PciAddress, &["pciaddress", "pciaddresses", "pci", "address"]),
    ];
    known.into_iter().find(|(_, words)| words.contains(&plain.as_str())).map(|(property, _)| property)
}

/// `3B:00.0` in full, as the kernel writes it; `None` for what is no address.
fn address(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let full = if text.matches(':').count() == 1 { format!("0000:{text}") } else { text };
    let (domain, rest) = full.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let is_hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    (is_hex(domain, 4..=8) && is_hex(bus, 2..=2) && is_hex(device, 2..=2) && is_hex(function, 1..=1)).then_some(full)
}

impl FromStr for NicTerm {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let term = || text.chars().take(80).collect::<String>();
        let bad = |problem| SelectorError::Value { term: term(), problem };
        let (excludes, rest) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest.trim()));
        let (property, value) = match rest.split_once('=') {
            Some((key, value)) => {
                let key = key.trim();
                let unknown = || SelectorError::Key { term: term(), key: key.chars().take(80).collect() };
                (property(key).ok_or_else(unknown)?, value.trim())
            }
            None if address(rest).is_some() => (NicProperty::PciAddress, rest),
            None => (NicProperty::Name, rest),
        };
        let value = match property {
            NicProperty::LinkType => match value.to_ascii_lowercase().as_str() {
                "infiniband" | "ib" => "infiniband".to_owned(),
                "ethernet" | "ether" | "roce" => "ethernet".to_owned(),
                _ => return Err(bad("expected linkType=infiniband or linkType=ethernet")),
            },
            NicProperty::Vendor => {
                let digits = value.to_ascii_lowercase();
                let digits = digits.strip_prefix("0x").unwrap_or(&digits);
                if digits.len() != 4 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return Err(bad("a PCI vendor has four hexadecimal digits, as in vendor=15b3"));
                }
                digits.to_owned()
            }
            NicProperty::PciAddress => {
                let pattern = |byte: u8| byte.is_ascii_hexdigit() || b":.*?[]-".contains(&byte);
                match address(value) {
                    Some(address) => address,
                    None if value.contains(['*', '?', '[']) && value.bytes().all(pattern) => value.to_ascii_lowercase(),
                    None => return Err(bad("expected a PCI address, as in pciAddress=0000:3b:00.0 or 0000:3b:*")),
                }
            }
            NicProperty::Name | NicProperty::Interface | NicProperty::Driver => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:+@*?[]".contains(&byte);
                if value.is_empty() || value.len() > 64 || !value.bytes().all(plain) {
                    return Err(bad("expected a name, as in mlx5_0, mlx5_* or driver=mlx5_core"));
                }
                value.to_owned()
            }
        };
        let pattern = NamePattern::read(&value).ok_or_else(|| bad("a set in brackets is not complete, as [0-7] is"))?;
        Ok(Self { excludes, property, pattern })
    }
}

impl fmt::Display for NicTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.excludes { "!" } else { "" };
        let text = &self.pattern.text;
        match self.property {
            // An interface or device whose name looks like an address needs its key.
            NicProperty::Name if address(text).is_none() => write!(f, "{not}{text}"),
            property => write!(f, "{not}{property}={text}"),
        }
    }
}

impl FromStr for NicSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let terms = text.split(',').map(str::trim).filter(|term| !term.is_empty());
        let selector = Self { terms: terms.map(str::parse).collect::<Result<_, _>>()? };
        selector.check().map(|()| selector)
    }
}

impl fmt::Display for NicSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms: Vec<String> = self.terms.iter().map(ToString::to_string).collect();
        f.write_str(&terms.join(","))
    }
}

/// A name with `*`, `?` and `[0-7]`, as a shell reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamePattern {
    text: String,
    parts: Vec<PatternPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternPart {
    Any,
    /// One byte of these ranges.
    One(Vec<(u8, u8)>),
}

impl NamePattern {
    fn read(text: &str) -> Option<Self> {
        let (mut parts, mut rest) = (Vec::new(), text.as_bytes());
        while let [byte, after @ ..] = rest {
            rest = after;
            parts.push(match byte {
                b'*' => PatternPart::Any,
                b'?' => PatternPart::One(vec![(0, u8::MAX)]),
                b']' => return None,
                b'[' => {
                    let end = rest.iter().position(|byte| *byte == b']').filter(|end| *end > 0)?;
                    let (mut set, mut ranges) = (&rest[..end], Vec::new());
                    rest = &rest[end + 1..];
                    while let [first, after @ ..] = set {
                        let (range, after) = match after {
                            [b'-', last, after @ ..] => ((*first, *last), after),
                            _ => ((*first, *first), after),
                        };
                        if range.0 > range.1 {
                            return None;
                        }
                        ranges.push(range);
                        set = after;
                    }
                    PatternPart::One(ranges)
                }
                byte => PatternPart::One(vec![(*byte, *byte)]),
            });
        }
        Some(Self { text: text.to_owned(), parts })
    }

    fn is_plain(&self) -> bool {
        !self.text.contains(['*', '?', '['])
    }

    fn matches(&self, text: &str) -> bool {
        // Whether what was read so far can be followed by the text from each place on.
        let mut open = vec![false; text.len() + 1];
        open[0] = true;
        for part in &self.parts {
            open = match part {
                PatternPart::Any => {
                    let first = open.iter().position(|open| *open).unwrap_or(open.len());
                    (0..open.len()).map(|at| at >= first).collect()
                }
                PatternPart::One(ranges) => {
                    let fits = |byte: u8| ranges.iter().any(|(first, last)| (*first..=*last).contains(&byte));
                    let next = text.bytes().zip(&open).map(|(byte, open)| *open && fits(byte));
                    std::iter::once(false).chain(next).collect()
                }
            };
        }
        open.last() == Some(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nic() -> NicFacts {
        NicFacts {
            name: "mlx5_3".into(),
            interfaces: vec!["ibp3".into()],
            link_layers: vec!["InfiniBand".into()],
            vendor: Some(0x15b3),
            driver: Some("mlx5_core".into()),
            address: "0000:41:00.0".into(),
            carries: None,
            alive: true,
        }
    }

    #[test]
    fn a_term_matches_by_each_property_in_each_spelling() {
        let cases = [
            ("mlx5_3", true),
            ("mlx5_*", true),
            ("mlx5_?", true),
            ("mlx5_[0-3]", true),
            ("mlx5_[0-24-7]", false),
            ("mlx5_", false),
            ("ibp*", true),
            ("name=ibp3", true),
            ("ifName=ibp3", true),
            ("ifNames=mlx5_3", false),
            ("linkType=infiniband", true),
            ("link-layer=InfiniBand", true),
            ("linkTypes=IB", true),
            ("linkType=ether", false),
            ("vendor=15b3", true),
            ("vendors=0x15B3", true),
            ("vendor=8086", false),
            ("driver=mlx5_core", true),
            ("driver=mlx5*", true),
            ("driver=ice", false),
            ("0000:41:00.0", true),
            ("41:00.0", true),
            ("pciAddress=0000:41:*", true),
            ("pciAddresses=41:00.1", false),
        ];
        for (text, matches) in cases {
            let selector: NicSelector = text.parse().unwrap();
            assert_eq!(selector.asks_for(&nic()), Some(matches), "{text}");
            let not: NicSelector = format!("!{text}").parse().unwrap();
            assert_eq!((not.asks_for(&nic()), not.excludes(&nic()).is_some()), (None, matches), "!{text}");
        }
    }

    #[test]
    fn terms_of_one_property_are_alternatives_and_properties_are_met_together() {
        let asks = |text: &str| text.parse::<NicSelector>().unwrap().asks_for(&nic());
        assert_eq!(asks("mlx5_1, mlx5_3"), Some(true));
        assert_eq!(asks("mlx5_*,linkType=ethernet"), Some(false));
        assert_eq!(asks("mlx5_*,linkType=ethernet,linkType=infiniband"), Some(true));
        assert_eq!(asks(""), None);
    }

    #[test]
    fn what_cannot_be_read_or_takes_itself_back_is_named() {
        for (text, part) in [
            ("vendor=mellanox", "\"vendor=mellanox\": a PCI vendor has four"),
            ("linkType=token-ring", "linkType=infiniband or"),
            ("colour=red", "\"colour\" is no property of a NIC; expected name, ifName, linkType"),
            ("mlx5_0,!", "\"!\": expected a name"),
            ("mlx5_[0-", "\"mlx5_[0-\": a set in brackets"),
            ("mlx5_[7-0]", "a set in brackets"),
            ("pciAddress=41:00", "\"pciAddress=41:00\": expected a PCI address"),
            ("mlx5 0", "\"mlx5 0\": expected a name"),
            ("mlx5_0,!mlx5_0", "\"mlx5_0\" selects what \"!mlx5_0\" excludes"),
            ("mlx5_1,!mlx5_*", "\"mlx5_1\" selects what \"!mlx5_*\" excludes"),
            ("vendor=15b3,!vendor=0x15b3", "\"vendor=15b3\" selects what"),
            ("mlx5_0,!*", "\"!*\" excludes every NIC"),
        ] {
            let error = text.parse::<NicSelector>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!("mlx5_*,!mlx5_1".parse::<NicSelector>().is_ok());
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_taken_reads_back(
            text in r"(\PC{0,30}|(!|)(name=|ifName=|linkType=|vendor=|driver=|pciAddress=|)[a-f0-9:.*?\[\]_-]{0,14}(,!mlx5_[0-9])?)",
            name in "[a-z0-9_]{0,12}",
        ) {
            if let Ok(selector) = text.parse::<NicSelector>() {
                let nic = NicFacts { name, ..nic() };
                let again: NicSelector = selector.to_string().parse().unwrap();
                prop_assert_eq!(&again, &selector);
                prop_assert_eq!(again.asks_for(&nic), selector.asks_for(&nic));
            }
        }
    }
}
