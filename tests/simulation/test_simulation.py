"""The promises of the protocol over interleavings of real commands; docs/simulation.md."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.planes.source import ROOT

INTERLEAVINGS = 3000  # about 40 seconds of one processor
HOURS = 200  # of a year, with a run and eight prunes: about five seconds


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    """Play in a process of its own: the clock, the stores and the order of sets are simulated there."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def test_no_interleaving_breaks_a_promise():
    done = simulate("--interleavings", f"{INTERLEAVINGS}")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


def test_hours_that_follow_one_another_break_no_promise():
    done = simulate("year", "--hours", f"{HOURS}")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


def test_a_seed_plays_the_same_turns_again():
    """Of a planted fault: the seed that a failure prints finds it again, turn by turn."""
    found = simulate("--mutant", "the announcement forgets the others")
    assert found.returncode == 1, found.stdout + found.stderr
    again = found.stdout.rpartition("again: ")[2].split("tests.simulation ")[1].split(" --mutant")[0].split()
    repeated = simulate(*again, "--mutant", "the announcement forgets the others")
    assert repeated.returncode == 1
    assert repeated.stdout.splitlines()[1:] == found.stdout.splitlines()[1:]


def test_the_mutants_are_faults_of_the_present_code():
    """A mutant whose piece of source is gone would find nothing."""
    from tests.simulation.mutants import MUTANTS, planted

    for name in MUTANTS:
        with planted(name):
            pass


@pytest.mark.proof
def test_each_mutant_is_found():
    from tests.simulation.mutants import MUTANTS

    # Most take seconds; the rarest took 8,300 interleavings, which is minutes on a busy machine.
    missed = [
        name for name in MUTANTS if simulate("--mutant", name, "--seconds", "600", "--processes", "1").returncode != 1
    ]
    assert missed == []
