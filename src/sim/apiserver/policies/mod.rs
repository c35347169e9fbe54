//! ValidatingAdmissionPolicies: which writes they match, and what their expressions say of them, as on a real server.
//!
//! A write is judged after it was validated and before it is stored, a dry run too. The bindings count that say `Deny`.
//!
//! Not here: parameters, audit annotations, the actions `Warn` and `Audit`, the cost of expressions, and of their types
//! more than the names and fields of what is declared. A rule matches a resource in the version (and, of events, the group)
//! that the request names, never an equivalent one. What controllers do behind the API is not judged. A policy judges from
//! the moment it is stored, where a real server takes a second to notice it.

mod asked;
mod authorizer;
mod compile;
mod input;
mod judge;
mod matching;
mod policy;

pub use asked::Asked;
pub use judge::{GROUP, Policies};
pub use policy::{validate, validate_binding};
