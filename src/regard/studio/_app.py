"""The application: the API, the page and its files, inside the guard."""

import hashlib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from regard._version import __version__
from regard.studio._errors import install
from regard.studio._files import Folder
from regard.studio._guard import LOOPBACK, Guard
from regard.studio._images import MOST_BYTES
from regard.studio._routes import routes
from regard.views.page import bundle

# What may be asked for by name, and nothing else.
KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
PAGE = Path(__file__).parent / "page.html"


def create_app(
    folder: Path,
    *,
    names: Collection[str] = LOOPBACK,
    addresses: bool = False,
    token: str | None = None,
    example: bool = True,
) -> Any:
    """The studio's server as an ASGI application.

    Args:
        folder: whose runs are shown, also those that come later; nothing outside of it is read (but for the package's
            own example).
        names, addresses, token: who may ask (see :class:`regard.studio._guard.Guard`).
        example: whether to show the run that comes with the package.

    >>> import tempfile
    >>> from regard.studio import create_app
    >>> app = create_app(Path(tempfile.gettempdir()))
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"folder must be a folder with runs, got {str(folder)!r}")
    # FastAPI's own pages about an API load scripts from elsewhere; its description stays, at /api/openapi.json.
    api = FastAPI(
        title="regard studio",
        version=__version__,
        description="Runs and what their networks attend to.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    install(api)
    api.openapi = lambda: _described(api)  # type: ignore[method-assign]
    api.include_router(routes(Folder(folder, example=example)))

    @api.get("/", include_in_schema=False)
    def page(request: Request) -> Response:
        return _file("page.html", request)

    @api.get("/studio.js", include_in_schema=False)
    def script(request: Request) -> Response:
        return _file("studio.js", request)

    # A file, and the form that it comes in.
    return Guard(api, names=names, addresses=addresses, token=token, largest_body=MOST_BYTES + 2**20)


def _described(api: FastAPI) -> dict[str, Any]:
    """The API's description. FastAPI takes errors for being of the kind of the answer; ours are JSON everywhere."""
    if api.openapi_schema is None:
        described = FastAPI.openapi(api)
        for methods in described["paths"].values():
            for method in methods.values():
                for status, answer in method["responses"].items():
                    if status != "200" and "content" in answer:
                        answer["content"] = {"application/json": next(iter(answer["content"].values()))}
        api.openapi_schema = described
    return api.openapi_schema


def _file(name: str, request: Request) -> Response:
    content, mark = _content(name)
    headers = {"etag": mark, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=KINDS[Path(name).suffix], headers=headers)


@cache
def _content(name: str) -> tuple[bytes, str]:
    content = PAGE.read_bytes() if name == "page.html" else bundle(name).encode()
    return content, f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
