//! Device entries written straight into an annotation's text: what [`DeviceEntry`](super::DeviceEntry) prints, without making
//! the entries first. The scheduler writes them for every pod that it binds.

use super::{DeviceId, Quantity};

/// One entry without its resources, as borrowed parts.
#[derive(Debug, Clone, Copy)]
pub struct EntryText<'a> {
    /// Small number on the node.
    pub minor: i32,
    /// Identity.
    pub id: &'a DeviceId,
    /// Virtual functions of a NIC: number and address.
    pub vfs: &'a [(i32, &'a DeviceId)],
}

impl EntryText<'_> {
    /// Appends the entry as compact JSON; `resources` appends the members of its `resources`, as [`push_amounts`] does.
    pub fn push_to(&self, out: &mut String, resources: impl FnOnce(&mut String)) {
        push_number(out, "{\"minor\":", self.minor);
        out.push_str(",\"id\":");
        push_json(out, self.id.as_str());
        out.push_str(",\"resources\":{");
        resources(out);
        out.push('}');
        if !self.vfs.is_empty() {
            out.push_str(",\"extension\":{\"vfs\":[");
            for (at, (minor, address)) in self.vfs.iter().enumerate() {
                push_number(out, if at > 0 { ",{\"minor\":" } else { "{\"minor\":" }, *minor);
                out.push_str(",\"busID\":");
                push_json(out, address.as_str());
                out.push('}');
            }
            out.push_str("]}");
        }
        out.push('}');
    }
}

/// Appends amounts by resource name, in the order given, as members of a JSON object.
pub fn push_amounts(out: &mut String, amounts: &[(&str, Quantity)]) {
    for (at, (name, amount)) in amounts.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        push_json(out, name);
        out.push_str(":\"");
        amount.push_to(out);
        out.push('"');
    }
}

/// Appends `text` as a JSON string.
pub fn push_json(out: &mut String, text: &str) {
    // Without an early exit, so that many bytes are checked at once: special characters are rare.
    let special = |byte: u8| u8::from(byte < b' ') | u8::from(byte == b'"') | u8::from(byte == b'\\');
    if text.bytes().fold(0, |odd, byte| odd | special(byte)) == 0 {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}

fn push_number(out: &mut String, before: &str, number: i32) {
    out.push_str(before);
    out.push_str(itoa::Buffer::new().format(number));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceEntry, DeviceExtension, Vf};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_entry_is_written_as_it_is_printed(
            minor in 0..200i32,
            id in "[!-+.0-\\[\\]-~-]{1,40}",
            amounts in proptest::collection::btree_map("\\PC{0,12}", (any::<bool>(), 0i64..1 << 44), 0..4),
            vfs in proptest::collection::vec((0..64i32, "[0-9a-f]{4}:3c:00\\.[0-7]"), 0..3),
        ) {
            let Ok(id) = DeviceId::parse(&id) else { return Ok(()) };
            let quantity = |(bytes, amount): (bool, i64)| if bytes { Quantity::bytes(amount) } else { Quantity::units(amount) };
            let amounts: Vec<(&str, Quantity)> = amounts.iter().map(|(name, amount)| (name.as_str(), quantity(*amount))).collect();
            let vfs: Vec<(i32, DeviceId)> = vfs.iter().map(|(minor, id)| (*minor, DeviceId::parse(id).unwrap())).collect();
            let entry = DeviceEntry {
                minor,
                id: id.clone(),
                resources: amounts.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect(),
                extension: (!vfs.is_empty()).then(|| DeviceExtension {
                    vfs: vfs.iter().map(|(minor, id)| Vf { minor: *minor, bus_id: id.clone() }).collect(),
                }),
            };
            let borrowed: Vec<(i32, &DeviceId)> = vfs.iter().map(|(minor, id)| (*minor, id)).collect();
            let mut text = String::new();
            EntryText { minor, id: &id, vfs: &borrowed }.push_to(&mut text, |out| push_amounts(out, &amounts));
            prop_assert_eq!(text, serde_json::to_string(&entry).unwrap());
        }
    }
}
