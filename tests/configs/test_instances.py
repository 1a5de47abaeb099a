"""The table of instance types: values derived from a row, and an answer to each row everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs import instances as table
from configs.instances import instances
from configs.load import load_config
from configs.prices import find_price, published
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError
from tasks.laboratory.machine_plan import Asked, place_for
from tests.docs import in_template

KINDS = list(instances())


@pytest.mark.parametrize("kind", KINDS)
def test_each_type_has_its_price_by_the_basis_that_it_names(kind: str):
    row = instances()[kind]
    regions = {each.region for each in published()}
    bases = {each.basis for each in published() if any(find_price(published(), kind, r, each.basis) for r in regions)}
    assert row.price in bases if row.price else not bases & {"on_demand", "capacity_block"}
    assert row.price != "on_demand" or row.capacity_block != "only"


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_for_each_type_has_its_workers_and_their_memory(kind: str):
    row, config = instances()[kind], load_config(None, ["compute=batch"])
    place = place_for(config, Stage.train, Asked(instance=kind, nodes=2))
    assert (place.instance, place.machines, place.workers) == (kind, 2, 2 * row.workers)
    assert table.machine_of(place.instance) is row
    assert row.worker_bytes * row.workers == row.memory_gib * 2**30


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_takes_its_machine_alone_and_leaves_room_for_the_host(kind: str):
    row = instances()[kind]
    assert row.vcpus / 2 < row.job_vcpus <= row.vcpus
    assert row.host_gib * 512 < row.job_mib < 0.93 * row.host_gib * 1024
    assert row.workers % row.devices == 0
    assert row.on_neuron == (row.sdk is not None)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if instances()[kind].on_neuron])
def test_the_limits_of_health_are_those_of_the_row(kind: str):
    assert load_config().health.machines[kind] == instances()[kind].limits


def test_a_new_type_is_one_row(monkeypatch: pytest.MonkeyPatch):
    """The template starts it and gives it its share, its interfaces and its market by this row alone."""
    row = instances()["trn2.48xlarge"].model_copy(update={"vcpus": 200, "job_vcpus": 150})
    monkeypatch.setattr(in_template, "instances", lambda: {**instances(), "trn9.48xlarge": row})
    made = in_template.page()
    assert "trn2.3xlarge, trn9.48xlarge]\n" in made
    assert '    trn9.48xlarge: {Vcpus: "150", MemoryMib: "1920000", SharedMib: "16384"}\n' in made
    assert '    trn9.48xlarge: {"1": "200", "2": "400", ' in made
    for condition in ("WideAccelerator", "BlockAccelerator"):
        (line,) = (each for each in made.splitlines() if each.startswith(f"  {condition}: "))
        assert "!Equals [!Ref AcceleratorType, trn9.48xlarge]" in line


def test_a_damaged_row_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    damaged = tmp_path / "instances.yaml"
    damaged.write_text(table.INSTANCES.read_text().replace("devices: 16", "devices: none", 1))
    monkeypatch.setattr(table, "INSTANCES", damaged)
    instances.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"instances\.yaml: trn1\.32xlarge\.devices"):
            instances()
    finally:
        instances.cache_clear()
        monkeypatch.undo()
