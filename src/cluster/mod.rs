//! The Kubernetes adapter: objects become events, effects become API calls.
