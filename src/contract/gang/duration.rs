//! Durations as Go writes them: `3600s`, `1h30m`, `1.5h`. A bare number other than 0 is an error.

use std::time::Duration;

use super::value::BadValue;

/// Longest waiting time: seven days.
pub const MAX_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Largest magnitude while adding up, 2⁶³: Go's own bound.
const LIMIT: u64 = 1 << 63;

fn unit(word: &str) -> Option<u64> {
    Some(match word {
        "ns" => 1,
        // The two letters mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return None,
    })
}

/// Digits at the start, and the rest.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

fn whole(digits: &str) -> Option<u64> {
    digits.bytes().try_fold(0u64, |sum, digit| {
        let sum = sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        (sum <= LIMIT).then_some(sum)
    })
}

/// Digits after the point and the power of ten below them. Digits that do not fit any more are dropped, as Go drops them.
fn fraction(digits: &str) -> (u64, f64) {
    let (mut sum, mut scale) = (0u64, 1.0);
    for digit in digits.bytes() {
        match sum.checked_mul(10).and_then(|sum| sum.checked_add(u64::from(digit - b'0'))) {
            Some(next) if sum <= (LIMIT - 1) / 10 && next <= LIMIT => sum = next,
            _ => break,
        }
        scale *= 10.0;
    }
    (sum, scale)
}

/// Reads a duration by Go's rules, as nanoseconds of either sign. The error is the rule that was broken.
pub fn parse_go_duration(text: &str) -> Result<i64, &'static str> {
    const INVALID: &str = "is no duration; expected e.g. 600s, 1h30m or 1.5h";
    const LONG: &str = "is longer than a duration can be";
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(INVALID);
    }
    let mut sum = 0u64;
    while !rest.is_empty() {
        let (before, after) = digits(rest);
        let (behind, after) = after.strip_prefix('.').map_or(("", after), digits);
        if before.is_empty() && behind.is_empty() {
            return Err(INVALID);
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        if end == 0 {
            return Err("has a number without a unit; expected e.g. 600s");
        }
        let (word, after) = after.split_at(end);
        let unit = unit(word).ok_or("has an unknown unit; expected ns, us, ms, s, m or h")?;
        let mut part = whole(before).and_then(|number| number.checked_mul(unit)).filter(|part| *part <= LIMIT);
        let (fraction, scale) = fraction(behind);
        if fraction > 0 {
            let more = (fraction as f64 * (unit as f64 / scale)) as u64;
            part = part.and_then(|part| part.checked_add(more)).filter(|part| *part <= LIMIT);
        }
        sum = part.and_then(|part| sum.checked_add(part)).filter(|sum| *sum <= LIMIT).ok_or(LONG)?;
        rest = after;
    }
    match (negative, i64::try_from(sum)) {
        (false, Ok(nanos)) => Ok(nanos),
        (false, Err(_)) => Err(LONG),
        (true, Ok(nanos)) => Ok(-nanos),
        (true, Err(_)) => Ok(i64::MIN),
    }
}

/// Reads a waiting time: above zero. An empty text is no value.
pub fn parse_wait(key: &'static str, text: &str) -> Result<Option<Duration>, BadValue> {
    if text.is_empty() {
        return Ok(None);
    }
    let nanos = parse_go_duration(text).map_err(|rule| BadValue::new(key, text, rule))?;
    match u64::try_from(nanos) {
        Ok(0) | Err(_) => Err(BadValue::new(key, text, "is not above zero")),
        Ok(nanos) => Ok(Some(Duration::from_nanos(nanos))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::key;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        const S: i64 = 1_000_000_000;
        let cases: [(&str, Option<i64>); 46] = [
            ("0", Some(0)),
            ("+0", Some(0)),
            ("-0", Some(0)),
            ("5s", Some(5 * S)),
            ("30s", Some(30 * S)),
            ("3600s", Some(3600 * S)),
            ("1h30m", Some(5400 * S)),
            ("1.5h", Some(5400 * S)),
            ("-5s", Some(-5 * S)),
            ("+5s", Some(5 * S)),
            ("0s", Some(0)),
            ("5.s", Some(5 * S)),
            (".5s", Some(S / 2)),
            ("1.0s", Some(S)),
            ("1.004s", Some(1_004_000_000)),
            ("100.00100s", Some(100_001_000_000)),
            ("10ns", Some(10)),
            ("11us", Some(11_000)),
            ("12µs", Some(12_000)),
            ("12μs", Some(12_000)),
            ("13ms", Some(13_000_000)),
            ("3h30m", Some(12_600 * S)),
            ("10.5s4m", Some(250_500_000_000)),
            ("-2m3.4s", Some(-123_400_000_000)),
            ("1h2m3s4ms5us6ns", Some(3_723_004_005_006)),
            ("9007199254740993ns", Some(9_007_199_254_740_993)),
            ("9223372036854775807ns", Some(i64::MAX)),
            ("-9223372036854775808ns", Some(i64::MIN)),
            ("0.100000000000000000000h", Some(360 * S)),
            ("0.3333333333333333333h", Some(1200 * S)),
            ("", None),
            ("3", None),
            ("3600", None),
            ("-", None),
            ("s", None),
            (".", None),
            ("-.", None),
            (".s", None),
            ("+.s", None),
            ("1d", None),
            ("3000000h", None),
            ("9223372036854775808ns", None),
            ("-9223372036854775809ns", None),
            ("1 s", None),
            (" 1s", None),
            ("1S", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_go_duration(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_waiting_time_is_above_zero() {
        let read = |text| parse_wait(key::WAITING_TIME, text);
        assert_eq!(read(""), Ok(None));
        assert_eq!(read("10m"), Ok(Some(Duration::from_secs(600))));
        assert_eq!(read("168h"), Ok(Some(MAX_WAIT)));
        assert_eq!(read("169h"), Ok(Some(MAX_WAIT + Duration::from_secs(3600))));
        for (text, rule) in [("0", "above zero"), ("-1s", "above zero"), ("600", "unit"), ("x", "no duration")] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(rule) && error.contains(text) && error.contains(key::WAITING_TIME), "{error}");
        }
    }

    proptest! {
        #[test]
        fn whole_seconds_and_minutes_add_up(hours in 0i64..1000, minutes in 0i64..10_000, seconds in 0i64..10_000) {
            let text = format!("{hours}h{minutes}m{seconds}s");
            prop_assert_eq!(parse_go_duration(&text), Ok((hours * 3600 + minutes * 60 + seconds) * 1_000_000_000));
        }

        #[test]
        fn no_text_panics_and_a_wait_is_above_zero(text in "[-+]?([0-9.]{0,20}(ns|us|µs|ms|s|m|h|d|))*") {
            if let Ok(Some(wait)) = parse_wait(key::WAITING_TIME, &text) {
                prop_assert!(!wait.is_zero());
            }
        }
    }
}
