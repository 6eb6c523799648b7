# Every target sets up what it needs; a second run is fast. CI calls the same targets.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

NATIVE := CMakeLists.txt $(wildcard proxy/src/*.[ch] proxy/include/*/*.h kernels/*.cpp kernels/*.cuh mesh/marker/*.[ch])

.PHONY: help venv demo test test-engines lint bench clean
help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 16

build/.packages: pyproject.toml tools/setup.sh
	tools/setup.sh $(PYTHON)
	@mkdir -p build && touch $@

build/.installed: build/.packages $(NATIVE)
	ln -sfn ../mesh roce_ring/mesh && ln -sfn ../kernels roce_ring/kernels # the layout a wheel has, for mypy and for `python -m`
	pip install -qq --no-build-isolation --no-deps --editable .
	@touch $@

venv: build/.installed  ## Create .venv with the package, its C libraries and the developer tools

demo: venv  ## Plan the sample ring, then run verified all-reduces on 4 local ranks
	roce-ring plan mesh/examples/four-spark-ring.yaml --out build/demo
	@echo; echo "picture of the ring: build/demo/ring.svg"; echo
	roce-ring bench --local 4 --check --sizes 2048,16384,131072,1048576 --dtype bf16

test: venv  ## Run every test tier: Python, native with sanitizers, engines, aarch64, CUDA compile, wheel, Soft-RoCE
	python tests/run_tiers.py

test-engines: venv  ## Run the tests of SGLang, vLLM and torch.distributed only (installs the engines, about 1 GB)
	python tests/run_tiers.py engines

lint: venv  ## Formatting, types, generated code, forbidden words
	python tools/lint.py

bench: venv  ## Compare with gloo over 4 local ranks (installs torch if there is none); REPORT=FILE keeps it
	python -c 'import torch' 2>/dev/null || pip install -qq torch==2.13.0
	roce-ring bench --local 4 --dtype float32,bf16 --compare gloo --plot build/bench.png $(if $(REPORT),--report $(REPORT))
	python tests/bench_idle.py
	python tests/bench_planner.py

clean:  ## Remove everything that make has made
	rm -rf .venv build roce_ring/_lib roce_ring/_include
