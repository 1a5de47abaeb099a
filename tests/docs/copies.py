"""The copies of the source in docs/ and configs/: each module has the file, `PAGE`, and its text, `page()`."""

from tests.benchmarks import figures, weeks
from tests.benchmarks.traps import page as traps
from tests.docs import (
    codes,
    configuration,
    editor_schema,
    folders,
    in_template,
    instances_in_settings,
    man_page,
    proof,
    published,
    refreshes,
    workspace_table,
)
from tests.nightly import ran

COPIES = (
    instances_in_settings, in_template, in_template.OnEks, codes, configuration, editor_schema, figures, folders,
    man_page, proof, published, ran, refreshes, traps, weeks, workspace_table,
)  # fmt: skip
