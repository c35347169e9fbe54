//! Bytes as hexadecimal text, for the ledger's answers.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

#[allow(clippy::ref_option)] // the signature that serde asks for
pub(super) fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    match bytes {
        None => serializer.serialize_none(),
        Some(bytes) => serializer.serialize_str(&print(bytes)),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    text.map(|text| parse(&text).ok_or_else(|| D::Error::custom("expected hexadecimal digits in pairs"))).transpose()
}

fn print(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let pairs = bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]);
    pairs.map(char::from).collect()
}

fn parse(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
