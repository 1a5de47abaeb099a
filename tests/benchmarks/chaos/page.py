"""docs/chaos.md as a whole: a table for each place, and their explanation."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.chaos.campaign import Report, counts
from tests.benchmarks.disturbed.page import machine, table

ENDS = (">by itself", ">by one rerun", ">not", ">violations")
CROWD = "## Four actors"
_CROWD = """\
{title}

`make chaos ACTORS=4` does the same among others who work in the workspace: one ingests new items and refreshes,
twice; one looks, four times (`freshness`, `status`, `history`, `releases`, `ledger`, `backfills`); a person does
two things of `rollback`, `hold` and `hold --off`, `prune`, the same `run` once more, and `ingest` of a later month.
When each begins is drawn too. Half of the stops last 70 to 180 s, longer than a lease. In a bucket there is also
`conflicts`, in which each write is answered with 409, and `cut-off`, in which the orchestrator's requests fail for
70 to 180 s.

Checked: every command ends by itself, with a state or a failure class; the run is released, if need be by
one rerun; its weights are those of the undisturbed run; the newest accepted model serves, unless a person went back
after it; readers change nothing; no sealed folder changes, and one that is gone is gone as a whole; each stage was
done once; no process, job, lock or temporary file is left.

{tables}
"""
_PAGE = """\
# Faults at random moments

`make chaos` disturbs runs at moments that a seed decides, and writes this page. {whole} of {runs} disturbed runs ended
in the release of the undisturbed run, bit for bit: the same weights, vectors and names. Each row of
[faults.md](faults.md) is one fault at one exact place instead.

**Run.** The demo's shop with the settings of [chaos.yaml](../tests/benchmarks/disturbed/chaos.yaml), in scratch
workspaces, with real commands, workers and Prefect server. First nothing is disturbed. Then each run gets one act at
one moment: an act and a stage are dealt from shuffled decks, the moment is any in the stage's time. Half of the runs on
this machine and a fifth of those on the cloud begin with their first stage; the others begin with the stage that is
hit, in a copy of the workspace as it stood before it. A run that does not end in a release is run again once, by the
same command.

**The acts.**
- `kill-orchestrator`, `kill-worker`, `kill-all`: SIGKILL to `millrace run`, to one of its workers, to all of them. On
  this machine `kill-worker` also takes the processes that have loaded the libraries, from which workers are forked.
- `stop-all`: SIGSTOP to all of them, SIGCONT after 1 to 6 s.
- `kill-server`, `stop-server`: SIGKILL to the Prefect server; SIGSTOP to it, SIGCONT after 1 to 6 s.
- `store-errors`: for 1 to 6 s each file operation in the workspace fails with EIO; on S3, each request with 503.
- `store-delays`: for 1 to 6 s each of them takes 50 ms more; on S3, 300 ms.
- `disk-full`: for 1 to 6 s no new file can be made in the workspace, nor in TMPDIR; on the cloud, in the containers'
  TMPDIR.

**Checked**, or the command fails and names the run: the first command ends with a failure class and without a
traceback, or is killed; if it did not end in a release, one rerun does. Checkpoints, models, vectors, catalogue, data
and release are byte for byte those of the undisturbed run under the same names, and nothing else is there. All vectors
are of the release's model, and of exactly the catalogue's items. The model is trained on each span once. Each stage was
done once, and the record of each attempt is closed. No process, job, lock, half-written folder or temporary file is
left.

**The columns.** *By itself*: the disturbed command ended in the release. *Seconds lost*: the median of what the
commands took more than the same stages undisturbed; other work on the machine is noise in it.

**Where.** {machine}, shared by the servers and all workers.

{tables}
"""


def whole(reports: Sequence[Report]) -> str:
    """Return the page; a report with violations is shown as it is."""
    runs = sum(len(report.runs) for report in reports)
    whole = runs - sum(report.wrong for report in reports)
    return _PAGE.format(whole=whole, runs=runs, machine=machine(), tables="\n\n".join(map(_table, reports)))


def with_crowds(page: str, reports: Sequence[Report]) -> str:
    """Return the page with these scenes of four actors in place of the earlier ones."""
    before = page.partition(CROWD)[0].rstrip("\n")
    tables = "\n\n".join(map(_crowd_table, reports))
    return f"{before}\n\n{_CROWD.format(title=CROWD, tables=tables)}"


def crowds_of(page: str) -> str:
    """Return the part of a page about scenes with four actors; empty if it has none."""
    _, title, after = page.partition(CROWD)
    return f"\n{title}{after}" if title else ""


def _crowd_table(report: Report) -> str:
    well = f"{len(report.runs) - report.wrong} of {len(report.runs)} scenes as they must."
    rows = [(f"`{act}`", *others[:-1]) for act, *others in counts(report.runs, "act")]
    counted = table(("act", ">scenes", *ENDS), rows)
    return f"**{report.place}**, seed {report.seed}: {well}\n\n{counted}"


def _table(report: Report) -> str:
    about = (
        f"{len(report.runs)} runs, seed {report.seed}. Undisturbed, all stages take {report.undisturbed_seconds:.0f} s."
    )
    rows = [(f"`{act}`", *others) for act, *others in counts(report.runs, "act", "stage")]
    return f"## {report.place}\n\n{about}\n\n{table(('act', 'stage', '>runs', *ENDS, '>seconds lost'), rows)}"
