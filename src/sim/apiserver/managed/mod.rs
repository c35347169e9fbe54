//! Field ownership (`metadata.managedFields`) and server-side apply.

mod apply;
mod changes;
mod entries;
mod fieldset;

pub use apply::{OnConflict, apply};
pub use changes::compare;
pub use entries::{Entries, Manager, forget, record_update};
pub use fieldset::FieldSet;
