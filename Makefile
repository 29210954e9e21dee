# vhostnet. On a Debian 12 machine, as root: `make demo`, `make test`.
# Go 1.26 or later must be on the PATH; everything else is installed here.

SHELL      := /bin/bash
GO         ?= go
TOOL       := $(GO) tool -modfile=tools/go.mod
CACHE      ?= $(CURDIR)/.cache
FUZZTIME   ?= 10m
TESTTIME   ?= 20m
BENCHFLAGS ?=
export VHOSTNET_CACHE := $(CACHE)

.PHONY: all build deps guests demo test test-unit test-guest lint vuln fuzz bench bench-growth bench-guest bench-stream clean

all: build

build:
	CGO_ENABLED=0 $(GO) build -o bin/vhostnet ./cmd/vhostnet

# What Debian provides for the tests: namespaces, real load generators, and a C
# compiler for the race detector.
DEBS := iproute2 iperf3 ethtool iputils-ping gcc libc6-dev xz-utils zstd ca-certificates
deps:
	@command -v $(GO) >/dev/null || { echo "Go 1.26 or later is needed: see the README" >&2; exit 1; }
	@missing=$$(for p in $(DEBS); do dpkg-query -W -f='$${db:Status-Status}\n' $$p 2>/dev/null | grep -qx installed || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	  [ "$$(id -u)" = 0 ] || { echo "as root: apt-get install $$missing" >&2; exit 1; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	fi

# QEMU, kernels, User-Mode Linux and the guest image, into $(CACHE).
guests: deps
	$(GO) run ./qemu-test/provision/cmd

# A real Linux guest on vhostnet: ping, ethtool -C and -Q, iperf3, counters.
demo: deps guests build
	$(GO) run ./qemu-test/demo

test: test-unit test-guest

# Everything that needs no guest, with the race detector.
test-unit: deps
	$(GO) test -race -timeout $(TESTTIME) $$($(GO) list ./... | grep -v -e /qemu-test$$ -e /interop$$)
	$(GO) test -run Alloc ./...
	$(GO) test -run V09 ./faults # races that the detector is too slow for

# The guests of qemu-test, and the front-ends of interop, one after the other: they
# need both cores.
test-guest: deps guests build
	$(GO) test -v -count=1 -timeout $(TESTTIME) ./qemu-test
	$(GO) test -v -count=1 -timeout $(TESTTIME) ./interop

lint: deps
	$(GO) vet ./...
	GOARCH=arm64 CGO_ENABLED=0 $(GO) vet ./...
	@out=$$($(TOOL) gofumpt -l .); [ -z "$$out" ] || { echo "gofumpt: $$out" >&2; exit 1; }
	$(TOOL) staticcheck ./...
	@$(MAKE) --no-print-directory vuln

# Known vulnerabilities. The database is on the network; a machine that cannot
# reach it is told so, and only that is forgiven.
vuln:
	@out=$$($(TOOL) govulncheck ./... 2>&1) && echo "$$out" | tail -n 1 || { \
	  echo "$$out"; grep -q 'fetching vulnerabilities' <<<"$$out" && \
	  echo "govulncheck: NOT RUN, its database cannot be reached from here"; }

# Every fuzz target in turn, FUZZTIME each.
fuzz: deps
	@set -e; for p in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	    echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p; \
	  done; done

bench: deps
	$(GO) run ./bench $(BENCHFLAGS)

# The same with many queue pairs, devices and buffers; round trips.
bench-growth: deps
	$(GO) run ./bench growth $(BENCHFLAGS)

# Moderation engines under real programs in guests: about half an hour for each
# lane, a fifth of it with BENCHFLAGS=--quick; --lanes chooses some.
bench-guest: deps guests build
	$(GO) run ./bench/guest $(BENCHFLAGS)

# vhostnet, net_vhost, Open vSwitch, passt and QEMU's own device under TCP and
# sockperf: less than ten minutes.
bench-stream: deps guests
	$(GO) run ./bench/stream $(BENCHFLAGS)

clean:
	rm -rf bin
