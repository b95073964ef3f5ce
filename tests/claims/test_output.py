"""What a person and a program get: table, details, JSON, page, misconceptions, exit status."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import regard
from regard.claims import SHEETS, TOPICS, Verification, all_claims, answers, details, misconceptions, picture, verify
from regard.cli import main
from regard.cli._verify import run

FIELDS = ["id", "topic", "source", "statement", "verdict", "condition", "instead"]
FIELDS += ["evidence", "mutant_rejected", "slow", "ran", "proved"]
ROOT = Path(__file__).parents[2]


def test_json_has_the_agreed_fields(found: Verification) -> None:
    entries = json.loads(json.dumps(found.as_json()))
    assert len(entries) == 77
    for entry in entries:
        assert list(entry) == FIELDS
        assert entry["verdict"] in ("holds", "holds under", "fails")
        assert (entry["condition"] is not None) == (entry["verdict"] == "holds under")
        assert (entry["instead"] is not None) == (entry["verdict"] == "fails")
        assert entry["statement"]
        assert entry["evidence"]
        assert "\n" not in entry["evidence"]
        assert entry["ran"] != entry["slow"]
        assert entry["mutant_rejected"] is (True if entry["ran"] else None)


def test_the_table_has_a_line_for_each_claim_and_fits(found: Verification, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    text = str(found)
    for row in found:
        assert re.search(rf"^{re.escape(row.claim.id)} +{row.claim.source} +{row.verdict} ", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 110
    assert "evidence agrees with the record" in " ".join(text.split())
    assert text.splitlines()[0].startswith("claim")


def test_details_show_statement_derivation_and_numbers(found: Verification) -> None:
    text = details(found["c182-variance-exact"])
    for expected in (
        "c182-variance-exact: fails",
        "Data C182, discussion 06",
        "What is true instead",
        "Var(qᵀk) = 2σ²μᵀμ + dσ⁴",
        "Evidence on the mutant: rejected",
        "measured:",
    ):
        assert expected in text.replace("ᵀ k", "ᵀk").replace("² μ", "²μ").replace("ᵀ μ", "ᵀμ").replace("d σ", "dσ"), (
            text
        )


def test_no_text_is_left_in_latex(found: Verification) -> None:
    for row in found:
        assert not re.search(r"[$\\]", details(row)), row.claim.id


class Links(HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]
        assert tag not in ("iframe", "object", "link"), tag


def test_the_page_needs_nothing_from_outside(found: Verification) -> None:
    rows = [row for row in found if row.claim.topic in ("temperature", "convolution")]
    shown = regard.show(Verification(rows))
    parser = Links()
    parser.feed(shown.html())
    assert parser.addresses == []
    entries = shown.payload.meta["claims"]
    assert [entry["id"] for entry in entries] == [row.claim.id for row in rows]
    for row, entry in zip(rows, entries, strict=True):
        assert ("found" in entry) == row.ran
        if row.ran:
            assert entry["found"]["picture"]["address"].startswith("data:image/png;base64,")
    header = re.sub(r"base64,[A-Za-z0-9+/=]+", "", shown.payload.header)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", header)
    assert header.count("<math") > 100


def test_a_notebook_shows_a_table(found: Verification) -> None:
    assert found._repr_html_().count("<tr>") == 78


@pytest.mark.parametrize("name", ["c182-variance-exact", "ex05-map", "hw4-beta-zero", "a6-limit", "a6-gelu"])
def test_claims_have_a_picture(found: Verification, name: str) -> None:
    figure = picture(found[name])
    assert figure is not None
    assert any(axes.get_title() for axes in figure.axes) or figure.get_suptitle()


@pytest.mark.parametrize("topic", TOPICS)
def test_every_claim_that_ran_has_a_picture(found: Verification, topic: str) -> None:
    rows = [row for row in found if row.ran and row.claim.topic == topic]
    assert rows
    for row in rows:
        figure = picture(row)
        assert figure is not None, row.claim.id
        figure.canvas.draw()
        drawn = [panel for panel in figure.axes if panel.lines or panel.images or panel.patches]
        assert drawn, row.claim.id
        assert figure.get_suptitle() or any(panel.get_title() for panel in drawn), row.claim.id


def test_a_claim_that_did_not_run_has_no_picture(found: Verification) -> None:
    assert all(picture(row) is None for row in found if not row.ran)


def test_the_page_of_misconceptions_is_the_generated_one(found: Verification) -> None:
    page = misconceptions(found)
    assert (ROOT / "docs" / "misconceptions.md").read_text(encoding="utf-8") == page
    for row in found:
        assert (f"`{row.claim.id}`\n" in page) == (row.claim.verdict != "holds")
    assert page.count("**What is said:**") == sum(row.claim.verdict != "holds" for row in found)
    assert "counterexample:** .\n" not in page
    assert page.count("$") % 2 == 0


def test_the_page_of_answers_is_the_generated_one_and_answers_every_question(found: Verification) -> None:
    pages = answers(found)
    assert set(pages) == {"index", *SHEETS}
    for name, page in pages.items():
        assert (ROOT / "docs" / "questions" / f"{name}.md").read_text(encoding="utf-8") == page
        assert page.count("$") % 2 == 0
    for row in found:
        if row.claim.source == "regard":  # its own statements answer no sheet
            continue
        assert pages[row.claim.source].count(f"**Checked** by `{row.claim.id}`") == 1, row.claim.id
    for source, questions in SHEETS.items():
        for question in questions:
            assert f"### {question.text}\n" in pages[source]
            if question.number:
                assert f"*Question {question.number}.*" in pages[source]
    assert "| 256 | 4980736 | 4980736 |" in pages["a6"]  # costs, counted beside the formula


def test_every_question_of_the_sheets_is_answered_and_asked() -> None:
    numbered = {source: [each for each in questions if each.number] for source, questions in SHEETS.items()}
    assert {source: len(each) for source, each in numbered.items()} == {
        "hw4": 22,
        "c182": 12,
        "ex05": 6,
        "a6": 16,
        "e182": 11,
    }
    for questions in numbered.values():
        assert len({each.number for each in questions}) == len(questions)
        for each in questions:
            assert each.claims or each.answer, each
            assert each.exercises, each
    used = {name for questions in SHEETS.values() for each in questions for name in each.claims}
    assert used == {claim.id for claim in all_claims() if claim.source != "regard"}


def test_exit_status_says_whether_evidence_and_record_agree(monkeypatch, capsys) -> None:
    assert run(["hw4-beta-zero", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "holds"
    monkeypatch.setattr("regard.functional.attention", lambda q, k, v, **o: (v, v) if o.get("return_weights") else v)
    assert run(["hw4-beta-zero", "--json"]) == 1
    entry = json.loads(capsys.readouterr().out)[0]
    assert entry["verdict"] == "fails"
    assert "DISAGREES" in entry["evidence"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "no claim is called 'nonsense'"),
        (["--topic", "c182"], "--topic 'c182' is not one of"),
        (["--source", "heads"], "--source 'heads' is not one of"),
        (["--id", "hw4"], "--id 'hw4' is not one of"),
        (["--id", "hw4-bet-one"], "--id 'hw4-bet-one' is not one of 77; did you mean hw4-beta-one or "),
        (["--topic", "heads", "--id", "a6-gelu"], "no claim is left"),
        (["hw4", "--picture", "x.png"], "--picture is for one claim"),
    ],
)
def test_a_wrong_call_says_what_would_fit(arguments: list[str], message: str, capsys) -> None:
    assert main(["verify", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_options_of_different_kinds_narrow_down(capsys) -> None:
    assert run(["--source", "ex05", "--source", "e182", "--topic", "heads", "--json"]) == 0
    names = [entry["id"] for entry in json.loads(capsys.readouterr().out)]
    assert sorted(names) == ["e182-many-heads", "ex05-graph", "ex05-map", "ex05-self"]


def test_one_claim_is_shown_with_its_picture(tmp_path: Path, capsys) -> None:
    path = tmp_path / "new" / "picture.png"
    assert run(["--id", "hw4-key-stretch", "--picture", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "What is true instead" in shown
    assert str(path) in shown
    assert path.read_bytes().startswith(b"\x89PNG")


def test_pictures_go_to_the_cache_by_default(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    assert run(["--id", "hw4-beta-zero"]) == 0
    assert (tmp_path / "regard" / "claims" / "hw4-beta-zero.png").is_file()
    assert "hw4-beta-zero.png" in capsys.readouterr().out


def test_a_cache_that_cannot_be_written_says_nothing_about_a_claim(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "file" / name))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(["--id", "hw4-beta-zero"]) == 0
    path = Path(capsys.readouterr().out.rpartition("Picture: ")[2].strip())
    assert path.is_relative_to(tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_pages_are_written(tmp_path: Path, capsys) -> None:
    page, markdown = tmp_path / "page.html", tmp_path / "new" / "page.md"
    questions = tmp_path / "questions"
    arguments = ["hw4-beta-one", "hw4-beta-zero", "hw4-ffn", "--html", str(page), "--misconceptions", str(markdown)]
    arguments += ["--answers", str(questions)]
    assert run(arguments) == 0
    assert "hw4-beta-zero" in page.read_text(encoding="utf-8")
    assert "`hw4-beta-one`" in markdown.read_text(encoding="utf-8")
    assert "What is the second half of a BERT block?" in (questions / "a6.md").read_text(encoding="utf-8")
    assert "hw4-beta-zero" in capsys.readouterr().out


def test_results_are_found_by_number_slice_and_id() -> None:
    found = verify(["hw4-beta-zero", "hw4-beta-one"])
    assert len(found) == 2
    assert found[0] is found.rows[0]
    assert found["hw4-beta-one"].claim.id == "hw4-beta-one"
    assert len(found[:1]) == 1
    with pytest.raises(KeyError, match="hw4-preserve"):
        found["hw4-preserve"]
