"""Where the server listens, and what a person is told; the command itself, once, as a person runs it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import uvicorn

from regard.cli import main
from regard.cli._studio import leave_threads
from regard.data.own_images._workers import pool
from regard.studio import serve
from regard.studio._serve import PORT, address_of, listen, warm_up


@pytest.fixture
def served(monkeypatch):
    """What would be served: the application and the address it is bound to, without serving it."""
    found = {}

    def run(self, sockets):
        found["app"], found["bound"] = self.config.app, sockets[0].getsockname()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(urllib.request, "urlopen", _refused)  # nobody would answer the requests that warm it up
    return found


def _refused(*arguments, **options):
    raise OSError("nothing is served")


def test_by_default_only_this_machine_is_answered(served, tmp_path):
    said = []
    serve(tmp_path, port=0, browser=False, say=said.append)
    assert served["bound"][0] == "127.0.0.1"
    assert said[0].endswith(f"http://127.0.0.1:{served['bound'][1]}/?token={served['app'].token}")
    assert len(served["app"].token) >= 32  # also here: other people and programs use this machine
    assert not served["app"].may_be_called("10.0.0.7")


def test_elsewhere_a_random_token_is_asked_for(served, tmp_path):
    tokens = set()
    for _ in range(2):
        said = []
        serve(tmp_path, host="0.0.0.0", port=0, names=["lab.lan"], browser=False, say=said.append)
        app = served["app"]
        assert said[0].endswith(f"/?token={app.token}")
        assert len(app.token) >= 32
        assert "can see these runs" in said[1]
        assert app.may_be_called("10.0.0.7:80")
        assert app.may_be_called("lab.lan")
        assert not app.may_be_called("evil.example")
        tokens.add(app.token)
    assert len(tokens) == 2


def test_the_browser_gets_the_address_in_a_file_of_the_user_s_own(served, tmp_path, monkeypatch):
    """The command line of a browser can be read by everybody on the machine."""
    opened = []
    monkeypatch.setattr(threading, "Timer", lambda seconds, call, arguments: _Now(opened, arguments))
    serve(tmp_path, port=0, say=lambda text: None)
    (page,) = opened
    assert page["address"].startswith("file://")
    assert served["app"].token not in page["address"]
    assert address_of("127.0.0.1", served["bound"][1], served["app"].token) in page["text"]
    assert page["modes"] == (0o600, 0o700)
    assert not page["path"].exists()


class _Now:
    def __init__(self, opened, arguments):
        self.opened, self.arguments = opened, arguments

    def start(self):
        (address,) = self.arguments
        path = Path(address.removeprefix("file://"))
        modes = (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777)
        self.opened.append({"address": address, "path": path, "text": path.read_text(), "modes": modes})

    def cancel(self):
        pass


def test_a_taken_port_is_named_or_passed_over():
    with listen("127.0.0.1", 0) as first:
        taken = first.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{taken}"):
            listen("127.0.0.1", taken)
        with listen("127.0.0.1", None, first=taken) as second:
            assert second.getsockname()[1] > taken
    assert PORT == 8642
    assert address_of("::1", 8642, "x") == "http://[::1]:8642/?token=x"


def test_wrong_words_are_refused(capsys, tmp_path):
    assert main(["studio", str(tmp_path / "absent")]) == 2
    assert "is not a folder; pass a folder that contains runs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["studio", str(tmp_path), "--port", "99999"])
    assert "--port must be 0 to 65535" in capsys.readouterr().err


def test_the_command_serves_until_it_is_stopped(trained):
    command = [sys.executable, "-u", "-m", "regard.cli", "studio", str(trained), "--port", "0", "--no-browser"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            address, _, token = re.search(r"http://\S+", process.stdout.readline())[0].partition("?token=")
            shown = {"authorization": f"Bearer {token}"}
            request = urllib.request.Request(f"{address}api/runs/gaussian", headers=shown)
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert b'"finished"' in answer.read()
            for path, headers, code in (("none", shown, "404"), ("gaussian", {}, "401")):
                request = urllib.request.Request(f"{address}api/runs/{path}", headers=headers)
                with pytest.raises(urllib.error.HTTPError, match=code) as refused:
                    urllib.request.urlopen(request, timeout=60)
                refused.value.close()
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.communicate(timeout=60)[0]
    assert process.returncode in (0, 130)
    assert "Traceback" not in rest


def test_threads_that_wait_for_the_next_images_are_no_request(tmp_path, monkeypatch, capfd):
    """Where a run has images of the user's own, every Ctrl-C took two seconds and named a request that there was not."""

    def exited(code):
        raise AssertionError("the program was ended")

    monkeypatch.setattr(os, "_exit", exited)
    # Threads that earlier tests left in this process, such as a pool of a library, are none of the studio's.
    everything = threading.enumerate
    others = {thread for thread in everything() if not thread.name.startswith("regard-")}
    monkeypatch.setattr(threading, "enumerate", lambda: [thread for thread in everything() if thread not in others])
    pool(1).submit(threading.current_thread).result()
    started = time.monotonic()
    leave_threads(seconds=1.0)
    assert time.monotonic() - started < 1
    assert "still being answered" not in capfd.readouterr().err
    hangs = threading.Event()
    threading.Thread(target=hangs.wait, name="AnyIO worker thread").start()
    with pytest.raises(AssertionError, match="was ended"):
        leave_threads(seconds=0.01)
    hangs.set()


def test_the_page_that_opens_is_made_before_somebody_asks(monkeypatch):
    """With the run in it that the page will show: the latest one that is finished and has something to show."""
    listed = [
        {"id": "now", "example": False, "state": "training", "views": ["heads"]},
        {"id": "empty", "example": False, "state": "finished", "views": []},
        {"id": "a/b c", "example": False, "state": "finished", "views": ["heads"]},
        {"id": "older", "example": False, "state": "finished", "views": ["heads"]},
        {"id": "example", "example": True, "state": "finished", "views": ["heads"]},
    ]
    asked, known = [], {}

    def answer(request, timeout):
        assert request.get_header("Authorization") == "Bearer secret"
        asked.append(request.full_url)
        return io.BytesIO(json.dumps(known["runs"]).encode())

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    for runs, wanted in ((listed, "story?run=a%2Fb%20c"), (listed[-1:], "story")):
        asked.clear()
        known["runs"] = runs
        warm_up("http://127.0.0.1:1/", "secret")
        assert asked[:2] == ["http://127.0.0.1:1/api/runs", f"http://127.0.0.1:1/api/pages/{wanted}"]
    monkeypatch.setattr(urllib.request, "urlopen", _refused)
    warm_up("http://127.0.0.1:1/", "secret")  # nobody is there: nothing happens
