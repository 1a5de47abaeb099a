"""`millrace chaos`: runs on this machine that are disturbed on purpose, and what became of them."""

import sys
from pathlib import Path

from flows.chaos.campaign import ChaosReport, hold, rows
from flows.chaos.draws import draws
from flows.chaos.local import LocalPlace
from flows.cli.terminal.console import note, say, show_table
from flows.presentation.wording import plural
from infra.store.factory import open_store
from tasks.foundation.errors import ConfigError


def chaos(kills: int, seed: int, only: int | None, workspace: Path | None) -> ChaosReport:
    """Disturb `kills` runs, or only the one of the number `only`.

    Raises:
        ConfigError: this is not Linux, `only` is no number of a run, or the folder is there already.
        CodeError: a run that nothing disturbs fails.
    """
    if sys.platform != "linux":
        raise ConfigError("millrace chaos finds the processes of its runs in /proc, so it needs Linux")
    if only is not None and only > kills:
        raise ConfigError(f"--only {only}: there are --kills {kills} runs, counted from 1")
    if workspace is not None:
        open_store(str(workspace))  # raises ConfigError where no workspace can be
    if workspace is not None and workspace.exists():
        raise ConfigError(f"--workspace {workspace}: it is there already; name a new folder")
    some = [draw for draw in draws(seed, kills, LocalPlace.whole_share) if only in (None, draw.number)]
    return hold(LocalPlace, workspace and workspace.absolute(), seed, some, note)


def show(report: ChaosReport) -> None:
    """Print how the runs ended by act and stage, and how to repeat those of which something does not hold."""
    counted = [
        (row.act, row.stage, *map(str, (row.count, row.by_itself, row.by_one_rerun, row.not_ended, row.violations)))
        for row in rows(report)
    ]
    lost = [f"{row.median_seconds_lost:.0f}" for row in rows(report)]
    columns = ("act", "stage", ">runs", ">by itself", ">one rerun", ">not", ">violations", ">seconds lost")
    show_table(columns, [(*row, seconds) for row, seconds in zip(counted, lost, strict=True)])
    whole = len(report.runs) - report.violations
    say(
        f"{report.place}, seed {report.seed}: {whole} of {plural(len(report.runs), 'run')} ended as if undisturbed, "
        f"bit for bit; an undisturbed one takes {report.undisturbed_seconds:.0f} s"
    )
    for run in report.runs:
        if run.violations:
            say(f"! {run.number}: {'; '.join(run.violations)}")
            say(f"  repeat it: millrace chaos --kills {run.number} --seed {report.seed} --only {run.number}")
    for folder in report.kept:
        say(f"  {folder}")
