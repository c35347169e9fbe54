# The image of the daemons. glibc, because NVML is a glibc library that the daemon loads at run time.
FROM rust:1.95.0-bookworm AS build
WORKDIR /src
COPY . .
# Without the simulated cluster, and small: the image holds what ships, nothing else.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --locked --profile image --no-default-features --bins && cp target/image/baton target/image/baton-device-plugin / && \
    .ci/notices.sh | gzip -9 >/third-party-notices.gz

FROM gcr.io/distroless/cc-debian12
COPY --from=build /baton /baton-device-plugin /usr/bin/
COPY --from=build /third-party-notices.gz /src/LICENSE /usr/share/doc/baton/
# The node daemon needs root for the kubelet's sockets; the scheduler's Deployment sets its own user.
ENTRYPOINT ["/usr/bin/baton"]
