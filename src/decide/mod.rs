//! Every decision, pure: no async, no client, no clock, no randomness, no environment.
