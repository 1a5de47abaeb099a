"""Answers of commands to the letter, in the terminal and as Markdown; and Markdown of a real workspace."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import pytest

from flows.cli.doctor import doctor_page
from flows.cli.dry_run import DryRunOutput, dry_run_page
from flows.cli.releases import HoldOutput, hold_page
from flows.cli.terminal import console
from flows.cli.upkeep import HostLine, HostsOutput, hosts_page
from flows.presentation.model import Parts
from infra.store.directory import DirectoryStore
from tasks.contracts.runs import Hold
from tasks.doctor.checks import Finding
from tasks.doctor.examine import DoctorReport
from tests.support.fakes.fake_runner import ingest
from tests.support.pages.shown import tables
from tests.support.processes.command import Command, call
from tests.support.workspace.adding import add

WHY = f"[why] :smile: {'a long reason ' * 20}end"  # rich takes brackets for markup, and the word for a picture


class Case(NamedTuple):
    parts: Parts
    terminal: str
    markdown: str


CASES = {
    "lines and a command": Case(
        tuple(hold_page(HoldOutput(held=True, hold=Hold(by="ana", at="2026-11-20T08:30:00Z", reason=WHY), waiting=()))),
        f"Releases are held since 2026-11-20 08:30 UTC by ana: {WHY}.\n"
        "Runs end as Held and keep their models; refreshes end at once. Lift it with:\n"
        "  millrace hold --off\n",
        f"Releases are held since 2026-11-20 08:30 UTC by ana: {WHY}.\n\n".replace("[why]", "\\[why\\]")
        + "Runs end as Held and keep their models; refreshes end at once. Lift it with:\n\n"
        "```\nmillrace hold --off\n```\n",
    ),
    "a line and a table": Case(
        tuple(
            hosts_page(
                HostsOutput(
                    forgiven="i_b",
                    hosts=(
                        HostLine(
                            host="i-a",
                            state="excluded",
                            until="2026-11-21T08:30:00+00:00",
                            reason="ECC [x]",
                            run_key="k",
                            strikes=(),
                        ),
                    ),
                )
            )
        ),
        "forgiven: i_b\n"
        "host  state     strikes  until             run  why    \n"
        "i-a   excluded        0  2026-11-21 08:30  k    ECC [x]\n",
        "forgiven: i\\_b\n\n"
        "| host | state | strikes | until | run | why |\n"
        "| --- | --- | ---: | --- | --- | --- |\n"
        "| i-a | excluded | 0 | 2026-11-21 08:30 | k | ECC \\[x\\] |\n",
    ),
    "signs": Case(
        tuple(
            doctor_page(
                DoctorReport.of(
                    (
                        Finding(name="disk", outcome="ok", found="9 GiB free", mend=""),
                        Finding(name="server", outcome="FAIL", found="none [here]", mend="millrace up"),
                    )
                )
            )
        ),
        "ok    disk    9 GiB free\nFAIL  server  none [here]\n              -> millrace up\n1 of 2 checks failed\n",
        "ok disk 9 GiB free\n\n**FAIL** server none \\[here\\]\n\n-&gt; millrace up\n\n1 of 2 checks failed\n",
    ),
    "a file": Case(
        tuple(
            dry_run_page(
                DryRunOutput(config={"a": {"b": 1}}, plan=None, enough=None, cost=None, sentence="Nothing to do."),
                with_settings=True,
            )
        ),
        "a:\n  b: 1\n# Nothing to do.\n",
        "```\na:\n  b: 1\n# Nothing to do.\n```\n",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_answer_is_printed_as_it_was_written_in_both_forms(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    console.show(case.parts)
    assert capsys.readouterr().out == case.terminal
    console.show_markdown(case.parts)
    assert capsys.readouterr().out == case.markdown


@pytest.fixture
def millrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2026-01")
    add(store, "a", "2026-01")
    add(store, "b", "2026-02")
    monkeypatch.setenv("MILLRACE_WORKSPACE", store.uri)
    return functools.partial(call, capsys)


def test_markdown_has_the_tables_of_the_terminal(millrace: Command) -> None:
    shown = millrace("releases", "--markdown")
    assert shown.code == 0, shown.err
    ((columns, *rows),) = tables(shown.out)
    assert columns[:5] == ["release", "", "span", "made at", "model"]
    assert [row[:3] for row in rows] == [["1", "", "2026-01"], ["2", "current", "2026-02"]]


def test_markdown_and_json_exclude_each_other(millrace: Command) -> None:
    both = millrace("releases", "--markdown", "--json")
    assert (both.code, both.out) == (78, "")
    assert "give --json or --markdown, not both" in both.err
