import math
import threading

import pytest

from tasks.contracts.outcomes import Check
from tasks.foundation.errors import HangError
from tasks.worker.checks.exchange import AllFindings, WorkerFindings, exchange


def check(name: str) -> Check:
    return Check(name=name, passed=True, severity="critical", observed=None, sentence=name)


def part(index: int) -> WorkerFindings:
    return WorkerFindings(host=f"host-{index}", numbers={"seconds": float(index)}, checks=(check(f"of {index}"),))


def judge(parts) -> list[Check]:
    return [each for one in parts for each in one.checks]


def test_all_workers_get_the_same_findings_and_only_the_first_judges(store):
    judged, wholes = [], {}

    def judging(index):
        def judge_once(parts):
            judged.append(index)
            return judge(parts)

        return judge_once

    def take_part(index):
        wholes[index] = exchange(store, "findings", index, 3, part(index), judging(index))

    threads = [threading.Thread(target=take_part, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert judged == [0]
    assert wholes[0] == wholes[1] == wholes[2]
    assert wholes[0] == AllFindings(
        hosts=("host-0", "host-1", "host-2"),
        numbers=({"seconds": 0.0}, {"seconds": 1.0}, {"seconds": 2.0}),
        checks=(check("of 0"), check("of 1"), check("of 2")),
    )


def test_the_first_worker_concludes_before_the_others_read_the_findings(store):
    seen = []

    def conclude(parts):
        seen.append(store.exists("findings/whole.json"))
        return judge(parts)

    store.write("findings/1.json", part(1).to_json())
    exchange(store, "findings", 0, 2, part(0), conclude)
    assert seen == [False]
    assert store.exists("findings/whole.json")


def test_a_single_worker_writes_nothing(store):
    assert exchange(store, "findings", 0, 1, part(0), judge).hosts == ("host-0",)
    assert store.list("findings") == []


def test_nan_survives(store):
    store.write("findings/1.json", part(1).model_copy(update={"numbers": {"seconds": math.nan}}).to_json())
    whole = exchange(store, "findings", 0, 2, part(0), judge)
    assert math.isnan(whole.numbers[1]["seconds"])


def test_a_missing_worker_is_named(store, monkeypatch):
    monkeypatch.setattr("tasks.worker.checks.exchange.WAIT_SECONDS", 0.05)
    store.write("findings/2.json", part(2).to_json())
    with pytest.raises(HangError, match=r"not written findings/1\.json, findings/3\.json in .* within 0\.05 s"):
        exchange(store, "findings", 0, 4, part(0), judge)
    with pytest.raises(HangError, match=r"first worker has not written .*/findings/whole\.json within"):
        exchange(store, "findings", 1, 4, part(1), judge)
