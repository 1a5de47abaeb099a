import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from configs.load import load_config
from infra.store.directory import DirectoryStore
from infra.store.manifest import CorruptFolder, read_manifest
from tasks.contracts.jobs import parse_progress
from tasks.contracts.outcomes import ValidateOutcome
from tasks.data.rows import read_rows
from tasks.foundation.errors import DataError
from tasks.worker import validate
from tasks.worker.rows import clean_rows, row_checks, window
from tasks.worker.training.row_keys import key_rule
from tests.support.pages.golden import Golden
from tests.support.workspace.jobs import with_held
from tests.support.workspace.spans import (
    APRIL,
    MARCH,
    check,
    failed,
    job,
    quarantined,
    row,
    rows,
    validated,
    write_span,
    written,
)

# --- the window -------------------------------------------------------------------------------------------------


def test_a_clean_span_is_unchanged(store: DirectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    values = rows(40)
    write_span(store, tmp_path, MARCH, values)
    outcome = validate.judge(job(store))
    (found,) = outcome.rows
    assert (found.span, found.rows) == (MARCH, 40)
    assert found.prefix.startswith("runs/k/validate/rows/2026-03-")
    assert found.row_keys is not None
    assert read_manifest(store, found.row_keys).facts == {
        "span": "2026-03",
        "rows": 40,
        "rule": key_rule(load_config().heads),
        "of": found.prefix,
    }
    assert outcome.positives is not None
    assert read_manifest(store, outcome.positives).facts == {
        "own": [found.prefix],
        "of": [found.prefix],
        "rule": key_rule(load_config().heads),
    }
    assert found.folders == (found.prefix, found.sides, found.held, found.row_keys), "so prune keeps them with the rows"
    assert (outcome.rows_in, outcome.rows_clean, outcome.rows_quarantined) == (40, 40, 0)
    assert (outcome.quarantine, outcome.reasons, failed(outcome)) == (None, {}, [])
    assert pa.concat_tables(read_rows(store, outcome.rows, ["price", "brand", "locale"])).to_pylist() == values
    steps = [step for line in capsys.readouterr().out.splitlines() if (step := parse_progress(line))]
    assert [(step.done, step.total, step.note) for step in steps] == [
        (1, 1, "2026-03: 40 rows clean, 0 bad"),
        (1, 1, "40 items"),
    ]
    assert outcome.catalogue is not None
    assert outcome.catalogue.items == 40
    assert not store.list("runs/k/validate/attempt-1/quarantine")


def test_a_feature_without_a_single_value_is_a_warning(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40, price=math.nan))
    outcome = validate.judge(job(store))
    assert failed(outcome) == ["price filled"]
    assert check(outcome, "price filled").severity == "warning"
    assert outcome.rows_clean == 40


def test_many_rows_like_those_held_out_are_a_warning(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40, query="red lamp", item="Lamp"))
    outcome = validate.judge(job(store, overrides=["evaluate.group=row_id", "evaluate.holdout_share=0.3"]))
    found = check(outcome, "left out of training")
    assert not found.passed
    assert outcome.left_out_of_training is not None
    assert outcome.left_out_of_training > 20
    assert found.observed == outcome.left_out_of_training / 40


def test_an_empty_span_is_left_out(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [])
    write_span(store, tmp_path, APRIL, rows(40))
    outcome = validate.judge(job(store, [MARCH, APRIL]))
    assert [ref.span for ref in outcome.rows] == [APRIL]
    assert not any("2026-03" in key for key in written(store))


def test_the_last_span_must_have_rows(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40))
    write_span(store, tmp_path, APRIL, [])
    with pytest.raises(DataError, match=r"0 clean .*span 2026-04"):
        validate.judge(job(store, [MARCH, APRIL]))
    assert written(store) == ["attempt-1/report.json"]


def test_an_empty_window_fails_on_its_row_count(store: DirectoryStore, tmp_path: Path, golden: Golden):
    write_span(store, tmp_path, MARCH, [])
    with pytest.raises(DataError, match=r"0 clean .*least 32") as raised:
        validate.judge(job(store))
    golden(str(raised.value))


def test_rows_for_the_catalogue_alone_replace_older_versions(store: DirectoryStore, tmp_path: Path):
    before = validated(store, tmp_path, rows(40), "2026-02")
    corrected = validated(store, tmp_path, rows(10, start=40), "2026-02", version=2)
    write_span(store, tmp_path, MARCH, rows(40, start=100))
    outcome = validate.judge(job(store, history=[before], others=[corrected]))
    assert outcome.catalogue is not None
    assert outcome.catalogue.items == 10 + 40
    sources = read_manifest(store, outcome.catalogue.prefix).facts["sources"]
    assert sources == sorted([corrected.prefix, outcome.rows[0].prefix])


def test_the_window_as_a_whole_must_have_enough_rows(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(20))
    write_span(store, tmp_path, APRIL, rows(12, start=100))
    assert validate.judge(job(store, [MARCH, APRIL])).rows_clean == 32
    with pytest.raises(DataError, match="20 clean rows"):
        validate.judge(job(store, [MARCH]))


def test_too_many_bad_rows_stop_the_run_without_clean_rows(store: DirectoryStore, tmp_path: Path, golden: Golden):
    write_span(store, tmp_path, MARCH, [*rows(75), *rows(20, start=75, item=None), *rows(5, start=95, query="")])
    with pytest.raises(DataError) as raised:
        validate.judge(job(store))
    message = str(raised.value)
    golden(message)
    assert f"{store.uri}/runs/k/validate/attempt-1/quarantine/quarantine.parquet" in message
    assert written(store) == [
        "attempt-1/quarantine/MANIFEST.json",
        "attempt-1/quarantine/quarantine.parquet",
        "attempt-1/report.json",
    ]
    report = ValidateOutcome.model_validate_json(store.read("runs/k/validate/attempt-1/report.json"))
    assert (report.rows, report.rows_clean, report.rows_quarantined) == ((), 75, 25)
    assert "quarantined share" in failed(report)
    assert len(quarantined(store, report)) == 25
    assert [(each.reason, each.values["row_id"]) for each in report.samples] == [
        *(("item is null", f"r{number:04d}") for number in (75, 76, 77)),
        *(("query is empty", f"r{number:04d}") for number in (95, 96, 97)),
    ]


def test_a_share_of_exactly_the_limit_is_allowed(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [*rows(80), *rows(20, start=80, item=None)])
    assert validate.judge(job(store)).rows_quarantined == 20


DRIFTS = ["label drift", "query length drift", "item length drift"]


def test_similar_rows_do_not_drift(store: DirectoryStore, tmp_path: Path):
    history = validated(store, tmp_path, rows(390))
    write_span(store, tmp_path, MARCH, rows(195, start=390))
    outcome = validate.judge(job(store, history=[history]))
    assert failed(outcome) == []
    for name in DRIFTS:
        observed = check(outcome, name).observed
        assert observed is not None
        assert observed < 0.05


def test_small_spans_do_not_warn_about_chance(store: DirectoryStore, tmp_path: Path):
    # 60 and 60 rows of one distribution: the index is above 0.25, as for most such pairs
    lengths = random.Random(4)
    varied = [row(number, query="q" * (20 + int(lengths.expovariate(0.01)))) for number in range(120)]
    write_span(store, tmp_path, MARCH, varied[60:])
    outcome = validate.judge(job(store, history=[validated(store, tmp_path, varied[:60])]))
    found = check(outcome, "query length drift")
    assert found.observed is not None
    assert found.observed > 0.25
    assert found.passed
    assert "0.25, and 0.300" in found.sentence


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"label": 4.0}, "label drift"),
        ({"label": None}, "label drift"),
        ({"label": 9.0}, "label drift"),
        ({"query": "q" * 80}, "query length drift"),
        ({"item": "Lamp No. 0001 " + "y" * 40}, "item length drift"),
    ],
)
def test_drift_is_a_warning(store: DirectoryStore, tmp_path: Path, changes: dict[str, Any], name: str):
    history = validated(store, tmp_path, rows(390))
    write_span(store, tmp_path, MARCH, [*rows(95, start=390), *rows(100, start=485, **changes)])
    no_signs = [f"validate.signs.{sign}={{warn: null, stop: null}}" for sign in ("one_query", "one_item")]
    no_signs.append("validate.items.alike={warn: null, stop: null}")
    outcome = validate.judge(job(store, history=[history], overrides=no_signs))
    assert failed(outcome) == [name]
    found = check(outcome, name)
    assert found.severity == "warning"
    assert found.observed is not None
    assert found.observed > 0.25 + 0.07
    assert "195 rows against 390" in found.sentence
    assert f"index {found.observed:.3f}" in found.sentence
    lenient = ["validate.drift.limit=99", *no_signs]
    assert failed(validate.judge(job(store, history=[history], overrides=lenient))) == []


@pytest.mark.parametrize(("before", "now"), [(0, 195), (49, 195), (390, 49)])
def test_drift_is_not_judged_on_few_rows(store: DirectoryStore, tmp_path: Path, before: int, now: int):
    history = [validated(store, tmp_path, rows(before))] if before else []
    write_span(store, tmp_path, MARCH, rows(now, start=390, label=4.0))
    outcome = validate.judge(job(store, history=history))
    for name in DRIFTS:
        found = check(outcome, name)
        assert (found.passed, found.observed) == (True, None)
        assert f"{before} earlier rows" in found.sentence


def test_the_newest_rows_of_a_long_history_count(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old = validated(store, tmp_path, rows(60, label=0.0), "2026-01")
    new = validated(store, tmp_path, rows(65, start=60), "2026-02")
    old, new = with_held(store, load_config(), old, new)
    write_span(store, tmp_path, MARCH, rows(65, start=125))
    assert "against 125 earlier" in check(validate.judge(job(store, history=[old, new])), "label drift").sentence
    monkeypatch.setattr(window, "HISTORY_ROWS", 65)
    assert "against 65 earlier" in check(validate.judge(job(store, history=[old, new])), "label drift").sentence


def test_bad_rows_do_not_count_as_drift(store: DirectoryStore, tmp_path: Path):
    history = validated(store, tmp_path, rows(390))
    write_span(store, tmp_path, MARCH, [*rows(195, start=390), *rows(40, start=585, query="")])
    assert failed(validate.judge(job(store, history=[history]))) == ["query length"]


def test_earlier_rows_that_are_corrupt_are_named(store: DirectoryStore, tmp_path: Path):
    history = validated(store, tmp_path, rows(60))
    store.write(f"{history.prefix}/part-00000.parquet", b"something else")
    write_span(store, tmp_path, MARCH, rows(40))
    with pytest.raises(CorruptFolder, match=r"span 2026-02: .*match"):
        validate.judge(job(store, history=[history]))


def test_the_same_spans_give_the_same_bytes(tmp_path: Path):
    manifests = []
    for place in ("one", "two"):
        store = DirectoryStore(tmp_path / place / "workspace")
        write_span(store, tmp_path / place, MARCH, [*rows(60), row(60, item=None)])
        outcome = validate.judge(job(store))
        folders = (outcome.rows[0].prefix, "runs/k/validate/attempt-1/quarantine")
        manifests.append([*(read_manifest(store, folder).sha256 for folder in folders), outcome.to_json()])
    assert manifests[0] == manifests[1]


def test_repeating_an_attempt_changes_nothing(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [*rows(60), row(60, item=None)])
    assert validate.judge(job(store)) == validate.judge(job(store))


def test_another_attempt_gives_its_rows_and_its_catalogue_the_same_names(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [*rows(60), row(60, item=None)])
    first, again = (validate.judge(job(store, attempt=attempt)) for attempt in (1, 2))
    assert (first.rows, first.catalogue) == (again.rows, again.catalogue)
    damaged = store.path(first.rows[0].prefix) / "part-00000.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert validate.judge(job(store, attempt=3)).rows == first.rows
    assert pa.concat_tables(read_rows(store, first.rows, ["price"])).num_rows == 60


def test_the_worker_command_validates_without_torch(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [*rows(60), row(60, item=None)])
    store.write("spec.json", job(store).spec.to_json())
    blocked = """
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "prefect"):
            raise ImportError(f"{name} is not for this stage")

sys.meta_path.insert(0, Wall())
from tasks.worker.__main__ import main
sys.exit(main())
"""
    command = [sys.executable, "-c", blocked, "validate", "--spec", f"{store.uri}#spec.json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(store.read("runs/k/validate/result.json"))
    assert result["outcome"]["reasons"] == {"item is null": 1}


def test_a_span_judged_in_pieces_is_judged_the_same(store: DirectoryStore, tmp_path: Path, monkeypatch):
    """Ids repeat within a piece, between pieces, after a bad row, and between spans."""
    march = [row(n, row_id=f"r{n % 17}", price=-1.0 if n in (3, 21) else 2.0) for n in range(60)]
    april = [row(n, row_id=f"r{n}") for n in range(12, 70)]
    write_span(store, tmp_path, MARCH, march)
    write_span(store, tmp_path, APRIL, april)
    found = []
    for pieces, files in ((50_000, 1), (25, 3)):
        monkeypatch.setattr(row_checks, "JUDGED_ROWS", pieces)
        monkeypatch.setattr(clean_rows, "ROWS_A_FILE", pieces)
        worked = job(store, [MARCH, APRIL], overrides=["validate.max_bad_share=1", "validate.numeric_min=0"])
        outcome = validate.judge(worked)
        clean = pa.concat_tables(read_rows(store, outcome.rows, ["price", "brand", "locale"]))
        assert len(read_manifest(store, outcome.rows[1].prefix).files) == files
        named_by_their_bytes = {"rows": (), "catalogue": None, "positives": None}
        found.append((clean.to_pylist(), quarantined(store, outcome), outcome.model_copy(update=named_by_their_bytes)))
        store.delete("runs")
        store.delete("catalogue")
    assert found[0] == found[1]
    assert found[0][2].reasons["row_id repeats an earlier row of the span"] == 41
    assert found[0][2].reasons["row_id is in an earlier span of the window"] == 5
    assert "r3" in [one["row_id"] for one in found[0][0]], "the first r3 is bad, so the second stays"
