# The image of the daemons, for amd64 and arm64: compiled on the machine's own architecture, linked for the other one, so that nothing
# is emulated. glibc, because NVML is a glibc library that the daemon loads at run time.
#   docker buildx build --build-arg BASE=gcr.io/distroless/cc-debian12@sha256:DIGEST --build-arg REVISION=$(git rev-parse HEAD) …
ARG BASE=gcr.io/distroless/cc-debian12
FROM --platform=$BUILDPLATFORM rust:1.95.0-bookworm AS build
ARG TARGETARCH
ARG REVISION=
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target INSTALL=1 BATON_REVISION=$REVISION .ci/image.sh "$TARGETARCH" /image

FROM $BASE
COPY --from=build /image /
# The node daemon needs root for the kubelet's sockets; the scheduler's Deployment sets its own user.
ENTRYPOINT ["/usr/bin/baton"]
