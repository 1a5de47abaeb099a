"""No row is ever on both sides of one lineage, whatever is ingested: real spans, real plans, real validation."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec, ValidateInputs
from tasks.contracts.references import HoldoutRule
from tasks.contracts.runs import RunPlan
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.holdout import read_sides, unseen
from tasks.data.ingest import IngestOptions, ingest
from tasks.data.mapping import parse_map
from tasks.data.new_versions import Known
from tasks.data.rows import normal_text
from tasks.foundation.errors import ConfigError
from tasks.planning.next_run import plan_run
from tasks.runs import lineage
from tasks.runs.plan import save_plan
from tasks.worker import validate
from tasks.worker.process.job import Job, PhaseClock, Rank
from tasks.worker.rows.holdout import HeldSpan
from tests.support.fakes.fake_runner import write_checkpoint
from tests.support.workspace.jobs import COLOURS, THINGS, tiny_config
from tests.support.workspace.states import checkpoint_state

# Some of these queries have numbers alone in common with texts.
QUICK = ("evaluate.holdout_share=0.3", "validate.max_bad_share=1.0", "validate.signs.misplaced.stop=null")


def sale(number: int, month: int = 1, **changes: Any) -> dict[str, Any]:
    colour, thing = COLOURS[number % len(COLOURS)], THINGS[number % len(THINGS)]
    query = f"order {number}: please, a {colour} {thing} for my {('mother', 'boss', 'cat')[number % 3]}"
    row = {"at": f"2026-{month:02d}-05T00:{number // 60:02d}:{number % 60:02d}Z", "q": query, "t": f"{colour} {thing}"}
    return row | {"stars": number % 5} | changes


class Pipeline:
    """Spans ingested and validated in one lineage; checkpoints without weights stand for its trainings."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder, self.config = folder, tiny_config(*QUICK, *overrides)
        self.store = DirectoryStore(folder / "workspace")

    def take_in(self, rows: list[dict[str, Any]]) -> None:
        source = self.folder / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        mapping = parse_map("query=q,item=t,label=stars")
        replace = IngestOptions(known=Known.replace)
        ingest(self.store, source, Format.jsonl, "at", SpanKind.month, mapping, options=replace)

    def run(self, *overrides: str) -> RunPlan:
        """Plan the next span, validate it, and write the checkpoint of its training."""
        plan = plan_run(self.store, self.config if not overrides else tiny_config(*QUICK, *overrides))
        save_plan(self.store, plan)
        inputs = ValidateInputs(window=plan.window, history=plan.history, feeds=(), bases=(), catalogue=False)
        outcome = validate.judge(Job(spec_of(plan, inputs), self.store, Rank(0, 1, 0), PhaseClock(0.0)))
        step = (plan.parent.step if plan.parent else 0) + 10
        state = checkpoint_state(
            step,
            lineage=plan.config.lineage,
            run_key=plan.run_key,
            consumed=(*plan.history, *outcome.rows),
            parent=plan.parent,
            holdout=HoldoutRule.of(plan.config.evaluate, (*plan.history, *outcome.rows)),
        )
        write_checkpoint(self.store, state)
        return plan

    def sides(self, config: Config | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """All rows that the lineage was trained on, and its whole holdout."""
        config = config or self.config
        head = lineage.head(self.store, config.lineage)
        assert head is not None
        rule = HoldoutRule.of(config.evaluate, head[1].consumed)
        found = list(read_sides(self.store, head[1].consumed, rule, []))
        return (
            [row for sides in found for row in sides.training.to_pylist()],
            [row for sides in found for row in sides.held.to_pylist()],
        )


def spec_of(plan: RunPlan, inputs: ValidateInputs) -> JobSpec:
    return JobSpec(
        run_key=plan.run_key,
        span=plan.span,
        attempt=1,
        submitted_as=1,
        workspace=plan.workspace,
        workers=1,
        config=plan.config,
        inputs=inputs,
    )


def texts(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(normal_text(row["query"]), normal_text(row["item"])) for row in rows}


def ids(rows: list[dict[str, Any]]) -> set[str]:
    return {row["row_id"] for row in rows}


@pytest.mark.parametrize("group", ["query_and_item", "row_id"])
def test_the_same_texts_in_two_spans_are_on_one_side(tmp_path: Path, group: str) -> None:
    pipeline = Pipeline(tmp_path, f"evaluate.group={group}")
    pipeline.take_in([sale(number) for number in range(150)])
    pipeline.take_in([sale(number, month=2, q=sale(number)["q"].upper()) for number in range(50, 200)])
    pipeline.run()
    pipeline.run()
    training, held = pipeline.sides()
    assert min(len(texts(training)), len(texts(held))) > 20
    assert not texts(training) & texts(held)


def test_a_corrected_row_stays_on_its_side(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.take_in([sale(number) for number in range(150)])
    pipeline.run()
    training, held = pipeline.sides()
    pipeline.take_in([sale(number, stars=5 - number % 5, checked=True) for number in range(150)])
    again = Pipeline(tmp_path, "lineage=again")
    again.run()
    corrected_training, corrected_held = again.sides()
    assert {row["label"] for row in corrected_held} == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert (ids(corrected_training), ids(corrected_held)) == (ids(training), ids(held))


def test_a_row_that_comes_again_in_a_later_span_is_not_on_the_other_side(tmp_path: Path) -> None:
    """As when the clock of a source was wrong, and the texts were tidied: time, and so id, and words are others."""
    pipeline = Pipeline(tmp_path)
    pipeline.take_in([sale(number) for number in range(150)])
    pipeline.run()
    pipeline.take_in([sale(number, month=2, q=f"{sale(number)['q']}!!") for number in range(150)])
    pipeline.run()
    training, held = pipeline.sides()
    numbers = [{int(row["query"].split()[1].strip(":")) for row in side} for side in (training, held)]
    assert len(numbers[0]) + len(numbers[1]) == 150
    assert not numbers[0] & numbers[1]


def test_another_share_puts_no_row_on_both_sides(tmp_path: Path) -> None:
    """Most rows of each month come again in the next ones, so a group that changes sides would be found."""
    pipeline, trained, measured = Pipeline(tmp_path), set(), set()
    for month, share in enumerate((0.1, 0.2, 0.05, 0.3), start=1):
        pipeline.take_in([sale(number, month) for number in range(100 * month, 100 * month + 400)])
        plan = pipeline.run(f"evaluate.holdout_share={share}")
        head = lineage.head(pipeline.store, plan.config.lineage)
        assert head is not None
        consumed = head[1].consumed
        assert [ref.share for ref in consumed] == [0.1, 0.2, 0.05, 0.3][:month]
        rule = HoldoutRule.of(plan.config.evaluate, consumed)
        of_run = read_sides(pipeline.store, consumed[-1:], rule, [])
        now = texts([row for sides in of_run for row in sides.training.to_pylist()])
        spans = [HeldSpan(pipeline.store, ref, rule.measured) for ref in consumed]
        held = texts([row for span in spans for row in span.rows([], span.count()).to_pylist()])
        assert min(len(now), len(held)) > 10
        trained |= now
        assert not trained & held, f"rows measured in run {month} were trained on"
        assert not measured & now, f"rows trained on in run {month} were measured before"
        measured |= held


def test_no_text_of_an_unseen_query_is_ever_trained_on(tmp_path: Path) -> None:
    """Twelve queries with many items each, in several spellings, spans, versions and shares."""
    pipeline, trained, alone = Pipeline(tmp_path), set(), set()

    def month_of(month: int, again: str = "") -> list[dict[str, Any]]:
        said = ("  {}", "{}", "\u200a{} ")[month % 3]
        rows = [sale(number, month) for number in range(60 * month, 60 * month + 240)]
        return [
            row | {"q": said.format(f"Order {at % 40}"), "t": f"{row['t']} {at}{again}"} for at, row in enumerate(rows)
        ]

    for month, share in enumerate((0.3, 0.4), start=1):
        pipeline.take_in(month_of(month))
        pipeline.run(f"evaluate.holdout_share={share}")
    pipeline.take_in(month_of(3))
    plan = pipeline.run("evaluate.holdout_share=0.2")
    pipeline.take_in(month_of(2, "!"))
    again = Pipeline(tmp_path, "lineage=again")
    for _ in range(3):
        again.run()
    for each, config in ((pipeline, plan.config), (again, again.config)):
        head = lineage.head(pipeline.store, config.lineage)
        assert head is not None
        rule = HoldoutRule.of(config.evaluate, head[1].consumed)
        for sides in read_sides(pipeline.store, head[1].consumed, rule, []):
            texts_held = sides.held.filter(pa.array(unseen(sides.held, rule)))["query"].to_pylist()
            alone |= set(map(normal_text, texts_held))
        training, held = each.sides(config)
        trained |= {normal_text(row["query"]) for row in training}
        assert alone
        assert not alone & trained
        assert {normal_text(row["query"]) for row in held} & trained, "the other half holds out rows of known queries"


def test_another_group_is_for_another_lineage(tmp_path: Path) -> None:
    change = "evaluate.group=row_id"
    pipeline = Pipeline(tmp_path)
    pipeline.take_in([sale(number) for number in range(150)])
    pipeline.run()
    pipeline.take_in([sale(number, month=2) for number in range(200, 300)])
    with pytest.raises(ConfigError, match=r"--set lineage=NAME"):
        pipeline.run(change)
    plan = pipeline.run(change, "lineage=other")
    assert plan.parent is None
    training, held = pipeline.sides(plan.config)
    assert not texts(training) & texts(held)
    pipeline.run()
    training, held = pipeline.sides()
    assert not texts(training) & texts(held)
