from flows.pages.health import page
from tasks.contracts import Check, HealthOutcome
from tasks.plan import plan_run
from tests.support.fake_runner import small_config
from tests.support.pages import table_of, tables

ALONE = HealthOutcome(
    device="cpu",
    matmul_gflops=(843.195,),
    slowest_to_median=1.0,
    free_memory_gib=(22.321,),
    free_disk_gib=70.25,
    collectives={},
    checks=(),
)


def test_every_worker_has_its_speed_and_memory(store):
    several = ALONE.model_copy(update={"matmul_gflops": (843.2, 451.0), "free_memory_gib": (22.3, 1.0)})
    text = page(store, plan_run(store, small_config()), several.model_copy(update={"slowest_to_median": 1.43}))
    assert table_of(text, "rank")[1:] == [["0", "843.2", "22.3"], ["1", "451.0", "1.0"]]
    assert "2 workers on cpu, with 70.2 GiB of disk free at least. The slowest takes 1.43 times the median." in text


def test_a_worker_alone_is_compared_with_none(store):
    text = page(store, plan_run(store, small_config()), ALONE)
    assert "1 worker on cpu, with 70.2 GiB of disk free at least.\n" in text
    assert "Between the workers" not in text
    assert "Checks" not in text


def test_bandwidths_and_latencies_have_their_units(store):
    measured = {"all_reduce_latency_us": 41.2, "all_gather_gb_s": 9.876, "reduce_scatter_bus_gb_s": 20.0}
    text = page(store, plan_run(store, small_config()), ALONE.model_copy(update={"collectives": measured}))
    assert table_of(text, "measured")[1:] == [
        ["all reduce latency", "41.20", "µs"],
        ["all gather", "9.88", "GB/s"],
        ["reduce scatter bus", "20.00", "GB/s"],
    ]


def test_a_warning_of_one_machine_is_in_the_title_and_names_it(store):
    check = Check.model_validate(
        {"name": "speed", "passed": False, "severity": "warning", "observed": 1.9, "sentence": "1.9 times slower"}
        | {"host": "ip-10-0-1-8", "action": "exclude host"}
    )
    text = page(store, plan_run(store, small_config()), ALONE.model_copy(update={"checks": (check,)}))
    assert text.startswith("# Healthy, with 1 warning\n")
    assert "\n## Checks\n" in text
    assert tables(text)[0][1] == ["speed", "ip-10-0-1-8", "warning", "1.9 times slower [exclude host: ip-10-0-1-8]"]
