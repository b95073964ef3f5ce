"""Running the server."""

import contextlib
import secrets
import socket
import threading
import urllib.request
import webbrowser
from collections.abc import Callable, Collection
from pathlib import Path

from regard.studio._app import create_app
from regard.studio._guard import LOOPBACK

PORT = 8642
TRIES = 20


def serve(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    names: Collection[str] = (),
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the studio until it is stopped.

    Args:
        folder: the folder whose runs are shown.
        host: the address to listen on. Any other than this machine's own (127.0.0.1) requires a random token.
        port: by default 8642, or the next free one; 0 uses any free one.
        names: further host names that requests may use, such as one in a local network.
        browser: whether to open a browser.
        say: is called with each line for the user.
    """
    import uvicorn

    local = host in LOOPBACK
    token = None if local else secrets.token_urlsafe(24)
    known = {*LOOPBACK, host, socket.gethostname(), socket.getfqdn(), *names} if not local else {*LOOPBACK, *names}
    app = create_app(folder, names=known, addresses=not local, token=token)
    with listen(host, port) as listening:
        address = address_of(host, listening.getsockname()[1], token)
        say(f"regard studio shows {folder} at {address}")
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
            limit_concurrency=100,
            timeout_keep_alive=10,
        )
        threading.Thread(
            target=warm_up, args=[address_of(host, listening.getsockname()[1]), token], daemon=True
        ).start()
        if browser:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        uvicorn.Server(config).run(sockets=[listening])


def warm_up(address: str, token: str | None) -> None:
    """Send the requests that the page will send, since the first ones are slow."""
    for path in ("api/runs/example/images/shipped/0/attention", "api/runs", "api/pages/claims"):
        request = urllib.request.Request(address + path, headers={"authorization": f"Bearer {token}"})
        # Errors are shown when a person asks.
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()


def listen(host: str, port: int | None, *, first: int = PORT) -> socket.socket:
    """A socket bound to the address: the given port, or the first free one from ``first`` on."""
    wanted = range(first, first + TRIES) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in wanted:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(128)  # requests before the server is up wait for it
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
