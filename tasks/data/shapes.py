"""What turns the vectors of a text's tokens into the text's vector, apart from features: saved with every model."""

from typing import Literal

from configs.schema.model import Pooling, Prompts
from tasks.foundation.records import Record

Activation = Literal["identity", "tanh", "relu", "gelu", "sigmoid"]


class DenseShape(Record):
    """A linear layer over the pooled vector, (texts, inputs) -> (texts, outputs), and the function after it."""

    inputs: int
    outputs: int
    bias: bool
    activation: Activation


class TextShape(Record):
    """How a text's vector is made: prompt, pooling, then the dense layers in their order."""

    pooling: Pooling
    dense: tuple[DenseShape, ...] = ()  # models of earlier versions have none
    prompts: Prompts = Prompts()

    def text_width(self, encoder_width: int) -> int:
        """Return the width of a text's vector, on an encoder of `encoder_width`."""
        return self.dense[-1].outputs if self.dense else encoder_width
