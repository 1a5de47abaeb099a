"""What `run_flow` makes of a Prefect server that fails while it is asked."""

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.cli.flow_runs import ServerKeeper, _explained
from infra.prefect_server import Server
from tasks.foundation.errors import DataError, ServerError

URL = "http://127.0.0.1:1/api"


@pytest.fixture
def keeper() -> ServerKeeper:
    return ServerKeeper(Server(url=URL, ui_url="", home="", pid=None, started=False))


def test_an_error_of_prefects_client_is_of_the_servers_class(keeper) -> None:
    with pytest.raises(ServerError, match=f"{URL} failed: refused"), _explained(keeper, URL):
        raise httpx.ConnectError("refused")


def test_a_server_that_went_away_before_prefects_first_request_is_no_bug(keeper) -> None:
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        SyncPrefectClient(URL) as client,
        pytest.raises(ServerError, match=f"{URL} failed: .*refused"),
        _explained(keeper, URL),
    ):
        client.raise_for_api_version_mismatch()


def test_what_the_run_failed_with_before_counts_more(keeper) -> None:
    keeper.error = DataError("a bad row")
    with pytest.raises(DataError, match="a bad row"), _explained(keeper, URL):
        raise httpx.ConnectError("refused")


def test_a_server_that_forgot_the_run_is_named(keeper) -> None:
    with pytest.raises(ServerError, match="this flow run"), _explained(keeper, URL):
        raise ObjectNotFound(httpx.HTTPError("404"))
