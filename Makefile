# `make` lists what can be made. Everything that is missing on the machine is installed first.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# Where rustup puts cargo; a shell that was open before the installation does not have it yet.
export PATH := $(HOME)/.cargo/bin:$(PATH)
export CARGO_TARGET_DIR ?= $(CURDIR)/target

PREFIX ?= /usr/local
DATA ?= data
FUZZ_SECONDS ?= 3600
CARGO_FLAGS := --release --locked
CAIRN := $(CARGO_TARGET_DIR)/release/cairn
# What tests run, the program included: it compiles in a third of the time (Cargo.toml).
TEST_FLAGS := --profile fast --locked
# What `make run`, `make cluster` and `make demo` build: `fast` takes half the time of `release`, at 0.83 to 1.05 of its rates.
PROFILE ?= fast
TRIED := $(CARGO_TARGET_DIR)/$(PROFILE)/cairn
PACKAGED := $(CARGO_TARGET_DIR)/packaged/cairn
# The crates whose tests need Rust and its linker alone: no RocksDB, etcd, protobuf, clang or Node. scripts/crates checks that.
CORE := base codec-dns codec-iscsi codec-nfs codec-rpc codec-s3 codec-scsi wire formats \
	disk erasure keys shard remote segment activity forward history locks testkit config rpc-server dns

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-17s %s\n", $$1, $$2 }'

.PHONY: setup-build setup-test setup-bench setup-peers setup-page setup-plan setup-vm setup-fuzz setup-audit setup-lint setup-prose setup-package setup-cluster setup-iscsi setup-console setup-browser setup-s3 setup-s3-clients setup-api
setup-build setup-test setup-bench setup-peers setup-page setup-plan setup-vm setup-fuzz setup-audit setup-lint setup-prose setup-package setup-cluster setup-iscsi setup-console setup-browser setup-s3 setup-s3-clients setup-api: setup-%:
	@scripts/setup $*

.PHONY: build
build: setup-build ## Build the program `cairn`
	cargo build $(CARGO_FLAGS) -p cairn

# Before anything is installed or compiled: a first build takes minutes.
.PHONY: say-profile
say-profile:
	@[[ $(PROFILE) != fast ]] || echo 'quick profile: the first build takes about 6 minutes on two cores; for the release build, 13 minutes and up to a fifth faster to use: make $(or $(firstword $(MAKECMDGOALS)),run) PROFILE=release'
	@[[ $(PROFILE) == fast ]] || echo 'profile $(PROFILE); without PROFILE=$(PROFILE) the first build takes about 6 minutes on two cores'

.PHONY: build-server
build-server: setup-build ## Build `cairn` without the planner and benchmarks: a server, and the commands for it
	cargo build $(CARGO_FLAGS) -p cairn --no-default-features

.PHONY: build-tried
build-tried: setup-build
	cargo build --profile $(PROFILE) --locked -p cairn

.PHONY: run
run: say-profile build-tried ## Build and start a server on ./data; it prints how to mount it. PROFILE=release: as installed
	exec $(TRIED) serve --create --data $(DATA)

.PHONY: cluster
cluster: say-profile setup-cluster build-tried ## A whole cluster on this machine, in ./cluster-data; as root with a network for each node: CLUSTER="--nodes 3"
	exec $(TRIED) dev-cluster --dir cluster-data $(CLUSTER)

.PHONY: build-test
build-test: setup-test
	cargo build $(TEST_FLAGS) -p cairn

# The tests of the crates build the program, too, with the same parts.
.PHONY: test
test: setup-test test-unit ## Pass all tests: crates, then end to end with libnfs
	scripts/test-e2e

.PHONY: test-quick
test-quick: setup-build ## The tests of the crates only
	cargo test $(TEST_FLAGS) --workspace

.PHONY: test-core
test-core: ## The tests of the lower crates, in minutes: formats, codecs, disks, shards, segments; needs Rust and a C compiler alone
	@command -v cargo >/dev/null || { echo "test-core: there is no cargo; install Rust: https://rustup.rs" >&2; exit 1; }
	cargo test $(TEST_FLAGS) $(CORE:%=-p cairn-%)

.PHONY: test-unit
test-unit: setup-test
	cargo test $(TEST_FLAGS) --workspace

.PHONY: test-e2e
test-e2e: setup-test build-test ## The end-to-end tests only
	scripts/test-e2e

.PHONY: test-iscsi
test-iscsi: setup-test build-test ## iSCSI only: libiscsi's whole suite, kill -9 under load, copies, connections, strangers
	scripts/test-e2e test_iscsi test_iscsi_copy test_iscsi_connections

.PHONY: test-s3
test-s3: setup-test setup-s3-clients build-test ## S3 only: boto3, AWS CLI, rclone, restic and s3fs with a large tree, errors, races, kill -9
	CAIRN_S3_TREE=$${CAIRN_S3_TREE:-/usr/share/doc} scripts/test-e2e test_s3 test_s3_bodies test_s3_buckets test_s3_clients test_s3_hostile test_s3_model test_s3_rights test_s3_sdks test_s3_signed test_s3_versions

.PHONY: test-api
test-api: setup-test setup-api build-test ## The admin API against its OpenAPI document, by schemathesis: a minute or two; API="--long --seed 7"
	scripts/test-api $(API)

.PHONY: console
console: setup-console ## Build the console's pages from console/src into console/dist, which is committed
	scripts/console build

.PHONY: console-check
console-check: setup-console ## Are console/dist and the types what their sources make?
	scripts/console check

.PHONY: console-types
console-types: setup-console build-test ## Write console/openapi.json and the types made of it; after a change of the API
	scripts/console types

.PHONY: test-console
test-console: setup-test setup-console setup-browser build-test ## The console in a headless browser: log-in, load, volumes, snapshots, axe
	scripts/test-console $(TESTS)

.PHONY: test-cluster
test-cluster: setup-test setup-cluster build-test ## Clusters of real nodes: forming, failures under load, what must be refused
	scripts/test-cluster $(TESTS)

.PHONY: test-cluster-faults
test-cluster-faults: setup-test setup-cluster build-test ## Random faults in six nodes under load of NFS, S3 and iSCSI, two minutes; every byte is compared: FAULTS="--minutes 10 --seed 7"
	scripts/test-cluster-faults $(FAULTS)

.PHONY: test-space
test-space: setup-test build-test ## Space in full: overwrite 1 GiB at random ten times over, fill and empty a volume
	CAIRN_SPACE_LONG=1 scripts/test-e2e test_space

.PHONY: test-vm
test-vm: setup-vm build-test ## A stock Linux kernel client in a VM: tar, git, make, fsx, open files, a few faults
	scripts/test-vm
	scripts/test-faults --short

.PHONY: test-san
test-san: setup-vm setup-cluster build-test ## LUNs with the kernel initiator in the VM: CHAP, multipath, file systems through kills, failover: TESTS="ext4 grow"
	scripts/test-san $(TESTS)

.PHONY: demo-san
demo-san: setup-vm build-test ## Ten LUNs of ten volumes as one striped disk in the VM; a snapshot of all at one instant, and its clone
	scripts/test-san demo

.PHONY: test-faults
test-faults: setup-vm build-test ## Kills, stops, cuts and shortages under fsx, tar, git, SQLite and PostgreSQL in the VM: an hour
	scripts/test-faults $(FAULTS)

.PHONY: test-power
test-power: setup-vm build-test ## Power cuts, and drives that fail, hang or are slow, below a server in the VM: POWER="cuts-xfs --cuts 50"
	scripts/test-power $(POWER)

.PHONY: test-power-bite
test-power-bite: setup-vm build-test ## Does that notice when syncs are left out, and after how many cuts?
	scripts/test-power --bite $(POWER)

.PHONY: pjdfstest
pjdfstest: setup-vm build-test ## The POSIX conformance suite through the kernel client in the VM
	scripts/pjdfstest

.PHONY: check
check: setup-build setup-lint docs-check ## Format, lints, links, prose, uses of unsafe, leftovers of merges
	scripts/conflict-check
	scripts/unsafe-check
	scripts/print-check
	scripts/lint-python
	@if command -v go >/dev/null; then scripts/prose-check; else echo "no go: prose not checked"; fi
	cargo fmt --all --check
	cargo clippy $(TEST_FLAGS) --workspace --all-targets -- -D warnings
	cargo clippy $(TEST_FLAGS) --workspace --no-default-features -- -D warnings

.PHONY: docs-check
docs-check: ## Every link in the documents leads somewhere
	scripts/link-check

.PHONY: prose
prose: setup-prose ## Prose of documents and messages, by the rules in docs/style; needs Go once, to compile Vale
	scripts/prose-check

.PHONY: demo
demo: say-profile build-tried ## One minute: copy a tree in, kill -9, delete two disks, compare
	CAIRN=$(TRIED) scripts/demo

.PHONY: bench-nfs
bench-nfs: setup-bench build ## Measure beside NFS-Ganesha and write docs/results/performance.md
	cargo build $(CARGO_FLAGS) -p cairn-bench --example nfs_load
	cargo build --release --locked --manifest-path benches-peers/isal-compare/Cargo.toml
	scripts/bench-nfs $(BENCH_FLAGS)

.PHONY: bench-peers
bench-peers: setup-peers build ## Run the suites of `cairn bench` beside NFS-Ganesha and GlusterFS 4+2, into docs/results/performance.md
	scripts/bench-peers $(BENCH_FLAGS)

.PHONY: bench-degraded
bench-degraded: setup-bench setup-cluster build ## Reads of a cluster of six nodes without two of them, into docs/results/performance.md
	scripts/bench-degraded --write $(BENCH_FLAGS)

.PHONY: bench-hops
bench-hops: setup-bench setup-cluster build ## What the hops of a cluster cost: rates and processor time, into docs/results/performance.md
	scripts/bench-hops --write $(BENCH_FLAGS)

.PHONY: bench-pauses
bench-pauses: setup-test setup-cluster build ## How long clients of a cluster wait when a volume gets another owner, into docs/results/reliability.md
	scripts/bench-pauses --write $(BENCH_FLAGS)

.PHONY: bench-services
bench-services: setup-bench build ## What data services cost where they gain nothing, into docs/results/performance.md
	scripts/bench-services --write $(BENCH_FLAGS)

.PHONY: bench-snapshots
bench-snapshots: setup-bench build ## How long snapshots take in a growing volume, and what very many cost, into docs/results/performance.md
	scripts/bench-snapshots --write $(BENCH_FLAGS)

.PHONY: bench-roles
bench-roles: setup-bench build ## What journal disks and read caches gain on slow disks, as root, into docs/results/performance.md
	scripts/bench-roles --write $(BENCH_FLAGS)

.PHONY: bench-metadata
bench-metadata: setup-cluster build-test ## What it costs that metadata of a cluster's volume is on slow disks and its log on fast ones
	scripts/bench-metadata $(BENCH_FLAGS)

.PHONY: bench-small
bench-small: setup-bench build ## What a million small files and objects take on disks, into docs/results/performance.md
	scripts/bench-small --write $(BENCH_FLAGS)

.PHONY: bench-overwrites
bench-overwrites: setup-bench build ## What random overwrites leave of a file's sequential read, at once and after a rest, into docs/results/performance.md
	cargo build $(CARGO_FLAGS) -p cairn-bench --example nfs_load
	scripts/bench-overwrites --write $(BENCH_FLAGS)

.PHONY: bench-space
bench-space: setup-bench build ## How soon space comes back after overwrites and deleted snapshots, into docs/results/performance.md
	scripts/bench-space --write $(BENCH_FLAGS)

.PHONY: bench-reliability
bench-reliability: setup-bench build ## Measure recovery, reads with disks gone, rebuild, scrub; write docs/results/reliability.md
	cargo build $(CARGO_FLAGS) -p cairn-bench --example nfs_load
	scripts/bench-reliability $(BENCH_FLAGS)

.PHONY: bench-iscsi
bench-iscsi: setup-iscsi build ## Measure a LUN beside tgt and NFS, into docs/results/performance.md
	scripts/bench-iscsi --write $(BENCH_FLAGS)

.PHONY: bench-s3
bench-s3: setup-bench build ## Measure objects beside MINIO=PROGRAM, if there is one, into docs/results/performance.md
	scripts/bench-s3 --write $(if $(MINIO),--minio $(MINIO),) $(BENCH_FLAGS)

.PHONY: bench-engine
bench-engine: setup-bench build ## Run the engine of `cairn bench` beside LOAD=nfsload.c, into docs/results/performance.md
	cargo build $(CARGO_FLAGS) -p cairn-bench --example nfs_load
	scripts/bench-engine --write $(if $(LOAD),--load $(LOAD),) $(BENCH_FLAGS)

.PHONY: bench-memory
bench-memory: setup-bench build ## What a server has in memory beside its limit, under NFS, iSCSI and S3 together, into docs/results/performance.md
	scripts/bench-memory --write $(BENCH_FLAGS)

.PHONY: bench-client-memory
bench-client-memory: build ## Run `cairn bench` for MINUTES=60 and watch its memory
	scripts/bench-client-memory $(if $(MINUTES),--minutes $(MINUTES),) $(BENCH_FLAGS)

.PHONY: bench-page
bench-page: setup-page ## Look at report pages in a headless browser; RESULTS="a.json b.json" for one's own
	$(if $(RESULTS),cargo build $(CARGO_FLAGS) -p cairn,)
	scripts/bench-page $(BENCH_PAGE_FLAGS) $(RESULTS)

.PHONY: plan-page
plan-page: setup-page ## Look at the planner's pages in a headless browser
	scripts/plan-page $(PLAN_PAGE_FLAGS)

.PHONY: test-plan
test-plan: setup-plan setup-vm build-test ## Lint the planner's templates, deploy them to a local stand-in for AWS, boot a server
	scripts/test-plan $(TESTS)

.PHONY: test-plan-short
test-plan-short: setup-plan ## The part of test-plan that needs neither root nor a VM
	scripts/test-plan test_tools test_schema test_security test_health test_stacks

.PHONY: package
package: setup-build ## Make a .deb, what a container image is built from, and line tables for profiles and crashes, in target/dist
	cargo build --profile packaged --locked -p cairn
	scripts/package $(PACKAGED) $(CARGO_TARGET_DIR)/dist

.PHONY: test-package
test-package: setup-package build-test ## Install the .deb on a bare Debian, serve, purge; the same with the image. As root
	scripts/test-package

.PHONY: sim
sim: setup-build ## Simulate the engine on disks that misbehave: SEEDS=1000, FROM=n for the first
	scripts/sim seeds $(or $(SEEDS),1000) $(FROM)

.PHONY: sim-soak
sim-soak: setup-build ## The same for HOURS=n
	scripts/sim soak $(or $(HOURS),1)

.PHONY: sim-ci
sim-ci: setup-build ## A fixed set of seeds, and as many that nobody ran before
	scripts/sim ci

.PHONY: sim-bite
sim-bite: setup-build ## Does the simulator find bugs that are planted, and how soon?
	scripts/sim bite

.PHONY: sim-bite-ci
sim-bite-ci: setup-build ## The same, with the seeds first that found them before
	scripts/sim bite-ci

.PHONY: cluster-sim
cluster-sim: setup-build ## Simulate whole clusters, with lost nodes, bad networks and etcd: SEEDS=200, FROM=n for the first
	scripts/sim cluster $(or $(SEEDS),200) $(FROM)

.PHONY: cluster-sim-ci
cluster-sim-ci: setup-build ## A fixed set of clusters, and half a minute of others; the model of the log
	scripts/sim cluster-ci
	$(MAKE) --no-print-directory log-model

.PHONY: cluster-sim-bite
cluster-sim-bite: setup-build ## Does the simulation of clusters find bugs that are planted, and how soon?
	scripts/sim cluster-bite

.PHONY: cluster-sim-bite-ci
cluster-sim-bite-ci: setup-build ## The same, with the seeds first that found them before
	scripts/sim cluster-bite-ci

.PHONY: forward-model
forward-model: ## Try every order of the steps of a call that waits while nodes and volumes go; then without each rule
	python3 tests/model/forward_model.py --bugs

.PHONY: log-model
log-model: ## Try every order of the steps of a log on several nodes, in small bounds; then each mistake in it
	python3 tests/model/log_model.py
	python3 tests/model/log_model.py --bugs

.PHONY: fuzz-short
fuzz-short: setup-build ## Every fuzz target with its corpus and mutations of it; no special compiler
	scripts/fuzz-short

.PHONY: fuzz
fuzz: setup-fuzz ## Every fuzz target for FUZZ_SECONDS, guided by coverage
	scripts/fuzz $(FUZZ_SECONDS)

.PHONY: fuzz-hours
fuzz-hours: setup-fuzz ## The same until each had HOURS=1 of processor time; goes on where it stopped
	scripts/fuzz-hours $(or $(HOURS),1) $(TARGETS)

.PHONY: audit
audit: setup-audit ## Licenses, sources and known vulnerabilities of all dependencies
	scripts/audit

.PHONY: install
install: build ## Install program, manual pages, completions and systemd unit below PREFIX
	scripts/install $(CAIRN) "$(PREFIX)" "$(DESTDIR)"

.PHONY: clean
clean: ## Remove what was built
	cargo clean
