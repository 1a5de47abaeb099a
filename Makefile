# The chores, one verb each. CI calls these same targets.
# Needs make and Python 3.11 or 3.12; everything else goes into .venv at pinned versions.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/installed
PEERS := .venv/peers-installed

.PHONY: install demo demo-batch down check audit check-neuron test proofs fuzz docs bench overhead reviews ablation plasticity classification gates verdicts faults chaos \
  success scale years train-memory holdout resume traps

install: $(INSTALLED)

# --no-compile: Python compiles what it imports, a small part of the 22,000 files, when it first does. The last line does so
# once, instead of in each of the first processes at the same time. Where the environment forbids to keep what was
# compiled, as many containers do, every process would compile all of it again and take twice its time.
unexport PYTHONDONTWRITEBYTECODE
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[worker,xla,test]'
	$(BIN)/python -c 'import great_expectations, prefect.server.api.server, sentence_transformers, sklearn.metrics'
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

# Known holes in the pinned versions, asked of an index on the internet; CONTRIBUTING.md. No part of `make check`.
audit:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	.venv-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict

# The images and Neuron's compiler, on a machine with x86 processors, the internet and Docker; docs/accelerators.md.
check-neuron: install
	tests/neuron/check.sh

# Three at a time, though for two cores: a third of the suite's time is spent waiting. Whole pipelines begin first.
test: install
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

# Tests that take minutes each and seldom fail alone.
proofs: install
	$(BIN)/pytest -m proof

# Files of users, damaged at random: as many of each kind as EXAMPLES says, others at each call.
EXAMPLES ?= 5000
fuzz: install
	FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/pytest tests/fuzz

# Writes the parts of docs/ that are copies of the source: settings, folders, error codes, proofs.
docs: install
	$(BIN)/python -m tests.docs

# What the benchmark compares with, apart from sentence-transformers on torch.
$(PEERS): $(INSTALLED)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	touch $@

# Speed and memory compared with sentence-transformers, and a step on XLA compared with one without.
# REVIEWS is the path of a reviews file, see docs/benchmarks.md. OMP_PROC_BIND: the stages bind their threads too.
bench: install $(PEERS)
	OMP_PROC_BIND=true $(BIN)/python -m tests.benchmarks.bench $(REVIEWS)
	$(BIN)/python -m tests.benchmarks.xla_step

# What the orchestrator adds to its workers' own time, and how long a fully cached run takes.
overhead: install
	$(BIN)/python -m tests.benchmarks.overhead

# The table of docs/results.md: eight quarters of product reviews, trained one after the other.
reviews: install
	$(BIN)/python -m tests.benchmarks.reviews $(REVIEWS)

# What single settings of training give, on the demo's shop and, if REVIEWS names its file, on the reviews; resumable.
# On rows that were split off the training side: make ablation REVIEWS=... [SEEDS=3] [ONLY=name,...]
# On the holdout, once the defaults are chosen:  make ablation REVIEWS=... REPORT=name,...
SEEDS ?= 3
ablation: install
	OMP_PROC_BIND=true $(BIN)/python -m tests.benchmarks.quality.ablation --seeds $(SEEDS) \
	  $(if $(REVIEWS),--reviews $(REVIEWS)) $(if $(ONLY),--only '$(ONLY)') $(if $(REPORT),--report '$(REPORT)')

# How well a lineage of three years still learns, by what its learning rate has come to; resumable.
plasticity: install
	$(BIN)/python -m tests.benchmarks.quality.plasticity --seeds $(SEEDS) $(if $(ONLY),--only '$(ONLY)')

# The classification head compared with what a user would fit to the same rows; REVIEWS as above.
classification: install
	OMP_PROC_BIND=true $(BIN)/python -m tests.benchmarks.quality.classification $(if $(REVIEWS),--reviews $(REVIEWS))

# How often the gates are right about real models, which it trains; REVIEWS as above. Resumable.
gates: install
	$(BIN)/python -m tests.benchmarks.quality.gates $(REVIEWS)

# How often a verdict is true at 20,000, 200,000 and a million items, whichever model is the challenger.
DRAWS ?= 200
verdicts: install
	$(BIN)/python -m tests.benchmarks.quality.verdicts --draws $(DRAWS)

# The tables of docs/faults.md: the pipeline on AWS Batch and S3, both emulated here, through each fault.
faults: install
	$(BIN)/python -m tests.benchmarks.faults

# docs/traps.md: wrong and honest months of the demo's shop through the whole pipeline; resumable.
traps: install
	$(BIN)/python -m tests.benchmarks.traps

# How many of 200 runs come to a result when a fifth of their attempts fails; the rate comes from the ledger.
success: install
	$(BIN)/python -m tests.benchmarks.success


# docs/chaos.md: runs that are killed, stopped and starved at moments that SEED decides, here and on the emulated cloud; resumable.
# With ACTORS=4, refreshes, readers and a person work next to each of them, and some pauses are longer than a lease.
KILLS ?= 100
SEED ?= 1
ACTORS ?= 1
chaos: install
	$(BIN)/python -m tests.benchmarks.chaos --kills $(KILLS) --seed $(SEED) --actors $(ACTORS)

# A million items and a million rows: memory of each process, time for each item, a kill, search, rollback.
scale: install
	$(BIN)/python -m tests.benchmarks.scale

# Requests, seconds and memory of status, freshness, history and metrics on a workspace of three years in a bucket.
WEEKS ?= 156
years: install
	$(BIN)/python -m tests.benchmarks.years --weeks $(WEEKS)

# Whether an evaluation over 104 spans takes more time or memory than one over 8.
holdout: install
	$(BIN)/python -m tests.benchmarks.speed.holdout

# Memory of the first steps of a training on one and on ten million pairs.
train-memory: install
	$(BIN)/python -m tests.benchmarks.training_memory

# How soon a killed training takes its next step, and how long trainings wait for their checkpoints.
resume: install
	$(BIN)/python -m tests.benchmarks.resume
