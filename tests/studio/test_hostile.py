"""Folders of runs that try to stop the studio. Each is one run's message: no error of the server, no wait, no lost list."""

import itertools
import logging
import runpy
import threading
import time
from pathlib import Path

import pytest

HELPERS = runpy.run_path(str(Path(__file__).parent / "hostile_runs.py"))
SHOW = "/images/test/0/attention"
MORE = {"heads": "/heads", "metrics": "/metrics", "recipe": "/heads", "summary": "/metrics"}  # where that is read
# Files whose content no picture of attention depends on: there only their kind matters, which every route looks at.
APART = ("summary.json", "metrics.jsonl", "heads.jsonl", "heads: ")


def routes(name, contents):
    """The routes that a case can reach."""
    plain = name.startswith(APART) and (name.startswith("heads: ") or name.partition(": ")[2] in contents)
    return ("", *(() if plain else (SHOW,)), *(more for word, more in MORE.items() if name.startswith(word)))


@pytest.fixture(scope="module")
def hostile(trained, tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    made = HELPERS["hostile_folder"](trained / "gaussian", root)
    return root, made


def answered(ask, seconds=20.0):
    """What ``ask()`` returns, or a failure where it hangs."""
    found = []
    thread = threading.Thread(target=lambda: found.append(ask()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"no answer within {seconds} s"
    return found[0]


def test_every_hostile_run_is_a_message_and_never_an_error_of_the_server(hostile, client_of, caplog):
    root, made = hostile
    assert len(made) >= 121
    client = client_of(root)
    listed = answered(lambda: client.get("/api/runs"), 60)
    assert listed.status_code == 200
    by_title = {run["title"]: run for run in listed.json()}
    unlisted = [name for name, path in made.items() if _title(path, root) not in by_title]
    assert unlisted == ["recipe.json: a folder"]  # which is no run
    wrong, times = [], []
    for folder, members in itertools.groupby(made.items(), lambda item: item[1].parent):
        client = client_of(folder)
        ids = {run["title"]: run["id"] for run in answered(lambda client=client: client.get("/api/runs")).json()}
        for name, path in members:
            for route in routes(name, HELPERS["CONTENTS"]):
                begin = time.process_time()
                address = f"/api/runs/{ids.get(_title(path, folder), path.name)}{route}"
                answer = answered(lambda client=client, address=address: client.get(address))
                times.append((time.process_time() - begin, name, route))
                if answer.status_code >= 500 or (answer.status_code != 200 and not answer.json().get("error")):
                    wrong.append((name, route, answer.status_code))
    assert wrong == []
    ours = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert ours == []  # each was refused by a reader, none by chance
    assert max(times)[0] < 5, sorted(times)[-3:]


def _title(path, root):
    return str(path.relative_to(root)).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
