import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, log_loss

from configs.schema.model import MulticlassHead
from tasks.worker.model.label_heads import LABEL_TASKS
from tasks.worker.model.label_task import FOLDS, LabelledRows

TASK = LABEL_TASKS["multiclass"]
HEAD = MulticlassHead(weight=1.0, input="query", classes=("a", "b", "c"), loss="balanced")


def rows(count: int, seed: int) -> LabelledRows:
    """Unit vectors around three directions; the second class is rare, and a tenth of the labels is wrong."""
    random = np.random.default_rng(seed)
    truth = random.choice(3, count, p=[0.6, 0.05, 0.35])
    inputs = 0.5 * random.normal(size=(count, 16))
    inputs[np.arange(count), truth] += 1.5
    inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    truth = np.where(random.random(count) < 0.1, random.choice(3, count), truth)
    return LabelledRows(inputs.astype(np.float32), truth.astype(np.float64), np.ones(count), np.arange(count) % FOLDS)


def test_the_loss_of_known_outputs():
    outputs = torch.tensor([[0.0, 2.0, 0.0], [1.0, 1.0, 1.0]])
    found = TASK.losses(outputs, torch.tensor([1.0, 2.0]), HEAD)
    assert found.tolist() == pytest.approx([np.log(1 + 2 * np.exp(-2.0)), np.log(3)])


def test_all_classes_that_are_there_count_the_same_if_they_are_balanced():
    by_class = TASK.balance(np.array([6.0, 2.0, 0.0]), HEAD)
    assert by_class[:2] == pytest.approx([8 / (2 * 6), 8 / (2 * 2)])
    assert not len(TASK.balance(np.array([6.0, 2.0, 1.0]), HEAD.model_copy(update={"loss": "plain"})))


def test_a_solved_head_names_the_rare_class_and_its_probabilities_can_be_believed():
    known, others = rows(1500, seed=1), rows(1500, seed=2)
    plain = HEAD.model_copy(update={"loss": "plain"})
    for head in (HEAD, plain):
        solved = TASK.solve(known, None, head)
        outputs = others.inputs @ solved.weight.T + solved.bias
        said = TASK.predict(outputs, head)
        found = f1_score(others.truth, said, average="macro")
        assert found == pytest.approx(solved.metrics["multiclass_macro_f1"], abs=0.05), "of rows it had not seen"
        assert found > 0.75
    likelihoods = [log_loss(others.truth, torch.tensor(factor * outputs).softmax(1).numpy()) for factor in (0.5, 1, 2)]
    assert min(likelihoods) == likelihoods[1], "neither too sure nor too unsure"


def test_rows_that_the_encoder_never_saw_take_the_confidence_of_those_it_did():
    """An encoder pulls the rows that it is trained on apart by their own class, which no new row does."""
    plain, known, others = HEAD.model_copy(update={"loss": "plain"}), rows(1500, seed=5), rows(2500, seed=6)
    leak = known.inputs.copy()
    leak[np.arange(1500), known.truth.astype(int) + 3] += 0.4
    seen, unseen, test = (
        known._replace(inputs=leak),
        *(LabelledRows(*(each[part] for each in others)) for part in (slice(500), slice(500, None))),
    )
    losses = []
    for told in (None, unseen):
        solved = TASK.solve(seen, told, plain)
        outputs = test.inputs @ solved.weight.T + solved.bias
        losses.append([log_loss(test.truth, torch.tensor(warmth * outputs).softmax(1).numpy()) for warmth in (1, 0.6)])
    (before, cooler), (after, no_better) = losses
    assert cooler < before, "the fault: cross-validation among seen rows is too sure"
    assert after < before
    assert after < no_better


def test_a_class_that_a_fold_lacks_is_not_named_there_and_one_that_all_lack_leaves_the_head():
    known = rows(60, seed=3)
    alone = known._replace(truth=np.where(np.arange(60) == 7, 1.0, known.truth * (known.truth != 1)))
    assert np.isfinite(TASK.solve(alone, None, HEAD).weight).all()
    assert TASK.find_shortage(alone.truth, HEAD) == ""
    assert TASK.find_shortage(np.array([0.0, 2.0]), HEAD) == "no row has the class b"


def test_a_class_in_one_fold_alone_leaves_the_confidence_about_the_others():
    """The fits without that fold can't know the class, as if one query had all its rows."""
    plain, known, others = HEAD.model_copy(update={"loss": "plain"}), rows(1500, seed=7), rows(1500, seed=8)
    rare = known.truth == 1
    alone = known._replace(folds=np.where(rare, 2, known.folds))
    losses = []
    for some in (known, alone):
        solved = TASK.solve(some, None, plain)
        outputs = torch.tensor(others.inputs @ solved.weight.T + solved.bias)
        losses.append(log_loss(others.truth, outputs.softmax(1).numpy()))
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    apart = known._replace(folds=known.truth.astype(np.int64))
    assert np.isfinite(TASK.solve(apart, None, plain).weight).all(), "no fit knows the class of the rows that it lacks"


def test_a_row_that_counts_twice_is_solved_as_two_rows():
    known = rows(200, seed=4)
    twice = np.repeat(np.arange(200), 1 + np.arange(200) % 2)
    counted = TASK.solve(
        known._replace(counts=1.0 + np.arange(200) % 2), None, HEAD.model_copy(update={"loss": "plain"})
    )
    repeated = TASK.solve(
        LabelledRows(*(each[twice] for each in known)), None, HEAD.model_copy(update={"loss": "plain"})
    )
    assert counted.strength == repeated.strength
    assert counted.weight == pytest.approx(repeated.weight, abs=0.02)
