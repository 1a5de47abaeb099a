"""What torch-neuronx and the Neuron runtime do in a worker, as far as it can be done without NeuronCores.

The variables are set by torch-xla's own code for Neuron. A core belongs to one process of its machine. Graphs are
traced and lowered for real, compiled by a stand-in for neuronx-cc where the cache lacks them, and never executed: their
results are zeros, but for sums of data that was sent to the device, which are right.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FOLDER = "NEURON_STAND_IN"  # of the logs, and of the locks of all machines' cores
COMPILER = "neuronxcc-2.25.3371.0+f524f91d"
CORES = 32  # of a trn1.32xlarge
HLO, NEFF, DONE = "model.hlo_module.pb", "model.neff", "model.done"


def install() -> None:
    """Let torch-xla's processor device pass for a NeuronCore in this process."""
    import torch_xla  # finds libneuronxla, and sets what upstream sets for a worker of Neuron
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.metrics as metrics
    import torch_xla.runtime as xr

    xr._WORLD_SIZE = int(os.environ.get("NEURON_PJRT_WORLD_SIZE", "1"))
    xr._ORDINAL = int(os.environ.get("NEURON_PJRT_PROCESS_INDEX", "0"))
    library: Any = vars(torch_xla)["_XLAC"]  # private to torch-xla, as the graphs' text is
    core = _Core(library, xm, torch_xla.device)
    torch_xla.device = core.open
    library._xla_step_marker = core.run
    reduce = xm.all_reduce
    xm.all_reduce = lambda kind, inputs, *rest, **more: core.all_reduce(reduce, kind, inputs, *rest, **more)
    metrics.counter_value = lambda name: core.loaded if name == "UncachedCompile" else None
    metrics.metric_data = lambda name: (core.loaded, core.seconds * 1e9, ())
    gc.freeze()  # so that a graph's end looks through newer objects only


def host() -> str:
    """The machine that this process is on: containers know it by the address of its metadata."""
    return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "here").rstrip("/").rpartition("/")[2]


def note(log: str, **entry: Any) -> None:
    """Append an entry to a log of the stand-in."""
    line = json.dumps({"host": host(), "pid": os.getpid(), **entry})
    with Path(os.environ[FOLDER], f"{log}.jsonl").open("a") as file:
        file.write(f"{line}\n")


class _Core:
    """The cores of one process, once its device is open, and the graphs that it has met."""

    def __init__(self, library: Any, xm: Any, device: Any) -> None:
        self._library, self._xm, self._device = library, xm, device
        self._locks: list[int] = []
        self._known: set[str] = set()
        self._sums: dict[int, torch.Tensor] = {}
        self._group: Any = None
        self.loaded, self.seconds = 0, 0.0

    def open(self, *arguments: Any) -> torch.device:
        """The device. Raises RuntimeError, as the runtime does: another process has the core."""
        if not self._locks:
            visible = os.environ.get("NEURON_RT_VISIBLE_CORES", f"0-{CORES - 1}")
            self._locks = [self._take(core) for core in _numbers(visible)]
            note("cores", visible=visible, rank=os.environ.get("RANK", "0"), collects=_collecting())
        return self._device(*arguments)  # type: ignore[no-any-return]

    def run(self, *_: Any, **__: Any) -> None:
        """End the graph that was traced: in place of `torch_xla._XLAC._xla_step_marker`."""
        pending = [each for each in on_device(self._library) if self._is_pending(each)]
        if pending:
            self._load(self._library._get_xla_tensors_hlo(pending))
        for each in pending:
            result = self._sums.pop(self._library._xla_get_tensor_id(each), None)
            result = torch.zeros(each.shape, dtype=each.dtype) if result is None else result
            each.data = self._xm.send_cpu_data_to_device([result], each.device)[0]

    def all_reduce(self, reduce: Any, kind: str, inputs: Any, *rest: Any, **more: Any) -> Any:
        """Trace it, and remember the sum of what is known: numbers that were sent, not computed."""
        tensors = inputs if isinstance(inputs, list) else []
        known = [] if _collecting() else [each for each in tensors if not self._is_pending(each)]
        values = [each.cpu() for each in known]
        if known and self._group is None:
            self._group = dist.new_group(backend="gloo")
        for value in values:
            dist.all_reduce(value, group=self._group)
        answer = reduce(kind, inputs, *rest, **more)
        for each, value in zip(known, values, strict=True):
            self._sums[self._library._xla_get_tensor_id(each)] = value
        return answer

    def _is_pending(self, tensor: torch.Tensor) -> bool:
        return bool(self._library._check_tensor_need_materialization([tensor])[0])

    def _take(self, core: int) -> int:
        place = Path(os.environ[FOLDER], "cores", host())
        place.mkdir(parents=True, exist_ok=True)
        lock = os.open(place / str(core), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"nrt_init failed with NRT_RESOURCE: Logical Neuron Core(s) not available - Requested:{core}"
            ) from None
        return lock

    def _load(self, text: str) -> None:
        """Find the compiled graph, or have it compiled; where graphs are only collected, leave it for later."""
        flags = hashlib.sha256(os.environ.get("NEURON_CC_FLAGS", "").encode()).hexdigest()[:8]
        name = f"MODULE_{int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)}+{flags}"
        if name in self._known:
            return
        self._known.add(name)
        module = Path(os.environ["NEURON_COMPILE_CACHE_URL"], COMPILER, name)
        began = time.monotonic()
        if not (module / DONE).exists():
            module.mkdir(parents=True, exist_ok=True)
            staged = module / f"{HLO}.{os.getpid()}"
            staged.write_text(text)
            staged.replace(module / HLO)
            if _collecting():
                print(f"INFO ||NEURON_CC_WRAPPER||: Extracting graphs ({module / HLO}) for ahead-of-time compilation.")
                return
            compile_module(module, "while running")
        self.loaded += 1
        self.seconds += time.monotonic() - began


def compile_module(module: Path, when: str) -> None:
    """Run the compiler, unless another process has: a lock in the cache lets one at a time."""
    with (module / f"{HLO}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (module / DONE).exists():
            subprocess.run(["neuronx-cc", str(module), when], check=True)


def on_device(library: Any) -> list[torch.Tensor]:
    """All tensors on the device that anything holds, in the order of their making."""
    found = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):
            with contextlib.suppress(RuntimeError):  # a thread that feeds the device is just making it
                for tensor in (each, each.grad if each.is_leaf else None):
                    if tensor is not None and tensor.device.type == "xla":
                        found[library._xla_get_tensor_id(tensor)] = tensor
    return [found[number] for number in sorted(found)]


def _collecting() -> bool:
    return os.environ.get("NEURON_EXTRACT_GRAPHS_ONLY") == "1"


def _numbers(text: str) -> list[int]:
    """`0-2,5` as numbers."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [number for first, *last in ends for number in range(first, (last or [first])[0] + 1)]
