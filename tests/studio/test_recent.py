"""Answers that are kept: made once per state of the files, and never more than a few."""

import dataclasses
import shutil

import pytest

import regard
from regard.studio import _routes
from regard.studio._recent import RecentAnswers


def test_heads_are_read_again_only_when_the_run_was_written(client_of, runs, monkeypatch):
    made, show = [], _routes.show
    monkeypatch.setattr(_routes, "show", lambda run: made.append(run) or show(run))
    client = client_of(runs)
    first = client.get("/api/runs/gaussian/heads").content
    assert all(client.get("/api/runs/gaussian/heads").content == first for _ in range(5))
    assert len(made) == 1
    lines = (runs / "gaussian" / "heads.jsonl").read_text().splitlines(keepends=True)
    (runs / "gaussian" / "heads.jsonl").write_text("".join(lines[:-1]))
    assert client.get("/api/runs/gaussian/heads").content != first
    assert len(made) == 2


def train_again(folder, name, seed):
    """As somebody does who removes a run and starts it again: other weights, the same folder and number of steps."""
    recipe = regard.load_run(folder / name).recipe
    shutil.rmtree(folder / name)
    regard.train(
        dataclasses.replace(recipe, seed=seed),
        folder=folder / name,
        accelerator="cpu",
        tensorboard=False,
        progress=False,
    )


@pytest.mark.parametrize(
    "address", ["runs/gaussian/images/test/0/attention", "runs/gaussian/attention", "pages/story?run=gaussian"]
)
def test_a_run_trained_again_in_its_folder_is_shown_with_its_new_network(client_of, runs, address):
    def ask(client):
        if not address.endswith("n/attention"):
            return client.get(f"/api/{address}").content
        picture = client.get("/api/runs/gaussian/images/test/0").content
        return client.post(f"/api/{address}", files={"image": picture}).content

    client = client_of(runs)
    before = ask(client)
    assert ask(client) == before
    train_again(runs, "gaussian", seed=11)
    after = ask(client)
    assert after != before
    assert after == ask(client_of(runs))


def test_a_browser_keeps_no_image_of_another_run_under_the_same_address(client_of, runs):
    address = "/api/runs/gaussian/images/test/0"
    first = client_of(runs).get(address)
    assert "no-cache" in first.headers["cache-control"]
    mark = {"if-none-match": first.headers["etag"]}
    same = client_of(runs).get(address, headers=mark)
    assert (same.status_code, same.content) == (304, b"")
    assert client_of(runs).get("/api/runs/gaussian/images/test/1", headers=mark).status_code == 200


def test_a_bounded_number_of_answers_is_kept():
    recent = RecentAnswers(3)
    for number in range(100):
        recent.get(number, lambda: b"made")
        recent.get("often", lambda: b"made", state=number)
        assert len(recent) <= 3
    assert recent.get("often", lambda: b"again", state=99) == b"made"
    assert recent.get(0, lambda: b"again") == b"again"
