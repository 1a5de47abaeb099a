import datetime as dt

import pytest

from configs.operations_schema import LinksConfig
from flows.pages.links import page, place
from tasks import invocations
from tasks.contracts import RunPlan
from tasks.plan import plan_run
from tests.support.fake_runner import small_config
from tests.support.pages import blocks, told
from tests.support.stages import carry_out

BUCKET = "s3://bucket/some/prefix"


def what(text: str) -> dict[str, str]:
    return told(text, "what")


def with_links(plan: RunPlan, reports: str | None, tensorboard: str | None) -> RunPlan:
    links = LinksConfig(reports=reports, tensorboard=tensorboard)
    return plan.model_copy(update={"config": plan.config.model_copy(update={"links": links})})


def test_the_page_says_what_is_run_and_from_where(store, runner):
    carry_out(plan_run(store, small_config()))
    plan = plan_run(store, small_config())
    page_says = what(page(plan, invocations.begin(store, plan)))
    assert page_says["run key"] == plan.run_key
    assert page_says["workspace"] == store.uri
    assert page_says["this run's files"] == f"{store.uri}/runs/{plan.run_key}"
    assert page_says["trains on"] == "2026-W47 v1"
    assert page_says["starts from"] == f"{store.uri}/lineages/main/step-00000010, step 10"
    assert page_says["trained before"] == "1 span, the last 2026-W46"
    assert page_says["scheduled"] == "by hand"


def test_a_first_run_starts_from_nothing(store):
    plan = plan_run(store, small_config(), "2026-W47")
    page_says = what(page(plan, invocations.begin(store, plan)))
    assert page_says["trains on"] == "2026-W46 v1, 2026-W47 v1"
    assert (page_says["starts from"], page_says["trained before"]) == ("nothing: it begins the lineage", "nothing")


def test_times_are_in_utc_and_the_expected_end_counts_from_the_begin(store):
    plan = plan_run(store, small_config())
    one = invocations.begin(store, plan, scheduled_at="2026-11-23T06:00:00+01:00", expected_seconds=5400)
    page_says = what(page(plan, one))
    assert page_says["scheduled"] == "2026-11-23 05:00:00 UTC"
    assert page_says["late after"] == "2026-11-24 05:00:00 UTC"
    end = dt.datetime.fromisoformat(one.began_at) + dt.timedelta(seconds=5400)
    assert page_says["expected to end"] == f"{end:%Y-%m-%d %H:%M:%S} UTC"
    unknown = what(page(plan, invocations.begin(store, plan)))
    assert unknown["expected to end"] == "not known: no run like it is on record"


def test_configured_addresses_are_links(store):
    plan = with_links(plan_run(store, small_config()), "https://reports.example/", "https://board.example")
    text = page(plan, invocations.begin(store, plan))
    assert f"[report of the run](https://reports.example/runs/{plan.run_key}/report.html)" in text
    assert "[TensorBoard](https://board.example)" in text
    assert not any(block.startswith("tensorboard") for block in blocks(text))


def test_without_addresses_there_are_paths_and_commands(store):
    plan = with_links(plan_run(store, small_config()), None, None)
    text = page(plan, invocations.begin(store, plan))
    assert what(text)["report"] == f"{store.uri}/runs/{plan.run_key}/report.html"
    assert blocks(text) == [
        f"millrace report --run {plan.run_key} --workspace {store.uri}\n",
        f"tensorboard --logdir {store.uri}/runs/{plan.run_key}/train\n",
    ]


@pytest.mark.parametrize(
    ("workspace", "key", "address"),
    [
        (BUCKET, "", "buckets/bucket?prefix=some/prefix/"),
        (BUCKET, "runs/4f2a", "buckets/bucket?prefix=some/prefix/runs/4f2a/"),
        (BUCKET, "releases/3.json", "object/bucket?prefix=some/prefix/releases/3.json"),
        ("s3://bucket", "", "buckets/bucket?prefix="),
        ("s3://bucket", "runs/a b", "buckets/bucket?prefix=runs/a%20b/"),
    ],
)
def test_what_lies_in_a_bucket_is_a_link_to_the_console(workspace: str, key: str, address: str):
    assert place(workspace, key).endswith(f"](https://s3.console.aws.amazon.com/s3/{address})")
    assert place(workspace, key).startswith("[s3://bucket")


def test_what_lies_in_a_directory_is_a_path():
    assert place("/data/work space", "runs/4f2a") == "`/data/work space/runs/4f2a`"
