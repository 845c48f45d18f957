# mxlua: make, make test, make demo, make lint, make asan. See README.md.
#
# Everything is built under $(BUILD); sources are found by folder, so a new file needs no line here.

BUILD ?= build
CC = mpicc
PACKAGES = lua5.4 openblas yaml-0.1 hdf5-mpich jansson
WARNINGS = -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
OPTIMIZE ?= -O3 -g
CFLAGS_ALL = -std=gnu17 $(OPTIMIZE) -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=off $(WARNINGS) -Iengine \
	$(shell pkg-config --cflags $(PACKAGES)) $(CFLAGS)
LIBS = -fopenmp $(shell pkg-config --libs $(PACKAGES)) -lm -ldl $(LDFLAGS)

SIMD_avx2 = -DMX_SIMD_AVX2 -mavx2 -mfma -mf16c
SIMD_avx512 = -DMX_SIMD_AVX512 -mavx2 -mfma -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
SIMD_avx512_bf16 = -DMX_SIMD_AVX512_BF16 $(filter-out -DMX_SIMD_AVX512,$(SIMD_avx512)) -mavx512bf16
ISAS = avx2 avx512 avx512_bf16

ENGINE_SOURCES = $(filter-out engine/main.c engine/kernels/simd/%,$(shell find engine -name '*.c' | sort))
SIMD_SOURCES = $(sort $(wildcard engine/kernels/simd/*.c))
OBJECTS = $(ENGINE_SOURCES:%.c=$(BUILD)/%.o) \
	$(foreach isa,$(ISAS),$(SIMD_SOURCES:engine/kernels/simd/%.c=$(BUILD)/engine/kernels/simd/%.$(isa).o))

all: $(BUILD)/mxlua

$(BUILD)/mxlua: $(BUILD)/engine/main.o $(BUILD)/libmxlua.a
	$(CC) -o $@ $^ $(LIBS)

$(BUILD)/libmxlua.a: $(OBJECTS)
	rm -f $@ && ar rcs $@ $^

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

define simd_rule
$(BUILD)/engine/kernels/simd/%.$(1).o: engine/kernels/simd/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS_ALL) $$(SIMD_$(1)) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call simd_rule,$(isa))))

# C tests: each tests/c/test_*.c is a program that links the engine and prints "N passed, N failed" last.
C_TESTS = $(patsubst tests/c/%.c,$(BUILD)/tests/%,$(wildcard tests/c/test_*.c))
$(BUILD)/tests/%: tests/c/%.c $(BUILD)/libmxlua.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Itests/c -MMD -MP -MF $@.d -o $@ $< $(BUILD)/libmxlua.a $(LIBS)

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.PHONY: all clean
.SECONDARY:
