"""The heads that learn one value of each row from a column: one file and one entry each."""

from tasks.worker.model import multiclass, regression
from tasks.worker.model.label_task import LabelTask

# By the name of the section of `heads`.
LABEL_TASKS: dict[str, LabelTask] = {"multiclass": multiclass.TASK, "regression": regression.TASK}
