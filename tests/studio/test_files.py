"""Only what lies in the folder is read, by ids that the server itself gave; files that grow are read piece by piece."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.studio._errors import Refused
from regard.studio._run_folders import Folder, read_piece

OUTSIDE = (
    "..",
    "../..",
    "..%2f..%2f",
    "%2e%2e/%2e%2e",
    "/etc",
    "~root",
    "gaussian/../../..",
    "gaussian%2f..",
    ".",
    "\\..\\..",
    "a\x00b",
)


@pytest.mark.parametrize("id", OUTSIDE)
@pytest.mark.parametrize("rest", ["", "/metrics", "/heads", "/images/test/0"])
def test_no_id_leads_out_of_the_folder(client, id, rest):
    answer = client.get(f"/api/runs/{id}{rest}".replace("\x00", "%00"))
    # Where a client resolves the dots itself, it asks for something else that is not there either.
    assert answer.status_code in (404, 405) or answer.url.path in ("/", "/api/runs")


@given(st.text(max_size=40))
def test_an_id_is_looked_up_and_never_made_into_a_path(trained, id):
    folder = Folder(trained, example=None)
    if id in folder.places():
        assert folder.place(id).folder.parent == trained.resolve()
    else:
        with pytest.raises(Refused, match="no run"):
            folder.place(id)


def test_a_link_to_a_run_elsewhere_is_not_a_run(runs, trained, client_of):
    (runs / "elsewhere").symlink_to(trained / "vit", target_is_directory=True)
    assert "elsewhere" not in {run["id"] for run in client_of(runs).get("/api/runs").json()}
    assert client_of(runs).get("/api/runs/elsewhere").status_code == 404


@pytest.mark.parametrize("file", ["recipe.json", "metrics.jsonl", "heads.jsonl", "summary.json", "checkpoints"])
def test_a_file_that_leads_out_is_not_read(runs, client_of, tmp_path, file):
    """Also where what it leads to would be the right thing."""
    moved = tmp_path / "outside" / file
    moved.parent.mkdir()
    (runs / "gaussian" / file).rename(moved)
    (runs / "gaussian" / file).symlink_to(moved)
    client = client_of(runs)
    for path in ("", "/metrics", "/heads", "/images/test/0/attention"):
        answer = client.get(f"/api/runs/gaussian{path}")
        assert answer.status_code == 403, path
        assert "outside the folder" in answer.json()["error"]
    listed = {run["id"]: run for run in client.get("/api/runs").json()}
    assert "outside the folder" in listed["gaussian"]["problem"]
    assert listed["vit"]["problem"] is None


def test_a_checkpoint_s_file_that_leads_out_is_not_read(runs, client_of, tmp_path):
    step = max((runs / "gaussian" / "checkpoints").iterdir())
    for file in list(step.iterdir()):
        file.rename(tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    assert client_of(runs).get("/api/runs/gaussian/images/test/0/attention").status_code == 403


def test_links_inside_the_folder_are_followed(runs, client_of):
    heads = runs / "gaussian" / "heads.jsonl"
    heads.rename(runs / "kept.jsonl")
    heads.symlink_to(runs / "kept.jsonl")
    assert client_of(runs).get("/api/runs/gaussian/heads").status_code == 200


def test_runs_below_folders_are_found_and_odd_names_get_ids(runs, client_of):
    (runs / "sweep").mkdir()
    (runs / "vit").rename(runs / "sweep" / "seed 0")
    (runs / "case-rnn").rename(runs / "sweep" / "1")
    (runs / "text").rename(runs / "é?#\n%2e")
    (runs / ".hidden").mkdir()
    (runs / "gaussian").rename(runs / ".hidden" / "gaussian")
    client = client_of(runs)
    listed = {run["title"]: run for run in client.get("/api/runs").json()}
    assert set(listed) == {"case-transformer", "sweep/1", "sweep/seed 0", "é?#\n%2e"}
    assert listed["sweep/1"]["id"] == "sweep~1"
    for run in listed.values():
        assert client.get(f"/api/runs/{run['id']}").json()["title"] == run["title"]


def test_the_folder_may_be_a_run_itself_or_not_be_there_yet(trained, client_of, tmp_path):
    assert [run["id"] for run in client_of(trained / "gaussian").get("/api/runs").json()] == ["gaussian"]
    client = client_of(tmp_path / "later")
    assert client.get("/api/runs").json() == []
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a-run").symlink_to(trained / "vit")
    assert client.get("/api/runs").json() == []
    with pytest.raises(NotADirectoryError, match="must be a folder"):
        client_of(trained / "gaussian" / "recipe.json")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"kind": "Nothing"}', '{"kind": "Recipe", "name": 3}', "[" * 10_000, '"\\ud800"']
)
def test_a_run_that_cannot_be_read_says_so_and_leaves_the_others_alone(runs, client_of, content):
    (runs / "gaussian" / "recipe.json").write_text(content, encoding="utf-8")
    client = client_of(runs)
    listed = client.get("/api/runs").json()
    broken = [run for run in listed if run["problem"]]
    assert [run["id"] for run in broken] == ["gaussian"]
    assert listed[-1] == broken[0]
    answer = client.get("/api/runs/gaussian")
    assert answer.status_code == 422
    assert answer.json()["error"]


def test_a_recipe_that_is_no_recipe_s_size_is_not_read(runs, client_of):
    with (runs / "gaussian" / "recipe.json").open("ab") as file:
        file.truncate(10 * 2**20)
    assert client_of(runs).get("/api/runs/gaussian").status_code == 413


lines = st.lists(st.dictionaries(st.sampled_from(["step", "loss"]), st.integers(-5, 5)), max_size=12)


@given(lines=lines, most=st.integers(1, 60), torn=st.sampled_from(["", '{"step": 1', '{"step": 1}']))
def test_pieces_make_up_the_file_whatever_their_size(tmp_path, lines, most, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn, encoding="utf-8")
    found, offset = [], 0
    while True:
        piece = read_piece(path, offset, most)
        assert not piece.anew
        found += piece.lines
        if piece.offset == offset:
            break
        offset = piece.offset
    # A last line that is not finished is left for later.
    assert found == lines
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" if torn.endswith("}") else "}\n" if torn else '{"step": 1}\n')
    assert read_piece(path, offset).lines == [{"step": 1}]


def test_a_file_that_was_cut_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n', encoding="utf-8")
    end = read_piece(path, 0).offset
    os.truncate(path, 12)
    piece = read_piece(path, end)
    assert (piece.anew, piece.lines) == (True, [{"step": 1}])
    path.unlink()
    assert read_piece(path, end).anew


def test_lines_that_are_no_objects_are_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\xff\xfe\n[1]\nnull\n' + b"[" * 5000 + b'\n{"step": 2}\n')
    assert read_piece(path, 0).lines == [{"step": 1}, {"step": 2}]
