//! A simulated kubelet: admission, device manager, pod-resources and checkpoint, over real Unix sockets.
