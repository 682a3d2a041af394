# `make help` lists the targets.

GO          ?= go
# The race detector sets it to 1; with one value elsewhere, packages are compiled once.
export CGO_ENABLED ?= 0
# Likewise, and packages compiled in another directory are used.
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) -trimpath)
BIN         := bin
PROGRAMS    := proxy agent pdctl fakevllm demo replay etcd
COMMIT      ?= $(shell git describe --always --dirty --exclude="*" 2>/dev/null)
LDFLAGS     := -s -w -X github.com/pdmesh/pdmesh/internal/cli/version.commit=$(COMMIT)

# Passed to go test unchanged, e.g. TESTFLAGS='-run TestWatcher -count=5'.
TESTFLAGS    ?=
TEST_TIMEOUT ?= 15m
PACKAGES     ?= ./...

LINT_VERSION := v2.15.0
LINT         := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

VULN_VERSION := v1.8.0

on = $(filter 1 on true yes,$(1))

.DEFAULT_GOAL := help

.PHONY: help
help:
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Start here

.PHONY: demo
demo: build ## run a fleet on this machine, and a tour of it: [PROXIES=2] [ETCD=3] [KEEP=1] [ONCE=1] [CONNECTOR=mooncake]
	@$(BIN)/demo $(if $(PROXIES),--proxies "$(PROXIES)") $(if $(ETCD),--etcd "$(ETCD)") $(if $(call on,$(KEEP)),--keep) \
		$(if $(call on,$(ONCE)),--once) $(if $(CONNECTOR),--connector "$(CONNECTOR)")

.PHONY: build
build: ## build static programs into bin/; proxy and agent are links to pdmesh-proxy and pdmesh-agent
	@mkdir -p $(BIN) && rm -f $(BIN)/proxy $(BIN)/agent
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/ $(PROGRAMS:%=./cmd/%)
	@scripts/long-names.sh $(BIN)

# For scripts/test.sh.
test test-long: export PACKAGES := $(PACKAGES)
test test-long: export TESTFLAGS := $(TESTFLAGS)
test test-long: export TEST_TIMEOUT := $(TEST_TIMEOUT)
test test-long: export REQUIRE_RACE := $(REQUIRE_RACE)
test test-long: export GO := $(GO)

.PHONY: test
test: ## run all tests, long ones in a short form; with the race detector if there is a C compiler: [PACKAGES=./internal/sched]
	@scripts/test.sh

.PHONY: lint
lint: ## run golangci-lint at a pinned version, which is compiled the first time
	$(LINT) run --allow-parallel-runners ./...

.PHONY: check
check: fmt-check tidy-check vet build test ## run what must pass before a commit

##@ Tests

.PHONY: test-long
test-long: ## run what make test omits: long forms, and the data path over net/http and without the race detector
	@scripts/test.sh long

.PHONY: race
race: ## run make test, and fail if the race detector is not available
	@$(MAKE) --no-print-directory test REQUIRE_RACE=1

# etcd 3.4: the given one, the one that scripts/get-etcd34.sh fetched, or the
# installed one if it is of that version.
ETCD34 = $(firstword $(PD_TEST_ETCD) $(wildcard $(CURDIR)/dist/etcd34/usr/bin/etcd) \
	$(if $(shell /usr/bin/etcd --version 2>/dev/null | grep '^etcd Version: 3\.4\.'),/usr/bin/etcd))

.PHONY: test-etcd34
test-etcd34: ## test discovery with etcd 3.4 (scripts/get-etcd34.sh fetches it); REQUIRE_ETCD34=1 fails without it
	@set -e; if [ -n "$(ETCD34)" ]; then \
		echo "go test with $(ETCD34)"; \
		PD_TEST_ETCD="$(ETCD34)" PD_TEST_ETCD_VERSION=3.4. $(GO) test -count=1 -shuffle=on -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./internal/discovery/... ./sim/testkit/etcdtest; \
	elif [ -n "$(call on,$(REQUIRE_ETCD34))" ]; then \
		echo "REQUIRE_ETCD34 is set, but there is no etcd 3.4: run scripts/get-etcd34.sh, or set PD_TEST_ETCD to its path" >&2; \
		exit 1; \
	else \
		echo "NOTE: no etcd 3.4, so discovery is not tested with it (scripts/get-etcd34.sh fetches it)"; \
	fi

.PHONY: compose-test
compose-test: build ## run docker-compose.yml in Docker and break it under load; scripts/get-docker.sh unpacks Docker if it is missing
	@scripts/compose-test.sh

# The output is printed at the end, without the lines about the order of the tests.
.PHONY: test-clients
test-clients: ## test official clients and recorded tools, and print their versions; REQUIRE_NODE=1 fails without the JavaScript client
	@out=$$($(GO) test -count=1 -timeout $(TEST_TIMEOUT) -v $(TESTFLAGS) ./test/clients 2>&1) && code=0 || code=$$?; \
		printf '%s\n' "$$out" | grep -v '^ *==='; exit $$code

.PHONY: test-observe
test-observe: ## test alert rules and board with Prometheus (scripts/get-prometheus.sh); REQUIRE_PROMETHEUS=1 fails without it
	$(GO) test -count=1 -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./test/observe

# Requires Debian's chromium, and npm for axe-core.
.PHONY: test-browser
test-browser: ## test the dashboard in headless Chromium with axe-core; fails without them
	cd test/browser/axe && npm ci --no-progress
	REQUIRE_BROWSER=1 $(GO) test -count=1 -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./test/browser

# PYTHON is a python3 from 3.11 to 3.13; PD_TEST_LAB_DIR is where vLLM is installed.
.PHONY: test-real
test-real: ## test with vLLM and NIXL (docs/real.md), 3.3 GB to install the first time; SHORT=1 sends 22 requests and kills once
	@PD_TEST_REAL=$(if $(call on,$(SHORT)),short,1) $(GO) test -count=1 -timeout 60m -v $(TESTFLAGS) ./test/real

.PHONY: cover
cover: ## write the test coverage to coverage.out
	$(GO) test -timeout $(TEST_TIMEOUT) -coverpkg=./internal/... -coverprofile=coverage.out $(TESTFLAGS) $(PACKAGES)
	$(GO) tool cover -func=coverage.out | tail -1

.PHONY: fuzz
fuzz: ## run every fuzz target: [FUZZTIME=5m] [FUZZ=FuzzRelay]
	@FUZZTIME="$(FUZZTIME)" FUZZ="$(FUZZ)" GUIDED="$(GUIDED)" scripts/fuzz.sh

##@ Checks and generated files

.PHONY: fmt
fmt: ## format the sources
	gofmt -w .

.PHONY: fmt-check
fmt-check: ## fail if a source is not formatted
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "not formatted (make fmt):"; echo "$$out"; exit 1; fi

.PHONY: vet
vet: ## run go vet
	$(GO) vet ./...

.PHONY: tidy-check
tidy-check: ## fail if go.mod or go.sum is out of date, or a module is modified
	$(GO) mod verify
	$(GO) mod tidy -diff

# The limit only goes down.
PROSE_LIMIT := 99

.PHONY: prose
prose: ## fail if comments, messages or pages have more phrases to replace than the limit (CONTRIBUTING.md); scripts/prose.sh -v lists them
	@LIMIT=$(PROSE_LIMIT) scripts/prose.sh

.PHONY: tools-check
tools-check: ## vet and test the module tools/, which make vet and make test do not cover
	$(GO) -C tools mod tidy -diff
	$(GO) -C tools vet ./...
	$(GO) -C tools test $(TESTFLAGS) ./...

# Fails without a connection to the database.
VULN_DB ?= https://vuln.go.dev

.PHONY: vulncheck
vulncheck: ## run govulncheck at a pinned version with the database at VULN_DB
	@VULN_DB="$(VULN_DB)" VULN_VERSION="$(VULN_VERSION)" scripts/vulncheck.sh

.PHONY: reference
reference: ## write docs/reference/cli.md and settings.md from the programs and their tables
	$(GO) test -count=1 -run 'Test(CommandLine|Settings)Page$$' ./test/docs -update

# The fonts of the pictures are Debian's fonts-inter and fonts-jetbrains-mono.
.PHONY: screenshots
screenshots: ## write the pictures of docs/dashboard.md, after five minutes of load: [AFTER=5m]
	@mkdir -p docs/dashboard
	PD_TEST_SCREENSHOTS=$(CURDIR)/docs/dashboard PD_TEST_SCREENSHOTS_AFTER=$(AFTER) REQUIRE_BROWSER=1 $(GO) test -count=1 -timeout 20m -run TestScreenshots $(TESTFLAGS) ./test/browser

.PHONY: size
size: ## count the lines of product, tests and the rest: [AT=commit]
	@$(GO) -C tools run ./size .. $(AT)

.PHONY: clean
clean: ## remove build output
	rm -rf $(BIN) dist coverage.out

##@ Containers and releases

.PHONY: image
image: ## build the container image pdmesh:latest
	docker build --build-arg COMMIT=$(COMMIT) -t pdmesh:latest .

.PHONY: up
up: ## start the fleet of docker-compose.yml in the background
	docker compose up --build -d

.PHONY: down
down: ## stop the fleet of docker-compose.yml and remove its data
	docker compose down -v

.PHONY: release
release: ## write archives, Debian packages, images, SBOMs and checksums to dist/release (RELEASING.md): [VERSION=v0.1.0] [RELEASE_ARCHES="amd64 arm64"]
	@scripts/release.sh $(VERSION)

.PHONY: release-check
release-check: ## install and run the files of make release, also on a clean Debian; requires root and debootstrap
	@scripts/check-release.sh

##@ Fault injection

FAULT_REPORT ?= $(CURDIR)/dist/faults.json

.PHONY: reliability
reliability: ## inject every fault and write docs/reliability.md; PD_TEST_FAULT_LONG=1 for outages of full length
	@mkdir -p $(dir $(FAULT_REPORT)) docs && rm -f $(FAULT_REPORT)
	-PD_TEST_LONG=1 PD_TEST_FAULT_REPORT=$(FAULT_REPORT) $(GO) test -count=1 -timeout 30m -run TestFault ./test/faults
	-PD_TEST_FAULT_REPORT=$(FAULT_REPORT) $(GO) test -count=1 -timeout 10m -run - -bench . -benchtime 1x ./test/faults
	$(GO) run ./test/faults/report -in $(FAULT_REPORT) -commit "$(COMMIT)" > docs/reliability.md.new
	mv docs/reliability.md.new docs/reliability.md
	@sed -n '/^## Not met/,/^## All rows/p' docs/reliability.md

# 100 rounds take five minutes.
ROUNDS ?= 100

.PHONY: drain-rounds
drain-rounds: ## drain --wait, restart and undrain four decode instances in turn under load: [ROUNDS=100]
	PD_TEST_LONG=1 PD_TEST_DRAIN_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 60m -v -run 'TestDrainRounds$$' ./test/faults

HUNG ?= 5m

.PHONY: hung-check
hung-check: ## hang 2 of 4 decode instances in turn under load, then slow down all four: [HUNG=5m]
	PD_TEST_LONG=1 PD_TEST_HUNG_CHECK=$(HUNG) $(GO) test -count=1 -timeout 30m -v -run 'TestHungCheck$$' ./test/faults

CONTINUE ?= 5m

.PHONY: continue-check
continue-check: ## kill, drain and overload decode instances under streams that continue: [CONTINUE=5m]
	PD_TEST_LONG=1 PD_TEST_CONTINUE_CHECK=$(CONTINUE) $(GO) test -count=1 -timeout 30m -v -run 'TestStreamsContinue|TestStreamsMove' ./test/faults

.PHONY: idle-check
idle-check: ## check that five idle proxies write nothing to etcd for five minutes
	PD_TEST_LONG=1 PD_TEST_FAULT_LONG=1 $(GO) test -count=1 -timeout 20m -v -run 'TestIdleProxiesWriteNothing$$' ./test/faults

SEEDS ?= 8

# OLD is a commit whose programs run beside the present ones; every seed has another combination
# of proxies, agents and pdctl.
.PHONY: robustness
robustness: ## run fleets under random faults and changes, and check their histories (docs/robustness.md): [SEEDS=8] [DURATION=60s] [SEED=n] [OLD=commit]
	@SEEDS="$(SEEDS)" DURATION="$(or $(DURATION),60s)" SEED="$(SEED)" OLD="$(OLD)" TESTFLAGS="$(TESTFLAGS)" scripts/robustness.sh

.PHONY: robustness-bugs
robustness-bugs: ## check that make robustness finds each planted bug within ten seeds: [BUG=name] [DURATION=20s]
	@BUG="$(BUG)" DURATION="$(or $(DURATION),20s)" scripts/robustness-bugs.sh

##@ Benchmarks

.PHONY: replay
replay: build ## send a recorded trace through a fleet: TRACE=file [LIMIT=500] [SPEED=20]
	@test -n "$(TRACE)" || { echo "TRACE is missing: make replay TRACE=conversation_trace.jsonl [LIMIT=500] [SPEED=20]" >&2; exit 2; }
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
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/bench ./cmd/bench

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
OVERLOAD_DOC  ?= docs/overload.md
FLEET_TARGETS ?= round_robin,least_loaded,power_of_two,session,prefix,kv_aware,vllm-router:round_robin,vllm-router:cache_aware,smg:round_robin,smg:cache_aware
PART          ?= second

.PHONY: fleet-build
fleet-build: build
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/fleetbench ./cmd/fleetbench

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

# With 5 engines of each role, the recorded rate is about what the fleet can carry.
OVERLOAD_ENGINES ?= 5

.PHONY: fleet-overload
fleet-overload: fleet-build ## compare the queue on and off, and other routers, at loads up to three times the recorded rate, into docs/overload.md: TRACE=file [RATES=1,2,3] [RUNS=3] [LIMIT=1000] [SPEED=2.5] [TARGETS=prefix+--queue=on] [PROXIES=1] [PART=second] [OVERLOAD_ENGINES=5]
	@test -n "$(TRACE)" || { echo "TRACE is missing: make fleet-overload TRACE=conversation_trace.jsonl" >&2; exit 2; }
	@$(BIN)/fleetbench overload --bin $(BIN) --trace "$(TRACE)" --part $(PART) --engines $(OVERLOAD_ENGINES) --doc $(OVERLOAD_DOC) $(if $(TARGETS),--targets "$(TARGETS)") \
		$(if $(RATES),--rates $(RATES)) $(if $(LIMIT),--limit $(LIMIT)) $(if $(SPEED),--speed $(SPEED)) $(if $(RUNS),--runs $(RUNS)) \
		$(if $(PROXIES),--proxies $(PROXIES)) $(FLEETFLAGS)

.PHONY: fleet-overload-model
fleet-overload-model: ## the queue with modelled engines and a virtual clock, into docs/overload.md: TRACE=file [RATES=1,2,3] [PART=second] [PROXIES=1] [OVERLOAD_ENGINES=5]
	@test -n "$(TRACE)" || { echo "TRACE is missing: make fleet-overload-model TRACE=conversation_trace.jsonl" >&2; exit 2; }
	@PD_TRACE="$(abspath $(TRACE))" PD_PART=$(PART) PD_RATES=$(RATES) PD_PROXIES=$(PROXIES) PD_ENGINES=$(OVERLOAD_ENGINES) PD_DOC="$(abspath $(OVERLOAD_DOC))" \
		$(GO) test ./bench/ground -run TestFloodTrace -count=1 -v

.PHONY: fleet-model
fleet-model: ## simulate fleet-bench for our policies without HTTP and clock, in seconds: TRACE=file [TARGETS=session] [PART=first] [RATE=1]
	@test -n "$(TRACE)" || { echo "TRACE is missing: make fleet-model TRACE=conversation_trace.jsonl" >&2; exit 2; }
	@$(GO) run ./cmd/fleetbench model --trace "$(TRACE)" $(if $(filter command line,$(origin PART)),--part $(PART)) $(if $(TARGETS),--targets "$(TARGETS)") $(if $(RATE),--rate $(RATE)) $(FLEETFLAGS)

SCALE_DOC ?= docs/scale.md

.PHONY: scale
scale: fleet-build ## change the membership of a large fleet under load, into docs/scale.md, in seven minutes: [INSTANCES=1000] [PROXIES=8] [CHANGES=2000] [DURATION=5m]
	@$(BIN)/fleetbench scale --bin $(BIN) $(if $(SCALE_DOC),--doc $(SCALE_DOC)) $(if $(INSTANCES),--instances $(INSTANCES)) $(if $(PROXIES),--proxies $(PROXIES)) \
		$(if $(CHANGES),--changes $(CHANGES)) $(if $(DURATION),--duration $(DURATION))

.PHONY: fleet-real
fleet-real: ## run chats with vLLM (docs/real.md), into docs/scheduling.md
	@mkdir -p $(basename $(FLEET_DOC)) && PD_TEST_REAL=1 PD_TEST_REAL_DOC="$(abspath $(FLEET_DOC))" $(GO) test -count=1 -timeout 30m -v -ldflags '$(LDFLAGS)' -run 'TestChats$$' ./test/real
