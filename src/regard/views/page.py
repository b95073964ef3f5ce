"""One HTML page: views, figures, tables and text in a single file that needs no network, no Python and no notebook."""

import base64
import hashlib
import html
import io
import os
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from regard.support.text import whole_characters
from regard.views._payload import Payload

STATIC = Path(__file__).parent / "static"
CHUNK, LARGE = 4 * 2**20, 32 * 2**20  # bytes per compressed chunk; larger pages are compressed faster, but less


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 110rem; margin: 0 auto; padding: 1.2rem; }
body.report { max-width: 62rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
img { max-width: 100%; height: auto; background: white; border-radius: 4px; }
table { border-collapse: collapse; font-size: 0.9rem; } td, th { padding: 0.15rem 0.8rem 0.15rem 0; text-align: left; }
.wide { overflow-x: auto; } table.grid { width: 100%; } table.grid td, table.grid th { padding: 0.4rem 0.8rem 0.4rem 0; }
table.grid td { border-top: 1px solid #8883; vertical-align: top; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; font-size: 0.8rem; }
@media (prefers-color-scheme: dark) { :root:not([data-theme="light"]) body { background: #090b0f; color: #e8ebef; } }
:root[data-theme="dark"] { color-scheme: dark; } :root[data-theme="light"] { color-scheme: light; }
:root[data-theme="dark"] body { background: #090b0f; color: #e8ebef; }
@media (max-width: 480px) {
  body { padding: 0.6rem 0; }
  body.report :is(h1, section > :not([data-regard-payload])) { padding: 0 10px; box-sizing: border-box; }
}
body.story { max-width: none; padding: 0; background: #ffffff; }
body.story > main > section, .story-opening { max-width: 1080px; margin: 0 auto; box-sizing: border-box; }
body.story > main > section, .story-opening { padding: 0 clamp(14px, 4vw, 40px); }
body.story > main > h2 { font-size: clamp(1.5rem, 4vw, 2.2rem); letter-spacing: -0.02em; text-align: center; }
body.story > main > h2 { padding-top: 3rem; border-top: 1px solid #8883; }
body.story > main > section:last-of-type { padding-bottom: 5rem; }
.story-opening { min-height: 100vh; }
.story-opening h1 { font-size: clamp(2.1rem, 7vw, 4.4rem); line-height: 1.04; letter-spacing: -0.035em; }
.story-opening h1 { max-width: 14em; margin: 0; padding-top: 110px; }
.claims { list-style: none; padding: 0; } .claims li { margin: 0.5rem 0; display: grid; grid-template-columns: 7.5em 1fr; }
.claims b { font-weight: 600; font-size: 0.9rem; } .claims .holds { color: #0072b2; } .claims .fails { color: #d55e00; }
@media (prefers-color-scheme: dark) { :root:not([data-theme="light"]) body.story { background: #0e1116; } }
:root[data-theme="dark"] body.story { background: #0e1116; }
@media print { body, body.story { background: #ffffff !important; color: #1b2026 !important; } }
"""

# The module is compressed like the data. Once unpacked it runs as an inline script.
START = """
const unpack = async (id) => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
};
unpack("regard-module").then((text) => {
  const script = document.createElement("script");
  script.type = "module";
  script.textContent = text;
  document.head.append(script);
}).catch((error) => document.body.prepend(`This page needs a browser of 2023 or later (${error.message}).`));
"""


@cache
def policy() -> str:
    """The content security policy: a page loads nothing, sends nothing, and runs only our two scripts, identified by hashes."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (START, bundle()))
    scripts = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


class Section(NamedTuple):
    """A heading and the HTML below it."""

    heading: str
    body: str


def document(payloads: Sequence[Payload], title: str) -> str:
    """A page that shows the views one below the other."""
    return "".join(document_pieces(payloads, title))


def document_pieces(payloads: Sequence[Payload], title: str) -> Iterator[str]:
    """The same page piece by piece, so that a page of large maps is never in memory as a whole."""
    yield _head(title) + "<body><main>"
    named = [(payload, f"view-{number}") for number, payload in enumerate(payloads)]
    for payload, name in named:
        yield from _opening_pieces(payload, name)
    yield "</main>"
    # The browser reads from top to bottom, so views are drawn while the large maps below are still loading.
    yield _scripts()
    for payload, name in named:
        yield from _late_pieces(payload, name)
    yield "</body></html>\n"


def report(title: str, sections: Iterable[Section]) -> str:
    """A page of sections under a title. Bodies are made by :func:`paragraph`, :func:`table`, :func:`picture`, …

    >>> from regard.views import page
    >>> "<h2>Results</h2><p>80 %</p>" in page.report("A run", [page.Section("Results", page.paragraph("80 %"))])
    True
    """
    parts = [f"<section><h2>{html.escape(each.heading)}</h2>{each.body}</section>" for each in sections]
    return _page(title, f"<h1>{html.escape(title)}</h1>{''.join(parts)}", '<body class="report">')


def story(payload: Payload, title: str, sections: Iterable[Section] = (), heading: str = "") -> str:
    """The scrolling page (see ``regard.views.story``), then sections in plain HTML, under a heading."""
    # The opening is plain HTML, so that the browser paints it before the script has loaded.
    opening = f'<div class="story-opening"><h1>{html.escape(str(payload.meta["title"]))}</h1></div>'
    parts = [f"<h2>{html.escape(heading)}</h2>" if heading else ""]
    parts += [f"<section><h2>{html.escape(each.heading)}</h2>{each.body}</section>" for each in sections]
    return _page(title, view(payload, "story", opening) + "".join(parts), '<body class="story">')


def embedded(payload: Payload, name: str, opening: str = "") -> str:
    """A view to embed in another page; the styles of the two do not mix."""
    shown = view(payload, name, opening).replace(">", " data-regard-apart>", 1)
    return shown + _scripts()


def _page(title: str, content: str, body: str = "<body>") -> str:
    scripts = _scripts() if "data-regard-payload" in content else ""
    return f"{_head(title)}{body}<main>{whole_characters(content)}</main>{scripts}</body></html>\n"


def _head(title: str) -> str:
    return whole_characters(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
    )


@cache
def _scripts() -> str:
    module = _packed([memoryview(bundle().encode())])
    return f'<script type="text/plain" id="regard-module">{module}</script><script>{START}</script>'


def view(payload: Payload, name: str, opening: str = "") -> str:
    """An interactive view inside a page; ``name`` must be unique in it. ``opening`` is HTML shown until the view has loaded."""
    return "".join((*_opening_pieces(payload, name, opening), *_late_pieces(payload, name)))


def _opening_pieces(payload: Payload, name: str, opening: str = "") -> Iterator[str]:
    # Inside the JSON, "<" is escaped so that it cannot open a tag.
    header = payload.header.replace("<", "\\u003c")
    late = " data-regard-late" if payload.rest else ""
    yield f'<div data-regard-payload="{name}"{late}>{opening}<noscript>This view needs JavaScript.</noscript></div>'
    yield f'<script type="application/json" id="{name}-header">{header}</script>'
    yield f'<script type="text/plain" id="{name}-buffer">{_packed(payload.early)}</script>'


def _late_pieces(payload: Payload, name: str) -> Iterator[str]:
    if payload.rest:
        yield f'<script type="text/plain" id="{name}-rest">'
        yield _packed(payload.rest)
        yield "</script>"


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def preformatted(text: str) -> str:
    """Text in a fixed-width font, line breaks kept."""
    return f"<pre>{html.escape(text)}</pre>"


def table(rows: Sequence[tuple[str, Any]]) -> str:
    """Names and values."""
    cells = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>" for name, value in rows)
    return f"<table>{''.join(cells)}</table>"


def grid(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """A table: headings, then rows. Columns named in ``right``, by number, hold numbers."""
    head, *body = rows
    lines = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    for row in body:
        kinds = (' class="number"' if number in right else "" for number in range(len(row)))
        cells = (f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        lines += f"</tr><tr>{''.join(cells)}"
    return f'<div class="wide"><table class="grid"><tr>{lines}</tr></table></div>'


def claims(rows: Sequence[tuple[str, str]]) -> str:
    """Verdicts and statements; a statement is HTML."""
    items = (f'<li><b class="{name.split()[0]}">{html.escape(name)}</b><span>{said}</span></li>' for name, said in rows)
    return f'<ul class="claims">{"".join(items)}</ul>'


def folded(heading: str, body: str) -> str:
    """HTML that is hidden until the reader unfolds it."""
    return f"<details><summary>{html.escape(heading)}</summary>{body}</details>"


def picture(figure: Any, description: str) -> str:
    """A matplotlib figure as an image inside the page."""
    return f'<p><img alt="{html.escape(description)}" src="{picture_address(figure)}"></p>'


def picture_address(figure: Any) -> str:
    """A matplotlib figure as a ``data:`` address."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


@cache
def bundle(name: str = "regard.js") -> str:
    """The built front end (see ``frontend/``)."""
    path = STATIC / name
    if not path.exists():
        raise FileNotFoundError(f"{path.name} is missing: run `make frontend` in the checkout")
    return path.read_text(encoding="utf-8")


def _packed(pieces: Sequence[memoryview]) -> str:
    """The bytes as one zlib stream in base64. Chunks are compressed in parallel, with one thread per core."""
    level = 6 if sum(len(piece) for piece in pieces) < LARGE else 1  # for a large page, speed matters more than size
    chunks = [piece[start : start + CHUNK] for piece in pieces for start in range(0, len(piece), CHUNK)]
    check = 1
    for chunk in chunks:
        check = zlib.adler32(chunk, check)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        packed = [
            b"\x78\x01",
            *pool.map(partial(_deflated, level=level), chunks),
            b"\x03\x00",
            struct.pack(">I", check),
        ]
    return base64.b64encode(b"".join(packed)).decode()


def _deflated(chunk: memoryview, level: int) -> bytes:
    """A part of a deflate stream, padded to a byte boundary so that another part can follow."""
    machine = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return machine.compress(chunk) + machine.flush(zlib.Z_FULL_FLUSH)
