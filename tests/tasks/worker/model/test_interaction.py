import numpy as np
import pytest
import torch

from tasks.worker.model.interaction import Interaction

KINDS = ["explicit", "implicit", "both"]


def make(kind: str, text_width: int = 4, output_width: int = 4, trained: bool = True) -> Interaction:
    torch.manual_seed(0)
    layer = Interaction(text_width, 2, [3, 5], kind, 2, [8, 6], 3, output_width)
    if trained:
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return layer


def inputs(rows: int = 6, text_width: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    text = torch.randn(rows, text_width, generator=random)
    numeric = torch.randn(rows, 2, generator=random)
    return text, numeric, torch.stack([torch.arange(rows) % 3, torch.arange(rows) % 5], dim=1)


def papers_formula(layer: Interaction, kind: str) -> np.ndarray:
    """The paper's formulas in numpy."""
    text, numeric, categorical = (tensor.numpy() for tensor in inputs())
    weights = {name: value.numpy() for name, value in layer.state_dict().items()}
    tables = [weights[f"tables.{column}.weight"][categorical[:, column]] for column in range(2)]
    start = np.concatenate([text, numeric, *tables], axis=1)
    parts = []
    if kind in ("explicit", "both"):
        crossed = start
        for number in range(2):
            product = crossed @ weights[f"crosses.{number}.weight"].T + weights[f"crosses.{number}.bias"]
            crossed = start * product + crossed
        parts.append(crossed)
    if kind in ("implicit", "both"):
        deep = start
        for number in (0, 2):
            deep = np.maximum(0, deep @ weights[f"deep.{number}.weight"].T + weights[f"deep.{number}.bias"])
        parts.append(deep)
    return text + np.concatenate(parts, axis=1) @ weights["out.weight"].T + weights["out.bias"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_forward_pass_follows_the_papers_formula(kind: str):
    layer = make(kind)
    with torch.no_grad():
        assert layer(*inputs()).numpy() == pytest.approx(papers_formula(layer, kind), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_interaction_changes_nothing(kind: str):
    text, numeric, categorical = inputs()
    assert torch.equal(make(kind, trained=False)(text, numeric, categorical), text)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns_and_the_width_may_differ(kind: str):
    layer = make(kind, text_width=4, output_width=7)
    out = layer(*inputs())
    assert out.shape == (6, 7)
    out.square().sum().backward()
    without = [name for name, parameter in layer.named_parameters() if parameter.grad is None]
    assert not without


def test_features_change_the_vector():
    layer = make("both")
    text, numeric, categorical = inputs()
    vectors = layer(text, numeric, categorical)
    assert not torch.allclose(vectors, layer(text, numeric + 1, categorical))
    assert not torch.allclose(vectors, layer(text, numeric, (categorical + 1) % 3))
