//! Which images lie on how many nodes, where somebody asks: [`WorldPolicy::images`](super::WorldPolicy::images).

use std::collections::BTreeMap;

use crate::contract::image::ImageName;

/// Every image that some node lists.
#[derive(Debug, Clone, Default)]
pub(super) struct Images(BTreeMap<ImageName, Image>);

#[derive(Debug, Clone, Copy)]
struct Image {
    /// Bytes, as the first node said that listed it.
    size: i64,
    nodes: usize,
}

impl Images {
    /// A node lists these; each name once.
    pub fn enter(&mut self, listed: &[(ImageName, i64)]) {
        for (name, size) in listed {
            self.0.entry(*name).or_insert(Image { size: *size, nodes: 0 }).nodes += 1;
        }
    }

    /// The node that listed these lists them no longer.
    pub fn leave(&mut self, listed: &[(ImageName, i64)]) {
        for (name, _) in listed {
            if let Some(image) = self.0.get_mut(name) {
                image.nodes -= 1;
                if image.nodes == 0 {
                    self.0.remove(name);
                }
            }
        }
    }

    /// Bytes, and how many nodes have it; `None` where no node lists it.
    pub fn find(&self, name: ImageName) -> Option<(i64, usize)> {
        self.0.get(&name).map(|image| (image.size, image.nodes))
    }
}
