# `make serve` and `make test` need nothing beforehand but make and, to install packages, root or sudo. They work in the virtual
# environment that is active; without one they make `.venv`.
ENVIRONMENT = $(or $(VIRTUAL_ENV),$(CURDIR)/.venv)
PYTHON ?= $(ENVIRONMENT)/bin/python
# For programs that are looked for by name; Debian keeps mosquitto and nft in sbin, which is not on every user's PATH.
export PATH := $(ENVIRONMENT)/bin:$(PATH):/usr/sbin:/sbin
# Images for containers often set it. Then each process that is started, thousands in the tests, would compile all its modules anew.
unexport PYTHONDONTWRITEBYTECODE

# Real servers and other people's clients, which are started, killed, and waited for much of the time: two at a time for
# each core, with ports, folders and processes of their own. A few need the cores for themselves; they are marked `alone`.
SERVERS = tests/interop tests/crash
AT_A_TIME = $(shell $(PYTHON) -c 'import os; print(2 * (os.cpu_count() or 1))')
IN_PARALLEL = $(filter-out $(SERVERS) tests/bench,$(patsubst %/,%,$(wildcard tests/*/)))

.DEFAULT_GOAL = install
.PHONY: serve quick quick-tests nightly-tests packages install fmt lint types test bench bench-compare bench-spark bench-pipelines kill-spark docs fuzz fuzz-network chaos power rot nightly release audit image image-trial

$(CURDIR)/.venv/bin/python:
	.ci/packages serve
	.ci/environment .venv

# What is installed is older than what it is compiled and made from.
COMPILED_FROM = pyproject.toml setup.py $(wildcard */*.pyx */*.pxi */*/*.pyx */*/*.pxd */*/parts/*.pxi)
$(ENVIRONMENT)/penstock-installed: $(COMPILED_FROM) | $(PYTHON)
	@.ci/install $(PYTHON) $@
$(ENVIRONMENT)/penstock-tests-installed: $(COMPILED_FROM) | $(PYTHON)
	$(MAKE) --no-print-directory install

# With options: make serve SERVE='--listen mqtt://127.0.0.1:1884 --data /var/lib/penstock'
serve: $(ENVIRONMENT)/penstock-installed
	@$(PYTHON) -m penstock serve $(SERVE)

# System packages that tests need.
packages:
	.ci/packages test

# Editable, so that the compiled leaves lie beside their sources: an installed copy would be
# shadowed by the source folders whenever something runs from here.
install: | $(PYTHON)
	$(PYTHON) -m pip install --quiet --editable '.[test]'
	@touch $(ENVIRONMENT)/penstock-installed $(ENVIRONMENT)/penstock-tests-installed

fmt:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command; lint_imports_command(["--no-logo"])'

types:
	$(PYTHON) -m mypy

# MQTT.js, for the tests of clients.
tests/interop/js/node_modules: tests/interop/js/package-lock.json | packages
	npm ci --no-audit --no-fund --prefix tests/interop/js
	touch $@

# A Kafka broker, for the tests of flows, and Spark's connector to it, for their example.
tests/kafka/jars: tests/kafka/pom.xml | packages
tests/kafka/spark-jars: tests/kafka/spark-pom.xml | packages
tests/kafka/jars tests/kafka/spark-jars:
	rm -rf $@
	mvn --batch-mode --quiet --file $< dependency:copy-dependencies
	touch $@

test: packages install lint types tests/interop/js/node_modules tests/kafka/jars tests/kafka/spark-jars
	-tests/helm/install-helm.sh "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("scripts"))')"
	$(PYTHON) -m pytest --numprocesses auto --dist loadgroup -m 'not nightly' $(IN_PARALLEL)
	$(PYTHON) -m pytest --numprocesses $(AT_A_TIME) --dist worksteal -m 'not alone and not nightly and not kafka' $(SERVERS)
	$(PYTHON) -m pytest --numprocesses 2 --dist loadgroup -m 'kafka and not alone and not nightly' $(SERVERS)
	$(PYTHON) -m pytest -m 'alone and not nightly' $(SERVERS)

# What you run while you work: rules and models, without other people's programs, and a fifth of the random examples.
quick: $(ENVIRONMENT)/penstock-tests-installed
	$(MAKE) --no-print-directory --jobs 3 lint types quick-tests

quick-tests:
	$(PYTHON) -m pytest --quiet --numprocesses auto --dist loadgroup --exitfirst -m 'not slow and not nightly' --hypothesis-profile quick \
		tests/unit tests/property

# Some tests by night take an hour, so what hangs is ended after three.
BY_NIGHT := -o faulthandler_timeout=10800

# What `make test` leaves to the night; docs/testing.md says why nothing is uncovered by day.
nightly-tests: packages install tests/interop/js/node_modules tests/kafka/jars tests/kafka/spark-jars
	$(PYTHON) -m pytest $(BY_NIGHT) --numprocesses $(AT_A_TIME) --dist worksteal -m 'nightly and not alone and not kafka' tests
	$(PYTHON) -m pytest $(BY_NIGHT) --numprocesses 2 --dist loadgroup -m 'nightly and kafka and not alone' $(SERVERS)
	$(PYTHON) -m pytest $(BY_NIGHT) -m 'nightly and alone' tests
	$(PYTHON) -m pytest $(BY_NIGHT) --numprocesses auto --dist loadgroup -m 'not nightly' --hypothesis-profile night tests/property

bench: install
	$(PYTHON) tests/bench/run.py

# Half an hour on a machine that has nothing else to do; what is not installed is left out.
MINUTES ?= 30
bench-compare: install
	mkdir -p docs/benchmarks
	$(PYTHON) -m penstock bench full --minutes $(MINUTES) --json docs/benchmarks/compare.json --markdown docs/benchmarks.md

bench-spark: install
	$(PYTHON) tests/bench/spark_run.py
	$(PYTHON) tests/bench/spark_loop.py

# As many kills as are promised; `make test` has a few of them.
kill-spark: install
	PENSTOCK_SPARK_KILLS=20 $(PYTHON) -m pytest $(BY_NIGHT) tests/spark/test_kills.py tests/spark/test_sink_kills.py

bench-pipelines: install
	$(PYTHON) tests/bench/pipelines_run.py

FUZZ_SECONDS ?= 60

# Guided by coverage; what it finds of interest goes to build/fuzz, and from there, merged, to the corpus.
fuzz:
	$(PYTHON) -m pip install --quiet --editable '.[fuzz]'
	mkdir -p build/fuzz
	$(PYTHON) -m tests.fuzz.codec build/fuzz tests/fuzz/corpus -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/

fuzz-network: install
	$(PYTHON) -m tests.fuzz --seconds $(FUZZ_SECONDS)

CHAOS_SECONDS ?= 60
CHAOS_SEED ?= 1

# Faults under load, and a ledger; what it complains of comes with the command that repeats it.
chaos: install
	$(PYTHON) -m penstock chaos --seed $(CHAOS_SEED) --duration $(CHAOS_SECONDS) --rate 300

POWER_IMAGES ?= 300
POWER_SEED ?= 1

# What a power cut may leave of a store's files, and what the store makes of it; half of the images with `async`.
power: install
	$(PYTHON) -m penstock chaos --power --seed $(POWER_SEED) --images $$(($(POWER_IMAGES) / 2)) --flush sync
	$(PYTHON) -m penstock chaos --power --seed $(POWER_SEED) --images $$(($(POWER_IMAGES) / 2)) --flush async

ROT_INJURIES ?= 40

# Flipped bits, zeroed sectors, syncs that fail or lie, under a store that runs; half of them with `async`.
rot: install
	$(PYTHON) -m penstock chaos --rot --seed $(POWER_SEED) --injuries $$(($(ROT_INJURIES) / 2)) --flush sync
	$(PYTHON) -m penstock chaos --rot --seed $(POWER_SEED) --injuries $$(($(ROT_INJURIES) / 2)) --flush async

# What releases are made and looked at with, apart from what is installed here.
RELEASE_TOOLS = build/release-tools/bin/python
$(RELEASE_TOOLS): pyproject.toml
	$(PYTHON) -m venv build/release-tools
	$(RELEASE_TOOLS) -m pip install --quiet $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["release"])')
	touch $@

# Into dist/: wheel, source, the hashes of all that a server depends on, a bill of materials, and checksums of these.
release: $(RELEASE_TOOLS)
	.ci/release $(RELEASE_TOOLS)

# What is known to be vulnerable of what a release depends on. It asks an advisory database over the network.
audit: $(RELEASE_TOOLS)
	.ci/audit $(RELEASE_TOOLS)

# The container image, by Docker, Podman or Buildah. With options of its `build`: make image IMAGE_OPTIONS=--pull
IMAGE ?= penstock
image:
	.ci/image $(IMAGE) $(IMAGE_OPTIONS)

# The image is started by Docker or Podman as docs/operations.md says, used by stock clients, killed and started again.
image-trial:
	$(PYTHON) -m tests.support.image_trial $(IMAGE)

# Another seed each night, but the same one all night.
nightly: nightly-tests
	$(MAKE) chaos CHAOS_SECONDS=600 CHAOS_SEED=$$(date +%Y%m%d)
	$(PYTHON) -m penstock chaos --seed $$(date +%Y%m%d) --duration 120 --gateways 0 --rate 300
	$(MAKE) power POWER_IMAGES=12000 POWER_SEED=$$(date +%Y%m%d)
	$(MAKE) rot ROT_INJURIES=2400 POWER_SEED=$$(date +%Y%m%d)
	$(MAKE) audit

docs: install
	$(PYTHON) -m penstock.config.settings_docs > docs/settings.md.new
	mv docs/settings.md.new docs/settings.md
	$(PYTHON) -m penstock.config.operations_docs docs/operations.md
	$(PYTHON) -m tests.rooms > docs/rooms.md.new
	mv docs/rooms.md.new docs/rooms.md
	$(PYTHON) -m tests.conformance > docs/conformance.md.new
	mv docs/conformance.md.new docs/conformance.md
	$(PYTHON) -m tests.catalogue > docs/catalogue.md.new
	mv docs/catalogue.md.new docs/catalogue.md
