# The chores, one verb each. CI calls these same targets.
# Needs make and Python 3.11 or 3.12; everything else goes into .venv at pinned versions.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin
# The suite starts a thousand processes: without kept bytecode each compiles the source again.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED := .venv/installed
PEERS := .venv/peers-installed

.PHONY: install demo demo-batch down check audit check-neuron test proofs nightly fuzz docs bench overhead reviews ablation plasticity classification gates verdicts unseen decisions sides faults chaos \
  success scale years train-memory holdout resume traps planned simulate fire

install: $(INSTALLED)

# --no-compile: Python compiles what it imports, a small part of the 22,000 files, when it first does. The last line does so
# once, instead of in each of the first processes at the same time. PYTHONDONTWRITEBYTECODE, which many
# containers set, would make every process compile all of it again and take twice its time.
unexport PYTHONDONTWRITEBYTECODE
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[worker,xla,test]'
	$(BIN)/python -c 'import great_expectations, prefect.server.api.server, sentence_transformers, sklearn.metrics'
	mkdir -p .venv/share/man/man1 # an editable install takes no data files; `man` looks beside the folders of PATH
	ln -sf ../../../../docs/millrace.1 .venv/share/man/man1/millrace.1
	touch $@

# Four months of a made-up shop, from raw rows to vectors that can be searched. The gates refuse a broken export and accept
# its correction. Safe to repeat: finished stages show as cached.
# On another accelerator: make demo ACCELERATOR=xla
ACCELERATOR ?= cpu
demo: install
	$(BIN)/python -m flows.demo $(ACCELERATOR)

# The same with every stage on AWS Batch and the workspace on S3, both emulated by servers of the tests on this machine.
demo-batch: install
	$(BIN)/python -m tests.support.cloud.batch_demo

# Stops what `make demo` and `millrace up` left running.
down: install
	$(BIN)/millrace down

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/cfn-lint infra/aws/*.yaml

# Known vulnerabilities of the pinned versions, from an index on the internet; CONTRIBUTING.md. No part of `make check`.
audit:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	.venv-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict

# The images and Neuron's compiler, on a machine with x86 processors, the internet and Docker; docs/accelerators.md.
check-neuron: install
	tests/neuron/check.sh

# Four at a time on two cores: much of the time of the suite is spent waiting. Whole pipelines begin first.
test: install
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder

# Tests that take minutes each and seldom fail alone.
proofs: install
	$(BIN)/pytest -m proof

# One part of all that takes longer, by its number or in turn; docs/nightly.md shows when each last ran.
PART ?= next
MINUTES ?= 35
nightly: install
	$(BIN)/python -m tests.nightly --part $(PART) --minutes $(MINUTES)

# Files of users, damaged at random: EXAMPLES of each kind, different ones at each call.
EXAMPLES ?= 5000
fuzz: install
	FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/pytest tests/fuzz

# docs/simulation.md: commands that work on one workspace at once, under one scheduler, until a promise is broken. Also
# with each planted fault in turn (MUTANTS=1), with each command killed before each of its writes (CRASHES=1), and years
# of hours that follow one another (YEARS=2).
# On all processors; SECONDS are of each one's time. make simulate SECONDS=600, or INTERLEAVINGS=1000000 FIRST=50000
SECONDS ?= 300
FIRST ?= 0
simulate: install
	$(BIN)/python -m tests.simulation --seconds $(SECONDS) --first $(FIRST) $(if $(INTERLEAVINGS),--interleavings $(INTERLEAVINGS)) \
	  $(if $(MUTANTS),--mutants)
	$(if $(CRASHES),$(BIN)/python -m tests.simulation crash-points)
	$(if $(YEARS),$(BIN)/python -m tests.simulation year --years $(YEARS))

# Writes the copies of the source in docs/ and configs/: settings and their schema, folders, error codes, proofs.
docs: install
	$(BIN)/python -m tests.docs

# Peers of the benchmark, apart from sentence-transformers on torch.
$(PEERS): $(INSTALLED)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	touch $@

# Speed and memory compared with sentence-transformers, and a step on XLA compared with one without.
# REVIEWS is the path of a reviews file, see docs/benchmarks.md. OMP_PROC_BIND: the stages bind their threads too.
# With NAME=host, pairs per second of the host alone, without the peers; with NAME=infer_host, texts per second. With
# NAME=refresh, the cost of a refresh for one new item: make bench NAME=refresh ITEMS='20000 1000000'. With NAME=deltas,
# the bytes that refreshes write; with NAME=publishing, the seconds of publications after refreshes; with NAME=exports,
# one query by each export; with NAME=validate, microseconds of a row.
NAME ?=
ifeq ($(NAME),)
bench: install $(PEERS)
	OMP_PROC_BIND=true $(BIN)/python -m tests.benchmarks.bench $(REVIEWS)
	$(BIN)/python -m tests.benchmarks.xla_step
else
bench: install
	$(BIN)/python -m tests.benchmarks.speed.$(NAME) $(if $(ITEMS),--items $(ITEMS))
endif

# Planned against actual seconds and memory, of the demo, the reviews and the emulated AWS Batch.
planned: install
	$(BIN)/python -m tests.benchmarks.planned

# The orchestrator's overhead beyond its workers' own time, and the time of a fully cached run.
overhead: install
	$(BIN)/python -m tests.benchmarks.overhead

# The table of docs/results.md: eight quarters of product reviews, trained one after the other.
reviews: install
	$(BIN)/python -m tests.benchmarks.reviews $(REVIEWS)

# The gain of single training settings, on the demo's shop and, if REVIEWS names its file, on the reviews; resumable.
# On rows that were split off the training side: make ablation REVIEWS=... [SEEDS=3] [ONLY=name,...]
# On the holdout, once the defaults are chosen:  make ablation REVIEWS=... REPORT=name,...
SEEDS ?= 3
ablation: install
	OMP_PROC_BIND=true $(BIN)/python -m tests.benchmarks.quality.ablation --seeds $(SEEDS) \
	  $(if $(REVIEWS),--reviews $(REVIEWS)) $(if $(ONLY),--only '$(ONLY)') $(if $(REPORT),--report '$(REPORT)')

# How well a lineage of three years still learns, by the floor of its learning rate; resumable.
plasticity: install
	$(BIN)/python -m tests.benchmarks.quality.plasticity --seeds $(SEEDS) $(if $(ONLY),--only '$(ONLY)')

# The classification head compared with the usual alternatives on the same rows; REVIEWS as above.
classification: install
	OMP_PROC_BIND=true $(BIN)/python -m tests.benchmarks.quality.classification $(if $(REVIEWS),--reviews $(REVIEWS))

# How often the gates are right about real models, which it trains; REVIEWS as above. Resumable.
gates: install
	$(BIN)/python -m tests.benchmarks.quality.gates $(REVIEWS)

# Recall of unseen and of seen queries of a workspace's newest release, by sentence-transformers alone.
unseen: install
	$(BIN)/python -m tests.benchmarks.quality.unseen $(WORKSPACE)

# How often a verdict is true at 20,000, 200,000 and a million items, in both roles of the two models.
DRAWS ?= 200
verdicts: install
	$(BIN)/python -m tests.benchmarks.quality.verdicts --draws $(DRAWS)
	$(BIN)/python -m tests.benchmarks.quality.changed_contents --draws $(DRAWS)

# How often `millrace decide` is right about histories whose true gain is known.
decisions: install
	$(BIN)/python -m tests.benchmarks.quality.decisions --draws $(DRAWS)

# How often `millrace parity` and `bakeoff` are right about sides whose true difference is known.
sides: install
	$(BIN)/python -m tests.benchmarks.quality.sides --draws $(DRAWS)

# A table of docs/proofs.md: the pipeline through each fault, on AWS Batch and S3, both emulated here; resumable.
faults: install
	$(BIN)/python -m tests.benchmarks.faults

# docs/traps.md: wrong and honest months of the demo's shop through the whole pipeline; resumable.
traps: install
	$(BIN)/python -m tests.benchmarks.traps

# The success rate of 200 runs while a fifth of their attempts fails, as the ledger counts it.
success: install
	$(BIN)/python -m tests.benchmarks.success


# A table of docs/proofs.md: runs that are killed, stopped and starved at moments drawn by SEED, here and on the emulated cloud; resumable.
# With ACTORS=4, refreshes, readers and a person work beside each run, and some pauses are longer than a lease.
KILLS ?= 100
SEED ?= 1
ACTORS ?= 1
chaos: install
	$(BIN)/python -m tests.benchmarks.chaos --kills $(KILLS) --seed $(SEED) --actors $(ACTORS)

# A million items and a million rows: memory of each process, time for each item, a kill, search, rollback.
scale: install
	$(BIN)/python -m tests.benchmarks.scale

# The online encoder under load while ten releases and three rollbacks swap it and three targets: make fire SECONDS=120
fire: SECONDS = 120
fire: install
	$(BIN)/python -m tests.benchmarks.fire --seconds $(SECONDS)

# Requests, seconds and memory of status, freshness, history and metrics on a workspace of three years in a bucket.
WEEKS ?= 156
years: install
	$(BIN)/python -m tests.benchmarks.years --weeks $(WEEKS)

# Time and memory of an evaluation over 104 spans compared with one over 8.
holdout: install
	$(BIN)/python -m tests.benchmarks.speed.holdout

# Memory of the first steps of a training on one and on ten million pairs.
train-memory: install
	$(BIN)/python -m tests.benchmarks.training_memory

# How soon a killed training takes its next step, and how long trainings wait for their checkpoints.
resume: install
	$(BIN)/python -m tests.benchmarks.resume
