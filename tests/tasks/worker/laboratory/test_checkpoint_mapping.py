"""A model's weights found in another program's file, by their names and shapes."""

import pytest

from tasks.worker.laboratory.import_checkpoint import Shape, match_names

# A small BERT as Hugging Face names it, without any head.
BARE: dict[str, Shape] = {
    "embeddings.word_embeddings.weight": (400, 32),
    "embeddings.LayerNorm.weight": (32,),
    "encoder.layer.0.attention.self.query.weight": (32, 32),
    "encoder.layer.1.attention.self.query.weight": (32, 32),
    "pooler.dense.weight": (32, 32),
}
HEADS: dict[str, Shape] = {
    "interaction.cross.0.weight": (40, 40),
    "interaction.cross.1.weight": (40, 40),
    "classifier.weight": (2, 96),
    "classifier.bias": (2,),
}
ENCODER = {f"encoder.{name}": shape for name, shape in BARE.items()}
OURS = ENCODER | HEADS


def prefixed(prefix: str, names: dict[str, Shape]) -> dict[str, Shape]:
    return {prefix + name: shape for name, shape in names.items()}


@pytest.mark.parametrize(
    "prefix", ["", "bert.", "encoder.", "0.auto_model.", "_orig_mod.module.0.auto_model.", "model.model.encoder."]
)
def test_an_encoder_is_found_behind_any_prefix(prefix: str):
    match = match_names(prefixed(prefix, BARE), OURS)
    assert match.mapped == {f"encoder.{name}": f"{prefix}{name}" for name in BARE}
    assert (match.ignored, match.missing) == ((), tuple(HEADS))


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_our_own_names_are_found_with_the_heads(prefix: str):
    match = match_names(prefixed(prefix, OURS), OURS)
    assert match.mapped == {name: prefix + name for name in OURS}
    assert (match.ignored, match.missing) == ((), ())


def test_what_the_model_does_not_use_is_left_out():
    unused = {"cls.bias": (400,), "bert.embeddings.position_ids": (1, 64), "bert.pooler.other.weight": (32, 32)}
    theirs = {name: shape for name, shape in prefixed("bert.", BARE).items() if "pooler" not in name}
    match = match_names(theirs | unused, OURS)
    assert match.ignored == tuple(unused)
    assert match.missing == ("encoder.pooler.dense.weight", *HEADS)


def test_a_head_is_imported_whole_or_not_at_all():
    assert match_names({**ENCODER, "classifier.weight": (2, 96), "classifier.bias": (2,)}, OURS)
    assert match_names({**ENCODER, "span_head.weight": (2, 96)}, OURS).ignored == ("span_head.weight",)


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({**ENCODER, "interaction.cross.0.weight": (40, 40)}, "file does not (1): interaction.cross.1.weight"),
        ({**OURS, "interaction.cross.2.weight": (40, 40)}, "model does not (1): interaction.cross.2.weight"),
        (
            prefixed("bert.", {name: shape for name, shape in BARE.items() if "layer.1" not in name}),
            "4 tensors fit, but not all that must:\n  the model has these, the file does not (1): "
            "encoder.encoder.layer.1.attention.self.query.weight",
        ),
        (
            prefixed("bert.", {**BARE, "encoder.layer.2.attention.self.query.weight": (32, 32)}),
            "the model does not (1): bert.encoder.layer.2.",
        ),
        (
            {**BARE, "embeddings.word_embeddings.weight": (30522, 384), "embeddings.LayerNorm.weight": ()},
            "(2): embeddings.word_embeddings.weight is 30522 x 384 in the file, 400 x 32 in the model, "
            "embeddings.LayerNorm.weight is a single number in the file, 32 in the model",
        ),
        ({**ENCODER, **prefixed("ema.", ENCODER)}, "more than once: encoder.embeddings.word_embeddings.weight, ema."),
        ({f"conv{number}.weight": (3, 3) for number in range(14)}, "it has conv0.weight, "),
        ({f"conv{number}.weight": (3, 3) for number in range(14)}, "conv9.weight and 4 more."),
    ],
)  # fmt: skip
def test_another_model_is_refused_with_a_list(theirs: dict[str, Shape], message: str):
    with pytest.raises(ValueError, match="file") as raised:
        match_names(theirs, OURS)
    assert message in str(raised.value)
