# Everything a person or a build machine runs. `make help` lists it.

GO          ?= go
# Everywhere but for the race detector, so that packages are compiled once.
export CGO_ENABLED ?= 0
BIN         := bin
PROGRAMS    := proxy agent pdctl fakevllm demo replay fleet etcd
COMMIT      ?= $(shell git describe --always --dirty --exclude="*" 2>/dev/null)
LDFLAGS     := -s -w -X github.com/pdmesh/pdmesh/internal/version.commit=$(COMMIT)

# Handed to go test as they are, e.g. TESTFLAGS='-run TestWatcher -count=5'.
TESTFLAGS    ?=
TEST_TIMEOUT ?= 8m
PACKAGES     ?= ./...

LINT_VERSION := v2.15.0
LINT         := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

VULN_VERSION := v1.8.0

on = $(filter 1 on true yes,$(1))

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## static programs into bin/
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ $(PROGRAMS:%=./cmd/%)

# For scripts/test.sh.
test test-long: export PACKAGES := $(PACKAGES)
test test-long: export TESTFLAGS := $(TESTFLAGS)
test test-long: export TEST_TIMEOUT := $(TEST_TIMEOUT)
test test-long: export REQUIRE_RACE := $(REQUIRE_RACE)
test test-long: export GO := $(GO)

.PHONY: test
test: ## all tests, the long ones in a short form, with the race detector where a C compiler exists
	@scripts/test.sh

.PHONY: test-long
test-long: ## what make test leaves out: long forms, the data path over net/http and without the race detector
	@scripts/test.sh long

.PHONY: race
race: ## as test, but fails where the race detector cannot run
	@$(MAKE) --no-print-directory test REQUIRE_RACE=1

# An etcd 3.4: a given one, or what scripts/get-etcd34.sh has fetched, or the
# machine's own if it is that old.
ETCD34 = $(firstword $(PD_TEST_ETCD) $(wildcard $(CURDIR)/dist/etcd34/usr/bin/etcd) \
	$(if $(shell /usr/bin/etcd --version 2>/dev/null | grep '^etcd Version: 3\.4\.'),/usr/bin/etcd))

.PHONY: test-etcd34
test-etcd34: ## discovery over Debian's etcd 3.4 (see scripts/get-etcd34.sh); REQUIRE_ETCD34=1 makes its absence a failure
	@set -e; if [ -n "$(ETCD34)" ]; then \
		echo "go test over $(ETCD34)"; \
		PD_TEST_ETCD="$(ETCD34)" PD_TEST_ETCD_VERSION=3.4. $(GO) test -count=1 -shuffle=on -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./internal/discovery/... ./sim/testkit; \
	elif [ -n "$(call on,$(REQUIRE_ETCD34))" ]; then \
		echo "REQUIRE_ETCD34 is set, but there is no etcd 3.4: run scripts/get-etcd34.sh, or name one with PD_TEST_ETCD" >&2; \
		exit 1; \
	else \
		echo "NOTE: no etcd 3.4, so discovery is not tested over it (scripts/get-etcd34.sh fetches one)"; \
	fi

# Said at the end, without the lines about which test runs when.
.PHONY: test-clients
test-clients: ## official clients and recorded tools against a fleet, with their versions; REQUIRE_NODE=1 makes a missing JavaScript client a failure
	@out=$$($(GO) test -count=1 -timeout $(TEST_TIMEOUT) -v $(TESTFLAGS) ./test/clients 2>&1) && code=0 || code=$$?; \
		printf '%s\n' "$$out" | grep -v '^ *==='; exit $$code

.PHONY: test-observe
test-observe: ## alert rules and board with a real Prometheus (scripts/get-prometheus.sh); REQUIRE_PROMETHEUS=1 makes its absence a failure
	$(GO) test -count=1 -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./test/observe

# Debian's chromium, npm for axe-core.
.PHONY: test-browser
test-browser: ## the dashboard in a headless Chromium, with axe-core; fails where one of them is missing
	cd test/browser/axe && npm ci --no-progress
	REQUIRE_BROWSER=1 $(GO) test -count=1 -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./test/browser

# The pictures look as meant with Debian's fonts-inter and fonts-jetbrains-mono.
.PHONY: screenshots
screenshots: ## the pictures of docs/dashboard.md, after five minutes of load; [AFTER=5m]
	@mkdir -p docs/dashboard
	PD_TEST_SCREENSHOTS=$(CURDIR)/docs/dashboard PD_TEST_SCREENSHOTS_AFTER=$(AFTER) REQUIRE_BROWSER=1 $(GO) test -count=1 -timeout 20m -run TestScreenshots $(TESTFLAGS) ./test/browser

# PYTHON names a python3 of 3.11 to 3.13, PD_TEST_LAB_DIR where vLLM is installed.
.PHONY: test-real
test-real: ## our programs before real vLLM and NIXL (docs/real.md); installs 3.3 GB the first time; SHORT=1 for ten requests and one kill
	@PD_TEST_REAL=$(if $(call on,$(SHORT)),short,1) $(GO) test -count=1 -timeout 60m -v $(TESTFLAGS) ./test/real

.PHONY: cover
cover: ## test coverage into coverage.out
	$(GO) test -timeout $(TEST_TIMEOUT) -coverpkg=./internal/... -coverprofile=coverage.out $(TESTFLAGS) $(PACKAGES)
	$(GO) tool cover -func=coverage.out | tail -1

FAULT_REPORT ?= $(CURDIR)/dist/faults.json

.PHONY: reliability
reliability: ## inject every fault and write docs/reliability.md; PD_TEST_FAULT_LONG=1 for outages of full length
	@mkdir -p $(dir $(FAULT_REPORT)) docs && rm -f $(FAULT_REPORT)
	-PD_TEST_LONG=1 PD_TEST_FAULT_REPORT=$(FAULT_REPORT) $(GO) test -count=1 -timeout 30m -run TestFault ./test/faults
	-PD_TEST_FAULT_REPORT=$(FAULT_REPORT) $(GO) test -count=1 -timeout 10m -run - -bench . -benchtime 1x ./test/faults
	$(GO) run ./test/faults/report -in $(FAULT_REPORT) -commit "$(COMMIT)" > docs/reliability.md.new
	mv docs/reliability.md.new docs/reliability.md
	@sed -n '/^## Not met/,/^## All rows/p' docs/reliability.md

# Nodes are taken out, restarted and put back under load; 100 rounds take five minutes.
ROUNDS ?= 100

.PHONY: drain-rounds
drain-rounds: ## drain --wait, restart, undrain, over four decode instances under load: [ROUNDS=100]
	PD_TEST_LONG=1 PD_TEST_DRAIN_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -v -run 'TestDrainRounds$$' ./test/faults

HUNG ?= 5m

.PHONY: hung-check
hung-check: ## 2 of 4 decode instances hang in turn under load, then all four are slow: [HUNG=5m]
	PD_TEST_LONG=1 PD_TEST_HUNG_CHECK=$(HUNG) $(GO) test -count=1 -timeout 30m -v -run 'TestHungCheck$$' ./test/faults

.PHONY: idle-check
idle-check: ## five idle proxies write nothing to etcd for five minutes
	PD_TEST_LONG=1 PD_TEST_FAULT_LONG=1 $(GO) test -count=1 -timeout 20m -v -run 'TestIdleProxiesWriteNothing$$' ./test/faults

.PHONY: demo
demo: build ## a whole fleet on this machine, a tour of it; ONCE=1 ends after the tour, CONNECTOR=mooncake is another KV transfer
	@$(BIN)/demo $(if $(call on,$(ONCE)),--once) $(if $(CONNECTOR),--connector $(CONNECTOR))

.PHONY: replay
replay: build ## send a recorded trace: TRACE=file [LIMIT=500] [SPEED=20]
	@test -n "$(TRACE)" || { echo "say which trace: make replay TRACE=conversation_trace.jsonl [LIMIT=500] [SPEED=20]" >&2; exit 2; }
	@$(BIN)/replay --trace "$(TRACE)" $(if $(LIMIT),--limit $(LIMIT)) $(if $(SPEED),--speed $(SPEED)) $(REPLAYFLAGS)

.PHONY: bench-check
bench-check: ## fail if the hot path is slower than at the merge base: [BASE=commit]
	@scripts/bench-check.sh $(BASE)

# BENCHFLAGS are more flags of the program (bin/bench run --help). BENCH_DIR has a folder for
# each machine; MACHINE is its name, by default that of the processor.
BENCH_DIR ?= docs/performance
MACHINE   ?=

PICK_TARGETS := round_robin,least_loaded,power_of_two,token_weighted,prefix,kv_aware
BENCH_RUN     = $(BIN)/bench run --bin $(BIN) $(if $(REPEATS),--repeats $(REPEATS)) $(if $(DURATION),--duration $(DURATION))

.PHONY: bench-build
bench-build: build
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/bench ./cmd/bench

.PHONY: bench
bench: bench-build ## CPU and memory of requests through the proxy and other targets, into docs/performance; fails if a gate is missed: [WORKLOADS=small,open200] [TARGETS=vllm-router,pdmesh] [REPEATS=3] [DURATION=5s] [MACHINE=name]
	@$(BENCH_RUN) --into $(BENCH_DIR) $(if $(MACHINE),--machine $(MACHINE)) $(if $(WORKLOADS),--workloads $(WORKLOADS)) $(if $(TARGETS),--targets $(TARGETS)) $(BENCHFLAGS)

.PHONY: bench-report
bench-report: bench-build ## write the report again from the figures of the last make bench on each machine
	@$(BIN)/bench report $(BENCH_DIR)

.PHONY: bench-policies
bench-policies: bench-build ## CPU of a request with each policy, compared with round_robin, among 1,000 instances: [TARGETS=round_robin,prefix] [REPEATS=3] [DURATION=5s]
	@$(BENCH_RUN) --json dist/bench/policies.json --workloads $(or $(WORKLOADS),pick1000) --against round_robin \
		--targets $(or $(TARGETS),$(PICK_TARGETS)) $(BENCHFLAGS)

# TARGETS=prefix,vllm-router:cache_aware PART=first SPEED=20 RATE=1 RUNS=3 PROXIES=4
# DISAGGREGATE=auto CACHE=1; FLEETFLAGS are more flags of the program (bin/fleetbench run --help).
# vllm-router and smg are skipped if they are not in the path, and the report says "not measured".
FLEET_JSON    ?= docs/scheduling/result.json
FLEET_DOC     ?= docs/scheduling.md
FLEET_TARGETS ?= round_robin,least_loaded,power_of_two,session,prefix,kv_aware,vllm-router:round_robin,vllm-router:cache_aware,smg:round_robin,smg:cache_aware
PART          ?= second

.PHONY: fleet-build
fleet-build: build
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/fleetbench ./cmd/fleetbench

.PHONY: fleet-bench
fleet-bench: fleet-build ## compare scheduling policies and other routers on a recorded trace, into docs/scheduling.md: TRACE=file [TARGETS=session,smg:cache_aware] [PART=second] [SPEED=20] [RATE=1] [RUNS=3] [PROXIES=1] [DISAGGREGATE=auto]
	@test -n "$(TRACE)" || { echo "TRACE is missing: make fleet-bench TRACE=conversation_trace.jsonl" >&2; exit 2; }
	@mkdir -p $(basename $(FLEET_DOC)) && $(BIN)/fleetbench run --bin $(BIN) --trace "$(TRACE)" --part $(PART) --targets "$(or $(TARGETS),$(FLEET_TARGETS))" \
		--json $(FLEET_JSON) --doc $(FLEET_DOC) $(if $(SPEED),--speed $(SPEED)) $(if $(RATE),--rate $(RATE)) $(if $(RUNS),--runs $(RUNS)) \
		$(if $(PROXIES),--proxies $(PROXIES)) $(if $(CACHE),--cache $(CACHE)) $(if $(DISAGGREGATE),--proxy-flags=--disaggregate=$(DISAGGREGATE)) $(FLEETFLAGS)

.PHONY: fleet-disaggregate
fleet-disaggregate: fleet-build ## compare --disaggregate auto, always and never at three loads, in about 15 minutes, into docs/scheduling.md: TRACE=file [RATES=0.5,1,1.5] [RUNS=3] [LIMIT=1000] [SPEED=12] [TARGETS=prefix] [PART=second]
	@test -n "$(TRACE)" || { echo "TRACE is missing: make fleet-disaggregate TRACE=conversation_trace.jsonl" >&2; exit 2; }
	@mkdir -p $(basename $(FLEET_DOC)) && $(BIN)/fleetbench disaggregate --bin $(BIN) --trace "$(TRACE)" --part $(PART) \
		--json $(basename $(FLEET_DOC))/disaggregate.json --doc $(FLEET_DOC) $(if $(TARGETS),--targets "$(TARGETS)") $(if $(RATES),--rates $(RATES)) \
		$(if $(LIMIT),--limit $(LIMIT)) $(if $(SPEED),--speed $(SPEED)) $(if $(RUNS),--runs $(RUNS)) $(FLEETFLAGS)

.PHONY: fleet-real
fleet-real: ## cache hits of chats with real vLLM (docs/real.md), into docs/scheduling.md
	@mkdir -p $(basename $(FLEET_DOC)) && PD_TEST_REAL=1 PD_TEST_REAL_DOC="$(abspath $(FLEET_DOC))" $(GO) test -count=1 -timeout 30m -v -ldflags '$(LDFLAGS)' -run 'TestChats$$' ./test/real

.PHONY: fleet-model
fleet-model: ## simulate our policies on a recorded trace without HTTP and clock, in seconds: TRACE=file [TARGETS=session] [PART=first] [RATE=1]
	@test -n "$(TRACE)" || { echo "TRACE is missing: make fleet-model TRACE=conversation_trace.jsonl" >&2; exit 2; }
	@$(GO) run ./cmd/fleetbench model --trace "$(TRACE)" $(if $(filter command line,$(origin PART)),--part $(PART)) $(if $(TARGETS),--targets "$(TARGETS)") $(if $(RATE),--rate $(RATE)) $(FLEETFLAGS)

.PHONY: reference
reference: ## docs/reference/cli.md and settings.md again, from the programs and their tables
	$(GO) test -count=1 -run 'Test(CommandLine|Settings)Page$$' ./test/docs -update

.PHONY: fmt
fmt: ## format the sources
	gofmt -w .

.PHONY: fmt-check
fmt-check: ## fail if something is not formatted
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "not formatted (make fmt):"; echo "$$out"; exit 1; fi

.PHONY: vet
vet: ## go vet
	$(GO) vet ./...

# The limit only goes down.
PROSE_LIMIT := 3300

.PHONY: prose
prose: ## fail if comments, messages or pages have more phrases to replace than the limit (CONTRIBUTING.md); scripts/prose.sh -v lists them
	@LIMIT=$(PROSE_LIMIT) scripts/prose.sh

.PHONY: lint
lint: ## golangci-lint at a pinned version (compiles it the first time)
	$(LINT) run --allow-parallel-runners ./...

.PHONY: fuzz
fuzz: ## every fuzz target: [FUZZTIME=5m] [FUZZ=FuzzRelay]
	@FUZZTIME="$(FUZZTIME)" FUZZ="$(FUZZ)" GUIDED="$(GUIDED)" scripts/fuzz.sh

# Known vulnerabilities are looked up in https://vuln.go.dev: without a network
# that reaches it this fails, and says so.
VULN_DB ?= https://vuln.go.dev

.PHONY: vulncheck
vulncheck: ## govulncheck at a pinned version; needs the database at VULN_DB
	@VULN_DB="$(VULN_DB)" VULN_VERSION="$(VULN_VERSION)" scripts/vulncheck.sh

.PHONY: tidy-check
tidy-check: ## fail if go.mod or go.sum are out of date or modified
	$(GO) mod verify
	$(GO) mod tidy -diff

.PHONY: check
check: fmt-check tidy-check vet build test ## what must pass before a commit; make test-long before a merge

.PHONY: release
release: ## archives, Debian packages, images, SBOMs, checksums into dist/release (RELEASING.md): [VERSION=v0.1.0] [RELEASE_ARCHES="amd64 arm64"]
	@scripts/release.sh $(VERSION)

.PHONY: release-check
release-check: ## install and use what make release has made, on a clean Debian too; root and debootstrap are needed
	@scripts/check-release.sh

.PHONY: size
size: ## lines of product, tests and the rest, and the largest type, package and function: [AT=commit]
	@$(GO) -C tools run ./size .. $(AT)

.PHONY: tools-check
tools-check: ## the programs that make a release or count lines: a module of their own, which test and vet pass by
	$(GO) -C tools mod tidy -diff
	$(GO) -C tools vet ./...
	$(GO) -C tools test $(TESTFLAGS) ./...

.PHONY: image
image: ## container image pdmesh:latest
	docker build --build-arg COMMIT=$(COMMIT) -t pdmesh:latest .

.PHONY: up
up: ## the compose fleet, in the background
	docker compose up --build -d

.PHONY: down
down: ## stop the compose fleet and drop its data
	docker compose down -v

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN) dist coverage.out
