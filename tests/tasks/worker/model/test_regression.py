import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from configs.schema.model import RegressionHead
from tasks.worker.model.label_heads import LABEL_TASKS
from tasks.worker.model.label_task import FOLDS, LabelledRows

TASK = LABEL_TASKS["regression"]
HEAD = RegressionHead(weight=1.0, input="pair", low=0.0, high=4.0)


def rows(count: int, seed: int) -> LabelledRows:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 12)).astype(np.float32)
    inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    truth = np.clip(1.2 + 1.5 * inputs[:, 0] + 0.2 * random.normal(size=count), 0, 4)
    return LabelledRows(inputs, truth, 1.0 + np.arange(count) % 3, np.arange(count) % FOLDS)


def test_the_loss_of_known_outputs_is_in_units_of_half_the_scale():
    found = TASK.losses(torch.tensor([[0.0], [1.0]]), torch.tensor([3.0, 2.0]), HEAD)
    assert found.tolist() == pytest.approx([0.25, 1.0])


def test_answers_stay_on_the_scale():
    assert TASK.predict(np.array([[0.5], [3.0], [-1.5]]), HEAD).tolist() == [3.0, 4.0, 0.0]


def test_a_solved_head_is_ridge_regression_with_the_weights_of_the_rows():
    known = rows(300, seed=1)
    solved = TASK.solve(known, None, HEAD)
    ridge = Ridge(alpha=1 / solved.strength).fit(known.inputs, (known.truth - 2) / 2, sample_weight=known.counts)
    assert solved.weight[0] == pytest.approx(ridge.coef_, abs=1e-4)
    assert solved.bias[0] == pytest.approx(ridge.intercept_, abs=1e-4)
    others = rows(300, seed=2)
    away = TASK.predict(others.inputs @ solved.weight.T + solved.bias, HEAD) - others.truth
    assert (away**2).mean() ** 0.5 == pytest.approx(solved.metrics["rmse"], abs=0.05), "of rows it had not seen"


def test_rows_that_the_encoder_never_saw_take_the_reach_of_those_it_did():
    """An encoder moves the rows that it is trained on towards their own label, which no new row does."""
    seen, others = rows(600, seed=3), rows(1500, seed=4)
    random = np.random.default_rng(5)
    seen, others = (each._replace(truth=np.clip(each.truth + 0.6 * random.normal(size=len(each.truth)), 0, 4))
                    for each in (seen, others))  # fmt: skip
    leak = 0.25 * random.normal(size=600) + (seen.truth - seen.truth.mean())
    inputs = np.column_stack([seen.inputs[:, :-1], leak]).astype(np.float32)
    noise = (0.7 * random.normal(size=1500)).astype(np.float32)
    new = np.column_stack([others.inputs[:, :-1], noise])
    unseen, test = (
        LabelledRows(new[part], others.truth[part], others.counts[part], others.folds[part])
        for part in (slice(500), slice(500, None))
    )
    errors = []
    for told in (None, unseen):
        solved = TASK.solve(seen._replace(inputs=inputs), told, HEAD)
        errors.append(np.mean((TASK.predict(test.inputs @ solved.weight.T + solved.bias, HEAD) - test.truth) ** 2))
    assert errors[1] < 0.8 * errors[0]
    assert errors[1] < 1.1 * others.truth.var(), "never much worse than the mean"


def test_few_rows_leave_the_head():
    assert TASK.find_shortage(np.zeros(9), HEAD) == "there are 9 rows of 10"
    assert TASK.find_shortage(np.zeros(10), HEAD) == ""
