//! A PCI address: the identity of a NIC, and the key that joins NVML's view of a GPU with the kernel's.

use std::fmt;
use std::str::FromStr;

/// A PCI address, `<domain>:<bus>:<device>.<function>`, printed in lower case with at least four domain digits, as the
/// kernel prints it (`0000:3c:00.0`, `10000:01:00.0`). Order is by number, so it is the rank that minors follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf {
    /// PCI segment. Wider than 16 bits behind Intel VMD and on some Arm machines.
    pub domain: u32,
    /// Bus within the domain.
    pub bus: u8,
    /// Device on the bus, 0..=31.
    pub device: u8,
    /// Function of the device, 0..=7.
    pub function: u8,
}

/// The text is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a PCI address; expected <domain>:<bus>:<device>.<function> in hexadecimal, such as 0000:3c:00.0")]
pub struct BadBdf(pub String);

impl Bdf {
    /// An address from its parts; `None` when device or function are out of range.
    pub fn new(domain: u32, bus: u8, device: u8, function: u8) -> Option<Self> {
        (device < 32 && function < 8).then_some(Self { domain, bus, device, function })
    }
}

impl FromStr for Bdf {
    type Err = BadBdf;

    /// Reads 4 to 8 domain digits of either case; NVML prints 8 (`00000000:3C:00.0`), the kernel 4 or more.
    fn from_str(text: &str) -> Result<Self, BadBdf> {
        parse(text).ok_or_else(|| BadBdf(text.chars().take(64).collect()))
    }
}

fn parse(text: &str) -> Option<Bdf> {
    let (address, function) = text.split_once('.')?;
    let mut parts = address.split(':');
    let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    Bdf::new(
        hex(domain, 4..=8)?,
        u8::try_from(hex(bus, 2..=2)?).ok()?,
        u8::try_from(hex(device, 2..=2)?).ok()?,
        u8::try_from(hex(function, 1..=1)?).ok()?,
    )
}

/// `from_str_radix` accepts a sign; an address has none.
fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let valid = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    valid.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl serde::Serialize for Bdf {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Bdf {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
