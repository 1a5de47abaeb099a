from flows.pages.validate import page
from tasks.contracts import Check
from tasks.plan import plan_run
from tests.support.fake_runner import small_config
from tests.support.pages import table_of
from tests.support.stages import carry_out

HOSTILE = "category is `x` | <script>alert(1)</script>\n# oh"


def test_rows_are_counted_and_reasons_come_by_how_many_they_are(store, runner):
    plan = plan_run(store, small_config())
    outcome = carry_out(plan).validated.model_copy(
        update={
            "rows_in": 2040, "rows_clean": 1977, "rows_quarantined": 63, "reasons": {"item is null": 16, HOSTILE: 47},
            "quarantine": "runs/x/quarantine.parquet",
        }
    )  # fmt: skip
    text = page(store, plan, outcome)
    assert text.startswith("# 1,977 of 2,040 rows are clean\n\n1 of 1 checks warn.")
    assert table_of(text, "rows in")[1] == ["2,040", "1,977", "63", "3.09%"]
    assert table_of(text, "reason")[1:] == [[" ".join(HOSTILE.split()), "47"], ["item is null", "16"]]
    assert table_of(text, "check")[1] == ["drift", "warning", "labels drifted by 0.3"]
    assert ["rows set apart", f"{store.uri}/runs/x/quarantine.parquet"] in table_of(text, "where")


def test_several_spans_are_told_apart(store, runner):
    plan = plan_run(store, small_config(), "2026-W47")
    text = page(store, plan, carry_out(plan).validated)
    assert table_of(text, "span")[1:] == [["2026-W46 v1", "40"], ["2026-W47 v1", "40"]]
    assert "Why rows were set apart" not in text


def test_all_passed(store, runner):
    plan = plan_run(store, small_config())
    fine = Check(name="types", passed=True, severity="critical", observed=None, sentence="fine")
    text = page(store, plan, carry_out(plan).validated.model_copy(update={"checks": (fine, fine)}))
    assert "All 2 checks passed." in text
