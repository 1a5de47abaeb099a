"""Parts of the slow proofs: none is left out, none is too long, and a time limit is no failure."""

from __future__ import annotations

from pathlib import Path

from tests.nightly import ran
from tests.nightly.__main__ import run
from tests.nightly.units import PART_MINUTES, ROOT, Unit, parts, units

MINUTE = 60.0


def test_each_file_with_proofs_is_in_one_part_and_no_part_is_too_long() -> None:
    dealt = parts(units(), {})
    names = [unit.name for part in dealt for unit in part]
    assert sorted(names) == sorted({unit.name for unit in units()})
    assert "tests/pipeline/test_pipeline_in_two_places.py" in names
    assert all(sum(unit.minutes for unit in part) <= PART_MINUTES for part in dealt)
    assert [unit.name for unit in parts(units(), {"fuzz": 99.0})[0]] == ["fuzz"], "alone, since it is cut"


def test_programs_are_there() -> None:
    for unit in units():
        module = unit.arguments[1] if unit.arguments[0] == "-m" else ""
        if module != "pytest":
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), unit.name


def test_a_limit_is_no_failure_and_a_failure_is() -> None:
    well = Unit("well", ("-c", "print('fine'); print()"))
    wrong = Unit("wrong", ("-c", "raise SystemExit('it does not hold')"))
    long = Unit("long", ("-c", "import time; print('so far', flush=True); time.sleep(600)"))
    never = Unit("never", ("-c", "raise SystemExit(1)"))
    found = run([well, wrong], 5) | run([long, never], 3 / MINUTE)
    assert {name: (each.result, each.said) for name, each in found.items()} == {
        "well": ("passed", "fine"), "wrong": ("failed", "it does not hold"), "long": ("cut", "so far")
    }  # fmt: skip


def test_what_ran_is_kept(tmp_path: Path) -> None:
    found = run([Unit("well", ("-c", "print('1 passed')"))], 1)
    ran.write(found, tmp_path / "ran.json")
    assert ran.read(tmp_path / "ran.json") == found
