import pytest

from tasks.foundation.errors import FailureClass
from tasks.foundation.neuron_errors import COMPILER_ERRORS, STATUSES, classify_log, needs_another_machine
from tests.support.fakes.neuron.neuron_tools import sample

COMPLETED = "ERROR  NMGR:dlr_infer      Inference completed with err: {code}. mode->h_nn=1001, lnc=0"
CLASSES = {
    FailureClass.HOST: (1202, 1201, 1203, 1205, 1206, 1004, 6, 101, 9, 1005),
    FailureClass.HANG: (1200, 5),
    FailureClass.OOM: (4, 11),
    FailureClass.CONFIG: (1204, 1003, 10),
    FailureClass.CODE: (2, 3, 1002, 1006),
}
BY_CODE = [(code, failure) for failure, codes in CLASSES.items() for code in codes]


def test_every_status_has_a_class_here():
    assert sorted(code for code, _ in BY_CODE) == sorted(STATUSES)


@pytest.mark.shows("codes")
@pytest.mark.parametrize(("code", "failure"), BY_CODE)
def test_a_status_is_read_by_number_and_by_name(code, failure):
    for line in (COMPLETED.format(code=code), f"ERROR NRT:nrt_infodump Failure: NRT_{STATUSES[code].name} in nrt_load"):
        found = classify_log(f"step 12\n{line}\nstep 13")
        assert found is not None
        assert found[0] == failure
        assert STATUSES[code].meaning in found[1]


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("nrt_execute failed with 1202", True),
        ("NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR", True),
        ("nrt_execute failed with 1206", False),  # the network's, perhaps for a moment
        ("nrt_execute failed with 5\nnrt_execute failed with 1202", True),
        ("[NCC_EVRF009] does not fit\nnrt_execute failed with 1202", False),  # the compiler's word comes first
        ("", False),
    ],
)
def test_broken_hardware_needs_another_machine(text, needed):
    assert needs_another_machine(text) is needed


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("RuntimeError: Could not load the model status=4 message=Allocation Failure", 4),
        ("ERROR NMGR:kmgr_load_nn Failed to load NN: /tmp/a/model.neff, err: 4", 4),
        ("nrt_execute failed with 1006", 1006),
        ("nrt_execute_repeat status_code=5", 5),
        ("NRT error code: 101", 101),
        ("ERROR   NRT:nrt_allocate_neuron_cores  NeuronCore(s) not available - Requested:nc1-nc1 Available:0", 1005),
        ("Logical Neuron Core(s) not available - Requested:4 Available:3", 1005),
    ],
)
def test_each_form_of_a_status_is_read(line, code):
    found = classify_log(line)
    assert found is not None
    assert found[1].startswith(f"NRT status {code} ")


@pytest.mark.parametrize(
    ("name", "failure", "words"),
    [
        ("runtime-parity-error.log", FailureClass.HOST, "NRT status 1202"),
        ("runtime-timeout.log", FailureClass.HANG, "NRT status 5"),
        ("runtime-dmesg.log", FailureClass.HOST, "hardware error SRAM_UNCORRECTABLE_ERROR"),
    ],
)
def test_the_most_specific_line_is_the_cause(name, failure, words):
    found = classify_log(sample(name))
    assert found is not None
    assert found[0] == failure
    assert words in found[1]


@pytest.mark.shows("codes")
@pytest.mark.parametrize(
    ("text", "failure", "words"),
    [
        ("ERROR: [NCC_EVRF009] the graph does not fit", FailureClass.COMPILE, "NCC_EVRF009: a graph needs more memory"),
        ("[NCC_EVRF061] AllReduce of s64", FailureClass.COMPILE, "integers what the device computes in floating point"),
        ("[NCC_ITEN404] assertion", FailureClass.COMPILE, "NCC_ITEN404: the compiler failed"),
        ("INTERNAL: RunNeuronCCImpl: error condition error != 0: exit status 70", FailureClass.COMPILE, "neuronx-cc"),
        ("RunNeuronCCImpl: Command died with <Signals.SIGKILL: 9>.", FailureClass.OOM, "compiler.parallel_jobs"),
        ("[F137] neuronx-cc was forcibly killed", FailureClass.OOM, "compiler.parallel_jobs"),
        ("neuronx-cc failed with 1\nnrt_execute status_code=5", FailureClass.COMPILE, "neuronx-cc failed"),
    ],
)
def test_what_the_compiler_says_is_the_cause_of_what_follows(text, failure, words):
    found = classify_log(text)
    assert found is not None
    assert found[0] == failure
    assert words in found[1]


def test_no_code_of_the_compiler_has_two_meanings():
    codes = [code for error in COMPILER_ERRORS for code in error.codes]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[NCC_WDRV001] a warning",
        "Compiler status PASS",
        "Timeout waiting for RX (waited 120 sec) - retrying",
        "step 1202 loss 5",
        "worker exited with error: 5",
        "http status: 4",
        "nrt_init status=0",
        "NRT:nrt_execute queued 1202 requests",
        "NEURON_RT_EXEC_TIMEOUT=5",
        "NRT_SUCCESS",
    ],
)
def test_other_text_has_no_cause(text):
    assert classify_log(text) is None
