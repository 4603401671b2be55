# The words of this project; `make` or `make help` lists them.
#
# make demo                  on Linux without a sign of an NVIDIA GPU as cpu, if that index can be reached, else as default
# make demo TORCH=cpu        from PyTorch's own index of CPU builds: the smallest that works
# make demo TORCH=default    whatever build pip takes for this machine; on x86-64 Linux that is several GB of CUDA
# make demo TORCH=none       no torch is installed: one that you have put into .venv yourself is used
#
# The choice is remembered in .venv until another one is named.

VENV := .venv
BIN := $(VENV)/bin

# The first of these that is new enough and can make a virtual environment; PYTHON=... names another.
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for one in $(PYTHONS); do "$$one" -c '$(USABLE)' 2>/dev/null && echo "$$one" && break; done)

TORCH ?= $(shell cat $(VENV)/torch-choice 2>/dev/null || echo auto)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
ifeq ($(filter $(TORCH),auto default cpu none),)
$(error TORCH=$(TORCH) is unknown: auto, default, cpu or none)
endif

# A driver's files on a PC, on a Jetson, and under Windows; the last are there for other GPUs, too.
NVIDIA_SIGNS ?= /proc/driver/nvidia /dev/nvidia0 /dev/nvidiactl /etc/nv_tegra_release /dev/nvhost-gpu /dev/dxg
NVIDIA = $(wildcard $(NVIDIA_SIGNS))$(shell command -v nvidia-smi 2>/dev/null)
# What TORCH=auto comes to; elsewhere than on Linux pip's choice has no CUDA.
BUILD := $(TORCH)
ifeq ($(TORCH),auto)
BUILD := $(if $(filter Linux,$(shell uname -s)),$(if $(NVIDIA),default,auto),default)
endif

CHOSEN := $(VENV)/.torch-$(TORCH)
FOR_DEMO := $(VENV)/.for-demo-$(TORCH)
FOR_DEV := $(VENV)/.for-dev-$(TORCH)
FOR_DOCS := $(VENV)/.for-docs
FOR_RELEASE := $(VENV)/.for-release
PINS := pyproject.toml constraints.txt

# Options of pytest: two processes, of which one that is done takes tests from the other. `make test PARALLEL=` runs the tests one after the other.
PARALLEL ?= -n 2 --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-fast test-pythons internet faults chaos fuzz soak defences privacy lint format bench rivals study docs release clean

help: ## list these words
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  TORCH=auto|default|cpu|none chooses the build of torch, PYTHON=... the interpreter (3.11 or newer)."

demo: $(FOR_DEMO) ## eight processes learn handwritten digits from each other; report and picture in demo-out/
	@mkdir -p demo-out
	$(BIN)/p2pfl demo --dir demo-out --plot demo-out/demo.png
	@echo
	@echo "report:  demo-out/report.json"
	@echo "picture: demo-out/demo.png"

# Threads of the linear algebra on top of processes make small matrices many times slower.
test test-all test-fast test-pythons chaos: export OPENBLAS_NUM_THREADS := 1
test test-all test-fast test-pythons chaos: export OMP_NUM_THREADS := 1
# Where the environment forbids bytecode, each process that a test starts would compile all modules again.
test test-all test-fast test-pythons chaos: export PYTHONDONTWRITEBYTECODE :=
test: $(FOR_DEV) ## run the tests, but for those that are marked long
	$(BIN)/python -m pytest $(PARALLEL) -m "not long"

test-all: $(FOR_DEV) ## run all tests, those marked long too, with more examples of every property
	$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=thorough

test-fast: $(FOR_DEV) ## run the tests that are marked neither slow nor long
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not long"

test-pythons: | check-python ## run what needs no torch under each of Python 3.11 to 3.14 and free-threaded 3.14 that is here
	$(PYTHON) tools/pythons.py -m "not slow and not long"

# Real processes on machines of network namespaces; what is missing for one, its skip names. One after the other, with their figures.
internet: export OPENBLAS_NUM_THREADS := 1
internet: export OMP_NUM_THREADS := 1
internet: $(FOR_DEV) ## as root: federations on LANs and behind NAT, proxies, relays and slow lines, in a box: ten minutes
	$(BIN)/python -m pytest tests/lan tests/internet -s

COUNT ?= 1000
FIRST ?= 0
faults: $(FOR_DEV) ## COUNT random federations in bad worlds, from the seed FIRST on, every invariant after every event
	$(BIN)/python tests/faults/many_worlds.py --count $(COUNT) --first $(FIRST) --out faults.jsonl

SEED ?= 0
MINUTES ?= 10
chaos: $(FOR_DEV) ## MINUTES of kills, cuts, damage, floods and lies by SEED, for real processes; WORLDS=1000 seeds in virtual time
ifdef WORLDS
	nice $(BIN)/python tests/faults/many_worlds.py --chaos --count $(WORLDS) --first $(SEED) --out faults.jsonl
else
	nice $(BIN)/python tests/chaos/chaos.py --minutes $(MINUTES) --seed $(SEED)
endif

INPUTS ?= 1000000
fuzz: $(FOR_DEV) ## INPUTS bad inputs, made from SEED, for every decoder of bytes from peers, files and people; ONLY="frame invite"
	nice $(BIN)/python tests/fuzz/many_inputs.py --inputs $(INPUTS) --seed $(SEED) $(if $(ONLY),--only $(ONLY))

soak: $(FOR_DEV) ## MINUTES of a federation whose nodes are killed and replaced: what grows? Figures each minute
	nice $(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

defences: export OPENBLAS_NUM_THREADS := 1
defences: export OMP_NUM_THREADS := 1
defences: $(FOR_DEV) ## take each defence of the page on threats out of a copy: its tests must turn red; ONLY="name, name"
	nice $(BIN)/python tests/defences.py

privacy: $(FOR_DEV) ## try from outside what the pages on privacy promise, on real processes; ONLY="epsilon wire" some of it
	nice $(BIN)/python tests/privacy_kit/tries.py $(ONLY)

lint: $(FOR_DEV) ## ruff, mypy, which package may import which, and how large each part may be
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	for system in darwin win32; do $(BIN)/mypy --platform $$system --cache-dir .mypy_cache/$$system || exit 1; done
	$(BIN)/lint-imports
	$(BIN)/python tools/size.py

format: $(FOR_DEV) ## let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Measuring with one thread: the machine's other cores shall not decide.
bench: export OPENBLAS_NUM_THREADS := 1
bench: $(FOR_DEV) ## measure compressors, the network, a node's overhead, learning, graphs, the simulator: figures in bench-out/
	@mkdir -p bench-out
	$(BIN)/python benchmarks/codecs.py --json bench-out/codecs.json
	$(BIN)/python benchmarks/goodput.py --json bench-out/goodput.json
	$(BIN)/python benchmarks/overhead.py --parameters 10k,1M,25M --json bench-out/overhead.json
	$(BIN)/python benchmarks/digits.py --json bench-out/digits.json
	$(BIN)/python benchmarks/spectral.py --nodes 100,1000,10000,100000 --limit-s 5
	$(BIN)/python benchmarks/simulators.py --nodes 100,1000 --rounds 100,50 --json bench-out/simulators.json

rivals: $(FOR_DEV) ## as root: other systems on the same data until the same accuracy: an environment of each in bench-out/rivals
	nice $(BIN)/python benchmarks/rivals/run.py $(ONLY)

# The study of docs/explanation/study.md; started again, it goes on where it was. OUT=FOLDER for its results, ONLY="graphs slow" for parts.
OUT ?= bench-out/study
study: export OPENBLAS_NUM_THREADS := 1
study: export OMP_NUM_THREADS := 1
study: $(FOR_DEV) ## what peers lose to a server and to pooled data: hours; QUICK=1 minutes; P2PFL_DATA=FOLDER with mnist
	$(BIN)/python benchmarks/study/study.py --out $(OUT) $(if $(QUICK),--size quick) $(if $(ONLY),--only $(ONLY))

docs: $(FOR_DOCS) ## build the site of these docs in docs-out/
	$(BIN)/python tools/build_docs.py

release: $(FOR_RELEASE) ## build wheel, sdist, SBOM and requirements with hashes in dist/; TRIAL=1 of any commit; uploads nothing
	$(BIN)/python tools/release.py $(if $(TRIAL),--trial)

clean: ## remove .venv, demo-out, docs-out and everything that was built
	rm -rf $(VENV) demo-out bench-out docs-out dist build p2pfl/compiled *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find p2pfl topologies sim tests -name __pycache__ -prune -exec rm -rf {} +

# An environment holds one build of torch: another choice begins anew. One that make did not make is for TORCH=none to use.
ifeq ($(TORCH),none)
KEEP := test -x $(BIN)/python -a ! -e $(VENV)/torch-choice
else
KEEP := false
endif

$(CHOSEN): | check-python
	@$(KEEP) || { echo "making $(VENV) anew" && rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	@echo $(TORCH) > $(VENV)/torch-choice
	@touch $@

.PHONY: check-python
check-python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer with venv was found (tried: $(PYTHONS)). Install one" \
	    "(on Debian and Raspberry Pi OS: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3" \
	    >&2; exit 2; }
	@"$(PYTHON)" -c '$(USABLE)' 2>/dev/null || { echo "$(PYTHON) cannot be used: Python 3.11 or newer with venv" \
	    "is needed (on Debian and Raspberry Pi OS: apt install python3-venv)" >&2; exit 2; }

$(FOR_DEMO): $(PINS) | $(CHOSEN)
	$(call install,plot)
	@touch $@

$(FOR_DEV): $(PINS) | $(CHOSEN)
	$(call install,dev)
	@touch $@

# The site needs no torch. What pip says is kept, because a machine without a network gets pages of it.
$(FOR_DOCS): $(PINS) | $(CHOSEN)
	@$(BIN)/python -m pip install --quiet --retries 1 --editable '.[docs]' >$(VENV)/pip-docs.log 2>&1 || { \
	    echo "make docs: pip could not install the extra docs, which takes a network once (pip's words:" \
	    "$(VENV)/pip-docs.log); without one, give pip a folder of wheels: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER make docs" \
	    >&2; exit 2; }
	@touch $@

$(FOR_RELEASE): $(PINS) | $(CHOSEN)
	@$(BIN)/python -m pip install --quiet --editable '.[release]'
	@touch $@

# Runs only where one of them is missing.
$(PINS):
	@echo "$(CURDIR) has no $@: make works in a checkout of p2pfl only" >&2; exit 2

# $(1): extras beside torch.
ifeq ($(BUILD),cpu)
# Nothing but torch itself is taken from that index.
define install
$(BIN)/python -m pip install --no-deps --index-url $(TORCH_CPU_INDEX) --constraint constraints.txt torch
$(BIN)/python -m pip install --constraint constraints.txt --editable '.[torch,$(1)]'
endef
else ifeq ($(BUILD),auto)
define install
@echo "There is no sign of an NVIDIA GPU here: torch for the CPU (TORCH=default takes pip's choice)"
@$(BIN)/python -m pip install --retries 1 --no-deps --index-url $(TORCH_CPU_INDEX) --constraint constraints.txt torch || \
    echo "That was not to be had from $(TORCH_CPU_INDEX): going on with pip's choice of torch"
$(BIN)/python -m pip install --constraint constraints.txt --editable '.[torch,$(1)]'
endef
else ifeq ($(BUILD),none)
define install
@$(BIN)/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' || { \
    echo "TORCH=none: first put a torch of your own into $(VENV), such as: $(BIN)/python -m pip install torch" >&2; exit 2; }
$(BIN)/python -m pip install --editable '.[$(1)]'
endef
else
define install
$(BIN)/python -m pip install --constraint constraints.txt --editable '.[torch,$(1)]'
endef
endif
