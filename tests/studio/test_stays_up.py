"""The real server against clients that send half a request, what is no HTTP, or nothing; and two Ctrl-C."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from regard.studio._guard import HEADERS

# The command itself, with short limits, and a route that never answers.
SCRIPT = """
import sys, time
from regard.studio import _connections, _guard, _routes
_connections.HEADER_SECONDS, _connections.MOST_CONNECTIONS, _guard.BODY_SECONDS = 2.0, 60, 2.0
_connections.TAKE_SECONDS = 2.0
_routes.Api.about = lambda self: time.sleep(1000)
from regard.cli import main
sys.exit(main(["studio", sys.argv[1], "--port", "0", "--no-browser"]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-u", "-c", SCRIPT, str(tmp_path_factory.mktemp("runs"))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        found = re.search(r"http://127.0.0.1:(\d+)/\?token=(\S+)", process.stdout.readline())
        yield process, int(found[1]), found[2]
        process.kill()


def ask(port, token, path="api/openapi.json", timeout=30):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def test_half_sent_requests_do_not_keep_others_out(server):
    _, port, token = server
    ask(port, token)
    with contextlib.ExitStack() as stack:
        halves = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(110)]
        for number, half in enumerate(halves):
            with contextlib.suppress(OSError):  # the oldest are closed already
                half.sendall((b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"", b"G")[number % 3])
        begin = time.monotonic()
        assert ask(port, token)["info"]["title"] == "regard studio"
        assert time.monotonic() - begin < 20
        # Those that are still open are closed after the limit, although they keep sending.
        until = time.monotonic() + 30
        while any(map(_is_open, halves)) and time.monotonic() < until:
            time.sleep(0.2)
        assert not any(map(_is_open, halves))


def _is_open(connection):
    connection.setblocking(False)
    try:
        connection.sendall(b"a")
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


REFUSED = b"POST /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999\r\n\r\na"
LARGE = b"GET /studio.js HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer TOKEN\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (REFUSED, b"b"),  # the body of a request that has its answer, which ends uvicorn's own limit
        (REFUSED.replace(b"Content-Length: 99999", b"Transfer-Encoding: chunked") + b"\r\n", b"1\r\nb\r\n"),
        (LARGE * 30, b""),  # answers that nobody takes
    ],
)
def test_clients_that_stop_after_their_request_do_not_keep_others_out(server, first, then):
    _, port, token = server
    with contextlib.ExitStack() as stack:
        stalled = []
        for _ in range(62):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", port))
            connection.sendall(first.replace(b"TOKEN", token.encode()))
            stalled.append(connection)
        time.sleep(0.5)
        for connection in stalled:
            with contextlib.suppress(OSError):  # the oldest are closed already
                connection.sendall(then)
        until = time.monotonic() + 10
        while not _is_answered(port, token):  # none is waited for as long as all of them are answered
            assert time.monotonic() < until
            time.sleep(0.1)


def test_of_requests_sent_at_once_one_is_answered(server):
    _, port, _ = server
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(b"GET /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200)
        answers = b""
        with contextlib.suppress(ConnectionResetError):  # what was not read is thrown away
            while found := connection.recv(65536):
                answers += found
    assert answers.count(b"HTTP/1.1 401") == 1


def _is_answered(port, token):
    with contextlib.suppress(OSError):
        return ask(port, token)["info"]["title"] == "regard studio"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX" + b"y" * 100_000, 400),
        (b"GET /?" + b"a=1&" * 500 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 401),
        (b"POST /api/runs/x/sentence HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer TOKEN\r\n"
         b"Content-Length: 99\r\nContent-Type: application/json\r\n\r\n{", 408),
    ],
)  # fmt: skip
def test_every_answer_has_the_headers_errors_included(server, sent, status):
    _, port, token = server
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(sent.replace(b"TOKEN", token.encode()))
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(65536)
    first, *lines = head.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert first.split()[1] == str(status)
    found = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert {name: found.get(name) for name in HEADERS} == HEADERS


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals of this kind")
def test_two_interrupts_end_it_although_a_request_hangs(server):
    process, port, token = server
    hanging = socket.create_connection(("127.0.0.1", port), 30)
    hanging.sendall(f"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130
    hanging.close()
    assert "Traceback" not in process.stderr.read()
