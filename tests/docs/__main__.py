"""`make docs`: writes the parts of docs/ and configs/ that are copies of the source."""

from tests.docs.copies import COPIES

for copy in COPIES:
    copy.PAGE.write_text(copy.page(), encoding="utf-8")
