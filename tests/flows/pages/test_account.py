import pytest

from flows.pages.account import checks_table, dollars, foot
from tasks import ledger
from tasks.contracts import Check, Stage
from tasks.errors import HostError, OutOfMemoryError
from tasks.findings import Findings, findings_key
from tasks.plan import plan_run
from tests.support.fake_runner import PHASES, small_config
from tests.support.pages import table_of, tables
from tests.support.stages import carry_out

HOSTILE = "worker 3 | <b>died</b>\nof `SIGKILL` \\ *at* once"
PRICE = "cost.dollars_per_worker_hour=3600"  # a dollar a second


def check(name: str, passed: bool, severity: str = "critical", host: str = "", action: str = "proceed") -> Check:
    return Check.model_validate(
        {"name": name, "passed": passed, "severity": severity, "observed": None, "sentence": f"of {name}"}
        | {"host": host, "action": action}
    )


def page(store, plan, stage: Stage, **places: str) -> str:
    return "\n".join(foot(store, plan, stage, places))


def test_every_attempt_has_its_seconds_and_dollars_and_a_sum(store, runner):
    plan = plan_run(store, small_config(PRICE))
    runner.fail(Stage.health, HostError(HOSTILE))
    with pytest.raises(HostError):
        carry_out(plan)
    carry_out(plan)
    columns, first, second, whole = table_of(page(store, plan, Stage.health), "cost")
    assert columns[:2] == ["attempt", "ended as"]
    assert columns[2:] == ["booting", "compiling", "restoring", "productive", "lost", "seconds", "cost"]
    assert first == ["1", "HOST", "1.0", "0.5", "0.2", "0.0", "8.0", "9.8", "$9.75"]
    assert second == ["2", "done", "1.0", "0.5", "0.2", "8.0", "0.0", "9.8", "$9.75"]
    assert whole == ["all", "", "2.0", "1.0", "0.5", "8.0", "8.0", "19.5", "$19.50"]
    assert sum(record.wall_seconds for record in ledger.of_stage(store, plan.run_key, Stage.health)) == pytest.approx(
        2 * (PHASES.booting + PHASES.compiling + PHASES.restoring + PHASES.productive)
    )


def test_attempts_that_failed_are_told_with_class_and_message_as_it_is(store, runner):
    plan = plan_run(store, small_config())
    for error in (HostError(HOSTILE), OutOfMemoryError("no memory")):
        runner.fail(Stage.train, error)
        with pytest.raises(type(error)):
            carry_out(plan)
    carry_out(plan)
    (_, first, second) = table_of(page(store, plan, Stage.train), "class")
    assert first[:2] == ["1", "HOST"]
    assert "worker 3 | <b>died</b> of `SIGKILL` \\ *at* once" in first[2]
    assert "the machine or a worker process was lost" in first[2]
    assert second[:2] == ["2", "OOM"]


def test_a_stage_that_did_not_fail_says_nothing_of_failures(store, runner):
    plan = plan_run(store, small_config())
    carry_out(plan)
    text = page(store, plan, Stage.train)
    assert "Failed attempts" not in text
    assert len(table_of(text, "cost")) == 2  # no sum of one


def test_what_health_found_of_machines_it_refused_is_told(store, runner):
    plan = plan_run(store, small_config())
    runner.fail(Stage.health, HostError("refused"))
    with pytest.raises(HostError):
        carry_out(plan)
    found = Findings(checks=(check("disk", True), check("matmul", False, host="h-7", action="exclude host")))
    store.write(findings_key(f"runs/{plan.run_key}/health/attempt-1"), found.to_json())
    assert table_of(page(store, plan, Stage.health), "host")[1:] == [
        ["matmul", "h-7", "FAILED", "of matmul [exclude host: h-7]"],
        ["disk", "all", "passed", "of disk"],
    ]


def test_everything_says_where_it_lies(store, runner):
    plan = plan_run(store, small_config())
    where = table_of(page(store, plan, Stage.infer, vectors="vectors/m-1/2026-W46"), "where")
    assert where[1:] == [
        ["files of infer", f"{store.uri}/runs/{plan.run_key}/infer"],
        ["vectors", f"{store.uri}/vectors/m-1/2026-W46"],
    ]


def test_checks_that_failed_come_first_and_hosts_are_named_where_there_are_any():
    checks = (check("a", True), check("b", False, "warning"), check("c", False))
    (table,) = tables("\n".join(checks_table(checks)))
    assert table == [
        ["check", "", "what was found"],
        ["c", "FAILED", "of c"],
        ["b", "warning", "of b"],
        ["a", "passed", "of a"],
    ]


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "$0.00"), (0.0036, "$0.0036"), (0.1, "$0.10"), (12.345, "$12.35"), (1234.5, "$1234.50")]
)
def test_small_sums_are_seen(value: float, said: str):
    assert dollars(value) == said
