"""Checks host, origin, token and size of every request before anything else sees it."""

import ipaddress
import re
import secrets
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException

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
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]@/?#\s]+))(?::\d{1,5})?")


class Guard:
    """ASGI middleware around the whole application.

    Args:
        app: the application.
        names: host names that requests may use. Others are refused, since a page on another site can make a browser
            send requests here under its own name (DNS rebinding).
        addresses: whether any numeric address is allowed as well; DNS rebinding cannot use one.
        token: the token that a request must have, in the address once and as a cookie afterwards; None needs none.
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

        async def answering(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                if not any(name.lower() == b"cache-control" for name, _ in message["headers"]):
                    added.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        if refusal is not None:
            await answer(*refusal)(scope, receive, answering)
        elif entering:
            await self._enter(answering)
        else:
            await self.app(scope, self._counted(receive), answering)

    def refusal(self, scope: Any, headers: dict[str, list[str]]) -> tuple[int, str] | None:
        """Why a request is refused, as (status, message); None where it is allowed."""
        hosts, origins = headers.get("host", []), headers.get("origin", [])
        if len(hosts) != 1 or not self.may_be_called(hosts[0]):
            return 421, f"this server does not answer to the host name {', '.join(hosts)!r}"
        if any(origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}") for origin in origins):
            return 403, "requests from pages of other sites are refused"
        site = headers.get("sec-fetch-site", ["none"])[-1]
        follows_link = scope["path"] == "/" and headers.get("sec-fetch-mode", [""])[-1] == "navigate"
        if site not in ("same-origin", "none") and not follows_link:
            return 403, "requests from pages of other sites are refused"
        if self.token is not None and not self._shows_token(scope, headers):
            return (
                401,
                "open the complete address that regard studio printed: it ends in the token that is missing here",
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
        for line in headers.get("cookie", []):
            try:
                cookie = SimpleCookie(line).get(COOKIE)
            except CookieError:
                continue
            shown += [] if cookie is None else [cookie.value]
        return self._shows_token_in_address(scope) or any(map(self._is_token, shown))

    def _shows_token_in_address(self, scope: Any) -> bool:
        if scope["path"] != "/" or self.token is None:
            return False
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=20)
        return any(map(self._is_token, query.get("token", [])))

    def _is_token(self, shown: str) -> bool:
        return self.token is not None and secrets.compare_digest(shown.encode(), self.token.encode())

    async def _enter(self, send: Any) -> None:
        """Replace the token in the address by a cookie that scripts cannot read."""
        cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _counted(self, receive: Any) -> Any:
        """Refuse to read beyond the limit, whatever length the request declares."""
        came = 0

        async def counting() -> Any:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self.largest_body:
                raise HTTPException(413, self._too_large())
            return message

        return counting

    def _too_large(self) -> str:
        return f"the request is larger than {format_size(self.largest_body)}"
