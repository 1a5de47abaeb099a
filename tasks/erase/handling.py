"""The part of an erasure for each kind of file: one entry for each row of the workspace's table.

A kind without an entry is a fault that a test finds, so no new kind of file is forgotten.
"""

import enum
from collections.abc import Mapping
from typing import NamedTuple

from tasks.contracts import workspace as w
from tasks.contracts.kinds import Kind


class Part(enum.Enum):
    """The work of an erasure on the files of a kind."""

    rows = "rows"  # Parquet in a folder with a manifest: rows go, manifest and all that name its checksum follow
    file = "file"  # Parquet without a manifest: rows go
    never_needed = "never needed"  # Parquet that nothing reads later: a file with such a row goes
    made_again = "made again"  # a folder that is derived from rows: it goes, and its next reader makes it
    damaged = "damaged"  # files that no reader opens: one goes unless it surely has no such row
    text = "text"  # a record or a page: the text in it goes, and checksums follow
    packed = "packed"  # copies of records: they go, and are packed again
    weights = "weights"  # learnt from rows: searched for the words, and named with the way out
    none = "none"  # it holds no row, no item and no text of one


class Handling(NamedTuple):
    part: Part
    why: str = ""  # the reason, for `none` and `weights`


ROWS, FILE, UNNEEDED, AGAIN, TEXT, PACKED = (
    Handling(part) for part in (Part.rows, Part.file, Part.never_needed, Part.made_again, Part.text, Part.packed)
)
LEARNT = Handling(Part.weights, "weights and their tokenizer; only a training without the rows takes them out")
COUNTS = Handling(Part.none, "numbers, times and keys of the workspace")
SETTINGS = Handling(Part.none, "settings and references, which no row is in")
NO_BYTES = Handling(Part.none, "holds nothing, or a name and a time")

HANDLING: Mapping[Kind, Handling] = {
    w.SPAN: ROWS, w.FEED: ROWS, w.GOLDEN: FILE, w.CATALOGUE: ROWS, w.PRUNED_CATALOGUE: NO_BYTES,
    w.PLAN: SETTINGS, w.PLANNED: COUNTS, w.CONFIG: SETTINGS, w.INVOCATION: TEXT, w.REPORT: TEXT, w.DATA_PAGE: TEXT,
    w.PRUNED_RUN: NO_BYTES, w.RESULT: TEXT,
    w.SPEC: TEXT, w.LEDGER: TEXT, w.SEEN: NO_BYTES, w.KEPT_WORK: COUNTS, w.FAILURE: TEXT, w.CLAIM: NO_BYTES,
    w.OWNER: NO_BYTES, w.WAITER: NO_BYTES, w.ENDING: TEXT, w.ENDING_OF_ONE: TEXT, w.DEVICE_USE: COUNTS,
    w.COMPILE_SIGNAL: NO_BYTES,
    w.ROWS: ROWS, w.SIDES: ROWS, w.HELD: ROWS, w.WAITING_ROWS: ROWS, w.PROFILE: TEXT, w.DATA_REPORT: TEXT,
    w.ASKED: NO_BYTES, w.ASKING: NO_BYTES, w.ASKED_FOLDER: AGAIN, w.SHARE: AGAIN, w.SHARE_LEASE: NO_BYTES,
    w.BAD_ROWS: ROWS, w.FINDINGS: TEXT, w.OWN_FINDINGS: COUNTS, w.PROBE: NO_BYTES, w.MINED_RELEASE: TEXT,
    w.TENSORBOARD: Handling(Part.none, "losses and rates by step"),
    w.ANSWERS: FILE, w.VERDICTS: TEXT, w.OLD_VERDICTS: TEXT, w.MEASURED_ROWS: FILE,
    w.CORPUS: UNNEEDED, w.KNOWN_PAIRS: UNNEEDED, w.RIGHT_ITEMS: UNNEEDED,
    w.SHARD: TEXT, w.SHARD_LEASE: NO_BYTES, w.BAD_ITEMS: ROWS, w.NUMBER: NO_BYTES, w.CHANGED: TEXT, w.MEASURED: TEXT,
    w.FOREIGN: Handling(Part.weights, "weights from elsewhere, which no row of this workspace made"),
    w.CHECKPOINT: LEARNT, w.PRUNED_CHECKPOINT: COUNTS, w.BRANCH: NO_BYTES, w.ACTIVE: NO_BYTES, w.SKIP: TEXT,
    w.DECISION: TEXT,
    w.COMPILED: Handling(Part.none, "graphs, which know shapes and no value"),
    w.COMPILE_LEASE: NO_BYTES, w.TOKENS_LEASE: NO_BYTES, w.TOKENS: AGAIN, w.NEGATIVES: AGAIN, w.KEYS: AGAIN,
    w.POSITIVES: AGAIN, w.REPLAYED: AGAIN,
    w.MODEL: LEARNT,
    w.VECTORS: ROWS, w.PRUNED_VECTORS: NO_BYTES,
    w.RELEASE: TEXT, w.PRUNED_RELEASE: NO_BYTES, w.CLOSED_NUMBER: NO_BYTES, w.CURRENT: NO_BYTES,
    w.HOLD: TEXT, w.AUDIT: TEXT, w.SERVED: TEXT,
    w.CAMPAIGN: TEXT, w.EXPERIMENT: TEXT, w.PARITY: TEXT,
    w.PARITY_PLOT: Handling(Part.none, "curves of losses"),
    w.BAKEOFF: TEXT, w.BAKEOFF_PAGE: TEXT,
    w.ERASED: Handling(Part.none, "a hash of the value"),
    w.ERASURE: Handling(Part.none, "keys and checksums of the files that change"),
    w.CERTIFICATE: Handling(Part.none, "a hash of the value, and counts"),
    w.SENT: TEXT, w.PROBLEM: TEXT, w.STARTS: COUNTS, w.WAITING: TEXT, w.HOST_RECORD: COUNTS, w.PACKED_RUNS: PACKED,
    w.PACKED_SUMS: COUNTS, w.PACKED_FEEDS: COUNTS, w.OPEN: NO_BYTES, w.HISTORY: TEXT, w.LINEAGES_PAGE: TEXT,
    w.METRICS: COUNTS,
    w.QUARANTINE: Handling(Part.damaged), w.LOCK: NO_BYTES, w.FENCE: NO_BYTES,
}  # fmt: skip
