import pytest

from tasks.worker.export.checkpoint_mapping import Match, Shape, match_names, refusal

# A small BERT as Hugging Face names it, without any head.
BARE: dict[str, Shape] = {
    "embeddings.word_embeddings.weight": (400, 32),
    "embeddings.LayerNorm.weight": (32,),
    "embeddings.LayerNorm.bias": (32,),
    "encoder.layer.0.attention.self.query.weight": (32, 32),
    "encoder.layer.0.attention.self.query.bias": (32,),
    "encoder.layer.1.attention.self.query.weight": (32, 32),
    "encoder.layer.1.attention.self.query.bias": (32,),
    "pooler.dense.weight": (32, 32),
    "pooler.dense.bias": (32,),
}
HEADS: dict[str, Shape] = {
    "interaction.cross.0.weight": (40, 40),
    "interaction.cross.1.weight": (40, 40),
    "classifier.weight": (2, 96),
    "classifier.bias": (2,),
}
ENCODER = {f"encoder.{name}": shape for name, shape in BARE.items()}
OURS = ENCODER | HEADS
POOLER = tuple(name for name in ENCODER if "pooler" in name)


def prefixed(prefix: str, names: dict[str, Shape]) -> dict[str, Shape]:
    return {prefix + name: shape for name, shape in names.items()}


def without(names: dict[str, Shape], *gone: str) -> dict[str, Shape]:
    assert set(gone) <= set(names)
    return {name: shape for name, shape in names.items() if name not in gone}


def why(theirs: dict[str, Shape], ours: dict[str, Shape] = OURS) -> str:
    message = refusal(match_names(theirs, ours), ours)
    assert message is not None, "it was not refused"
    return message


# Names of Hugging Face, sentence-transformers, torch.compile, DDP and FSDP, and combinations of them.
PREFIXES = [
    "", "bert.", "roberta.", "distilbert.", "encoder.", "0.auto_model.", "0.model.", "auto_model.", "module.", "model.",
    "module.bert.", "_orig_mod.", "_orig_mod.module.0.auto_model.", "module._orig_mod.bert.",
    "_fsdp_wrapped_module.bert.", "model.model.encoder.", "model.0._checkpoint_wrapped_module.auto_model._orig_mod.",
]  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_encoder_is_found_under_every_prefix(prefix: str):
    match = match_names(prefixed(prefix, BARE), OURS)
    assert match.mapped == {f"encoder.{name}": f"{prefix}{name}" for name in BARE}
    assert match.missing == tuple(HEADS)
    assert (match.ignored, match.unexpected, match.wrong_shapes, match.doubled) == ((), (), (), ())
    assert refusal(match, OURS) is None


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_our_own_names_are_mapped_unchanged(prefix: str):
    match = match_names(prefixed(prefix, OURS), OURS)
    assert match.mapped == {name: prefix + name for name in OURS}
    assert match.missing == ()
    assert refusal(match, OURS) is None


def test_wrappers_inside_the_model_do_not_matter():
    name = "encoder.layer.0._fsdp_wrapped_module.attention._orig_mod.self.query.bias"
    assert match_names({name: (32,)}, OURS).mapped == {"encoder.encoder.layer.0.attention.self.query.bias": name}


def test_old_names_of_layer_norms_are_known():
    theirs = {"bert.embeddings.LayerNorm.gamma": (32,), "bert.embeddings.LayerNorm.beta": (32,)}
    assert match_names(theirs, OURS).mapped == {
        "encoder.embeddings.LayerNorm.weight": "bert.embeddings.LayerNorm.gamma",
        "encoder.embeddings.LayerNorm.bias": "bert.embeddings.LayerNorm.beta",
    }


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.position_ids",
        "bert.embeddings.position_ids",
        "module.0.auto_model.embeddings.token_type_ids",
        "cls.predictions.decoder.weight",
        "module.cls.seq_relationship.bias",
        "lm_head.dense.weight",
        "vocab_transform.weight",
        "roberta.pooler.other.weight",
    ],
)
def test_unused_tensors_are_ignored_by_name(name: str):
    match = match_names({**BARE, name: (1, 64)}, OURS)
    assert match.ignored == (name,)
    assert refusal(match, OURS) is None


def test_a_pooler_is_optional_and_used_if_it_fits():
    assert not set(POOLER) & set(match_names(BARE, OURS).missing)
    for theirs in (without(BARE, "pooler.dense.weight", "pooler.dense.bias"), BARE | {"pooler.dense.weight": (8, 8)}):
        match = match_names(theirs, OURS)
        assert "encoder.pooler.dense.weight" in match.missing
        assert refusal(match, OURS) is None
    ours = without(OURS, *POOLER)
    assert match_names(BARE, ours).ignored == ("pooler.dense.weight", "pooler.dense.bias")


def test_a_head_for_another_task_is_only_reported():
    match = match_names(BARE | {"qa_outputs.weight": (2, 32), "2.linear.weight": (8, 32)}, OURS)
    assert match.unexpected == ("qa_outputs.weight", "2.linear.weight")
    assert refusal(match, OURS) is None


def test_a_head_is_imported_complete_or_not_at_all():
    assert refusal(match_names({**BARE, "classifier.weight": (2, 96), "classifier.bias": (2,)}, OURS), OURS) is None
    message = why({**BARE, "interaction.cross.0.weight": (40, 40)})
    assert "the model has these, the file does not (1): interaction.cross.1.weight" in message
    assert "classifier" not in message
    more = {**BARE, **HEADS, "interaction.cross.2.weight": (40, 40)}
    assert "the model does not (1): interaction.cross.2.weight (nearest: " in why(more)


def test_the_order_of_the_file_does_not_change_the_match():
    theirs = prefixed("bert.", BARE) | {"cls.bias": (400,), "dropped.weight": (3,)}

    def parts(match: Match) -> tuple[object, ...]:
        return match.mapped, set(match.ignored), set(match.unexpected), match.missing

    assert parts(match_names(theirs, OURS)) == parts(match_names(dict(reversed(theirs.items())), OURS))


def test_an_incomplete_encoder_is_refused():
    message = why(without(BARE, "encoder.layer.1.attention.self.query.bias", "embeddings.word_embeddings.weight"))
    assert message.startswith("7 tensors fit")
    assert "the model has these, the file does not (2): encoder.embeddings.word_embeddings.weight, encoder." in message


@pytest.mark.parametrize(
    "name", ["encoder.layer.2.attention.self.query.weight", "encoder.layer.0.attention.self.query.lora_A.weight"]
)
def test_an_encoder_with_extra_tensors_is_refused(name: str):
    assert f"the model does not (1): bert.{name} (nearest: encoder." in why(prefixed("bert.", {**BARE, name: (32, 32)}))


def test_a_tensor_of_another_shape_is_refused_with_both_shapes():
    message = why({**BARE, "embeddings.word_embeddings.weight": (30522, 384), "embeddings.LayerNorm.bias": ()})
    assert "embeddings.word_embeddings.weight is 30522 x 384 in the file, 400 x 32 in the model" in message
    assert "embeddings.LayerNorm.bias is a single number in the file, 32 in the model" in message
    assert "the file does not" not in message


def test_two_tensors_for_one_are_refused():
    message = why({**BARE, "bert.embeddings.LayerNorm.bias": (32,)})
    assert "(1): embeddings.LayerNorm.bias and bert.embeddings.LayerNorm.bias (both encoder.emb" in message


def test_each_unmatched_name_is_listed_with_the_nearest():
    message = why(prefixed("backbone.", BARE))
    assert message.startswith("0 tensors fit")
    assert "backbone.embeddings.LayerNorm.bias (nearest: encoder.embeddings.LayerNorm.bias)" in message
    assert "the model has these, the file does not (7): " in message


def test_at_most_ten_of_each_kind_are_listed():
    message = why({f"conv{number}.weight": (3, 3) for number in range(14)})
    assert "nothing similar to these (14): conv0.weight, " in message
    assert "conv9.weight and 4 more" in message
    assert "conv10" not in message
