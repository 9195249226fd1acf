# make deps         install what building and training need and this Debian lacks (packages.txt), after saying what
# make              build the command and the libraries (build/lockstep)
# make train        train a cnn on Fashion-MNIST with one worker per core
# make test         everything a change must pass: tests, sanitizers, checks of form, a short fuzz; runs `make deps-test` first
# make test-full    the long ones, for hours: PART=list names its parts, PART=NAME runs one, in at most 30 minutes
# make test-gpu     the tests of the nccl engine, of the kernels and of training on a GPU of this host, and a few without one
# make chaos        jobs with FAULTS faults (default 1000), chosen by SEED (1): each must end with the undisturbed weights;
#                   CHAOS="--engine tcp" or "--hosts 2": other engines, two launchers
# make fuzz         the fuzzers, FUZZ_SECONDS each (default 300)
# make bench        the measurements that the docs quote, into docs/benchmarks.md; some 15 minutes
# make bench-gpu    training steps on a GPU, beside PyTorch's, into docs/benchmarks-gpu.md; some 7 minutes
# make study        what codecs, local steps and a slow network do to training, into docs/studies/; some hour on 2 cores (an estimate);
#                   PART=codecs runs one part, JOBS_AT_ONCE=4 so many jobs at a time, STUDY="--data DIR": other options
# make deps-test    as deps, and what the tests need besides        make bench-peers   what `make bench` compares with
# make format       clang-format over the tree        make tidy   clang-tidy over the tree
SHELL := /bin/bash
.DEFAULT_GOAL := all
.PHONY: all deps deps-test build train test test-full test-gpu chaos fuzz bench bench-gpu bench-peers study format format-check tidy clean install

JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 300
FAULTS ?= 1000
SEED ?= 1
JOBS_AT_ONCE ?= 1
LOCKSTEP ?= build/lockstep
CTEST := ctest --output-on-failure --no-tests=error

# Installs nothing: what is missing is named, with the step that installs it.
need = command -v $(1) >/dev/null || { echo "lockstep: there is no $(1): run \`make $(2)\` (on Debian; elsewhere see packages.txt)" >&2; exit 1; }
configure = $(call need,c++,deps); $(call need,cmake,deps); $(call need,ninja,deps); cmake --preset dev $(CMAKE_ARGS) >/dev/null

all: build
deps:
	@tools/install_deps.sh packages.txt build
deps-test:
	@tools/install_deps.sh packages.txt
build:
	@$(configure)
	@cmake --build build -j $(JOBS)
# Only what training needs is built.
train:
	@$(configure)
	@cmake --build build --target lockstep -j $(JOBS)
	@mkdir -p build/train
	@build/lockstep train --model cnn --data fashion-mnist --epochs 4 --decay cosine --compare-alone \
	  --checkpoint build/train --overwrite --report build/train/report.json
# On a bare machine, too: it says what it installs, and does.
test: deps-test
	@$(MAKE) --no-print-directory build
	@tools/test.sh
test-full:
	@JOBS=$(JOBS) tools/test_full.sh $(PART)
# What it needs is in docs/guide/gpus.md; nothing is installed here.
test-gpu:
	@nvidia-smi -L >/dev/null 2>&1 || { echo "make test-gpu: there is no GPU here, or no driver for it" >&2; exit 1; }
	@cmake --preset cuda -DLOCKSTEP_WITH_CUDA=ON $(CMAKE_ARGS) >/dev/null
	@cmake --build --preset cuda -j $(JOBS) --target gpu_tests
	@$(CTEST) --test-dir build/cuda -L "gpu|nccl" -E Speed -j 4
	@$(CTEST) --test-dir build/cuda -L gpu -R Speed
# Jobs with workers that die: each must end with the weights of the undisturbed run.
chaos: build
	@tools/chaos.py --faults $(FAULTS) --seed $(SEED) $(CHAOS)
fuzz:
	@$(call need,clang++-14,deps-test)
	@tools/fuzz.sh $(FUZZ_SECONDS)
# The peers are installed first, for CMake to find them.
bench: bench-peers
	@$(MAKE) --no-print-directory build
	@tools/bench.sh
# Wants LibTorch with CUDA, most easily that of a python3 with PyTorch; nothing is installed here.
bench-gpu:
	@cmake --preset cuda -DLOCKSTEP_WITH_TORCH=ON -DLOCKSTEP_WITH_CUDA=ON $(CMAKE_ARGS) >/dev/null
	@cmake --build --preset cuda -j $(JOBS) --target lockstep
	@tools/bench_gpu.sh
# With LOCKSTEP=… nothing is built.
study: $(if $(filter-out build/lockstep,$(LOCKSTEP)),,build)
	@tools/study.py --lockstep $(LOCKSTEP) --at-once $(JOBS_AT_ONCE) $(STUDY) $(PART)
bench-peers:
	@tools/install_deps.sh packages-bench.txt
format:
	@$(call need,clang-format-14,deps-test)
	@git ls-files '*.h' '*.cpp' | xargs clang-format-14 -i
format-check:
	@git ls-files '*.h' '*.cpp' | xargs clang-format-14 --dry-run -Werror
tidy: build
	@$(call need,clang-tidy-14,deps-test)
	@tools/tidy.py
install: build
	@cmake --install build
clean:
	@rm -rf build
