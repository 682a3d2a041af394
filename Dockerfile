# All programs of pdmesh in one image without a shell. It runs the proxy unless another
# program is given: docker run pdmesh pdmesh-agent --role prefill ...
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH COMMIT=
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X github.com/pdmesh/pdmesh/internal/cli/version.commit=$COMMIT" -o /out/bin/ \
    ./cmd/proxy ./cmd/agent ./cmd/pdctl ./cmd/fakevllm \
 && scripts/long-names.sh /out/bin && mkdir -p /out/state

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/bin/ /usr/local/bin/
# Data of the embedded etcd of a proxy without --etcd-endpoints.
COPY --from=build --chown=nonroot:nonroot /out/state /var/lib/pdmesh
ENV XDG_STATE_HOME=/var/lib PD_HOST=0.0.0.0 PD_SHUTDOWN_DELAY=5s
EXPOSE 8000
USER nonroot
CMD ["pdmesh-proxy"]
