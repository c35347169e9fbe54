//! Quantities (`500m`, `64Gi`, `1e3`): parsing and the canonical text a real server answers with.

/// Value in billionths.
type Nano = i128;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Decimal,
    Binary,
    Exponent,
}

const NANO: i128 = 1_000_000_000;

fn parse_full(text: &str) -> Option<(Nano, Format)> {
    let text = text.trim();
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() > 30 {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (format, factor_num, factor_den): (Format, i128, i128) = match suffix {
        "" => (Format::Decimal, 1, 1),
        "n" => (Format::Decimal, 1, NANO),
        "u" => (Format::Decimal, 1, 1_000_000),
        "m" => (Format::Decimal, 1, 1000),
        "k" => (Format::Decimal, 1000, 1),
        "M" => (Format::Decimal, 1_000_000, 1),
        "G" => (Format::Decimal, 1_000_000_000, 1),
        "T" => (Format::Decimal, 1_000_000_000_000, 1),
        "P" => (Format::Decimal, 1_000_000_000_000_000, 1),
        "E" => (Format::Decimal, 1_000_000_000_000_000_000, 1),
        "Ki" => (Format::Binary, 1 << 10, 1),
        "Mi" => (Format::Binary, 1 << 20, 1),
        "Gi" => (Format::Binary, 1 << 30, 1),
        "Ti" => (Format::Binary, 1 << 40, 1),
        "Pi" => (Format::Binary, 1 << 50, 1),
        "Ei" => (Format::Binary, 1 << 60, 1),
        other => {
            let exponent: i32 = other.strip_prefix(['e', 'E'])?.parse().ok()?;
            if !(-18..=18).contains(&exponent) {
                return None;
            }
            let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 { (Format::Exponent, 1, power) } else { (Format::Exponent, power, 1) }
        }
    };
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let top = digits.checked_mul(NANO)?.checked_mul(factor_num)?;
    let bottom = scale.checked_mul(factor_den)?;
    // Finer than a billionth is rounded up, as the real parser does.
    let nano = if top % bottom == 0 { top / bottom } else { top / bottom + 1 };
    Some((if negative { -nano } else { nano }, format))
}

/// The value in billionths, or `None` for text that is no quantity.
pub fn parse(text: &str) -> Option<i128> {
    parse_full(text).map(|(nano, _)| nano)
}

/// The canonical text: largest suffix without a fraction, binary only where the value is a multiple.
pub fn canonical(text: &str) -> Option<String> {
    let (nano, format) = parse_full(text)?;
    if nano == 0 {
        return Some("0".to_owned());
    }
    let binary = format == Format::Binary && nano.abs() >= 1024 * NANO && nano % NANO == 0;
    if binary {
        let mut value = nano / NANO;
        let mut step = 0;
        while value % 1024 == 0 && step < 6 {
            value /= 1024;
            step += 1;
        }
        return Some(format!("{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][step]));
    }
    let mut value = nano;
    let mut step = 0_usize;
    while value % 1000 == 0 && step < 9 {
        value /= 1000;
        step += 1;
    }
    let exponent = i32::try_from(step).ok()? * 3 - 9;
    if format == Format::Exponent {
        return Some(if exponent == 0 { value.to_string() } else { format!("{value}e{exponent}") });
    }
    Some(format!("{value}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][step]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_come_out_canonical() {
        for (given, wanted) in [
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1024Mi", "1Gi"),
            ("1", "1"),
            ("1000", "1k"),
            ("64Gi", "64Gi"),
            ("1e3", "1e3"),
            ("0", "0"),
            ("1500m", "1500m"),
            ("512", "512"),
            ("1.5Gi", "1536Mi"),
            ("-1", "-1"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(wanted), "{given}");
        }
        for bad in ["", "abc", "1x", "1.2.3", "Gi", "--1"] {
            assert_eq!(canonical(bad), None, "{bad}");
        }
    }
}
