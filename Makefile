# All that a developer or a new user runs. Needs a Python with its venv module, for PyTorch its headers, g++, cmake
# and make; no root.
VENV ?= .venv
TORCH_VENV ?= .venv-torch
RELEASED_HOROVOD ?= .venv-horovod
DEMO ?= demo
DIST ?= dist
RUNS ?= 20
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RECIPE := $(shell find edl_horovod/horovod_build -type f -not -name '*.pyc')
# Only errors: pip warns of each place in its settings that lacks a package, before it takes the next place.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

# The Python of the environment that is there, else the newest that both frameworks have builds for.
PYTHONS := $(wildcard $(BIN)/python) python3.13 python3.12 python3.11 python3
FITS := import ensurepip, sys, venv; assert (3, 11) <= sys.version_info[:2] <= (3, 13); print(sys._base_executable)
PYTHON ?= $(shell for python in $(PYTHONS); do $$python -c '$(FITS)' 2>/dev/null && break; done)

# What models are written in: tensorflow, torch, or both with a comma between them. Without it all stays as it
# was set up; the first time it is TensorFlow, or what FRAMEWORK (of the demo: keras or torch) needs.
comma := ,
PRESENT := $(shell cat $(VENV)/.frameworks 2>/dev/null)
NEEDED := $(patsubst keras,tensorflow,$(FRAMEWORK))
FRAMEWORKS ?= $(or $(sort $(PRESENT) $(NEEDED)),tensorflow)
WANTED := $(sort $(subst $(comma), ,$(FRAMEWORKS)))
ifneq ($(filter-out tensorflow torch,$(WANTED)),)
$(error FRAMEWORKS takes tensorflow, torch, or both as FRAMEWORKS=tensorflow,torch; FRAMEWORK takes keras or torch. \
  Received: FRAMEWORKS=$(FRAMEWORKS))
endif
ifeq ($(FRAMEWORK)$(filter tensorflow,$(WANTED)),keras)
$(error FRAMEWORK=keras needs TensorFlow. Received: FRAMEWORKS=$(FRAMEWORKS))
endif
# Without FRAMEWORK the demo takes the first framework that is set up.
DEMO_FRAMEWORK := $(or $(FRAMEWORK),$(if $(filter tensorflow,$(WANTED)),keras,torch))
# A folder or page with PyTorch's build for CPUs; without it locks/install.py looks for a build.
export TORCH_LINKS

export TF_CPP_MIN_LOG_LEVEL ?= 2
# Images of Python set it; here hundreds of processes would each compile this project anew.
unexport PYTHONDONTWRITEBYTECODE
# Open MPI and the tools of the environment come before those of the machine.
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: help setup lock demo test behaviour test-all nightly nightly-fuzz nightly-chaos nightly-further nightly-versions lint lint-python lint-files unit component kube test-kube golden parallel integration netns \
  images chaos dist docs test-versions bench bench-elastic bench-network bench-kube against torch-peer horovod-peer curve gan notebooks proto clean

help:
	@echo 'make setup          environment in $(VENV), with Horovod built once; FRAMEWORKS=tensorflow,torch'
	@echo 'make demo           pictures -> records -> training -> evaluation -> predictions; FRAMEWORK=torch'
	@echo 'make test           lint, and a test of each behaviour, with TensorFlow in 16 minutes'
	@echo 'make test ONLY=torch   the tests with that in their names; CHANGED=1: those of what you changed'
	@echo 'make test-all       the long tests, and as root make netns and make images'
	@echo 'make nightly        what takes hours: PART=fuzz, chaos (RUNS=300), further or versions'
	@echo 'make lint           format, rules, types, imports, words, spelling, YAML, workflows, Dockerfiles'
	@echo 'make unit component kube parallel integration netns images   the tests of one folder'
	@echo 'make test-kube      contract tests against a real API server (KUBEBUILDER_ASSETS)'
	@echo 'make golden         k8s/ as edl would submit it now'
	@echo 'make chaos          RUNS=20 jobs that are killed, stopped and resized at random'
	@echo 'make bench          benchmarks beside the peers; they write docs/benchmarks*.md'
	@echo 'make bench-elastic  changes of a ring beside plain Horovod and TorchElastic; PART=three_ranks'
	@echo 'make bench-network  training over slow networks (root); PART=overlap QUICK=1'
	@echo 'make bench-kube     host discovery with 5,000 pods, the coordinator with 1,000 workers'
	@echo 'make torch-peer horovod-peer   the peers of these benchmarks'
	@echo 'make against        BASE=path: weights and speed of another checkout, and of this one'
	@echo 'make curve gan      the pictures of docs/explanation/same-curve.md, docs/how-to/several-losses.md'
	@echo 'make notebooks      docs/notebooks with what they show when they are run now'
	@echo 'make dist           a release of the last commit: source archive, wheel, list of packages'
	@echo 'make docs           the pages of docs/ as a site in docs/_build, which needs no network'
	@echo 'make lock           the hashes of all packages in locks/, from the public index'
	@echo 'make proto          the modules of edl_horovod/proto'
	@echo 'make clean          remove what make made here (not the cached Horovod wheel)'

setup: $(READY)

ifneq ($(WANTED),$(PRESENT))
.PHONY: $(READY)
endif

LOCKS := setup $(WANTED) $(if $(filter tensorflow,$(WANTED)),keras-2)

$(READY): pyproject.toml setup.py locks/build.txt $(LOCKS:%=locks/%.txt) $(RECIPE)
	@$(or $(PYTHON),false) -c '$(FITS)' >/dev/null 2>&1 || { echo "Python 3.11, 3.12 or 3.13 with its venv module is \
	needed (Debian and Ubuntu: apt-get install python3-venv). Say which one: make PYTHON=python3.12. \
	Received: $(or $(PYTHON),none of $(PYTHONS))" >&2; exit 2; }
	@echo "Setting up $(WANTED) in $(VENV) with $$($(PYTHON) -V), $(PYTHON). Horovod is built for it, in some three"
	@echo "minutes for each framework on two cores. A later set-up at this place takes Horovod from the cache."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --require-hashes -r locks/build.txt
	@echo "Installing packages: $(LOCKS)"
	@$(BIN)/python locks/install.py $(LOCKS)
	@$(PIP) --no-deps --no-build-isolation -e .
	@$(BIN)/edl setup-horovod
	@echo $(WANTED) > $(VENV)/.frameworks
	@touch $@
	@echo "$(VENV) is ready for $(WANTED)."

# After a change of constraints.txt or pyproject.toml. PyTorch's builds for CPUs are those that TORCH_LINKS, or
# PyTorch's index, has.
lock: $(READY)
	$(BIN)/python locks/lock.py

# What a user installs without this Makefile; its tests are tests/integration/test_wheel.py.
dist: $(READY)
	@$(BIN)/python locks/install.py release
	$(BIN)/python .ci/release.py $(DIST)

# -- the demo: each file is made once ------------------------------------------------------------

MODEL := model_zoo=model_zoo model_def=$(if $(filter torch,$(DEMO_FRAMEWORK)),mnist_torch,mnist_functional_api)

demo: $(DEMO)/records/train $(DEMO)/records/test
	$(BIN)/edl train $(MODEL) framework=$(DEMO_FRAMEWORK) data='$(DEMO)/records/train/*.recordio' \
	  validation_data='$(DEMO)/records/test/*.recordio' output=$(DEMO)/model overwrite=true \
	  launch.np=2 elastic.min_np=1 elastic.max_np=4 train.batch_size=64 train.epochs=5
	$(BIN)/edl evaluate trained_model=$(DEMO)/model data='$(DEMO)/records/test/*.recordio' launch.np=2
	$(BIN)/edl predict trained_model=$(DEMO)/model data='$(DEMO)/records/test/*.recordio' \
	  output=$(DEMO)/predictions overwrite=true launch.np=2
	@echo 'The trained model is in $(DEMO)/model, its predictions are in $(DEMO)/predictions.'

$(DEMO)/images: | $(READY)
	$(BIN)/python model_zoo/sample_images.py digits $@

$(DEMO)/records/%: $(DEMO)/images | $(READY)
	$(BIN)/edl prepare $(MODEL) data=$(DEMO)/images/$* output=$@ records_per_shard=512 overwrite=true

# -- checks --------------------------------------------------------------------------------------

# Jobs wait for much, so that some more tests run side by side than there are cores; those of jobs come first.
PYTEST := $(BIN)/python -m pytest -q
SIDE_BY_SIDE := $(PYTEST) --workers 3
JOBS := tests/parallel tests/integration
TESTS := $(JOBS) tests/kube tests/component tests/unit

SOON := not long and not further and not root

# ONLY=torch runs the tests with that in their names alone, as after PyTorch was added; CHANGED=1 those of the modules
# that differ from the last commit of the branch that one began at.
test: $(READY)
ifdef ONLY
	$(SIDE_BY_SIDE) $(TESTS) -m '$(SOON)' --only '$(ONLY)'
else ifdef CHANGED
	$(BIN)/python -m tests.changed | xargs -r $(SIDE_BY_SIDE) -m '$(SOON)'
else
	$(MAKE) -j 2 --output-sync=target lint behaviour
endif

behaviour: $(READY)
	$(SIDE_BY_SIDE) $(TESTS) -m '$(SOON)'

# Each in an environment of its own, which stays.
VERSIONS ?= $(foreach python,python3.11 python3.12 python3.13,$(shell $(python) -c '$(FITS)' 2>/dev/null))

test-versions:
	@for python in $(VERSIONS); do \
	  version=$$($$python -c 'import sys; print("3.%d" % sys.version_info[1])') && \
	  $(MAKE) PYTHON=$$python VENV=.venv-$$version DEMO=demo-$$version demo test || exit; done

# Which tests `test-all` runs besides networks and images, as pytest's -m takes it.
LONG ?= root or long or further

# The rest, after `make test`: nothing runs in both. What needs root says so and is skipped without it.
test-all: $(READY)
	$(SIDE_BY_SIDE) $(TESTS) -m '$(LONG)' --durations=40 --durations-min=20
	$(MAKE) netns
	$(MAKE) images

# What takes hours, over what the tests have a little of: PART=fuzz, chaos, further or versions.
FUZZ_SECONDS ?= 3600
FUZZ_EXAMPLES ?= 20000
nightly: nightly-$(PART)

nightly-fuzz: $(READY)
	$(BIN)/python -m tests.fuzz_statements --seconds $(FUZZ_SECONDS)
	EDL_EXAMPLES=$(FUZZ_EXAMPLES) $(SIDE_BY_SIDE) --timeout $(FUZZ_SECONDS) tests/unit tests/component -m hypothesis

nightly-chaos: chaos

nightly-further: $(READY)
	$(SIDE_BY_SIDE) $(TESTS) -m further

nightly-versions: test-versions

# Not the whole folder, in which a user may keep files, too.
SOURCES := .ci benchmarks docs edl_horovod locks model_zoo setup.py starter tests

# In the parts that commits are checked by (.pre-commit-config.yaml).
lint: lint-python lint-files

lint-python: $(READY)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/plain_words.py

lint-files: $(READY)
	$(BIN)/python .ci/tracked_files.py
	$(BIN)/codespell .github edl_horovod conf starter model_zoo docker docs tests *.md
	$(BIN)/yamllint -s .github .pre-commit-config.yaml conf starter k8s
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	$(BIN)/hadolint docker/Dockerfile docker/Dockerfile.cuda

unit component kube parallel integration: $(READY)
	$(SIDE_BY_SIDE) tests/$@ -m '$(SOON)'

golden: $(READY)
	$(PYTEST) tests/component/cluster/test_golden.py --update-golden

test-kube: $(READY)
	@test -x "$$KUBEBUILDER_ASSETS/kube-apiserver" -a -x "$$KUBEBUILDER_ASSETS/etcd" || { \
	  echo 'KUBEBUILDER_ASSETS must name a folder with kube-apiserver and etcd, as of envtest'; exit 2; }
	$(PYTEST) tests/kube -k contract

# A part of `test-all`: it needs root, iproute2 and openssh-server, as .ci/run has them. Two at a time:
# some hold a stall against a bound, and three jobs of several hosts are too many for two cores.
netns: $(READY)
	$(PYTEST) --workers 2 tests/netns

# A part of `test-all`, too: it needs root, podman and docker-registry, as .ci/run has them.
images: $(READY)
	$(PYTEST) tests/images

# A longer run of what `test` and `test-all` have a little of.
chaos: $(READY)
	EDL_CHAOS_RUNS=$(RUNS) $(PYTEST) tests/integration/test_chaos.py

# Warnings are errors, among them links and anchors that lead nowhere.
docs: $(READY)
	$(BIN)/python -m sphinx -q -E -W --keep-going docs docs/_build

notebooks: $(READY)
	$(BIN)/python .ci/notebooks.py

curve: $(READY)
	$(BIN)/python -m benchmarks.same_curve docs/explanation/same-curve.png

gan: $(READY)
	$(BIN)/python docs/how-to/several_losses.py docs/how-to/several-losses.png

bench: $(READY)
	$(BIN)/python -m benchmarks --write docs/benchmarks.md

bench-elastic: $(READY)
	$(BIN)/python -m benchmarks.elastic --write docs/benchmarks-elastic.md \
	  --torch-python $(TORCH_VENV)/bin/python --released-horovod $(RELEASED_HOROVOD) \
	  $(if $(PART),--only $(PART)) $(BENCH_FLAGS)

# It makes a network namespace, which needs root. PART names one part or several; the page keeps the others.
bench-network: $(READY)
	$(BIN)/python -m benchmarks.network --write docs/benchmarks-network.md \
	  --torch-python $(TORCH_VENV)/bin/python --released-horovod $(RELEASED_HOROVOD) \
	  $(if $(PART),--only $(PART)) $(if $(QUICK),--quick) $(BENCH_FLAGS)

# Before and after a refactor: BASE is a checkout where `make setup` has run.
against: $(READY)
	$(BIN)/python -m benchmarks.against $(BASE)

bench-kube: $(READY)
	$(BIN)/python -m benchmarks.kube --write docs/benchmarks-kubernetes.md

# Apart from ours, as a user of TorchElastic or torchft has it; without this target both are left out.
torch-peer: $(TORCH_VENV)/.ready

$(TORCH_VENV)/.ready:
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install -q --disable-pip-version-check \
	  --find-links $(or $(TORCH_LINKS),https://download.pytorch.org/whl/cpu/torch/) \
	  torch==2.13.0+cpu torchft==0.2.0 numpy==2.4.6
	@touch $@

# Horovod without our patch, for the benchmarks over networks; some 4 minutes.
horovod-peer: $(RELEASED_HOROVOD)

$(RELEASED_HOROVOD): | $(READY)
	$(BIN)/python -m benchmarks.peers.build_horovod $@

proto: $(READY)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
	  edl_horovod/proto/trained_model.proto edl_horovod/proto/sqlflow.proto edl_horovod/proto/example.proto

clean:
	rm -rf $(VENV) $(TORCH_VENV) $(RELEASED_HOROVOD) $(DEMO) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
