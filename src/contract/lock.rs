//! The value of the node lock annotation: the time at which the lock was taken, and the pod for which.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::id::{PodKey, PodUid};
use super::word::word_enum;

word_enum! {
    /// How a lock value is written. All forms are read, whatever is configured.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    LockFormat {
        /// `<time>,<namespace>,<pod name>,<pod uid>`
        #[default]
        Uid = "uid",
        /// `<time>,<namespace>,<pod name>`
        Triple = "triple",
        /// `<time>`
        Timestamp = "timestamp",
    }
}

/// The pod that a lock names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// Namespace and name.
    pub pod: PodKey,
    /// Absent in the `triple` format.
    pub uid: Option<PodUid>,
}

/// A well-formed lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockValue {
    /// When it was taken, by the clock of the process that took it.
    pub time: Timestamp,
    /// Absent in the `timestamp` format.
    pub holder: Option<Holder>,
}

/// Characters of a value that names no pod, as people read it: no lock is longer.
const SHOWN: usize = 64;

/// Content of the lock annotation of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LockRead {
    /// No annotation.
    #[default]
    Free,
    /// A lock that could be read; the text is what compare-and-swap needs.
    Held {
        /// The parsed value.
        value: LockValue,
        /// The exact annotation value.
        raw: Box<str>,
    },
    /// A value that is no lock: an unknown holder, never an error.
    Malformed {
        /// The exact annotation value.
        raw: Box<str>,
    },
}

impl LockRead {
    /// Reads the annotation's value. Total: a value that is no lock is [`LockRead::Malformed`].
    pub fn parse(annotation: Option<&str>) -> Self {
        let Some(raw) = annotation else { return Self::Free };
        match LockValue::parse(raw) {
            Some(value) => Self::Held { value, raw: raw.into() },
            None => Self::Malformed { raw: raw.into() },
        }
    }

    /// The exact annotation value, if there is one.
    pub fn raw(&self) -> Option<&str> {
        match self {
            Self::Free => None,
            Self::Held { raw, .. } | Self::Malformed { raw } => Some(raw),
        }
    }

    /// The pod that the value names.
    pub fn named(&self) -> Option<&PodKey> {
        match self {
            Self::Held { value, .. } => value.holder.as_ref().map(|holder| &holder.pod),
            Self::Free | Self::Malformed { .. } => None,
        }
    }

    /// Whose it is by its value, in the words of every surface: `ml/a`, `"mine", which names no pod`. `None` for a free one.
    pub fn whose(&self) -> Option<String> {
        let shown = |raw: &str| format!("{:?}, which names no pod", raw.chars().take(SHOWN).collect::<String>());
        self.named().map(ToString::to_string).or_else(|| self.raw().map(shown))
    }
}

impl LockValue {
    /// Reads any of the three formats with any RFC 3339 precision.
    pub fn parse(raw: &str) -> Option<Self> {
        if raw.len() > 1024 {
            return None;
        }
        let mut fields = raw.split(',');
        let time = rfc3339(fields.next()?)?;
        let rest: Vec<&str> = fields.collect();
        let holder = match rest.as_slice() {
            [] => None,
            [namespace, name] if is_word(namespace) && is_word(name) => {
                Some(Holder { pod: PodKey::new(namespace, name), uid: None })
            }
            [namespace, name, uid] if is_word(namespace) && is_word(name) && is_word(uid) => {
                Some(Holder { pod: PodKey::new(namespace, name), uid: Some(PodUid::new(uid)) })
            }
            _ => return None,
        };
        Some(Self { time, holder })
    }

    /// Writes the value in `format`: UTC with nine fractional digits. A field that is not known ends the value early.
    pub fn print(&self, format: LockFormat) -> String {
        let time = print_time(self.time);
        match (format, &self.holder) {
            (LockFormat::Timestamp, _) | (_, None) => time,
            (LockFormat::Uid, Some(Holder { pod, uid: Some(uid) })) => {
                format!("{time},{},{},{uid}", pod.namespace, pod.name)
            }
            (_, Some(Holder { pod, .. })) => format!("{time},{},{}", pod.namespace, pod.name),
        }
    }

    /// The time as the `bind-timestamp` annotation writes it: decimal Unix nanoseconds.
    pub fn bind_timestamp(&self) -> String {
        print_bind_timestamp(self.time)
    }

    /// `true` when `annotation`, a `bind-timestamp`, is exactly the time of this lock.
    pub fn matches_bind_timestamp(&self, annotation: &str) -> bool {
        annotation.len() <= 20 && annotation.parse::<i128>().is_ok_and(|nanos| nanos == self.time.as_nanosecond())
    }
}

/// A time in the strict form of RFC 3339. Digits after the ninth are finer than the clock and dropped.
fn rfc3339(text: &str) -> Option<Timestamp> {
    let (head, rest) = text.split_at_checked(19)?;
    let shape = head.bytes().zip(b"0000-00-00T00:00:00").all(|(byte, like)| match like {
        b'0' => byte.is_ascii_digit(),
        b'T' => byte.eq_ignore_ascii_case(&b'T'),
        other => byte == *other,
    });
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?),
        None => ("", rest),
    };
    let offset = |zone: &str| {
        zone.len() == 6
            && zone.bytes().zip(b"+00:00").all(|(byte, like)| match like {
                b'+' => matches!(byte, b'+' | b'-'),
                b'0' => byte.is_ascii_digit(),
                other => byte == *other,
            })
    };
    if !shape || rest.starts_with('.') && fraction.is_empty() || !(zone.eq_ignore_ascii_case("z") || offset(zone)) {
        return None;
    }
    let kept = &fraction[..fraction.len().min(9)];
    let point = if kept.is_empty() { "" } else { "." };
    format!("{head}{point}{kept}{zone}").to_ascii_uppercase().parse().ok()
}

/// The annotation `bind-timestamp`: decimal Unix nanoseconds. Written for every Binding, so without the formatting machinery.
pub fn print_bind_timestamp(time: Timestamp) -> String {
    match i64::try_from(time.as_nanosecond()) {
        Ok(nanos) => itoa::Buffer::new().format(nanos).to_owned(),
        Err(_) => time.as_nanosecond().to_string(),
    }
}

/// RFC 3339, UTC, nine fractional digits.
fn print_time(time: Timestamp) -> String {
    format!("{time:.9}")
}

fn is_word(field: &str) -> bool {
    !field.is_empty() && field.len() <= 253 && field.bytes().all(|b| b.is_ascii_graphic())
}

impl fmt::Display for LockValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print(LockFormat::Uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UID: &str = "2026-11-21T02:35:12.123456789Z,ml,train-0,0d2f9e3c-8f57-4f0e-9a44-1e3ad2a7f0b1";

    #[test]
    fn the_three_formats_print_as_they_are_read() {
        let value = LockValue::parse(UID).unwrap();
        assert_eq!(value.print(LockFormat::Uid), UID);
        assert_eq!(value.print(LockFormat::Triple), "2026-11-21T02:35:12.123456789Z,ml,train-0");
        assert_eq!(value.print(LockFormat::Timestamp), "2026-11-21T02:35:12.123456789Z");
        assert_eq!(value.bind_timestamp(), "1795228512123456789");
        assert!(value.matches_bind_timestamp("1795228512123456789"));
        assert!(!value.matches_bind_timestamp("1795228512123456788"));
    }

    #[test]
    fn any_rfc_3339_precision_and_offset_is_read() {
        for raw in [
            "2026-11-21T02:35:12Z",
            "2026-11-21T02:35:12.1Z",
            "2026-11-21t02:35:12.1234567890Z,ns,p,u",
            "2026-11-21T03:35:12+01:00",
            "2026-11-21T02:35:12Z,ns,p",
        ] {
            assert!(matches!(LockRead::parse(Some(raw)), LockRead::Held { .. }), "{raw}");
        }
    }

    #[test]
    fn a_malformed_value_is_an_unknown_holder_and_keeps_its_text() {
        for raw in [
            "",
            "2026-11-21T02:35Z",
            "20261121T023512Z",
            "2026-11-21T02:35:12.Z",
            "2026-11-21T02:35:12",
            "2026-11-21T02:35:12+00:00[UTC]",
            "yes",
            "2026-11-21",
            "12:00,ns,p",
            "2026-11-21T02:35:12Z,ns",
            "2026-11-21T02:35:12Z,ns,p,u,x",
            "2026-11-21T02:35:12Z,,p",
        ] {
            assert_eq!(LockRead::parse(Some(raw)), LockRead::Malformed { raw: raw.into() }, "{raw}");
        }
        assert_eq!(LockRead::parse(None), LockRead::Free);
    }

    proptest! {
        #[test]
        fn printing_then_reading_gives_the_same_lock(nanos in 0i64..=253_370_764_800_000_000, ns in "[a-z0-9-]{1,63}", name in "[a-z0-9.-]{1,253}", uid in "[a-f0-9-]{36}") {
            let value = LockValue {
                time: Timestamp::from_nanosecond(i128::from(nanos) * 7).unwrap(),
                holder: Some(Holder { pod: PodKey::new(&ns, &name), uid: Some(PodUid::new(&uid)) }),
            };
            prop_assert_eq!(LockValue::parse(&value.to_string()), Some(value));
        }
        #[test]
        fn no_text_panics(raw in "\\PC*") {
            let _ = LockRead::parse(Some(&raw));
        }
    }
}
