"""Views as one HTML file that needs nothing else: no network, no Python, no notebook."""

import base64
import html
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from regard.views._payload import Payload

STATIC = Path(__file__).parent / "static"

# Nothing is loaded from anywhere, and nothing can be sent anywhere.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 110rem; margin: 0 auto; padding: 1.2rem; }
@media (prefers-color-scheme: dark) { body { background: #090b0f; color: #e8ebef; } }
@media (max-width: 480px) { body { padding: 0.6rem 0; } }
"""

# The module is packed like the data; once unpacked it is an inline script like any other.
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
def bundle(name: str = "regard.js") -> str:
    """The built front end (see ``frontend/``)."""
    path = STATIC / name
    if not path.exists():
        raise FileNotFoundError(f"{path.name} was not built: run `make frontend` in the checkout")
    return path.read_text(encoding="utf-8")


def head() -> str:
    """What goes into a page's ``<head>``: what it may do, which is to run what it holds."""
    return (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
    )


def place(payload: Payload, name: str) -> str:
    """A view, where it is to stand in a page; ``name`` is unique in it. The page ends with :func:`scripts`."""
    # "<" cannot open a tag inside the block when it is written as JSON writes any other sign.
    header = payload.header.replace("<", "\\u003c")
    return (
        f'<div data-regard-payload="{name}"><noscript>This picture needs JavaScript.</noscript></div>'
        f'<script type="application/json" id="{name}-header">{header}</script>'
        f'<script type="text/plain" id="{name}-buffer">{packed(payload.buffer)}</script>'
    )


def scripts() -> str:
    """What brings the views of a page to life."""
    module = packed(bundle().encode())
    return f'<script type="text/plain" id="regard-module">{module}</script><script>{START}</script>'


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 6)).decode()


def document(payloads: Sequence[Payload], title: str) -> str:
    """A whole HTML document with these views, one below the other."""
    views = "".join(place(payload, f"view-{number}") for number, payload in enumerate(payloads))
    return (
        f'<!doctype html><html lang="en"><head>{head()}<title>{html.escape(title)}</title><style>{STYLE}</style></head>'
        f"<body>{views}{scripts()}</body></html>\n"
    )
