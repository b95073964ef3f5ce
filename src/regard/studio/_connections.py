"""Connections that wait for nobody: a client that sends half a request is closed after some seconds, or when others come."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.studio._guard import HEADERS

HEADER_SECONDS = 10.0
MOST_CONNECTIONS = 400  # below the usual limit of 1,024 open files


class ImpatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a time limit on the head of a request and a limit on the number of connections.

    uvicorn limits the time between two requests, but not the time that the head of one may take. Half-sent requests would
    fill every place. Where there are too many connections, the one that has waited longest for a request is closed.
    """

    _waiting: "dict[ImpatientProtocol, None]" = {}  # in the order in which they began to wait  # noqa: RUF012
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            oldest = next((each for each in self._waiting if each.connections is self.connections), self)
            oldest.give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:  # the head of a request is not complete
            if self._timer is None:
                self._wait()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._stop_waiting()
            self._wait()

    def give_up(self) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no HTTP, with the headers of every other answer."""
        try:
            content = msg.encode()
            headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            headers += [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
            headers += [(b"cache-control", b"no-store"), (b"content-length", str(len(content)).encode())]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # an answer has begun already
        self.transport.close()

    def _wait(self) -> None:
        self._waiting[self] = None
        self._timer = self.loop.call_later(HEADER_SECONDS, self.give_up)

    def _stop_waiting(self) -> None:
        self._waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
