"""`millrace chaos`: runs on this machine that are disturbed on purpose, and what became of them."""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flows.chaos.campaign import ChaosReport, campaign, rows
from flows.chaos.draws import draws
from flows.chaos.local import LocalPlace
from flows.cli.terminal.console import note, say, show_table
from flows.presentation.wording import plural
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
    with _folder(workspace) as folder:
        place = LocalPlace(folder, note)
        try:
            drawn = draws(seed, kills, place.acts, place.whole_share)
            some = [draw for draw in drawn if only in (None, draw.number)]
            report = campaign(place, seed, some, note)
        finally:
            place.stop()
        if report.kept and workspace is None:
            kept = Path(tempfile.mkdtemp(prefix="millrace-chaos-kept-"))
            report = report.model_copy(update={"kept": tuple(shutil.move(each, kept) for each in report.kept)})
    return report


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


@contextlib.contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="millrace-chaos-") as name:
            yield Path(name)
        return
    try:
        wanted.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"--workspace {wanted}: it is there already; name a new folder") from None
    yield wanted.resolve()
