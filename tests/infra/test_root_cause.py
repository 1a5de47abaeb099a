"""The cause of a process that died without an error of its own, read from its log."""

import pytest

from infra.root_cause import LINES, SIGNS, LogTail, death_without_record
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import CodeError, CompileError, HangError, HostError, OutOfMemoryError
from tests.support.fakes.stand_ins import health_spec


@pytest.mark.parametrize(
    ("code", "line", "kind", "words"),
    [
        (-6, "nrt_load: could not load the model status=4", OutOfMemoryError, "device memory ran out"),
        (-6, "ERROR NMGR:dlr_infer Inference completed with err: 1006", CodeError, "an index was out of bounds"),
        (134, "NRT error code: 1202", HostError, "a parity error"),
        (1, "INTERNAL: RunNeuronCCImpl: error condition error != 0", CompileError, "neuronx-cc failed"),
        (71, "nrt_load: could not load the model status=4", HangError, "exited with 71; last lines"),
        (-9, "step 12", HostError, "was killed by SIGKILL; last lines"),
    ],
)
def test_a_death_without_words_has_the_class_that_its_log_names(tmp_path, code, line, kind, words):
    error = death_without_record(health_spec(DirectoryStore(tmp_path), 2), 1, code, ["step 11", line])
    assert type(error) is kind
    assert words in str(error)
    assert str(error).endswith(f"last lines:\nstep 11\n{line}")


def test_the_first_lines_that_name_a_cause_survive_those_of_thirty_dying_workers():
    tail = LogTail()
    lines = ["NRT error code: 1202", *(f"noise {number}" for number in range(100)), "NRT error code: 5", "bye"]
    for line in lines:
        tail.append(line)
    assert tail.lines == (lines[0], *lines[-LINES:])
    for _ in range(100):
        tail.append("NRT error code: 5")
    assert len(tail.lines) == SIGNS + LINES
