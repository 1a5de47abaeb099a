"""`make docs`: writes the parts of docs/ and configs/ that are copies of the source."""

from tests.docs import (
    codes,
    configuration,
    editor_schema,
    folders,
    proof,
    published,
    refreshes,
    stages,
    workspace_table,
)

codes.PAGE.write_text(codes.page())
configuration.PAGE.write_text(configuration.page())
editor_schema.PAGE.write_text(editor_schema.page())
folders.PAGE.write_text(folders.page())
proof.PAGE.write_text(proof.page())
published.PAGE.write_text(published.page())
refreshes.PAGE.write_text(refreshes.page())
stages.PAGE.write_text(stages.page())
workspace_table.PAGE.write_text(workspace_table.page())
