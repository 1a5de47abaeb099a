"""A workspace of years: weekly runs and hourly refreshes, with the records that the stages write and no data.

The control side really makes a run and a refresh for each week, with workers that do no arithmetic. The other refreshes
of a week are copies of that one with their own keys, times and numbers. The catalogues and vectors of copies are left
out: only `prune` lists those.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import infra.compute.factory
from infra.store.directory import DirectoryStore
from tasks.contracts.runs import Release, RunState
from tasks.contracts.workspace import NUMBER
from tasks.planning.next_run import plan_run
from tasks.runs import invocations, releases
from tests.benchmarks.years.bucket import Bucket, Made
from tests.support.fakes.fake_runner import FakeRunner, ingest, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed

PREFIX = "workspace"
LAST = dt.date(2026, 11, 16)  # the Monday after the newest week
REFRESHES = 167  # after each run: one an hour

_RELEASE = re.compile(r"releases/\d+\.json")


class Week(NamedTuple):
    """One week: the day of its run, the files that the run and the first refresh left, and the key of that refresh."""

    monday: dt.date
    files: dict[str, bytes]
    refresh: str


def fill(bucket: Bucket, weeks: int, refreshes: int = REFRESHES) -> None:
    """Put so many weekly runs, and so many refreshes after each, into an empty bucket."""
    objects: dict[str, Made] = {}
    for number, week in enumerate(_weeks(weeks)):
        first = number * (refreshes + 1) + 1  # the number of the run's release
        for key, data in week.files.items():
            if key.startswith("open/"):
                continue
            if key.startswith("releases/"):
                objects.update(_of_releases(key, data, week, first, refreshes))
            elif key.endswith("/release/number.json"):
                pass  # with the releases
            elif week.refresh in key:
                objects.update(_copies(key, data, week, refreshes))
            elif key.startswith("items/"):
                objects.update(_versions(key, data))
            else:
                objects[key] = _dated(data, week.monday, 0)
    last = weeks * (refreshes + 1)
    objects[releases.CURRENT] = releases.Pointer(release=last).to_json()
    bucket.put_all({f"{PREFIX}/{key}": made for key, made in objects.items()})


def _weeks(weeks: int) -> Iterator[Week]:
    """Carry out a run and a refresh for each week, oldest first."""
    with tempfile.TemporaryDirectory(prefix="millrace-years-") as folder:
        store, seen = DirectoryStore(Path(folder)), set[str]()
        runner = FakeRunner(store)
        before, infra.compute.factory.make_runner = infra.compute.factory.make_runner, lambda *_: runner
        try:
            for number in range(weeks):
                monday = LAST - dt.timedelta(weeks=weeks - 1 - number)
                release = _week(store, monday)
                found = [key for key in store.list("") if key not in seen and not key.startswith(".locks")]
                seen.update(found)
                yield Week(monday, {key: store.read(key) for key in found}, release.run_key)
        finally:
            infra.compute.factory.make_runner = before


def _week(store: DirectoryStore, monday: dt.date) -> Release:
    year, week, _ = (monday - dt.timedelta(weeks=1)).isocalendar()
    ingest(store, f"{year}-W{week:02d}")
    plan = plan_run(store, small_config())
    began = invocations.begin(store, plan, flow_run=f"flow-{plan.run_key}", expected_seconds=8000.0)
    carry_out(plan)
    invocations.end(store, began, RunState.RELEASED)
    for day in range(7):
        ingest_feed(store, (monday + dt.timedelta(days=day)).isoformat(), version=24)
    return refreshed(store)


def _dated(data: bytes, monday: dt.date, hour: int) -> bytes:
    """Return a record with the times of today moved to so many hours after a run."""
    when = dt.datetime.combine(monday, dt.time(6)) + dt.timedelta(hours=hour)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    return re.sub(rf"{today}T\d\d:".encode(), f"{when:%Y-%m-%dT%H}:".encode(), data)


def _key(week: Week, number: int, refreshes: int) -> str:
    """Return the run key of a refresh; the last one is that which was carried out."""
    if number == refreshes - 1:
        return week.refresh
    kind = week.refresh.rpartition("-")[0]
    return f"{kind}-{hashlib.sha256(f'{week.monday} {number}'.encode()).hexdigest()[:16]}"


def _copies(key: str, data: bytes, week: Week, refreshes: int) -> Iterator[tuple[str, Made]]:
    for number in range(refreshes):
        own = _key(week, number, refreshes)
        yield key.replace(week.refresh, own), functools.partial(_copy, data, week, own, number + 1)


def _copy(data: bytes, week: Week, own: str, hour: int) -> bytes:
    return _dated(data.replace(week.refresh.encode(), own.encode()), week.monday, hour)


def _versions(key: str, data: bytes) -> Iterator[tuple[str, Made]]:
    """Yield the 24 versions of a day's item feed, which an hourly export leaves."""
    for version in range(1, 25):
        yield key.replace("/v24/", f"/v{version}/"), data


def _of_releases(key: str, data: bytes, week: Week, first: int, refreshes: int) -> Iterator[tuple[str, Made]]:
    if not _RELEASE.fullmatch(key):
        return
    record = Release.model_validate_json(data)
    before = {"number": first, "previous": first - 1 or None, "model_before": max(first - refreshes - 1, 0) or None}
    made = [(0, before)]
    if record.run_key == week.refresh:
        made = [
            (hour, {"number": first + hour, "previous": first + hour - 1, "refreshed": first + hour - 1,
                    "model_before": first, "run_key": _key(week, hour - 1, refreshes)})
            for hour in range(1, refreshes + 1)
        ]  # fmt: skip
    for hour, changed in made:
        own = record.model_copy(update=changed)
        yield NUMBER.key(run=own.run_key), releases.Numbered(number=own.number).to_json()
        dated = _dated(own.model_dump_json(by_alias=True).encode(), week.monday, hour)
        yield f"releases/{own.number}.json", Release.model_validate_json(dated).to_json()  # seals it
