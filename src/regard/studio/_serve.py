"""Running the server."""

import contextlib
import html
import json
import os
import secrets
import socket
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
import webbrowser
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from regard.studio._app import create_app
from regard.studio._connections import ImpatientProtocol
from regard.studio._guard import LOOPBACK
from regard.studio._own_model import OwnModel
from regard.support.allocator import limit_arenas

PORT = 8642
TRIES = 20


def serve(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    names: Collection[str] = (),
    model: OwnModel | None = None,
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the studio until it is stopped.

    Args:
        folder: the folder of the runs to show.
        host: the address to listen on; by default other machines cannot reach the studio.
        port: by default 8642, or the next free port; 0 uses any free port.
        names: further host names under which the studio can be reached, such as one in a local network.
        model: a model of the user's own (see :func:`regard.studio.open_model`), shown first.
        browser: whether to open a browser.
        say: called with each line for the user.
    """
    import uvicorn

    limit_arenas()  # before any thread starts
    local = host in LOOPBACK
    # A token is needed on this machine, too: other users and programs may share it, and any web page can send requests.
    token = secrets.token_urlsafe(24)
    known = {*LOOPBACK, host, socket.gethostname(), socket.getfqdn(), *names} if not local else {*LOOPBACK, *names}
    app = create_app(folder, names=known, addresses=not local, token=token, model=model)
    with listen(host, port) as listening:
        address = address_of(host, listening.getsockname()[1], token)
        say(f"regard studio shows {folder if model is None else model.name} at {address}")
        if not local:
            say("Anyone with this complete address can see these runs. The connection is not encrypted.")
        say("Press Ctrl+C to stop.")
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            http=ImpatientProtocol,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=3,
        )
        threading.Thread(
            target=warm_up, args=[address_of(host, listening.getsockname()[1]), token], daemon=True
        ).start()
        with entrance(address) if browser else contextlib.nullcontext(""):
            _server(config).run(sockets=[listening])


@contextlib.contextmanager
def entrance(address: str) -> Iterator[str]:
    """Open the browser on a private file that redirects to the address, and remove the file afterwards.

    All users of a machine can read the command lines of programs, so the address with its token must not be in one.
    """
    with tempfile.TemporaryDirectory(prefix="regard-studio-") as folder:  # readable only for the user
        page = Path(folder) / "open.html"
        page.touch(mode=0o600)
        page.write_text(
            '<!doctype html><meta charset="utf-8"><title>regard studio</title>'
            f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">',
            encoding="utf-8",
        )
        timer = threading.Timer(0.5, webbrowser.open, [page.as_uri()])
        timer.start()
        try:
            yield page.as_uri()
        finally:
            timer.cancel()


def _server(config: Any) -> Any:
    """A server that a second Ctrl-C stops at once, even if a request hangs."""
    import uvicorn

    class Server(uvicorn.Server):
        asked = 0

        def handle_exit(self, sig: int, frame: Any) -> None:
            self.asked += 1
            if self.asked > 1:
                print("stopped", file=sys.stderr, flush=True)
                os._exit(130)
            super().handle_exit(sig, frame)

    return Server(config)


def warm_up(address: str, token: str | None) -> None:
    """Send the requests that the page will send, since the first ones are slow. The start page comes first."""

    def ask(path: str) -> bytes:
        request = urllib.request.Request(address + path, headers={"authorization": f"Bearer {token}"})
        # Errors are shown when the user opens the page.
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())
        return b""

    runs = json.loads(ask("api/runs") or b"[]")
    finished = (run["id"] for run in runs if not run["example"] and run["state"] == "finished" and run["views"])
    own = next(finished, None)  # the same run as on the start page
    ask("api/pages/story" + ("" if own is None else f"?run={urllib.parse.quote(own, safe='')}"))
    ask("api/runs/example/images/shipped/0/attention")
    ask("api/pages/claims")


def listen(host: str, port: int | None, *, first: int = PORT) -> socket.socket:
    """A socket bound to the address: the given port, or the first free one from ``first`` on."""
    wanted = range(first, first + TRIES) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in wanted:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(128)  # early requests wait until the server is up
        except OSError as error:
            found.close()
            if number == wanted[-1]:
                raise OSError(error.errno, f"cannot listen on {host}:{number}: {error.strerror}") from error
        else:
            return found
    raise OSError(f"no port from {first} on is free")


def address_of(host: str, port: int, token: str | None = None) -> str:
    """The address to open in a browser.

    >>> from regard.studio._serve import address_of
    >>> address_of("0.0.0.0", 80, "secret")
    'http://127.0.0.1:80/?token=secret'
    """
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}/" + ("" if token is None else f"?token={token}")
