"""`python -m tasks.worker.online`: the process of `millrace serve --online`, which answers until SIGTERM.

It opens the release before it listens. At SIGTERM it takes no new connection, answers all that it has, and ends.
"""

import argparse
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from infra.store.factory import open_store
from tasks.foundation.errors import POLICIES, ConfigError, classify
from tasks.foundation.passwords import masked, read_token
from tasks.worker.process.threads import QUIET

DRAIN_SECONDS = 30  # for the requests that are under way at SIGTERM
MOST_CONNECTIONS = 512
KEEP_SECONDS = 60  # an idle connection stays open, as clients keep pools of them
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def main() -> None:
    """Serve until a signal; end with the exit code of the error if it can't."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker.online", description=__doc__)
    parser.add_argument("--workspace", required=True)
    parser.add_argument("--release", type=int)
    parser.add_argument("--host", default=LOOPBACK[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token-file", type=Path)
    given = parser.parse_args()
    os.environ.update(QUIET)
    try:
        _serve(given)
    except Exception as error:
        failure = classify(error)
        print(f"{failure}: {masked(str(error)) or type(error).__name__}", file=sys.stderr, flush=True)
        _leave(POLICIES[failure].exit_code)
    _leave(0)


def _serve(given: argparse.Namespace) -> None:
    token = read_token(given.token_file)
    if token is None and given.host not in LOOPBACK:
        raise ConfigError(
            f"--host {given.host} lets others ask this server, so they must prove that they may: --token-file FILE"
        )
    store = open_store(given.workspace)

    import uvicorn

    from tasks.worker.online.follower import Follower
    from tasks.worker.online.server import Online

    with _bound(given.host, given.port) as listener:
        follower = Follower(store, given.release)
        now = follower.serving
        config = uvicorn.Config(
            Online(follower, token).app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="critical",  # the application prints its own failures
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=KEEP_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        listener.listen()  # before the line that says so; requests wait until the application runs
        follows = "" if given.release is None else ", and no other"
        print(
            f"http://{given.host}:{listener.getsockname()[1]} embeds with release {now.release}{follows} of "
            f"{store.uri} ({now.model_version}, {now.encoder.kind}); Ctrl-C ends it",
            flush=True,
        )
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn drains, and then sends itself the signal once more
            signal.signal(number, lambda *_: None)
        uvicorn.Server(config).run(sockets=[listener])
    print("stopped", file=sys.stderr, flush=True)


def _bound(host: str, port: int) -> socket.socket:
    # With its protocol: for a socket of protocol 0 asyncio leaves TCP_NODELAY off, and each answer waits 40 ms.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(f"can't listen on {host}:{port}: {error}; choose another: --port 4281") from error
    return listener


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a release that is being opened, and threads of libraries, are not waited for


if __name__ == "__main__":
    main()
