"""The grader's side of a student's process: start it and send it calls. Results are compared on this side."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.course.grading import _codec as codec

SECONDS, MEMORY = 10.0, 2 * 2**30
MOST_CALLS = 200  # calls of functions that a check passes to an answer
WALL = 6.0  # wall-clock limit as a multiple of the processor seconds, since other jobs may share the machine


class Stopped(Exception):
    """The student's process ended by itself, or had to be stopped."""


class Missing(Exception):
    """The notebook has no answer of this name that can be called."""


@dataclass
class AnswerError(Exception):
    """An error in student code: its type, its text and the student's line."""

    type: str
    text: str
    line: str | None
    ready_made: bool

    def __str__(self) -> str:
        if self.ready_made:
            return self.text
        where = f" in your line\n    {self.line}" if self.line else ""
        return f"{self.type}: {self.text}{where}"


class Job(NamedTuple):
    """The input of a student's process: code, but nothing about checks."""

    cells: list[tuple[str, str, list[int]]]
    references: list[str]
    refused: list[str]


class Sandbox:
    """A process with torch loaded, from which a fresh process is forked for every check.

    Args:
        prelude: imports that answers may use, run once.
        seconds: processor time of one check.
        memory: additional bytes that one check may use.
    """

    def __init__(self, prelude: str, *, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        if not hasattr(os, "fork"):
            raise RuntimeError("grading needs a system with fork: Linux, or a Linux container")
        self.prelude, self.seconds, self.memory = prelude, seconds, memory
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
            self._log.close()
            self._process = None

    def _start(self) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed in close()
        keep = ("HOME", "LANG", "LD_LIBRARY_PATH", "MPLCONFIGDIR", "PATH", "TMPDIR", "XDG_CACHE_HOME")
        environment = {name: os.environ[name] for name in keep if name in os.environ}
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("_worker.py"))],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        self._control = ours
        self._control.settimeout(120)
        self._control.sendall(json.dumps({"prelude": self.prelude}).encode() + b"\n")
        self._order(b"")

    def _order(self, order: bytes, descriptor: int | None = None) -> dict[str, Any]:
        try:
            if descriptor is not None:
                socket.send_fds(self._control, [order], [descriptor])
            elif order:
                self._control.sendall(order)
            line = b""
            while not line.endswith(b"\n"):
                part = self._control.recv(4096)
                if not part:
                    raise ConnectionError("it is gone")
                line += part
        except OSError as error:
            self._log.seek(0)
            said = self._log.read()[-2000:].decode(errors="replace")
            self.close()
            raise RuntimeError(f"the process that runs answers did not start: {error}\n{said}") from None
        return json.loads(line)

    @contextlib.contextmanager
    def worker(self, job: Job) -> Iterator["Worker"]:
        """A fresh process with one answer, which ends afterwards."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                pid = self._order(b'{"fork": 1}', theirs.fileno())["pid"]
            try:
                worker = Worker(ours, time.monotonic() + WALL * self.seconds)
                worker.load(job, self.seconds, self.memory)
                yield worker
            finally:
                with contextlib.suppress(RuntimeError):
                    self._order(json.dumps({"kill": pid}).encode())


class Worker:
    """One connection to a student's process."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.connection, self.until = connection, until
        self.functions: list[Callable[..., Any]] = []
        self.calls = 0

    def load(self, job: Job, seconds: float, memory: int) -> None:
        self._exchange({**job._asdict(), "seconds": seconds, "memory": memory})

    def ask(self, todo: str, target: str | int, **more: Any) -> Any:
        """What the answer returns, and which of its tensor arguments it changed."""
        return self._exchange({"do": todo, "target": target, **more})

    def _exchange(self, message: dict[str, Any]) -> Any:
        try:
            self.connection.sendall(codec.pack(message, self._number))
            while True:
                reply = codec.unpack(self._receive())
                if not isinstance(reply, dict):
                    raise codec.Unreadable("no reply")
                if "call" in reply:
                    self.calls += 1
                    if self.calls > MOST_CALLS:
                        raise Stopped("your answer calls the functions it was given too often")
                    function = self.functions[int(reply["call"])]
                    self.connection.sendall(codec.pack(function(*reply["args"])))
                    continue
                if "error" in reply:
                    told = reply["error"]
                    if told["missing"]:
                        raise Missing(
                            "there is no such answer: keep the name and the kind (def or class) that it was given"
                        )
                    raise AnswerError(
                        str(told["type"]),
                        str(told["text"]),
                        told["line"] and str(told["line"]),
                        bool(told["ready_made"]),
                    )
                return reply["ok"], list(reply["changed"])
        except TimeoutError:
            raise Stopped("your answer took too long: is there a loop that does not end?") from None
        except (ConnectionError, BrokenPipeError):
            raise Stopped("your answer ended its own process, or took too much time or memory") from None
        except (codec.Unreadable, KeyError, TypeError, IndexError, ValueError, AttributeError):
            raise Stopped("your answer did not return data") from None

    def _number(self, function: Any) -> int:
        if isinstance(function, RemoteAnswer):
            return -1 - function.made_number
        self.functions.append(function)
        return len(self.functions) - 1

    def _receive(self) -> bytes:
        head = self._exactly(4)
        (size,) = struct.unpack("<I", head)
        if size > codec.LARGEST:
            raise codec.Unreadable("too large")
        return head + self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            left = self.until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.connection.settimeout(left)
            part = self.connection.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ConnectionError
            parts += part
        return bytes(parts)


class RemoteAnswer:
    """A name of the student's notebook, in a separate process. Checks call it like the function."""

    def __init__(self, worker: Worker, target: str | int) -> None:
        self.worker, self.target = worker, target

    @property
    def made_number(self) -> int:
        """The number of an object that the student's process made."""
        if not isinstance(self.target, int):
            raise TypeError(f"{self.target} is a name, not an object that was made")
        return self.target

    def call(self, arguments: Sequence[Any], options: dict[str, Any], method: str = "") -> tuple[Any, list[int]]:
        more = {"method": method} if method else {}
        found, changed = self.worker.ask("call", self.target, args=tuple(arguments), kwargs=options, **more)
        return found, changed

    def value(self) -> Any:
        """The value of an answer that is not a function."""
        return self.worker.ask("value", self.target)[0]

    def slopes(self, arguments: Sequence[Tensor], weight: Tensor) -> Any:
        return self.worker.ask("slopes", self.target, args=tuple(arguments), weight=weight)[0]

    def build(self, arguments: Sequence[Any], options: dict[str, Any]) -> "RemoteAnswer":
        number, _ = self.worker.ask("build", self.target, args=tuple(arguments), kwargs=options)
        if isinstance(number, bool) or not isinstance(number, int):
            raise Stopped("your answer did not return data")
        return RemoteAnswer(self.worker, number)

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.worker.ask("load", self.target, state={name: torch.as_tensor(part) for name, part in state.items()})
