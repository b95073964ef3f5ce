"""Checks host, origin, token and size of every request before anything else sees it."""

import asyncio
import hashlib
import ipaddress
import re
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse

from regard.studio._errors import answer
from regard.support.text import format_size

# Everything is loaded from this server; nothing is evaluated, framed or sent elsewhere.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
COOKIE = "regard_studio"
MOST_FIELDS = 20  # of the query string
BODY_SECONDS = 30.0
LOCKED = Path(__file__).with_name("locked.html")
ENTER = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=/">
<title>regard studio</title></head><body><p><a href="/">regard studio</a></p></body></html>"""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]@/?#\s]+))(?::\d{1,5})?")


class Guard:
    """ASGI middleware around the whole application.

    Args:
        app: the application.
        names: host names that requests may use. Others are refused, since a page on another site can make a browser
            send requests here under its own name (DNS rebinding).
        addresses: whether any numeric address is allowed as well; DNS rebinding cannot use one.
        token: the token that a request must have, first in the address and then as a cookie; None requires none. The
            cookie's name depends on the token, since browsers share cookies between all ports of a machine.
        largest_body: largest body of a request, in bytes.
    """

    def __init__(
        self,
        app: Any,
        *,
        names: Collection[str] = LOOPBACK,
        addresses: bool = False,
        token: str | None = None,
        largest_body: int = 10 * 2**20,
    ) -> None:
        self.app, self.token, self.largest_body = app, token, largest_body
        self.names = frozenset(name.lower() for name in names)
        self.addresses = addresses
        mark = "" if token is None else hashlib.sha256(token.encode()).hexdigest()[:12]
        self.cookie = f"{COOKIE}_{mark}"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            elif scope["type"] == "websocket":  # not supported
                await send({"type": "websocket.close", "code": 1008})
            return
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        refusal = self.refusal(scope, headers)
        entering = refusal is None and self._shows_token_in_address(scope)

        began = False

        async def answering(message: Any) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                if not any(name.lower() == b"cache-control" for name, _ in message["headers"]):
                    added.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        if refusal is not None:
            wants_page = scope["path"] == "/" and any("text/html" in each for each in headers.get("accept", []))
            locked = wants_page and refusal[0] == 401
            reply = HTMLResponse(LOCKED.read_bytes(), 401) if locked else answer(*refusal)
            await reply(scope, receive, answering)
        elif entering:
            await self._enter(answering)
        else:
            try:
                await self.app(scope, self._counted(receive), answering)
            except asyncio.CancelledError:  # the studio is stopping, and this request takes longer than it waits
                if not began:
                    await answer(503, "the studio was stopped")(scope, receive, answering)

    def refusal(self, scope: Any, headers: dict[str, list[str]]) -> tuple[int, str] | None:
        """The reason to refuse a request, as (status, message); None if it is allowed."""
        hosts, origins = headers.get("host", []), headers.get("origin", [])
        if len(hosts) != 1 or not self.may_be_called(hosts[0]):
            return 421, f"this server does not answer to the host name {', '.join(hosts)!r}"
        if any(origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}") for origin in origins):
            return 403, "requests from pages of other sites are refused"
        site = headers.get("sec-fetch-site", ["none"])[-1]
        follows_link = scope["path"] == "/" and headers.get("sec-fetch-mode", [""])[-1] == "navigate"
        if site not in ("same-origin", "none") and not follows_link:
            return 403, "requests from pages of other sites are refused"
        if scope.get("query_string", b"").count(b"&") >= MOST_FIELDS:
            return 400, f"the address has more than {MOST_FIELDS} fields"
        if self.token is not None and not self._shows_token(scope, headers):
            return (
                401,
                "the address lacks the token: open the complete address that regard studio printed, which ends in the token",
            )
        length = headers.get("content-length", ["0"])[-1]
        if not length.isascii() or not length.isdigit():
            return 400, f"content-length is {length!r}, which is not a number of bytes"
        if int(length) > self.largest_body:
            return 413, self._too_large()
        return None

    def may_be_called(self, host: str) -> bool:
        """Whether a Host header names this server. The port is ignored, so that port forwarding works."""
        parts = _HOST.fullmatch(host.lower())
        if parts is None:
            return False
        name = parts[1] or parts[2]
        if name in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.addresses

    def _shows_token(self, scope: Any, headers: dict[str, list[str]]) -> bool:
        shown = [line.removeprefix("Bearer ") for line in headers.get("authorization", [])]
        # Other programs on this machine may set cookies of any form, so we look only for ours.
        for line in headers.get("cookie", []):
            pairs = (part.partition("=") for part in line.split(";"))
            shown += [value.strip().strip('"') for name, _, value in pairs if name.strip() == self.cookie]
        return self._shows_token_in_address(scope) or any(map(self._is_token, shown))

    def _shows_token_in_address(self, scope: Any) -> bool:
        if scope["path"] != "/" or self.token is None:
            return False
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        return any(map(self._is_token, query.get("token", [])))

    def _is_token(self, shown: str) -> bool:
        return self.token is not None and secrets.compare_digest(shown.encode(), self.token.encode())

    async def _enter(self, send: Any) -> None:
        """Replace the token in the address by a cookie that scripts cannot read. The response is a page that loads the studio,
        since after a redirect from another site a browser would not send the cookie."""
        cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"set-cookie", cookie.encode()), (b"content-length", str(len(ENTER)).encode())]
        headers.append((b"content-type", b"text/html; charset=utf-8"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ENTER})

    def _counted(self, receive: Any) -> Any:
        """Limit the size of the body, whatever length the request declares, and the time to receive it."""
        came, more = 0, True
        until = asyncio.get_running_loop().time() + BODY_SECONDS

        async def counting() -> Any:
            nonlocal came, more
            try:
                left = until - asyncio.get_running_loop().time()
                message = await (asyncio.wait_for(receive(), max(left, 0.001)) if more else receive())
            except TimeoutError:
                raise HTTPException(408, f"the request did not arrive within {BODY_SECONDS:g} seconds") from None
            more = message["type"] == "http.request" and message.get("more_body", False)
            came += len(message.get("body", b""))
            if came > self.largest_body:
                raise HTTPException(413, self._too_large())
            return message

        return counting

    def _too_large(self) -> str:
        return f"the request is larger than {format_size(self.largest_body)}"
