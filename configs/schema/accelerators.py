"""The accelerators: the one list of their names. How each works is in tasks/worker/devices/."""

from typing import Literal, get_args

AcceleratorName = Literal["cpu", "cuda", "xla", "neuron"]
ACCELERATORS: tuple[AcceleratorName, ...] = get_args(AcceleratorName)
