"""`make docs`: writes the parts of docs/ that are copies of the source."""

from tests.docs import codes, configuration, folders, proof, stages, workspace_table

codes.PAGE.write_text(codes.page())
configuration.PAGE.write_text(configuration.page())
folders.PAGE.write_text(folders.page())
proof.PAGE.write_text(proof.page())
stages.PAGE.write_text(stages.page())
workspace_table.PAGE.write_text(workspace_table.page())
