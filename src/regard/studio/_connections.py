"""Time limits for connections: a client that sends half a request, or does not read its response, is disconnected after
some seconds, or earlier if there are too many connections."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.studio._guard import BODY_SECONDS, HEADERS

HEADER_SECONDS = 10.0
TAKE_SECONDS = 30.0  # for a client to continue reading a response that it stopped reading
MOST_CONNECTIONS = 400  # below the usual limit of 1,024 open files


class ImpatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a time limit on every wait for the client, and a limit on the number of connections.

    uvicorn limits the time between two requests. It does not limit the time to receive the head of a request, to receive
    a body after its response, or to send a response, so such connections could use up all places. If there are too many
    connections, the one whose client has kept us waiting longest is closed. Pipelined requests (sent before the previous
    response) are not read.
    """

    _waiting: "dict[ImpatientProtocol, None]" = {}  # in the order in which they began to wait  # noqa: RUF012
    _timer: asyncio.TimerHandle | None = None
    _limit: float | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._look()
        if len(self.connections) > MOST_CONNECTIONS:
            oldest = next((each for each in self._waiting if each.connections is self.connections), self)
            oldest.give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            # Pipelined requests: no browser sends any, and thousands of them would block other clients.
            self.cycle.keep_alive = False
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def give_up(self) -> None:
        self._stop_waiting()
        self.transport.abort()  # also if it is closing, but the client has not read the last response

    def send_400_response(self, msg: str) -> None:
        """The response to invalid HTTP, with the same headers as every other response."""
        try:
            content = msg.encode()
            headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            headers += [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
            headers += [(b"cache-control", b"no-store"), (b"content-length", str(len(content)).encode())]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # a response has already begun
        self.transport.close()

    def _patience(self) -> float | None:
        """The seconds that the client has for its next action; None if it waits for us."""
        if self.flow.write_paused or self.transport.is_closing():
            return TAKE_SECONDS
        if self.conn.their_state is h11.IDLE:  # the head of a request is not complete
            return HEADER_SECONDS
        if self.conn.their_state is h11.SEND_BODY:
            # The guard responds when the time is over. After an early response, the rest of the body is not needed.
            return HEADER_SECONDS if self.cycle.response_complete else BODY_SECONDS + HEADER_SECONDS
        return None

    def _look(self) -> None:
        """Start or stop the time limit for the client. A request that arrives in pieces gets no extra time per piece."""
        limit = self._patience() if self in self.connections else None
        if limit == self._limit:
            return
        self._stop_waiting()
        if limit is not None:
            self._limit = limit
            self._waiting[self] = None
            self._timer = self.loop.call_later(limit, self.give_up)

    def _stop_waiting(self) -> None:
        self._waiting.pop(self, None)
        self._limit = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
