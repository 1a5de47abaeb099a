"""What the Prefect UI shows of a run: markdown pages made from the workspace's records, which may be lost.

`publish.py` makes the page of a stage, `links.py` the one that a run begins with; the rest words and draws them.
"""
