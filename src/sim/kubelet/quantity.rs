//! Reading Kubernetes quantities where a kubelet compares them.

/// A quantity in thousandths, `1500` for `1.5`; 0 when it cannot be read.
pub fn milli(text: &str) -> i128 {
    const SUFFIXES: [(&str, i128); 14] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("Ei", 1 << 60),
        ("m", 0),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
        ("E", 1_000_000_000_000_000_000),
        ("", 1),
    ];
    let text = text.trim();
    let Some((number, factor)) =
        SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
    else {
        return 0;
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction: String = fraction.chars().chain("000".chars()).take(3).collect();
    let (Ok(whole), Ok(fraction)) = (whole.parse::<i64>(), fraction.parse::<i64>()) else { return 0 };
    let milli = i128::from(whole) * 1000 + i128::from(fraction);
    // `m` is thousandths already.
    if factor == 0 { milli / 1000 } else { milli * factor }
}

/// A quantity in whole units, rounded up.
pub fn amount(text: &str) -> i64 {
    i64::try_from((milli(text) + 999).div_euclid(1000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_in_thousandths() {
        assert_eq!(milli("1500m"), 1500);
        assert_eq!(milli("1.5"), 1500);
        assert_eq!(milli("2Ki"), 2_048_000);
        assert_eq!(milli("x"), 0);
        assert_eq!((amount("2"), amount("1500m"), amount("1Gi")), (2, 2, 1 << 30));
    }
}
