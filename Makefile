# Thin, for people: everything real is in CMakeLists.txt and the scripts named here.
#   make build   build/pare and build/pare-runtime        make demo   the whole line on a real model
#   make build CUDA=1   the same with the CUDA backend, and what LibTorch needs to train on a GPU
#                (set-up asks before it installs Debian packages, unless it runs as root or YES=1 is set)
#   make test    set-up, build, checks and all tests      make fuzz   each reader's fuzzer for 60 s
#   make bench   timings beside their roofs               make fuzz-long   the same for an hour each
#   make install    what was built, to PREFIX (/usr/local)   make uninstall   what it has put there, away again
#   make package    Debian packages and an archive, in build/packages
#   make format  clang-format over our files
#   make tidy    clang-tidy over all folders, without the tests (FOLDERS="runtime quant": these alone)
#   make test-full   all tests, the slow ones too, bugs planted in kernels, and the runtime for AArch64 and with
#                    ThreadSanitizer
#   make test-aarch64   the runtime for AArch64: its tests of kernels, logits and commands under QEMU
#   make soak    kills, full disks, replaced and hostile files at random for MINUTES (10)
#   make gpu-check   the CUDA backend on a GPU, and a page in docs/gpu that says what was found (STAGES="suite bench":
#                    these alone; COMMIT=HASH where there is no git repository; PAGE=FILE for another place)
#   make test-includes   every file compiled by itself, without precompiled headers: it includes what it uses
#   make test-isas   all tests as on other processors (ISAS=quick: the quick ones as on one without AVX-512)
SHELL := /bin/bash
# What the caller's environment says comes before what an earlier set-up has found. A make that this one calls reads
# what the set-up has found now.
ifeq ($(MAKELEVEL),0)
CALLERS_LIBTORCH := $(LIBTORCH)
CALLERS_CACHE := $(PARE_CACHE)
CALLERS_LLAMA_BENCH := $(PARE_LLAMA_BENCH)
endif
-include build/environment.mk
ifneq ($(CALLERS_LIBTORCH),)
LIBTORCH := $(CALLERS_LIBTORCH)
endif
ifneq ($(CALLERS_CACHE),)
PARE_CACHE := $(CALLERS_CACHE)
endif
ifneq ($(CALLERS_LLAMA_BENCH),)
PARE_LLAMA_BENCH := $(CALLERS_LLAMA_BENCH)
endif
export LIBTORCH PARE_PYTHON PARE_HARNESS PARE_READERS PARE_CACHE PARE_MINILM PARE_LLAMA_BENCH YES
# A compiler takes up to 1.3 GB, so no more run at a time than the free memory holds.
JOBS ?= $(shell awk -v cores=$$(nproc) \
  '/^MemAvailable:/ { fit = int($$2 / 1.4e6); print fit < 1 ? 1 : fit < cores ? fit : cores }' /proc/meminfo)
MINUTES ?= 10
PREFIX ?= /usr/local
# By folder, not by git, so that an unpacked archive is checked as well.
SOURCES = $(shell find . \( -path './build*' -o -path ./models -o -path ./out -o -path './.*' \) -prune \
  -o -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -printf '%P\n' | sort)

.PHONY: build demo install uninstall package test test-full test-aarch64 test-includes test-isas gpu-check fuzz \
  fuzz-long soak bench format check sanitize tidy clean setup-build setup-cuda setup-package setup-test setup-full \
  setup-aarch64 setup-bench setup-tidy
.DEFAULT_GOAL := build

setup-build setup-cuda setup-package setup-test setup-full setup-aarch64 setup-bench setup-tidy: setup-%:
	@.ci/setup $*

# The included environment.mk may just have been written, so the real work is done by a second make that reads it.
build: setup-$(if $(CUDA),cuda,build)
	@$(MAKE) --no-print-directory compile TARGETS="pare pare-runtime" TESTS=OFF
	@.ci/say_libtorch build/pare
demo: build
	@.ci/demo
# Sets nothing up and builds nothing, so that root need not: sudo make install. What cpack or a test installs has a list
# of its own, so uninstall keeps to this one.
install:
	@[[ -x build/pare-runtime ]] || { echo "make install: nothing is built yet: run 'make build' first" >&2; exit 1; }
	@said=$$(cmake --install build --prefix "$(PREFIX)" 2>&1) || { echo "$$said" >&2; \
	  echo "make install: '$(DESTDIR)$(PREFIX)' does not hold all that was built, see above. Where others own it:" \
	    "sudo make install; or give a folder of yours: make install PREFIX=FOLDER" >&2; exit 1; }
	@mv build/install_manifest.txt build/installed.txt
	@echo "installed to $(DESTDIR)$(PREFIX)"
uninstall:
	@[[ -e build/installed.txt ]] || { echo "make uninstall: no 'make install' of this folder is known:" \
	  "there is no build/installed.txt, which lists what it copied" >&2; exit 1; }
	@cmake -P cmake/uninstall.cmake
	@echo "removed what the last 'make install' of this folder has copied"
package: setup-package build
	@cpack --config build/CPackConfig.cmake
test: setup-test
	@$(MAKE) --no-print-directory run-tests
test-full: setup-full
	@PARE_TEST_FULL=1 $(MAKE) --no-print-directory run-tests
	@python3 tests/cuda/mutants/run.py build --jobs $(JOBS)
	@JOBS=$(JOBS) .ci/aarch64 all
	@tests/thread/run
test-aarch64: setup-aarch64
	@JOBS=$(JOBS) .ci/aarch64
soak: setup-test
	@$(MAKE) --no-print-directory compile TARGETS="pare" TESTS=ON
	@tests/soak/soak.py build/pare --minutes $(MINUTES)
test-includes: setup-test
	@$(MAKE) --no-print-directory run-includes
test-isas: setup-test
	@$(MAKE) --no-print-directory run-isas
gpu-check:
	@.ci/gpu_check $(if $(STAGES),--stages $(STAGES)) $(if $(COMMIT),--commit "$(COMMIT)") $(if $(PAGE),--page "$(PAGE)")
bench: setup-bench
	@$(MAKE) --no-print-directory compile TARGETS="all" TESTS=ON
	@.ci/bench
fuzz: setup-test
	@tests/fuzz/run
fuzz-long: setup-test
	@FUZZ_SECONDS=3600 tests/fuzz/run
format:
	clang-format-14 -i $(SOURCES)
tidy: setup-tidy
	@$(MAKE) --no-print-directory run-tidy
clean:
	rm -rf build build-aarch64 build-sanitize build-thread build-fuzz build-gpu build-includes build-tidy build-debug \
	  build-development build-runtime build-cuda build-wheel

.PHONY: compile run-tests run-includes run-isas run-tidy
CUDA_OPTIONS = $(if $(CUDA),-DPARE_CUDA=ON -DCMAKE_CUDA_COMPILER="$$(.ci/find_nvcc)",-DPARE_CUDA=OFF)
compile:
	@cmake -S . -B build -G Ninja -DLIBTORCH="$(LIBTORCH)" -DPARE_TESTS=$(TESTS) $(CUDA_OPTIONS) >build/cmake.log || \
	  { cat build/cmake.log; exit 1; }
	@cmake --build build -j $(JOBS) --target $(TARGETS)

# Each file by itself, with nothing that it does not include.
FILE_BY_FILE = -DPARE_PRECOMPILED_HEADERS=OFF -DPARE_UNITY_BUILD=OFF

check:
	@python3 tests/check_includes.py
	@python3 tests/check_definitions.py
	@python3 tests/check_workflows.py
	@python3 tests/check_licences.py
	@python3 tests/check_messages.py
	@python3 tests/cuda/mutants/run.py --check-table
	@python3 tests/check_lines.py
	@python3 tests/check_prose.py
	@python3 tests/check_comments.py runtime quant prune distill
	@clang-format-14 --dry-run -Werror $(SOURCES)

run-tests: check
	@$(MAKE) --no-print-directory compile TARGETS="all" TESTS=ON
	@OMP_WAIT_POLICY=passive tests/run_batched.py --jobs $(JOBS) build
	@$(MAKE) --no-print-directory sanitize

# A folder of its own, since clang does not read GCC's precompiled headers. One generated source alone is compiled.
FOLDERS ?= compress distill prune quant runtime
run-tidy:
	@cmake -S . -B build-tidy -G Ninja -DLIBTORCH="$(LIBTORCH)" -DPARE_TESTS=OFF $(FILE_BY_FILE) \
	  >build/tidy.log || { cat build/tidy.log; exit 1; }
	@cmake --build build-tidy --target pare_source_state >>build/tidy.log
	@for folder in $(FOLDERS); do echo "$(CURDIR)/$$folder/"; done | \
	  xargs run-clang-tidy-14 -p build-tidy -quiet -j $(JOBS)

run-includes:
	@cmake -S . -B build-includes -G Ninja -DLIBTORCH="$(LIBTORCH)" $(FILE_BY_FILE) >build/includes.log || \
	  { cat build/includes.log; exit 1; }
	@cmake --build build-includes -j $(JOBS)

run-isas:
	@$(MAKE) --no-print-directory compile TARGETS="all" TESTS=ON
	@JOBS=$(JOBS) .ci/isas $(ISAS)

# Minutes each under sanitizers, a quarter of the whole time, for code that other families or fuzzers run there as well.
# `make test-full` runs them.
SLOW_WHEN_SANITIZED = Decoding.*/phi3_longrope_partial_(guarded|avx2)|^Jinja.EndsWhat|^ContainerFormat.WhateverIs

# Idle OpenMP threads sleep in tests (OMP_WAIT_POLICY), since several test programs share the cores.
# The quick tests again with AddressSanitizer and UBSan: everything that reads files, and every kernel.
sanitize:
	@cmake -S . -B build-sanitize -G Ninja -DPARE_RUNTIME_ONLY=ON -DPARE_SANITIZE=address,undefined \
	  >build/sanitize.log || { cat build/sanitize.log; exit 1; }
	@cmake --build build-sanitize -j $(JOBS)
	@OMP_WAIT_POLICY=passive tests/run_batched.py --jobs $(JOBS) \
	  $(if $(PARE_TEST_FULL),,--exclude '$(SLOW_WHEN_SANITIZED)') build-sanitize
