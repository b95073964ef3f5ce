"""Answers that are kept: made once per state of the files, and never more than a few."""

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


def test_a_bounded_number_of_answers_is_kept():
    recent = RecentAnswers(3)
    for number in range(100):
        recent.get(number, lambda: b"made")
        recent.get("often", lambda: b"made", state=number)
        assert len(recent) <= 3
    assert recent.get("often", lambda: b"again", state=99) == b"made"
    assert recent.get(0, lambda: b"again") == b"again"
