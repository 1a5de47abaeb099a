"""Failure class and remedy for the codes of the Neuron runtime and compiler.

The exit status of a process for a code is not documented, so codes are searched in the text of errors and logs.
Sources are paths of github.com/aws-neuron/aws-neuron-sdk, release 2.32.
"""

import re
from typing import NamedTuple

from tasks.foundation.errors import FailureClass


class Status(NamedTuple):
    """One status of the runtime, its remedy and the document that defines it; `name` is without NRT_."""

    name: str
    failure: FailureClass
    meaning: str
    action: str
    source: str = "neuron-runtime/nrt-troubleshoot.rst"


class CompilerError(NamedTuple):
    """Compiler errors with the same meaning; `codes` are without NCC_. The class is always COMPILE."""

    codes: tuple[str, ...]
    meaning: str
    action: str
    source: str = "compiler/error-codes/index.rst"


_HEADER = "src/libnrt/include/nrt/nrt_status.h"


_REPLACE = "replace this machine"
_REPORT = "report it, with this log and the graph's folder of the compile cache"
# The first status in this table that a log contains is the cause: specific causes first, consequences last.
STATUSES: dict[int, Status] = {
    1202: Status("EXEC_HW_ERR_NC_UE", FailureClass.HOST, "a parity error in the SRAM of a NeuronCore", _REPLACE),
    1201: Status("EXEC_HW_ERR_HBM_UE", FailureClass.HOST, "an uncorrectable error in device memory", _REPLACE),
    1203: Status("EXEC_HW_ERR_DMA_ABORT", FailureClass.HOST, "a DMA engine gave up", _REPLACE),
    1205: Status(
        "EXEC_HW_ERR_REPAIRABLE_HBM_UE",
        FailureClass.HOST,
        "an uncorrectable but repairable error in device memory",
        "reload the driver or reboot, then try again",
    ),
    1004: Status("EXEC_COMPLETED_WITH_ERR", FailureClass.HOST, "an execution failed in hardware", _REPLACE),
    6: Status("HW_ERROR", FailureClass.HOST, "the hardware failed", _REPLACE, _HEADER),
    1206: Status(
        "NETWORK_PROXY_FAILURE",
        FailureClass.HOST,
        "the EFA network proxy failed",
        "try again; if it comes back, replace the machine, whose network card may be broken",
    ),
    1204: Status(
        "EXEC_SW_NQ_OVERFLOW",
        FailureClass.CONFIG,
        "the notification queue overflowed",
        "set NEURON_RT_ENABLE_DGE_NOTIFICATIONS=0",
    ),
    4: Status("RESOURCE", FailureClass.OOM, "device memory ran out", "lower train.batch_rows or infer.batch_sequences"),
    1003: Status(
        "EXEC_COMPLETED_WITH_NUM_ERR",
        FailureClass.CONFIG,
        "an execution made a NaN",
        "look at the losses before it; lower train.learning_rate, or try train.precision=fp32",
    ),
    1006: Status(
        "EXEC_OOB",
        FailureClass.CODE,
        "an index was out of bounds",
        "look for a token or category number beyond its embedding table",
    ),
    1002: Status("EXEC_BAD_INPUT", FailureClass.CODE, "a graph was given input that it was not compiled for", _REPORT),
    10: Status(
        "UNSUPPORTED_NEFF_VERSION",
        FailureClass.CONFIG,
        "a graph was compiled for another runtime",
        "use compiler, runtime and driver of one SDK release",
    ),
    9: Status(
        "LOAD_NOT_ENOUGH_NC",
        FailureClass.HOST,
        "there are not enough free NeuronCores",
        "stop the processes that neuron-ls lists; `rmmod neuron; modprobe neuron` frees cores without an owner",
    ),
    1005: Status(
        "EXEC_NC_BUSY",
        FailureClass.HOST,
        "a NeuronCore is held by another process",
        "stop the processes that neuron-ls lists",
    ),
    11: Status(
        "FAIL_HOST_MEM_ALLOC",
        FailureClass.OOM,
        "the memory of the machine ran out, not that of the device",
        "use fewer workers on the machine, or give the job definition more memory",
        _HEADER,
    ),
    2: Status("INVALID", FailureClass.CODE, "a compiled graph or its input is invalid", _REPORT),
    3: Status(
        "INVALID_HANDLE", FailureClass.CODE, "the runtime was given a handle that it does not know", _REPORT, _HEADER
    ),
    1200: Status(
        "EXEC_HW_ERR_COLLECTIVES",
        FailureClass.HANG,
        "a collective got stuck, mostly by the fault of another worker",
        "look at the logs of the others, replace the faulty machine, and continue from the checkpoint",
    ),
    5: Status(
        "TIMEOUT",
        FailureClass.HANG,
        "an execution did not end in time",
        "replace the machine, unless compiler.exec_timeout_seconds is lower than the longest step",
    ),
    101: Status(
        "EXEC_UNIT_UNRECOVERABLE",
        FailureClass.HOST,
        "a NeuronCore takes no work after an earlier error",
        "start the process again; if that does not help, reload the driver",
    ),
}
_MORE_CHUNKS = "lower train.batch_rows, or raise train.gradcache_chunks, or lower infer.batch_sequences"
_OURS = f"the model or its graph uses what this device can't do; {_REPORT}"
COMPILER_ERRORS: tuple[CompilerError, ...] = (
    CompilerError(
        ("EOOM001", "EOOM002", "EVRF009", "EXSP001"), "a graph needs more memory than the device has", _MORE_CHUNKS
    ),
    CompilerError(
        ("EBVF030", "EVRF007", "EXTP004"),
        "a graph has more instructions than the compiler takes",
        f"{_MORE_CHUNKS}, or train a smaller encoder",
    ),
    CompilerError(
        ("EARG001",), "the compiler was given an argument that the target does not have", "correct compiler.target"
    ),
    CompilerError(("EVRF031", "EVRF056"), "a graph reads or writes beyond the end of a table", _OURS),
    CompilerError(("EMOD025",), "a graph has a shape that is not known before it runs", _OURS),
    CompilerError(("ESFH002", "EVRF062"), "a graph holds 64-bit integers", _OURS),
    CompilerError(
        ("EVRF013", "EVRF016", "EVRF035", "EVRF060", "EVRF061", "EVRF063"),
        "a graph computes with integers what the device computes in floating point only",
        _OURS,
    ),
    CompilerError(("ESPP004", "ESPP047", "EVRF004", "EVRF005", "EVRF022"), "a graph has a type that is unknown", _OURS),
    CompilerError(("EHCA005", "EUOC002", "EVRF001", "EVRF006", "EVRF015"), "a graph has an unknown operation", _OURS),
    CompilerError(("EVRF064",), "a graph breaks the rules of XLA", _OURS),
)
_BY_COMPILER_CODE = {code: error for error in COMPILER_ERRORS for code in error.codes}
_BY_NAME = {status.name: code for code, status in STATUSES.items()}

_NAME = re.compile(r"\bNRT_([A-Z_]+)\b")
# `Inference completed with err: 1006`, `status=4 message=...`, `status_code=5`, `error code: 101`, `failed with 5`
_NUMBER = re.compile(r"\b(?:err(?:or)?|status)(?:[_ ]code)?\s*[:=]\s*(\d+)\b|\bfailed with (?:status )?(\d+)\b", re.I)
_RUNTIME = re.compile(r"\bnrt(?:\b|_)|\b(?:NMGR|TDRV|KMGR):|could not load the model", re.I)  # a line of the runtime
_DRIVER = re.compile(r"NEURON_HW_ERR=(\S+)")
_BUSY = re.compile(r"Neuron ?Core\(s\) not available", re.I)
# E: the program's fault, I: the compiler's own; W is a warning
_COMPILER_CODE = re.compile(r"\bNCC_([EI][A-Z]{2,3}\d{3})\b")
# F137, or SIGKILL in the words of Python's subprocess: the kernel ended the compiler to get its memory back.
_COMPILER_KILLED = re.compile(r"\[F137\]|neuron(?:x-cc|CC)[^\n]*(?:SIGKILL|forcibly killed)", re.I)
_COMPILER_FAILED = re.compile(
    r"\bRunNeuronCCImpl\b|\bneuronx-cc failed with\b|\[F134\]|\bneuronx-cc compilation failed"
)


def classify_log(text: str) -> tuple[FailureClass, str] | None:
    """Return class and sentence of the failure that a log of runtime, compiler or kernel names; None if it names none.

    Endless retries of the runtime, such as `Timeout waiting for RX`, are not failures.
    """
    if found := _DRIVER.search(text):
        return FailureClass.HOST, f"the Neuron driver reports the hardware error {found[1]}; {_REPLACE}"
    return _classify_compiler(text) or _classify_runtime(text)


def needs_another_machine(text: str) -> bool:
    """Return True if a log names broken hardware, which no retry on the same machine fixes."""
    if _DRIVER.search(text):
        return True
    found = None if _classify_compiler(text) else _cause(text)
    return found is not None and STATUSES[found].action == _REPLACE


def _classify_compiler(text: str) -> tuple[FailureClass, str] | None:
    if found := _COMPILER_CODE.search(text):
        known = _BY_COMPILER_CODE.get(found[1])
        meaning, action = (known.meaning, known.action) if known else ("the compiler failed", _REPORT)
        return FailureClass.COMPILE, f"compiler error NCC_{found[1]}: {meaning}; {action}"
    if _COMPILER_KILLED.search(text):
        return FailureClass.OOM, (
            "the compiler was killed, as when the memory of the machine runs out; lower compiler.parallel_jobs, or "
            "give the job definition more memory"
        )
    if _COMPILER_FAILED.search(text):
        return FailureClass.COMPILE, f"neuronx-cc failed; {_REPORT}"
    return None


def _classify_runtime(text: str) -> tuple[FailureClass, str] | None:
    code = _cause(text)
    if code is None:
        return None
    status = STATUSES[code]
    return status.failure, f"NRT status {code} ({status.name}): {status.meaning}; {status.action}"


def _cause(text: str) -> int | None:
    codes = {code for line in text.splitlines() for code in _codes(line)}
    return next((code for code in STATUSES if code in codes), None)


def _codes(line: str) -> set[int]:
    codes = {_BY_NAME[name] for name in _NAME.findall(line) if name in _BY_NAME}
    if _BUSY.search(line):
        codes.add(1005)
    if _RUNTIME.search(line):
        codes |= {int(first or second) for first, second in _NUMBER.findall(line)}
    return codes
