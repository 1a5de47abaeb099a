"""docs/faults.md as a whole: the tables, and their explanation."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from tests.benchmarks.disturbed.judge import RELEASED
from tests.benchmarks.disturbed.page import machine, table
from tests.benchmarks.faults.cases import ABOUT, NOTHING, ONCE

_PAGE = """\
# Faults and their outcome

`make faults` runs the pipeline undisturbed, then through each of the faults below, and writes this page. {released} of
the {faults} end in the same release as the undisturbed run, with exactly the same weights. The others end in a failure
class that says who must act, and release nothing. In [chaos.md](chaos.md) a seed draws the faults and their moments.

**Run.** A month of a small made-up shop, with `compute: batch` and a workspace on S3: training on two nodes,
inference as an array of four jobs. The tests' emulator stands in for AWS Batch and really starts the containers'
commands as processes; moto stands in for S3. The command `millrace run`, the Prefect server and the workers are real.
Each fault has its own workspace, in which the stages before the fault are done already; they are cached only if their
inputs come out the same again. Some settings differ from [base.yaml](../configs/base.yaml) to keep it short:
`train.watchdog_seconds: 10`, `batch.capacity_seconds: 15`, `batch.heartbeat_timeout_seconds: 8`, `retry.jitter: 0`, a
checkpoint every 20 steps. With longer ones more seconds are lost.

**Where.** {machine}, shared by the servers and all nodes.
Undisturbed, train, evaluate, infer and release take {seconds:.0f} s there, most of it for starting processes.

**The columns.** *Outcome* is `Released`, or the failure class with which the command ends. *Attempts* are the ones in
the ledger (`millrace report`), by AWS Batch or by Prefect, of each stage that took more than one or failed; "{once}"
means that nothing was retried. *Seconds lost* is the time from the start of the first command to the end of the last,
less the time of an undisturbed run for the stages that finished. It is measured once; if other work shares the cores,
ten seconds and more are noise.

**Checked in every row**, or the command fails: outcome and attempts are as expected; the message names the fault
and shows no traceback; no stage ever has two live jobs; no job and no container is left over; a release is complete,
and no folder is half written; a run that failed releases nothing.

{tables}
"""


class Row(NamedTuple):
    group: str
    fault: str
    outcome: str
    attempts: str
    lost: int


def tables(rows: Sequence[Row]) -> str:
    """A section for each group, in Markdown."""
    parts = []
    for group, some in groupby(rows, key=lambda row: row.group):
        about = textwrap.fill(" ".join(ABOUT[group].split()), 120)
        counted = table(("fault", "outcome", "attempts", ">seconds lost"), [row[1:] for row in some])
        parts.append(f"## {group}\n\n{about}\n\n{counted}")
    return "\n\n".join(parts)


def whole(rows: Sequence[Row], seconds: float) -> str:
    """The page. `seconds`: of a run undisturbed, from the training on."""
    faults = [row for row in rows if row.group != NOTHING]
    return _PAGE.format(
        released=sum(row.outcome == RELEASED for row in faults),
        faults=len(faults),
        machine=machine(),
        seconds=seconds,
        once=ONCE,
        tables=tables(rows),
    )
