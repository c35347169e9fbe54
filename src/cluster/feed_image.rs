//! Names of images, hashed while they are parsed: nobody needs the texts.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::contract::image::ImageName;

/// As a node lists it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed(pub ImageName);

/// As a container or a volume asks for it; none for an empty name.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked(pub Option<ImageName>);

struct Name<T>(fn(&str) -> T);

impl<T> Visitor<'_> for Name<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an image")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        Ok(self.0(name))
    }
}

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Name(|name| Self(ImageName::listed(name))))
    }
}

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Name(|name| Self((!name.is_empty()).then(|| ImageName::asked(name)))))
    }
}
