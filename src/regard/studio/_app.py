"""The ASGI application: the API, the page and its files, behind the guard."""

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from regard._version import __version__
from regard.data import MOST_BYTES
from regard.studio._errors import install
from regard.studio._guard import LOOPBACK, Guard
from regard.studio._own_model import OwnModel
from regard.studio._routes import routes
from regard.studio._run_folders import EXAMPLE, Folder
from regard.support.checksums import checksum
from regard.views.page import bundle

# The media types of the files that are served.
KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
PAGE = Path(__file__).parent / "page.html"


def create_app(
    folder: Path,
    *,
    names: Collection[str] = LOOPBACK,
    addresses: bool = False,
    token: str | None = None,
    example: Path | None = EXAMPLE,
    model: OwnModel | None = None,
) -> Any:
    """The studio's server as an ASGI application.

    Args:
        folder: the folder of the runs to show, including new ones. Nothing outside it is read, except the example.
        names, addresses, token: which requests are allowed (see :class:`regard.studio._guard.Guard`).
        example: the folder of an example run, by default the one that comes with the package; None shows none.
        model: a model of the user's own, from :func:`regard.studio.open_model`.

    >>> import tempfile
    >>> from regard.studio import create_app
    >>> app = create_app(Path(tempfile.gettempdir()))
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"folder must be a folder with runs, got {str(folder)!r}")
    # FastAPI's documentation pages load scripts from other servers, so they are off. /api/openapi.json remains.
    api = FastAPI(
        title="regard studio",
        version=__version__,
        description="Runs and the attention of their networks.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    install(api)
    api.openapi = lambda: _described(api)  # type: ignore[method-assign]
    api.include_router(routes(Folder(folder, example=example), model))

    @api.get("/", include_in_schema=False)
    def page(request: Request) -> Response:
        return _file("page.html", request)

    @api.get("/studio.js", include_in_schema=False)
    def script(request: Request) -> Response:
        return _file("studio.js", request)

    # The largest upload, plus the multipart form around it.
    return Guard(api, names=names, addresses=addresses, token=token, largest_body=MOST_BYTES + 2**20)


def _described(api: FastAPI) -> dict[str, Any]:
    """The description of the API. FastAPI gives errors the media type of the response; ours are always JSON."""
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
    return content, f'"{checksum(content, size=12)}"'
