"""The campaigns with four actors, kept in workspace/chaos as they go on."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from flows.cli.terminal.console import note
from infra.store.directory import DirectoryStore
from tests.benchmarks.chaos import page
from tests.benchmarks.chaos.actors import crowds
from tests.benchmarks.chaos.crowd import CrowdReport, CrowdRun, campaign
from tests.benchmarks.chaos.crowded import CloudCrowdPlace, LocalCrowdPlace

PAGE = Path(__file__).resolve().parents[3] / "docs" / "chaos.md"
PLACES = {"local": LocalCrowdPlace, "cloud": CloudCrowdPlace}
MARK = "-four-actors-seed-"
RESULTS = DirectoryStore(Path("workspace/chaos"))


def disturb(name: str, count: int, seed: int, only: int | None) -> int:
    """Do the scenes of a place that are not done, or the one numbered `only`. Return 1 if anything does not hold."""
    make, key = PLACES[name], f"{name}{MARK}{seed}.json"
    before = CrowdReport.model_validate_json(RESULTS.read(key)).runs if RESULTS.exists(key) else ()
    done = {run.number: run for run in before if run.number != only}
    some = [crowd for crowd in crowds(seed, count, make.whole_share, make.bucket) if crowd.draw.number not in done]
    some = [crowd for crowd in some if only in (None, crowd.draw.number)]

    def save(run: CrowdRun) -> None:
        done[run.number] = run
        runs = tuple(done[number] for number in sorted(done))
        RESULTS.write(key, CrowdReport(place=make.name, seed=seed, runs=runs).to_json())

    if some:
        folder = Path(tempfile.mkdtemp(prefix="millrace-crowd-"))
        place = make(folder, note)
        try:
            campaign(place, some, note, save)
        finally:
            place.stop()
        if not any(run.violations for run in done.values()):
            shutil.rmtree(folder, ignore_errors=True)
    reports = [CrowdReport.model_validate_json(RESULTS.read(each)) for each in sorted(RESULTS.list("")) if MARK in each]
    PAGE.write_text(page.with_crowds(PAGE.read_text(), reports))
    wrong = sum(bool(run.violations) for run in done.values())
    note(f"{make.name}, seed {seed}, four actors: {len(done) - wrong} of {len(done)} scenes ended as they must")
    return 1 if wrong else 0
