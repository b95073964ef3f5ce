"""Check claims about attention, and compare the evidence with the recorded verdicts."""

import argparse
import difflib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.support.files import check_folder, check_writable, write_output

if TYPE_CHECKING:
    from regard.claims import Claim, Row


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, or 1 if evidence and record disagree."""
    chosen = _parser().parse_args(arguments)
    from regard.claims import answers, misconceptions, verify

    names = _names(chosen)
    if chosen.picture is not None and chosen.json:
        raise ValueError("--json prints no figure: leave --picture out")
    _check_outputs(chosen)
    found = verify(names, slow=chosen.slow, smoke=chosen.smoke, report=_report)
    _clear()
    if chosen.json:
        print(json.dumps(found.as_json(), indent=2))
    elif len(found) == 1 or chosen.id:
        for row in found:
            _show(row, chosen.picture)
    else:
        print(found)
    if chosen.html is not None:
        from regard.views import show

        show(found).save(chosen.html)
        print(f"page: {chosen.html}", file=sys.stderr)
    pages = {} if chosen.misconceptions is None else {chosen.misconceptions: misconceptions(found)}
    if chosen.answers is not None:
        answered = answers(found)
        pages |= {chosen.answers / f"{name}.md": text for name, text in answered.items()}
        if not answered:
            print("--answers: no question has all of its claims among these, so no page is written", file=sys.stderr)
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, text)
        print(f"page: {path}", file=sys.stderr)
    return 0 if found.agrees else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="regard verify", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="WHAT", help="sources, topics or ids of claims; default all")
    parser.add_argument("--id", action="append", default=[], help="one claim, with its derivation, numbers and figure")
    parser.add_argument("--topic", action="append", default=[], help="only claims on this topic, such as temperature")
    parser.add_argument(
        "--source", action="append", default=[], help="only claims of this source, such as hw4 (homework 4)"
    )
    parser.add_argument("--slow", action="store_true", help="also check claims that train a network (minutes)")
    parser.add_argument("--smoke", action="store_true", help="run the slow checks at a tiny scale, to test their code")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the results as one self-contained HTML page")
    parser.add_argument(
        "--misconceptions", type=Path, metavar="FILE", help="write the page of misconceptions (Markdown)"
    )
    parser.add_argument(
        "--answers",
        type=Path,
        metavar="FOLDER",
        help="write a page of questions and answers for each source (Markdown)",
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="with one --id: save its figure here")
    return parser


def _check_outputs(chosen: argparse.Namespace) -> None:
    """Refuse what cannot be written before the claims are checked, which takes minutes."""
    if chosen.picture is not None:
        from matplotlib.figure import Figure

        known = sorted(f".{ending}" for ending in Figure().canvas.get_supported_filetypes())
        check_writable("--picture", chosen.picture, known)
    if chosen.html is not None:
        check_writable("--html", chosen.html, (".html",))
    if chosen.misconceptions is not None:
        check_writable("--misconceptions", chosen.misconceptions)
    if chosen.answers is not None:
        check_folder("--answers", chosen.answers)


def _names(chosen: argparse.Namespace) -> list[str]:
    """The ids of the selected claims. Repeated options add claims, different options restrict them."""
    from regard.claims import SOURCES, TOPICS, all_claims, select

    kinds = {"id": [claim.id for claim in all_claims()], "topic": TOPICS, "source": SOURCES}
    names = [claim.id for claim in select(chosen.what or None)]
    for kind, known in kinds.items():
        wanted = getattr(chosen, kind)
        for value in wanted:
            if value not in known:
                raise ValueError(f"--{kind} {value!r} is not one of {_offered(value, list(known))}")
        names = [claim.id for claim in select(names) if not wanted or getattr(claim, kind) in wanted]
        if not names:
            raise ValueError(f"no claim is left after --{kind} {' '.join(wanted)}")
    if chosen.picture is not None and len(names) > 1:
        raise ValueError(f"--picture is for one claim, but {len(names)} are selected; --html shows them all")
    return names


def _offered(value: str, known: Sequence[str]) -> str:
    """What to choose from: all if they are few, else those that look like the value."""
    if len(known) > 12 and (close := difflib.get_close_matches(value, known, n=3, cutoff=0.5)):
        return f"{len(known)}; did you mean {' or '.join(close)}?"
    return ", ".join(known)


def _report(claim: "Claim") -> None:
    """Show progress on a terminal, in one line that is overwritten."""
    if sys.stderr.isatty():
        print(f"\r\033[K{claim.id} …", end="", file=sys.stderr, flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _show(row: "Row", path: Path | None) -> None:
    from regard.claims import details, picture
    from regard.figures.style import save_figure

    print(details(row))
    figure = picture(row)
    if figure is None:
        if path is not None:
            why = "nothing was measured" if row.ran else "the claim was not checked, which --slow does"
            print(f"--picture: there is no figure, since {why}", file=sys.stderr)
        return
    path = path or _folder() / f"{row.claim.id}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path)
    print(f"Picture: {path}")


def _folder() -> Path:
    """The folder for figures: the cache, or a temporary folder if the cache cannot be written."""
    import platformdirs

    folder = Path(platformdirs.user_cache_dir("regard")) / "claims"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="regard-claims-"))
    return folder
