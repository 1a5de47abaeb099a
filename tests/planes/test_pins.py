"""Who installs without constraints.txt must not get a version that constraints.txt calls fatal."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from tests.planes.source import ROOT

FATAL = re.compile(r"(?P<name>[\w.-]+)==(?P<pin>\S+)  # below (?P<limit>[\d.]+): \S")


def _limits_of_the_pins() -> dict[NormalizedName, str]:
    chosen, _ = (ROOT / "constraints.txt").read_text().split("\n\n", maxsplit=1)
    found = [FATAL.match(line) for line in chosen.splitlines() if "# below" in line]
    return {canonicalize_name(each["name"]): each["limit"] for each in found if each}


def _limits_of_the_project() -> dict[NormalizedName, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    parsed = map(Requirement, lines)
    return {
        canonicalize_name(each.name): bound.version
        for each in parsed
        for bound in each.specifier
        if bound.operator == "<"
    }


def test_the_project_has_the_upper_bounds_of_the_pins_that_name_one() -> None:
    limits = _limits_of_the_pins()
    assert {"fastapi", "sqlalchemy", "prefect"} <= limits.keys()
    assert _limits_of_the_project() == limits


def test_no_pin_is_at_or_over_its_own_bound() -> None:
    lines = [
        Requirement(line.partition("#")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    ]
    pins = {canonicalize_name(each.name): next(iter(each.specifier)).version for each in lines}
    for name, limit in _limits_of_the_pins().items():
        assert Requirement(f"{name}<{limit}").specifier.contains(pins[name])
