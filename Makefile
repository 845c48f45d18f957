# mxlua: make help lists what there is. Sources are found by folder, so a new file needs no line here.

BUILD ?= build
JOBS ?= $(shell nproc)
MAKEFLAGS += --no-print-directory
ifeq ($(MAKELEVEL),0) # a make inside this one shares its processes
MAKEFLAGS += -j$(JOBS)
endif

VERSION = 0.1.0
CC = $(firstword $(wildcard /usr/bin/ccache)) $(firstword $(wildcard /usr/bin/mpicc.mpich) mpicc)
MPIRUN = $(firstword $(wildcard /usr/bin/mpirun.mpich) mpirun)
PACKAGES = lua5.4 openblas yaml-0.1 hdf5-mpich jansson libpcre2-8 libutf8proc zlib libzstd
WARNINGS = -Wall -Wextra -Werror -Wno-format-truncation -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
OPTIMIZE ?= -O3 -g

# Asked for once, and only when something is compiled: `make demo` must start before the packages are there.
PACKAGE_CFLAGS = $(eval PACKAGE_CFLAGS := $(shell pkg-config --cflags $(PACKAGES)))$(PACKAGE_CFLAGS)
PACKAGE_LIBS = $(eval PACKAGE_LIBS := $(shell pkg-config --libs $(PACKAGES)))$(PACKAGE_LIBS)

INCLUDES = -Iengine -Itests/c -Itests/fuzz $(PACKAGE_CFLAGS)
DEFINES = -DMX_VERSION='"$(VERSION)"'
CFLAGS_ALL = -std=gnu17 $(OPTIMIZE) -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=off $(WARNINGS) \
	$(DEFINES) $(INCLUDES) $(CFLAGS)
WRAP = -Wl,--wrap=GOMP_parallel # engine/core/omp_region.c
LIBS = -fopenmp $(WRAP) $(PACKAGE_LIBS) -lm -ldl $(LDFLAGS)

# A file in engine/kernels/simd is compiled once for each of these, and chosen among when the program runs.
SIMD_avx2 = -DMX_SIMD_AVX2 -mavx2 -mfma -mf16c
SIMD_avx512 = -DMX_SIMD_AVX512 -mavx2 -mfma -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
SIMD_avx512_bf16 = -DMX_SIMD_AVX512_BF16 $(filter-out -DMX_SIMD_AVX512,$(SIMD_avx512)) -mavx512bf16
ISAS = avx2 avx512 avx512_bf16
# What multiplies matrices, once more for tiles.
SIMD_amx = -DMX_SIMD_AMX $(filter-out -DMX_SIMD_AVX512_BF16,$(SIMD_avx512_bf16)) -mamx-tile -mamx-bf16 -mamx-int8
AMX_SOURCES := $(wildcard engine/kernels/amx/*.c) $(addprefix engine/kernels/simd/,attention.c attention_grad.c)

# The same on emulated tiles, for tests on processors without AMX (tests/amx/emulator.h). Linked before the library,
# these objects take the place of its own.
EMULATED_SOURCES = engine/core/cpu.c $(AMX_SOURCES) tests/amx/emulator.c
EMULATED_OBJECTS = $(EMULATED_SOURCES:%.c=$(BUILD)/%.emulated.o)
SIMD_emulated = $(if $(filter engine/%,$<),-DMX_AMX_EMULATED -D_GNU_SOURCE= -include tests/amx/emulator.h) \
	$(if $(filter %/cpu.c,$<),,$(filter-out -mamx%,$(SIMD_amx)))

ENGINE_SOURCES := $(filter-out engine/main.c engine/kernels/simd/% engine/kernels/amx/%,$(shell find engine -name '*.c' | sort))
SIMD_SOURCES := $(sort $(wildcard engine/kernels/simd/*.c))
OBJECTS := $(ENGINE_SOURCES:%.c=$(BUILD)/%.o) \
	$(foreach isa,$(ISAS),$(SIMD_SOURCES:%.c=$(BUILD)/%.$(isa).o)) $(AMX_SOURCES:%.c=$(BUILD)/%.amx.o)

# One short line for each file; V=1 shows the commands.
ifneq ($(V),1)
quiet = @echo "$(1) $@" &&
endif

all: $(BUILD)/mxlua

help:
	@echo "make            build build/mxlua"
	@echo "make install    copy the program, lua/, scripts/ and configs/ to PREFIX=/usr/local (below DESTDIR, for packagers)"
	@echo "make uninstall  remove what make install has put there"
	@echo "make demo       install what is missing, build, run the 128B benchmark on two ranks"
	@echo "make test       install what is missing, build, run all tests; ONLY=PATTERN runs a part of them"
	@echo "make asan       the C and Lua tests again, under the address and undefined-behaviour sanitizers"
	@echo "make guarded    Lua and MPI tests on a host whose tensor memory only the device can touch"
	@echo "make tsan       tests of jobs and collectives under the thread sanitizer"
	@echo "make fuzz       libFuzzer over every reader of files, and random calls, graphs and arguments of the Lua"
	@echo "                interface under the sanitizers; ONLY=PATTERN, FUZZ_SECONDS=60 each"
	@echo "make lint       clang-format, clang-tidy and luacheck; only what has changed since the last time"
	@echo "make format     let clang-format rewrite the C files"
	@echo "make packages   install what is missing for all of these"
	@echo "make clean      remove build, build-asan, build-tsan and build-fuzz"
	@echo
	@echo "BUILD=DIR builds elsewhere, JOBS=N uses N processes, CFLAGS and LDFLAGS are added to ours,"
	@echo "V=1 shows the commands."

$(BUILD)/mxlua: $(BUILD)/engine/main.o $(BUILD)/libmxlua.a
	$(call quiet,link)$(CC) -o $@ $^ $(LIBS)

# Archived anew each time, and when the list of objects changes, so that no object of a deleted file stays inside.
$(BUILD)/libmxlua.a: $(OBJECTS) $(BUILD)/objects.list
	$(call quiet,archive)rm -f $@ && ar rcs $@ $(OBJECTS)

$(BUILD)/objects.list: always
	@mkdir -p $(@D)
	@echo "$(OBJECTS)" | cmp -s - $@ || echo "$(OBJECTS)" > $@

# The packages are looked for once per build folder.
$(BUILD)/.packages: scripts/install_packages.sh
	@mkdir -p $(@D)
	@scripts/install_packages.sh --check build
	@touch $@

$(BUILD)/%.o: %.c | $(BUILD)/.packages
	@mkdir -p $(@D)
	$(call quiet,compile)$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

define simd_rule
$(BUILD)/%.$(1).o: %.c | $(BUILD)/.packages
	@mkdir -p $$(@D)
	$$(call quiet,compile)$$(CC) $$(CFLAGS_ALL) $$(SIMD_$(1)) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(ISAS) amx emulated,$(eval $(call simd_rule,$(isa))))

# C tests: each tests/c/test_*.c is a program that links the engine and prints "N passed, N failed" last.
C_TESTS = $(patsubst tests/c/%.c,$(BUILD)/tests/%,$(wildcard tests/c/test_*.c))
$(BUILD)/tests/%: tests/c/%.c $(BUILD)/libmxlua.a
	@mkdir -p $(@D)
	$(call quiet,link)$(CC) $(CFLAGS_ALL) -MMD -MP -MF $@.d -MT $@ -o $@ $< $(BUILD)/libmxlua.a $(LIBS)

# Those that run once more on emulated tiles, and mxlua for the Lua tests that do.
EMULATED_TESTS = $(patsubst %,$(BUILD)/tests/test_%_emulated,attention codes gemm gemm_many)
$(BUILD)/tests/%_emulated: tests/c/%.c $(EMULATED_OBJECTS) $(BUILD)/libmxlua.a
	@mkdir -p $(@D)
	$(call quiet,link)$(CC) $(CFLAGS_ALL) -DMX_AMX_EMULATED -MMD -MP -MF $@.d -MT $@ -o $@ $< $(EMULATED_OBJECTS) \
	$(BUILD)/libmxlua.a $(LIBS)

$(BUILD)/mxlua_emulated: $(BUILD)/engine/main.o $(EMULATED_OBJECTS) $(BUILD)/libmxlua.a
	@mkdir -p $(@D)
	$(call quiet,link)$(CC) -o $@ $^ $(LIBS)

tests: $(BUILD)/mxlua $(C_TESTS) $(EMULATED_TESTS) $(BUILD)/mxlua_emulated

test:
	@scripts/install_packages.sh build test
	@$(MAKE) tests
	@MPIRUN=$(MPIRUN) tests/run.sh $(BUILD) '$(ONLY)'

demo:
	@scripts/install_packages.sh build
	@$(MAKE) all
	$(MPIRUN) -n 2 $(BUILD)/mxlua scripts/bench_128b.lua

# PREFIX/bin/mxlua, the rest in PREFIX/share/mxlua. A list of the files is kept there: uninstall removes these, and
# folders that are empty then. install removes what an earlier version has put there first.
PREFIX ?= /usr/local
INSTALLED_FILES = README.md LICENSE engine/PROCESS.md $(shell find lua scripts configs -name '[!.]*.lua' -o \
	-name '[!.]*.md' -o -name '[!.]*.yml' -o -name '[!.]*.sbatch' | sort)

install: $(BUILD)/mxlua
	@$(MAKE) uninstall
	@set -e; prefix="$(DESTDIR)$(PREFIX)"; share=$$prefix/share/mxlua; \
	install -D -m 755 $(BUILD)/mxlua "$$prefix/bin/mxlua"; \
	for file in $(INSTALLED_FILES); do install -D -m 644 "$$file" "$$share/$$file"; done; \
	printf '%s\n' bin/mxlua $(INSTALLED_FILES:%=share/mxlua/%) share/mxlua/installed.txt > "$$share/installed.txt"; \
	echo "installed $$prefix/bin/mxlua and $$share"

uninstall:
	@set -e; cd "$(DESTDIR)$(PREFIX)/share/mxlua" 2>/dev/null && cd ../.. || exit 0; \
	[ -f share/mxlua/installed.txt ] || exit 0; \
	while IFS= read -r file; do rm -f "$$file"; done < share/mxlua/installed.txt; \
	find share/mxlua -depth -type d -empty -delete; rmdir --ignore-fail-on-non-empty bin share

packages:
	@scripts/install_packages.sh build test lint

# -w: the instrumentation makes gcc warn of code that the plain build has found nothing wrong with.
SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -w
ASAN_BUILD = BUILD=build-asan OPTIMIZE='-O1 -g' CFLAGS='$(SANITIZE) $(CFLAGS)' LDFLAGS='-fsanitize=address,undefined'
# Without detect_stack_use_after_return: gcc 12 aligns such stacks to 32 bytes, and AVX512 stores need 64 (its bug 110027).
asan:
	@scripts/install_packages.sh build test
	@$(MAKE) tests $(ASAN_BUILD)
	@ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
	LSAN_OPTIONS=suppressions=tests/lsan.supp:print_suppressions=0 TIME_FACTOR=10 SUITES="c lua fuzz" \
	MPIRUN=$(MPIRUN) tests/run.sh build-asan '$(ONLY)'

# A host on which only the device can touch tensor memory (engine/host/README.md).
guarded:
	@scripts/install_packages.sh build test
	@$(MAKE) tests
	@MXLUA_GUARD=1 SUITES="lua mpi" MPIRUN=$(MPIRUN) tests/run.sh $(BUILD) '$(ONLY)'

# Jobs on threads, and the communication thread. Only our own code is instrumented: what happens inside libgomp and the
# MPI library is left out. Without address randomisation the sanitizer finds its memory; UCX must not catch what
# threads do at their end.
TSAN_TESTS = c/test_job|c/test_spill|c/test_sampler|mpi/test_collective_async on 2|mpi/test_offload on 2|mpi/test_point on 2|mpi/test_rows on 2

tsan:
	@scripts/install_packages.sh build test
	@$(MAKE) tests BUILD=build-tsan OPTIMIZE='-O1 -g' CFLAGS='-fsanitize=thread $(CFLAGS)' LDFLAGS='-fsanitize=thread'
	UCX_MEM_EVENTS=no OMP_NUM_THREADS=1 TSAN_OPTIONS='suppressions=$(CURDIR)/tests/tsan.supp halt_on_error=0 exitcode=66' \
	TIME_FACTOR=10 MPIRUN=$(MPIRUN) setarch -R tests/run.sh build-tsan '$(or $(ONLY),$(TSAN_TESTS))'

# libFuzzer over what reads other people's bytes: each tests/fuzz/fuzz_NAME.c from its corpus, for FUZZ_SECONDS; and each
# tests/fuzz/fuzz_NAME.lua in the sanitizer build, as long. Executables and what they find lie in build-fuzz/; the corpus
# in the repository stays as it is.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS = $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SCRIPTS = $(patsubst tests/fuzz/fuzz_%.lua,%,$(wildcard tests/fuzz/fuzz_*.lua))
# FUZZ_FOLDERS of engine/ are instrumented, the rest is that of the ordinary build.
FUZZ_FLAGS = -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -w
FUZZ_CC = $(lastword $(CC)) -cc=clang -std=gnu17 -O1 -g $(FUZZ_FLAGS) $(DEFINES) $(INCLUDES)
FUZZ_FOLDERS = core io tokenizer data weights checkpoint
FUZZ_OBJECTS = $(patsubst %.c,build-fuzz/%.o,$(filter $(FUZZ_FOLDERS:%=engine/%/%),$(ENGINE_SOURCES)))

fuzz:
	@scripts/install_packages.sh build fuzz
	@$(MAKE) $(FUZZ_TARGETS:%=build-fuzz/fuzz_%)
	@$(MAKE) all $(ASAN_BUILD)
	@BUILD=build-fuzz MXLUA=build-asan/mxlua SECONDS=$(FUZZ_SECONDS) tests/fuzz/run.sh '$(ONLY)' $(FUZZ_TARGETS) $(FUZZ_SCRIPTS)

build-fuzz/%.o: %.c
	@mkdir -p $(@D)
	$(call quiet,compile)$(FUZZ_CC) -fsanitize=fuzzer-no-link -MMD -MP -c -o $@ $<

build-fuzz/fuzz_%: build-fuzz/tests/fuzz/fuzz_%.o $(FUZZ_OBJECTS) $(BUILD)/libmxlua.a
	$(call quiet,link)$(FUZZ_CC) -fsanitize=fuzzer -o $@ $^ $(WRAP) $(PACKAGE_LIBS) -lgomp -lm -ldl

# ---- lint: a stamp for each file that passed; clang-tidy looks again when a header has changed ----

C_FILES := $(sort $(shell find engine tests -name '*.c'))
H_FILES := $(sort $(shell find engine tests -name '*.h'))
LUA_FILES := $(sort $(shell find lua scripts tests -name '*.lua' 2>/dev/null))
LINT = $(BUILD)/lint
TIDY_FLAGS = -std=gnu17 -O1 -fopenmp -D_GNU_SOURCE= $(DEFINES) $(INCLUDES) \
	$(if $(filter engine/core/status.c engine/ops/apply.c,$<),,-include scripts/lint.h) \
	$(if $(findstring kernels/amx/,$<),$(SIMD_amx),$(if $(findstring kernels/simd/,$<),$(SIMD_avx512_bf16),-mavx2 -mfma))

lint:
	@scripts/install_packages.sh build lint
	@$(MAKE) -k lint-files
	@echo "lint: clean"

lint-files: $(C_FILES:%=$(LINT)/%.format) $(H_FILES:%=$(LINT)/%.format) $(C_FILES:%=$(LINT)/%.tidy) $(LINT)/luacheck

$(LINT)/%.format: % .clang-format
	@mkdir -p $(@D)
	@clang-format --dry-run -Werror $< && touch $@

$(LINT)/%.tidy: % $(H_FILES) .clang-tidy scripts/lint.h
	@mkdir -p $(@D)
	@clang-tidy --quiet --warnings-as-errors='*' $< -- $(TIDY_FLAGS) > $@.log 2>&1 || { cat $@.log; exit 1; }
	@touch $@

$(LINT)/luacheck: $(LUA_FILES) .luacheckrc
	@mkdir -p $(@D)
	@$(if $(LUA_FILES),luacheck --quiet --no-color $(LUA_FILES) || exit 1)
	@touch $@

format:
	clang-format -i $(C_FILES) $(H_FILES)

clean:
	rm -rf $(BUILD) build-asan build-tsan build-fuzz

-include $(shell find $(BUILD) build-fuzz -name '*.d' 2>/dev/null)
.PHONY: all help install uninstall tests test demo packages asan guarded tsan fuzz lint lint-files format clean always
.SECONDARY:
