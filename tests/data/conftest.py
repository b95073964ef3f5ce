"""A web server on this machine that can be told to misbehave."""

import re
import socket
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from regard.data.own_images import open_images


@dataclass
class Behavior:
    """What one answer does: send only the first ``cut`` bytes (and reset the connection, or just close it), stall
    after them until released, answer with ``status`` instead, or with bytes of its own (``instead``)."""

    cut: int | None = None
    reset: bool = False
    stall: bool = False
    status: int | None = None
    instead: bytes | None = None
    offset: int = 0


@dataclass
class Site:
    """``files`` by path; ``script`` holds the behavior of the next answers, then all is well."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    script: list[Behavior] = field(default_factory=list)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def behave(self, **behavior: Any) -> None:
        """What the next answer does that is not yet decided."""
        self.script.append(Behavior(**behavior))


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, wanted = self.site, self.headers.get("Range")
        site.requests.append((self.path, wanted))
        behavior = site.script.pop(0) if site.script else Behavior()
        content = site.files.get(self.path) if behavior.instead is None else behavior.instead
        if content is None or behavior.status:
            self.send_error(behavior.status or 404)
            return
        start = 0
        if site.ranges and wanted is not None:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start += behavior.offset
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        self.wfile.write(body if behavior.cut is None else body[: behavior.cut])
        if behavior.stall:
            self.wfile.flush()
            site.stalled.set()
            site.release.wait(60)
        if behavior.reset:
            # No lingering: the client sees a reset instead of an end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, *arguments: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that was killed


@pytest.fixture
def site():
    site = Site()
    server = Server(("127.0.0.1", 0), type("SiteHandler", (Handler,), {"site": site}))
    site.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield site
    site.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def own_cache(tmp_path_factory, monkeypatch):
    """An empty folder for decoded images, and none of them opened before."""
    monkeypatch.setenv("REGARD_DATA", str(tmp_path_factory.mktemp("cache")))
    open_images.cache_clear()
    yield
    open_images.cache_clear()
