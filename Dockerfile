# syntax=docker/dockerfile:1
#
# The image of the operator, the reaper, the demonstration worker and the command line:
# one static binary, /jobqueue, run by a user without rights.
#
#   docker build --build-arg VERSION=v0.1.0 --tag docker.io/jobqueue/jobqueue:v0.1.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 ...
#
# Without a container engine, `make image` writes an image with the same binary.

# Go compiles for the target on the builder's own architecture, so that building for
# another one needs no emulation.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26 AS build
WORKDIR /src
# The modules change less often than the code, so they are a layer of their own.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY api api
COPY cmd cmd
COPY controllers controllers
COPY queue queue
COPY worker worker
ARG TARGETOS TARGETARCH
ARG VERSION=dev
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /jobqueue ./cmd/jobqueue

# Certificate authorities, time zones and a user 65532; no shell, no package manager.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /jobqueue /jobqueue
USER 65532:65532
ENTRYPOINT ["/jobqueue"]
