"""Writes that replace whatever is there: each is of a kind of file whose row says why the last writer may win.

All other writes create, swap or settle, so that nobody's record is lost without a word.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tasks.contracts import workspace
from tasks.contracts.kinds import Kind

ROOT = Path(__file__).resolve().parents[2]
STORES = ("store", "_store")
KINDS = {name for name, value in vars(workspace).items() if isinstance(value, Kind)}
# Where the key is made elsewhere.
ELSEWHERE = {
    ("tasks/worker/evaluation/rows_and_items.py", "_write"): ("CORPUS", "KNOWN_PAIRS", "RIGHT_ITEMS"),
    ("tasks/worker/checks/nodes.py", "exchange"): ("OWN_FINDINGS",),
    ("tasks/worker/checks/nodes.py", "write_findings"): ("OWN_FINDINGS",),
    ("tasks/worker/training/compile_cache.py", "_write_manifest"): ("COMPILED",),
    ("tasks/worker/launch/__main__.py", "write_ending"): ("ENDING", "ENDING_OF_ONE"),
    ("tasks/runs/lineage.py", "prune_checkpoint"): ("PRUNED_CHECKPOINT",),
    ("tasks/prune/prune.py", "_delete"): ("PRUNED_CATALOGUE", "PRUNED_VECTORS"),
    ("tasks/laboratory/bakeoff_sides.py", "save_report"): ("BAKEOFF", "BAKEOFF_PAGE"),
    ("tasks/laboratory/parity_report.py", "save_report"): ("PARITY", "PARITY_PLOT"),
    ("flows/report.py", "write_pages"): ("HISTORY", "LINEAGES_PAGE"),
}


def unconditional() -> Iterator[tuple[str, str, set[str]]]:
    """Yield the file, the function and the named kinds of each call of `Store.write`."""
    for top in ("flows", "infra", "tasks"):
        for path in sorted((ROOT / top).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if place.startswith("infra/store/"):
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
            for function in functions:
                for call in ast.walk(function):
                    if isinstance(call, ast.Call) and _writes(call):
                        names = {each.id for each in ast.walk(call.args[0]) if isinstance(each, ast.Name)}
                        assigned = (each for each in ast.walk(function) if isinstance(each, ast.Assign))
                        for each in assigned:
                            targets = {n.id for t in each.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
                            if targets & names:
                                names |= {n.id for n in ast.walk(each.value) if isinstance(n, ast.Name)}
                        yield place, function.name, names & KINDS


def _writes(call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "write" or len(call.args) != 2:
        return False
    receiver = function.value
    return (isinstance(receiver, ast.Name) and receiver.id in STORES) or (
        isinstance(receiver, ast.Attribute) and receiver.attr in STORES
    )


def test_the_row_of_each_file_that_is_replaced_says_why_the_last_writer_may_win():
    found = list(unconditional())
    assert len(found) > 20, "the search finds the writes"
    used = set[str]()
    for place, function, names in found:
        kinds = names or set(ELSEWHERE.get((place, function), ()))
        assert kinds, f"{place}, {function}: create, swap or settle it, or name its kind of file in ELSEWHERE"
        for name in kinds:
            assert getattr(workspace, name).last_writer, (
                f"{place}, {function} replaces {name}: create, swap or settle it (infra/store/records.py, "
                "infra/store/records.py), or say in its row of tasks/contracts/workspace.py why the last writer may win"
            )
        used |= kinds
    told = {name for name in KINDS if getattr(workspace, name).last_writer}
    assert told == used, "no row gives a reason that nothing needs"
    assert {each[:2] for each in found} >= set(ELSEWHERE)
