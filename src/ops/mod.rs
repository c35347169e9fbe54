//! What an operator touches: arguments, manifests, inspection, demo.
