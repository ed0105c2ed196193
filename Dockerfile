# The two programs, static, in an image that holds nothing else.
#
#   docker build -t plumbline .
#   docker run --rm -v "$PWD/run:/work:ro" plumbline dump .
#   docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" --entrypoint /usr/local/bin/train plumbline ppo
#
# verify without purego (tag nocuda) needs no libc; train has no device either. There is no shell in the image.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags nocuda -ldflags='-s -w' -o /out/ ./cmd/verify ./cmd/train
RUN mkdir -p /root-fs/tmp /root-fs/work && chmod 1777 /root-fs/tmp

FROM scratch
COPY --from=build --chown=65532:65532 /root-fs/ /
COPY --from=build /out/verify /out/train /usr/local/bin/
COPY LICENSE /LICENSE
ENV PATH=/usr/local/bin TMPDIR=/tmp
WORKDIR /work
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/verify"]
CMD ["demo", "--plot", ""]
