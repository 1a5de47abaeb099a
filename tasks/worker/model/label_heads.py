"""Label heads: each learns one value per row from a column, and has one file and one entry here."""

from tasks.worker.model import multiclass, regression
from tasks.worker.model.label_task import LabelTask

# By section name below `heads` in the configuration.
LABEL_TASKS: dict[str, LabelTask] = {"multiclass": multiclass.TASK, "regression": regression.TASK}
