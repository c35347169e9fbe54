//! A simulated Kubernetes API server that real clients can use over HTTP and TLS.
