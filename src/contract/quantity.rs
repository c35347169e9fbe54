//! Kubernetes quantities, integers only: a value in billionths and the notation it is printed in.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Billionths in one unit.
const NANO: i128 = 1_000_000_000;
/// Largest magnitude, in units: what an i64 holds, as in Kubernetes.
const MAX_UNITS: i128 = i64::MAX as i128;

const NUMBER: &str = "expected a number such as 100, 1.5, 500m or 80Gi";

/// A text that is no Kubernetes quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not a quantity: {rule}")]
pub struct QuantityError {
    value: String,
    rule: &'static str,
}

impl QuantityError {
    /// The same of an amount of this resource: those of the vendor are counted.
    #[must_use]
    pub fn of(self, resource: &str) -> Self {
        if resource.starts_with("nvidia.com/") && self.rule == NUMBER {
            Self { rule: "expected a whole number such as 1 or 2", ..self }
        } else {
            self
        }
    }
}

/// An amount of a resource. Equal and ordered by value; the notation (`Ki`… or decimal) only decides how it is printed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    binary: bool,
}

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self { nanos: 0, binary: false };

    /// `n` units, printed in decimal notation.
    pub const fn units(n: i64) -> Self {
        Self { nanos: n as i128 * NANO, binary: false }
    }

    /// `n` thousandths.
    pub const fn millis(n: i64) -> Self {
        Self { nanos: n as i128 * (NANO / 1000), binary: false }
    }

    /// `n` bytes, printed with the largest binary suffix that divides them.
    pub const fn bytes(n: i64) -> Self {
        Self { nanos: n as i128 * NANO, binary: true }
    }

    /// Whole units, rounded up as Kubernetes does.
    pub fn value(self) -> i64 {
        ceil_div(self.nanos, NANO) as i64
    }

    /// Thousandths, rounded up; saturates at the bounds of i64.
    pub fn milli_value(self) -> i64 {
        ceil_div(self.nanos, NANO / 1000).clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    /// Both together, in the notation of this one; saturates far beyond any amount.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_add(other.nanos), binary: self.binary || self.nanos == 0 && other.binary }
    }

    /// What is left of this without the other; never below zero.
    #[must_use]
    pub fn beyond(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_sub(other.nanos).max(0), binary: self.binary }
    }

    /// This many times; saturates likewise.
    #[must_use]
    pub const fn times(self, count: u32) -> Self {
        Self { nanos: self.nanos.saturating_mul(count as i128), binary: self.binary }
    }

    /// `true` when this is more than `ratio` times `base`.
    pub fn exceeds_ratio(self, base: Self, ratio: Self) -> bool {
        // Thousandths of both: their product fits.
        let milli = |amount: Self| i128::from(amount.milli_value());
        milli(self) * 1000 > milli(base) * milli(ratio)
    }

    /// `true` when this is a whole number of units.
    pub fn is_whole(self) -> bool {
        self.nanos % NANO == 0
    }
}

/// `b` is above zero.
fn ceil_div(a: i128, b: i128) -> i128 {
    // Most amounts fit into 64 bits, and dividing these is many times faster.
    if let (Ok(a), Ok(b)) = (i64::try_from(a), i64::try_from(b)) {
        let whole = a / b;
        return i128::from(whole + i64::from(whole * b < a));
    }
    let whole = a / b;
    whole + i128::from(whole * b < a)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    /// Reads `[+-]digits[.digits][suffix]` with the suffixes n u m k M G T P E, Ki…Ei and e/E exponents. Digits below a
    /// billionth are rounded up; values beyond i64 saturate, as in Kubernetes.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let bad = |rule| QuantityError { value: text.chars().take(80).collect(), rule };
        if text.len() > 64 {
            return Err(bad("longer than 64 characters"));
        }
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = rest.bytes().position(|b| !b.is_ascii_digit() && b != b'.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(bad(NUMBER));
        }
        let (scale, binary) = scale_of(suffix)
            .ok_or_else(|| bad("unknown suffix; expected n u m k M G T P E, Ki Mi Gi Ti Pi Ei or an exponent"))?;
        let nanos = magnitude(whole, fraction, scale);
        Ok(Self { nanos: if negative { -nanos } else { nanos }, binary })
    }
}

/// Worth of one unit of the written number: a factor and a power of ten; and whether the notation is binary.
fn scale_of(suffix: &str) -> Option<((i128, i32), bool)> {
    let binary = |n: u32| Some(((1i128 << (10 * n), 0), true));
    let decimal = |power: i32| Some(((1, power), false));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let digits = suffix.strip_prefix(['e', 'E'])?;
            let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            // Far exponents saturate (or round up to a billionth) anyway.
            decimal(
                digits
                    .strip_prefix('+')
                    .unwrap_or(digits)
                    .parse::<i32>()
                    .unwrap_or(if digits.starts_with('-') { -99 } else { 99 })
                    .clamp(-99, 99),
            )
        }
    }
}

/// Billionths of `whole.fraction * times * 10^power`, rounded up, saturated at [`MAX_UNITS`].
fn magnitude(whole: &str, fraction: &str, (times, power): (i128, i32)) -> i128 {
    let cap = MAX_UNITS * NANO;
    // value = digits * times * 10^(power - fraction.len()) units; the mantissa keeps its first 27 significant digits, and
    // whatever is cut only rounds up.
    let digits: Vec<i128> = whole.bytes().chain(fraction.bytes()).map(|b| i128::from(b - b'0')).collect();
    let start = digits.iter().position(|d| *d != 0).unwrap_or(digits.len());
    let kept = &digits[start..digits.len().min(start + 27)];
    let cut = &digits[start + kept.len()..];
    let mantissa = kept.iter().fold(0i128, |acc, d| acc * 10 + d);
    if mantissa == 0 {
        return 0;
    }
    let exponent = power - fraction.len() as i32 + cut.len() as i32 + 9;
    let sticky = cut.iter().any(|d| *d != 0);
    let Some(mut nanos) = mantissa.checked_mul(times) else { return cap };
    if exponent >= 0 {
        for _ in 0..exponent {
            nanos = match nanos.checked_mul(10) {
                Some(n) if n <= cap => n,
                _ => return cap,
            };
        }
        (nanos + i128::from(sticky)).min(cap)
    } else {
        let mut inexact = sticky;
        for _ in 0..-exponent {
            inexact |= nanos % 10 != 0;
            nanos /= 10;
        }
        (nanos + i128::from(inexact)).min(cap)
    }
}

impl Quantity {
    /// A whole number of units in its notation: number and suffix. `None` for parts of a unit.
    fn whole(self) -> Option<(i64, &'static str)> {
        let mut units = if self.is_whole() { i64::try_from(self.nanos / NANO).ok()? } else { return None };
        if self.binary {
            let power = if units == 0 { 0 } else { (units.trailing_zeros() / 10).min(6) };
            return Some((units >> (10 * power), ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power as usize]));
        }
        let mut power = 0;
        while units != 0 && units % 1000 == 0 && power < 6 {
            units /= 1000;
            power += 1;
        }
        Some((units, ["", "k", "M", "G", "T", "P", "E"][power]))
    }

    /// Appends what [`Display`](fmt::Display) prints, faster: it is written for every device of every pod that is bound.
    pub fn push_to(self, out: &mut String) {
        match self.whole() {
            Some((number, suffix)) => {
                out.push_str(itoa::Buffer::new().format(number));
                out.push_str(suffix);
            }
            None => out.push_str(&self.to_string()),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((number, suffix)) = self.whole() {
            return write!(f, "{number}{suffix}");
        }
        let (mut n, mut power) = (self.nanos, 0);
        while n != 0 && n % 1000 == 0 && power < 9 {
            n /= 1000;
            power += 1;
        }
        if n == 0 {
            return f.write_str("0");
        }
        write!(f, "{n}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][power])
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// Strings and numbers are both read.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text.parse().map_err(D::Error::custom),
            serde_json::Value::Number(n) => n.to_string().parse().map_err(D::Error::custom),
            other => Err(D::Error::custom(format!("expected a quantity, found {other}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;
    use proptest::prelude::*;

    fn q(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn every_kubernetes_notation_is_read() {
        for (text, milli) in [
            ("0", 0),
            ("100", 100_000),
            ("1.5", 1500),
            ("500m", 500),
            (".5", 500),
            ("5.", 5000),
            ("1k", 1_000_000),
            ("1Ki", 1_024_000),
            ("0.5Gi", 536_870_912_000),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("12e-1", 1200),
            ("+1", 1000),
            ("-1", -1000),
            ("1n", 1),
            ("1u", 1),
        ] {
            assert_eq!(q(text).milli_value(), milli, "{text}");
        }
        assert_eq!(q("1m").value(), 1, "rounded up");
        assert_eq!(q("9E").value(), 9_000_000_000_000_000_000);
        assert_eq!(q("99999999999999999999E").value(), i64::MAX, "saturates");
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_its_text() {
        for text in ["", "-", ".", "1.2.3", "1 Gi", "Gi", "1gi", "1e", "1e+", "abc", "10µs", "1KiB", "--1"] {
            let error = text.parse::<Quantity>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn of_a_resource_that_is_counted_a_whole_number_is_expected() {
        for (resource, words) in
            [("nvidia.com/gpu", "a whole number"), (key::GPU_MEMORY, "100, 1.5"), ("cpu", "100, 1.5")]
        {
            let error = "two".parse::<Quantity>().unwrap_err().of(resource).to_string();
            assert!(error.starts_with("\"two\" is not a quantity: ") && error.contains(words), "{resource}: {error}");
        }
    }

    #[test]
    fn memory_is_printed_with_the_largest_suffix_that_divides_it() {
        assert_eq!(Quantity::bytes(81_559 << 20).to_string(), "81559Mi");
        assert_eq!(Quantity::bytes(80 << 30).to_string(), "80Gi");
        assert_eq!(Quantity::bytes(1000).to_string(), "1000");
        assert_eq!(Quantity::units(100).to_string(), "100");
        assert_eq!(Quantity::millis(1500).to_string(), "1500m");
    }

    proptest! {
        #[test]
        fn printing_then_reading_gives_the_same_value(n in any::<i64>(), binary in any::<bool>()) {
            let quantity = if binary { Quantity::bytes(n) } else { Quantity::units(n) };
            prop_assert_eq!(q(&quantity.to_string()), quantity);
        }
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = text.parse::<Quantity>();
        }
        #[test]
        fn no_near_quantity_panics(text in "[-+]?[0-9.]{0,40}[a-zA-Z+0-9-]{0,6}") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                prop_assert_eq!(q(&quantity.to_string()), quantity);
            }
        }
    }
}
