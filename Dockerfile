# The image of the daemons, for amd64 and arm64: compiled on the machine's own architecture, linked for the other one, so that nothing
# is emulated. glibc, because NVML is a glibc library that the daemon loads at run time.
FROM --platform=$BUILDPLATFORM rust:1.95.0-bookworm AS build
ARG TARGETARCH
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target .ci/image.sh "$TARGETARCH" /image

FROM gcr.io/distroless/cc-debian12
COPY --from=build /image /
# The node daemon needs root for the kubelet's sockets; the scheduler's Deployment sets its own user.
ENTRYPOINT ["/usr/bin/baton"]
