"""Python imports this by itself where PYTHONPATH names its folder, as in the flow runs that a Prefect worker starts."""

from tests.support.fakes import replacing

replacing.install()
