"""The table of the workspace, one row for each kind of file: keys, docs and the deletions of `prune` follow from it.

A **folder** is complete when its MANIFEST.json exists, a **record** (JSON) is written in one step. Both planes import
this; it reads and writes nothing.
"""

from typing import Any

from tasks.contracts.kinds import Kept, Kind

EXISTS = "it exists"
MANIFEST = "manifest"
ENDED = "`ended_at` is set"
NEVER = "never needed"
OF_ATTEMPT = "a file of one attempt: no other one writes it, and a late worker is fenced"

# A row is a few lines of this table, and not a line for each word.
# fmt: off
# Ingested data
SPAN = Kind("span", "spans/{span}/v{version:d}/", "rows", "`millrace ingest`", MANIFEST, Kept.always)
FEED = Kind("item feed", "items/{span}/v{version:d}/", "items", "`millrace ingest --items`", MANIFEST, Kept.always)
GOLDEN = Kind("golden set", "golden/{key}.parquet", "rows", "validate, evaluate: their tasks", EXISTS, Kept.always)
CATALOGUE = Kind("catalogue", "catalogue/{key}/", "items", "validate", MANIFEST, Kept.reached)
PRUNED_CATALOGUE = Kind(
    "pruned catalogue", "pruned/catalogue/{key}.json", "Pruned",
    "`prune`, before it deletes files: nobody uses the name again", EXISTS, Kept.always,
    last_writer="a mark, which is there or not",
)

# A run
PLAN = Kind("plan", "runs/{run}/plan.json", "RunPlan", "the flow, before the first stage", EXISTS, Kept.always)
PLANNED = Kind(
    "planned cost", "runs/{run}/planned.json", "PlannedRun", "the flow, before the first stage", EXISTS, Kept.always,
)
CONFIG = Kind(
    "settings", "runs/{run}/config.yaml", "YAML", "the flow, before the first stage", EXISTS, Kept.always,
    last_writer="made of the plan, which is created",
)
INVOCATION = Kind(
    "invocation", "runs/{run}/invocations/{number:d}.json", "Invocation", "the flow, at its begin and end", ENDED,
    Kept.always,
)
REPORT = Kind(
    "report", "runs/{run}/report.html", "HTML", "the flow, at its end", EXISTS, Kept.always,
    last_writer="made of the records, and made again at each end of the run",
)
DATA_PAGE = Kind(
    "page of the data", "runs/{run}/data.html", "HTML", "the flow, at its end", EXISTS, Kept.always,
    last_writer="made of the records",
)
PRUNED_RUN = Kind(
    "pruned run", "runs/{run}/pruned.json", "Pruned", "`prune`, before it deletes files", EXISTS, Kept.always,
    last_writer="a mark, which is there or not",
)
RESULT = Kind(
    "result", "runs/{run}/{stage}/result.json", "StageResult", "the workers, last of all",
    "it exists: **the stage is done**", Kept.always,
    last_writer="a worker replaces the version that it saw before its look at the fence (infra/store/lease.py)",
)

# An attempt of a stage
SPEC = Kind(
    "spec", "runs/{run}/{stage}/attempt-{attempt:d}/spec.json", "JobSpec", "the stage's task", EXISTS, Kept.always,
)
LEDGER = Kind(
    "ledger record", "runs/{run}/{stage}/attempt-{attempt:d}/ledger.json", "LedgerRecord",
    "the stage's task, at begin and end", ENDED, Kept.always,
    last_writer="at its begin, by the one process that waits for the attempt; its end replaces an open record alone",
)
SEEN = Kind(
    "sign of life", "runs/{run}/{stage}/attempt-{attempt:d}/seen.json", "SignOfLife", "the stage's task, every 30 s",
    EXISTS, Kept.always, last_writer="a newer sign of life says all that an older one said",
)
KEPT_WORK = Kind(
    "kept work", "runs/{run}/{stage}/attempt-{attempt:d}/kept.json", "KeptWork",
    "rank 0 of train and infer, after each checkpoint or shard", EXISTS, Kept.always, last_writer=OF_ATTEMPT,
)
FAILURE = Kind(
    "failure", "runs/{run}/{stage}/attempt-{attempt:d}/error-rank{rank:d}.json", "WorkerFailure",
    "a worker that fails", EXISTS, Kept.always,
)
CLAIM = Kind(
    "claim", "runs/{run}/{stage}/attempt-{attempt:d}/job.json", "Claim", "on AWS Batch, before the job is submitted",
    EXISTS, Kept.always,
)
OWNER = Kind(
    "owner", "runs/{run}/{stage}/attempt-{attempt:d}/owner.json", "Owner",
    "on AWS Batch, the launcher of the job that took the attempt", EXISTS, Kept.always,
)
WAITER = Kind(
    "waiter", "runs/{run}/{stage}/attempt-{attempt:d}/waiter.json", "Lease",
    "on AWS Batch, the process that waits for the job", "expires", Kept.always,
)
ENDING = Kind(
    "ending", "runs/{run}/{stage}/attempt-{attempt:d}/ending.json", "Ending", "on AWS Batch, the launcher", EXISTS,
    Kept.always, last_writer=OF_ATTEMPT,
)
ENDING_OF_ONE = Kind(
    "ending of one job of an array", "runs/{run}/{stage}/attempt-{attempt:d}/ending-{index:d}.json", "Ending",
    "on AWS Batch, the launcher", EXISTS, Kept.always, last_writer=OF_ATTEMPT,
)
DEVICE_USE = Kind(
    "device use", "runs/{run}/train/attempt-{attempt:d}/device-use/{node:d}.json", "DeviceUse",
    "train, one worker of each node", EXISTS, Kept.always, last_writer=OF_ATTEMPT,
)
COMPILE_SIGNAL = Kind(
    "signal of compiling", "runs/{run}/{stage}/attempt-{attempt:d}/compile-{key}", "nothing",
    "rank 0 of warmup or train", EXISTS, Kept.always, last_writer=OF_ATTEMPT,
)

# Work that the workers of a stage divide among themselves
ASKED = Kind(
    "questions of a stage's first worker", "runs/{run}/{stage}/attempt-{attempt:d}/asked.json", "Asked",
    "validate and release, the first of several workers: swapped", EXISTS, Kept.always,
)
ASKING = Kind(
    "sign of a stage's first worker", "runs/{run}/{stage}/attempt-{attempt:d}/asking.lease", "Lease",
    "validate and release, the first of several workers", "expires", Kept.shown,
)
ASKED_FOLDER = Kind(
    "content of a question", "runs/{run}/{stage}/asked/{folder}/", "keys or vectors",
    "validate and release, the first of several workers", MANIFEST, Kept.shown,
)
SHARE = Kind(
    "share of an answer", "runs/{run}/{stage}/shares/{key}/", "rows or ranks",
    "validate and release, the worker that found them", MANIFEST, Kept.shown,
)
SHARE_LEASE = Kind(
    "lease of a share", "runs/{run}/{stage}/shares/{key}.lease", "Lease",
    "validate and release, the worker that finds it", "expires", Kept.shown,
)

# Outputs of the stages
ROWS = Kind("rows", "runs/{run}/validate/rows/{folder}/", "rows", "validate", MANIFEST, Kept.reached)
SIDES = Kind("sides of the holdout", "runs/{run}/validate/sides/{folder}/", "rows", "validate", MANIFEST, Kept.always)
HELD = Kind("held-out rows", "runs/{run}/validate/held/{folder}/", "rows", "validate", MANIFEST, Kept.always)
KEYS = Kind(
    "keys of a span's rows", "runs/{run}/validate/keys/{folder}/", "keys", "validate", MANIFEST, Kept.reached,
)
POSITIVES = Kind(
    "right items of a run's queries", "runs/{run}/validate/positives/{folder}/", "keys", "validate", MANIFEST,
    Kept.reached,
)
REPLAYED = Kind(
    "rows of earlier spans that a run trains again", "runs/{run}/validate/replayed/{folder}/", "rows", "validate",
    MANIFEST, Kept.reached,
)
WAITING_ROWS = Kind(
    "rows that wait for their items", "runs/{run}/validate/waiting/{folder}/", "rows", "validate", MANIFEST,
    Kept.always,
)
PROFILE = Kind(
    "profile", "runs/{run}/validate/attempt-{attempt:d}/profiles/{span}.json", "SpanProfile", "validate", EXISTS,
    Kept.always, last_writer=OF_ATTEMPT,
)
DATA_REPORT = Kind(
    "report of unfit data", "runs/{run}/validate/attempt-{attempt:d}/report.json", "ValidateOutcome",
    "validate, if it stops the run", EXISTS, Kept.always, last_writer=OF_ATTEMPT,
)
BAD_ROWS = Kind(
    "rows in quarantine", "runs/{run}/validate/attempt-{attempt:d}/quarantine/", "rows", "validate", MANIFEST,
    Kept.shown,
)
FINDINGS = Kind(
    "findings", "runs/{run}/{stage}/attempt-{attempt:d}/findings.json", "Findings",
    "health, if it refuses its machines", EXISTS, Kept.always, last_writer=OF_ATTEMPT,
)
OWN_FINDINGS = Kind(
    "findings of each worker", "runs/{run}/health/attempt-{attempt:d}/findings/", "WorkerFindings", "health", EXISTS,
    Kept.done, last_writer=OF_ATTEMPT,
)
PROBE = Kind(
    "probe", "runs/{run}/health/attempt-{attempt:d}/probe-rank{rank:d}/", "nothing", "health", NEVER, Kept.done,
)
MINED_RELEASE = Kind(
    "release to mine", "runs/{run}/train/mined_release.json", "MiningSource", "warmup, train: their tasks", EXISTS,
    Kept.always,
)
TENSORBOARD = Kind(
    "TensorBoard", "runs/{run}/train/attempt-{attempt:d}/tensorboard/", "events", "train", NEVER, Kept.shown,
)
ANSWERS = Kind(
    "answers to the holdout", "runs/{run}/train/attempt-{attempt:d}/answers.parquet", "rows",
    "train, after the last step", "`result.json` names it", Kept.always, last_writer=OF_ATTEMPT,
)
VERDICTS = Kind(
    "verdicts", "runs/{run}/evaluate/verdicts.json", "Judgement", "evaluate, release: their tasks", EXISTS,
    Kept.always,
)
OLD_VERDICTS = Kind(
    "earlier verdicts", "runs/{run}/evaluate/verdicts-{number:d}.json", "Judgement", "evaluate: its task", EXISTS,
    Kept.always,
)
MEASURED_ROWS = Kind(
    "measured rows", "runs/{run}/evaluate/attempt-{attempt:d}/rows.parquet", "rows", "evaluate",
    "`result.json` names it", Kept.always, last_writer=OF_ATTEMPT,
)
CORPUS = Kind(
    "items that an evaluation searches", "runs/{run}/evaluate/attempt-{attempt:d}/corpus.parquet", "items", "evaluate",
    "never needed later", Kept.always, last_writer=OF_ATTEMPT,
)
KNOWN_PAIRS = Kind(
    "pairs that are known", "runs/{run}/evaluate/attempt-{attempt:d}/known_pairs.parquet", "pairs", "evaluate",
    "never needed later", Kept.always, last_writer=OF_ATTEMPT,
)
RIGHT_ITEMS = Kind(
    "items that are right", "runs/{run}/evaluate/attempt-{attempt:d}/right_items.parquet", "items", "evaluate",
    "never needed later", Kept.always, last_writer=OF_ATTEMPT,
)
SHARD = Kind(
    "note of a shard", "runs/{run}/infer/shards/{version}/{catalogue}/{shard:05d}.json", "ShardNote",
    "infer, the worker that made it", "it exists: the shard is done", Kept.shown,
)
SHARD_LEASE = Kind(
    "lease of a shard", "runs/{run}/infer/shards/{version}/{catalogue}/{shard:05d}.lease", "Lease",
    "infer, the worker that makes it", "expires", Kept.shown,
)
BAD_ITEMS = Kind("items in quarantine", "runs/{run}/infer/quarantine/", "items", "infer", MANIFEST, Kept.shown)
NUMBER = Kind(
    "number of a run's release", "runs/{run}/release/number.json", "Numbered", "release: its task, before the release",
    "`releases/<n>.json` is there and of this run", Kept.always,
)
CHANGED = Kind(
    "changes", "runs/{run}/release/changes.json", "Changes", "release", EXISTS, Kept.always,
    last_writer="made of the release and the one before by the stage's one worker; a late one is fenced",
)
MEASURED = Kind(
    "measured target", "runs/{run}/publish/served.json", "Served", "publish: its task", EXISTS, Kept.always,
    last_writer="a copy of the target's record, by the publication's one worker",
)
FOREIGN = Kind(
    "foreign weights", "runs/{run}/import-checkpoint/{folder}/{file}", "weights", "`millrace import-checkpoint`",
    NEVER, Kept.done,
)

# A lineage
CHECKPOINT = Kind(
    "checkpoint", "lineages/{lineage}/step-{step:08d}/", "weights", "train",
    "manifest; `complete` in `state.json` after the last batch", Kept.reached,
)
PRUNED_CHECKPOINT = Kind(
    "pruned checkpoint", "lineages/{lineage}/step-{step:08d}/PRUNED.json", "Manifest",
    "`prune`, instead of the manifest: `state.json` stays", EXISTS, Kept.always,
    last_writer="a copy of the manifest, which is the same for all who delete it",
)
BRANCH = Kind(
    "branch", "lineages/{lineage}/BRANCH.json", "Branch", "backfill, a run after a rejection", EXISTS, Kept.always,
)
ACTIVE = Kind("active branch", "lineages/{lineage}/ACTIVE.json", "Active", "the same", EXISTS, Kept.always)
SKIP = Kind(
    "skipped span", "lineages/{lineage}/skipped/{span}-v{version:d}.json", "Skip", "`millrace skip`", EXISTS,
    Kept.always,
)

DECISION = Kind(
    "decision", "lineages/{lineage}/decisions/{span}-v{version:d}.json", "Decision",
    "a scheduled run with `decide.scheduled`, `millrace decide --overrule`", EXISTS, Kept.always,
)

# Shared by many runs
COMPILED = Kind(
    "compiled graphs", "compile/{key}/", "graphs", "warmup", "manifest that says `complete`", Kept.reached,
    last_writer="by the holder of the key's lease; a graph that is lost is compiled again",
)
COMPILE_LEASE = Kind("lease of a compilation", "compile/{key}.lease", "Lease", "warmup", "expires", Kept.done)
TOKENS_LEASE = Kind("lease of tokens", "tokens/{key}.lease", "Lease", "validate or train", "expires", Kept.done)
TOKENS = Kind(
    "tokens", "tokens/{key}/", "tokens", "validate or train, for the rows of a span and a tokenizer", MANIFEST,
    Kept.reached,
)
NEGATIVES = Kind("hard negatives", "negatives/{key}/", "rows", "train", MANIFEST, Kept.reached)
MODEL = Kind("model", "models/{version}/", "weights", "release", MANIFEST, Kept.reached)
VECTORS = Kind("vectors", "vectors/{version}/{catalogue}/", "vectors", "infer", MANIFEST, Kept.reached)
PRUNED_VECTORS = Kind(
    "pruned vectors", "pruned/vectors/{version}/{catalogue}.json", "Pruned",
    "`prune`, before it deletes files: nobody uses the name again", EXISTS, Kept.always,
    last_writer="a mark, which is there or not",
)

# Releases
RELEASE = Kind("release", "releases/{number:d}.json", "Release", "release: its task", EXISTS, Kept.always)
PRUNED_RELEASE = Kind(
    "pruned release", "releases/{number:d}.pruned.json", "Pruned", "`prune`, before it deletes files", EXISTS,
    Kept.always, last_writer="a mark, which is there or not",
)
CLOSED_NUMBER = Kind(
    "closed number", "releases/{number:d}.closed.json", "Pruned",
    "`prune`, on the next free number: a process that stood still makes its release too late", EXISTS, Kept.always,
    last_writer="a mark, which is there or not",
)
CURRENT = Kind(
    "current release", "releases/CURRENT", "Pointer", "release, `rollback`, `hold`, `prune`: compare-and-swap",
    "always one whole record", Kept.always,
)
HOLD = Kind("lifted hold", "releases/holds/{at}.json", "Hold", "`millrace hold --off`", EXISTS, Kept.always)
AUDIT = Kind(
    "audit record", "audit/{at}/{verb}.json", "Audit",
    "rollback, hold, skip, override, overrule, prune: before they change anything, and at their end", ENDED,
    Kept.always,
)
SERVED = Kind(
    "served by a target", "releases/targets/{target}.json", "Served", "publish: its task", EXISTS, Kept.always,
    last_writer="the target itself says which table it serves; the next publication compares",
)

# Work above single runs
CAMPAIGN = Kind(
    "campaign", "campaigns/{campaign}.json", "BackfillPlan", "backfill, `millrace try`", ENDED, Kept.always,
    last_writer="of the flow run that holds its branch; a person acts on the flow run",
)
EXPERIMENT = Kind("experiment", "experiments/{experiment}.json", "Experiment", "`millrace try`", EXISTS, Kept.always)
PARITY = Kind(
    "parity report", "parity/{key}/report.json", "ParityReport", "parity", EXISTS, Kept.always,
    last_writer="made of records of runs that are over, by a key of these runs",
)
PARITY_PLOT = Kind(
    "parity plot", "parity/{key}/curves.svg", "SVG", "parity", EXISTS, Kept.always,
    last_writer="made of records of runs that are over, by a key of these runs",
)
BAKEOFF = Kind(
    "bake-off report", "bakeoffs/{key}/report.json", "BakeoffReport", "bakeoff", EXISTS, Kept.always,
    last_writer="made of records of runs that are over, by a key of these runs",
)
BAKEOFF_PAGE = Kind(
    "bake-off page", "bakeoffs/{key}/report.html", "HTML", "bakeoff", EXISTS, Kept.always,
    last_writer="made of records of runs that are over, by a key of these runs",
)

# Erased rows and items
ERASED = Kind(
    "erased value", "erased/{key}.json", "Erased", "`millrace erase`, before it changes files", EXISTS, Kept.always,
)
ERASURE = Kind(
    "unfinished erasure", "erasures/{key}/journal.json", "Journal", "`millrace erase`, before it changes files",
    "never: the same command finishes it", Kept.done,
)
CERTIFICATE = Kind(
    "certificate of an erasure", "erasures/{key}/certificate-{number:d}.json", "Certificate",
    "`millrace erase`, at its end", EXISTS, Kept.always,
)

# Events, machines and pages
SENT = Kind(
    "sent event", "watch/{lineage}/{what}.json", "SentEvent", "a flow that releases or rejects", EXISTS, Kept.always,
)
PROBLEM = Kind("standing problem", "watch/{lineage}/problems/{what}.json", "Standing", "the watch", EXISTS, Kept.always)
STARTS = Kind(
    "runs that the watch started", "watch/{lineage}/starts/{span}-v{version:d}.json", "Starts", "the watch", EXISTS,
    Kept.always,
)
WAITING = Kind(
    "event that the server may not have", "outbox/{lineage}/{what}.json", "WaitingEvent",
    "a flow that releases or rejects", EXISTS, Kept.done,
)
HOST_RECORD = Kind(
    "host", "hosts/{host}.json", "HostRecord", "health, the Batch launcher, `hosts --forgive`", "it exists; expires",
    Kept.always,
)
PACKED_RUNS = Kind(
    "runs of a month", "packs/runs/{month}.json", "Pack", "the flow, at its end; the deployed report", NEVER,
    Kept.always,
)
PACKED_SUMS = Kind(
    "work of a month", "packs/sums/{month}.json", "Month", "a refresh or a run, at its end; the deployed report", NEVER,
    Kept.always,
)
PACKED_FEEDS = Kind(
    "newest feeds", "packs/feeds.json", "LatestFeeds", "`millrace ingest --items`; the deployed report", NEVER,
    Kept.always,
)
OPEN = Kind(
    "work that is not summed up", "open/{run}", "the attempt", "the first attempt of a refresh or publication", EXISTS,
    Kept.done, last_writer="a mark; the newest attempt is looked for",
)
HISTORY = Kind(
    "history", "reports/history.html", "HTML", "the deployed report", EXISTS, Kept.always,
    last_writer="made of the records, and made again each day",
)
LINEAGES_PAGE = Kind(
    "lineages", "reports/lineages.html", "HTML", "the deployed report", EXISTS, Kept.always,
    last_writer="made of the records, and made again each day",
)
METRICS = Kind(
    "metrics", "reports/metrics.prom", "Prometheus", "the deployed watch", EXISTS, Kept.always,
    last_writer="made of the records, and made again each hour",
)

# Damaged files, locks and fences
QUARANTINE = Kind(
    "damaged files", "quarantine/", "as before", "the work that would have used one", "may be deleted", Kept.always,
)
LOCK = Kind("lock", ".locks/", "Lease", "whoever changes what others may change", "expires", Kept.done)
FENCE = Kind(
    "fence", ".locks/{lock:path}.fence", "Fence",
    "the holder of a lineage, before an attempt's workers start: swapped",
    "it exists; it names the attempts that may write", Kept.always,
)

# fmt: on
TABLE = tuple(each for each in globals().values() if isinstance(each, Kind))


def kind_of(key: str) -> tuple[Kind, dict[str, Any]]:
    """Return the kind of a file and the fields of its key: `runs/4f2a/plan.json` is PLAN with `{"run": "4f2a"}`.

    A file with a row of its own is not taken for a part of its folder.

    Raises:
        ValueError: the key matches no row, or two; names them.
    """
    found = [(kind, fields) for kind in TABLE if (fields := kind.match(key)) is not None]
    found = [each for each in found if not each[0].is_folder] or found
    if len(found) != 1:
        rows = " and ".join(kind.pattern for kind, _ in found) or "no row"
        raise ValueError(f"{key} matches {rows} of the workspace's table; correct tasks/contracts/workspace.py")
    return found[0]
