"""The process that runs student code. It is started by the grader as a script, loads torch once, and forks for each check.

It gets the source of one answer, correct answers to earlier questions, and inputs; it returns results as data. Hidden
checks, correct results and the seed stay with the grader. This library is not imported here.
"""

import array
import ast
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
import traceback
import types
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a script: the files beside it are imported by their plain names
    sys.path.insert(0, str(Path(__file__).parent))
    import _codec as codec  # type: ignore[import-not-found]
    import _kernel_rules as kernel_rules  # type: ignore[import-not-found]
    import _protection as protection  # type: ignore[import-not-found]
    import _refusal as refusal  # type: ignore[import-not-found]
    import torch

    sys.path.pop(0)


# Modules that answers import, loaded before the process gives up the right to read files.
COMMON = (
    "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "collections.abc", "colorsys", "contextlib",
    "copy", "dataclasses", "datetime", "decimal", "einops", "enum", "fractions", "functools", "heapq", "inspect", "io",
    "itertools", "json", "math", "numbers", "numpy", "numpy.fft", "numpy.linalg", "numpy.random", "operator", "pathlib",
    "pprint", "queue", "random", "re", "statistics", "string", "struct", "textwrap", "time", "timeit",
    "torch.autograd.functional", "torch.fft", "torch.func", "torch.linalg", "torch.nn.functional", "torch.nn.init",
    "torch.nn.utils", "torch.nn.utils.rnn", "torch.optim", "torch.special", "types", "typing", "uuid", "warnings",
    "zlib",
)  # fmt: skip


def receive(connection: socket.socket) -> bytes:
    """Receive one message of the codec, which has its length in front."""
    head = _exactly(connection, 4)
    (size,) = struct.unpack("<I", head)
    if size > codec.LARGEST:
        raise ConnectionError("a message is too large")
    return head + _exactly(connection, size)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise ConnectionError("the other side is gone")
        parts += part
    return bytes(parts)


class NoFunctionError(Exception):
    """Under the name of an answer there is nothing that can be called."""


class RunningAnswer:
    """A loaded answer: its names, and the calls that the grader sends."""

    def __init__(self, connection: socket.socket, names: dict[str, Any]) -> None:
        self.connection = connection
        self.names = names
        self.cells: dict[str, str] = {}
        self.made: list[Any] = []
        self.broken: BaseException | None = None

    def load(self, references: list[str], cells: list[tuple[str, str, list[int]]]) -> None:
        """Load correct answers to earlier questions, then run the statements of this answer one by one."""
        kept: dict[str, Any] = {}
        for source in references:
            before = dict(self.names)
            exec(compile(source, "<earlier>", "exec"), self.names)
            kept |= {name: value for name, value in self.names.items() if before.get(name, self) is not value}
        for label, source, chosen in cells:
            self.cells[label] = source
            body = ast.parse(source).body
            for index in chosen:
                try:
                    exec(compile(ast.Module([body[index]], []), label, "exec"), self.names)
                except Exception as error:  # the student's own cell failed; the rest may not need it
                    self.broken = self.broken or error
        self.names.update(kept)

    def serve(self) -> None:
        while True:
            request = codec.unpack(receive(self.connection), self._callback)
            try:
                reply = {"ok": self._do(request), "changed": self._changed}
                self.connection.sendall(codec.pack(reply))
            except Exception as error:
                self.connection.sendall(codec.pack({"error": self._told(error)}))

    def _do(self, request: dict[str, Any]) -> Any:
        self._changed: list[int] = []
        todo, target = request["do"], request["target"]
        subject = self.made[target] if isinstance(target, int) else self._named(target)
        arguments, options = request.get("args", ()), request.get("kwargs", {})
        if todo == "value":
            return subject
        if todo == "load":
            subject.load_state_dict(request["state"])
            subject.eval()
            return None
        function = getattr(subject, request["method"]) if request.get("method") else subject
        if isinstance(target, str) and not callable(function):
            raise NoFunctionError
        if todo == "slopes":
            return _slopes(function, arguments, request["weight"])
        before = [part.clone() if isinstance(part, torch.Tensor) else None for part in arguments]
        found = function(*arguments, **options)
        if todo == "build":
            self.made.append(found)
            return len(self.made) - 1
        self._changed = [
            number
            for number, (old, new) in enumerate(zip(before, arguments, strict=True))
            if old is not None and not (old.shape == new.shape and torch.equal(old.nan_to_num(), new.nan_to_num()))
        ]
        return found

    def _named(self, name: str) -> Any:
        if name not in self.names and self.broken is not None:
            raise self.broken
        return self.names.get(name, ...)

    def _callback(self, number: int) -> Any:
        """A function of the grader, called from here with data; or (numbers below zero) an object that was created here."""
        if number < 0:
            return self.made[-1 - number]

        def call(*arguments: Any) -> Any:
            self.connection.sendall(codec.pack({"call": number, "args": arguments}))
            return codec.unpack(receive(self.connection))

        return call

    def _told(self, error: BaseException) -> dict[str, Any]:
        line = None
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename in self.cells and frame.lineno is not None:
                line = self.cells[frame.filename].split("\n")[frame.lineno - 1].strip()[:200]
        if isinstance(error, SyntaxError) and error.text:
            line = error.text.strip()[:200]
        return {
            "type": type(error).__name__[:60],
            "text": str(error)[:600],
            "line": line,
            "ready_made": isinstance(error, refusal.ReadyMadeError),
            "missing": isinstance(error, NoFunctionError),
        }


def _slopes(function: Any, arguments: tuple[Any, ...], weight: Any) -> Any:
    """The gradient of Σ weight · result with respect to every tensor argument; None if there is no gradient."""
    leaves = [part.detach().clone().requires_grad_() for part in arguments]
    found = function(*leaves)
    if not isinstance(found, torch.Tensor) or not found.requires_grad:
        return None
    return torch.autograd.grad((found * weight).sum(), leaves, allow_unused=True)


def start(connection: socket.socket, prelude: dict[str, Any], roots: tuple[str, ...]) -> None:
    """In a fresh fork: receive the job, give up all rights, load the answer, and serve calls."""
    job = codec.unpack(receive(connection))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, connection.fileno())
    os.closerange(connection.fileno() + 1, 256)
    os.environ.clear()
    os.chdir("/")
    sys.argv, sys.path[:] = [""], [path for path in sys.path if "regard" not in path]
    ours = refusal.Ours("regard")
    ours.__path__ = []
    for name in [
        name
        for name in sys.modules
        if name.split(".")[0] in ("regard", "_codec", "_kernel_rules", "_protection", "_refusal")
    ]:
        del sys.modules[name]
    for name in ("regard", "regard.reference", "regard.functional", "regard.layers", "regard.course", "regard.models"):
        sys.modules[name] = ours
    refusal.switch_off(job["refused"])
    names: dict[str, Any] = {**prelude, "regard": ours, "__name__": "__main__"}
    sys.modules["__main__"] = types.ModuleType("__main__")
    answer = RunningAnswer(connection, names)
    protection.limit(job["seconds"], job["memory"])
    kernel_rules.restrict_files(roots)
    kernel_rules.restrict_calls()
    protection.forbid(roots)
    torch.manual_seed(0)
    answer.load(job["references"], job["cells"])
    connection.sendall(codec.pack({"ok": "loaded", "changed": []}))
    answer.serve()


def wait_for_orders(control: socket.socket) -> None:
    """Fork for every connection that is passed, and end a fork on request."""
    names: dict[str, Any] = {}
    first = control.makefile("rb").readline()
    with contextlib.suppress(ImportError):
        exec(compile(json.loads(first)["prelude"], "<prelude>", "exec"), names)
    for module in COMMON:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    torch.set_num_threads(1)
    torch.ones(2, 2, requires_grad=True).square().sum().backward()  # preload what the first backward pass needs
    roots = protection.readable_roots()
    refusal.prepare()
    gc.collect()
    gc.freeze()  # so that garbage collection in a fork does not copy shared memory
    control.sendall(b'{"ready": 1}\n')
    children: set[int] = set()
    while True:
        data, ancillary, _, _ = control.recvmsg(4096, socket.CMSG_SPACE(4))
        if not data:
            break
        children -= {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}
        order = json.loads(data)
        if "kill" in order:
            if order["kill"] in children:
                os.kill(order["kill"], signal.SIGKILL)
                os.waitpid(order["kill"], 0)
                children.discard(order["kill"])
            control.sendall(b"{}\n")
            continue
        (descriptor,) = array.array("i", ancillary[0][2][:4])
        pid = os.fork()
        if pid == 0:
            control.close()
            with contextlib.suppress(BaseException):
                start(socket.socket(fileno=descriptor), names, roots)
            os._exit(0)
        os.close(descriptor)
        children.add(pid)
        control.sendall(json.dumps({"pid": pid}).encode() + b"\n")


if __name__ == "__main__":
    # The standard input is connected to the grader; output of this process is discarded.
    wait_for_orders(socket.socket(fileno=os.dup(0)))
