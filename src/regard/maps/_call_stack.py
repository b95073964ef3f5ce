"""Reads the call stack around an attention: its frames, and whether beam search, assisted decoding or compiled code
runs.

For the latter, names of functions are compared once for each sequence of functions. The answer is cached by the ids of
their code objects.
"""

import sys
from collections.abc import Iterable
from itertools import dropwhile
from types import CodeType, FrameType
from typing import Any, NamedTuple

_PARTS = ("outputs", "repeats", "sources", "tokens", "weights")
# Packages whose frames are not those of a model; jaxtyping checks types in tests.
OWN_PACKAGES = {"jaxtyping", __package__, *(f"{__package__}.{part}" for part in _PARTS)}
PATCHED_CODE = "call_source"  # the name of the code that stands in for a patched function
_MOST = 4096  # call stacks that are cached


def model_frames() -> list[FrameType]:
    """All frames from the model's call outwards.

    Frames of this package are left out: a frame that refers to itself would keep the model's tensors alive until the next
    garbage collection.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__package__") in OWN_PACKAGES:
        frame = frame.f_back
    return frames_from(frame)


def frames_from(frame: FrameType | None) -> list[FrameType]:
    """This frame and all frames around it."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def first_argument(frame: FrameType) -> Any:
    """The value of a function's first argument, which is ``self`` in a method; None if it has no arguments."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def from_compiled_code(frames: list[FrameType]) -> bool:
    """Whether one of these frames is compiled code that runs as Python while it is intercepted.

    A patched function (see :mod:`regard.maps._monkey_patches`) that the compile wrapper calls directly does run compiled.
    """
    handed = max((depth for depth, frame in enumerate(frames) if frame.f_code.co_name == PATCHED_CODE), default=-1)
    rest = iter(frames[handed + 1 :])
    if handed >= 0:
        rest = dropwhile(lambda frame: "_dynamo" in frame.f_code.co_filename, rest)
    return any(frame.f_code.co_name == "compile_wrapper" for frame in rest)


class CallStack(NamedTuple):
    """What runs around an attention.

    Attributes:
        beams: beam search is running.
        guessed: tokens may be guesses, of an assistant model or of prompt lookup.
        compiled: some functions may be compiled code.
        codes: the code objects of the functions. Keeping them alive keeps their ids from being reused.
    """

    beams: bool
    guessed: bool
    compiled: bool
    codes: tuple[CodeType, ...] = ()

    @classmethod
    def of(cls, around: Iterable[CodeType], inside: Iterable[CodeType] = ()) -> "CallStack":
        """From the functions around the call of a module, and those inside of it.

        >>> def _beam_search(): ...
        >>> CallStack.of([_beam_search.__code__])[:3]
        (True, False, False)
        """
        around, inside = tuple(around), tuple(inside)
        names = {code.co_name for code in around}
        compiled = "compile_wrapper" in names or any(code.co_name == "compile_wrapper" for code in inside)
        return cls("_beam_search" in names, "_assisted_decoding" in names, compiled, inside + around)

    def within(self, other: "CallStack") -> "CallStack":
        """What this stack and the ``other`` one around it say together."""
        return CallStack(self.beams or other.beams, self.guessed or other.guessed, self.compiled or other.compiled)


USUAL = CallStack(False, False, False)
KNOWN_STACKS: dict[tuple[int, ...], CallStack] = {}  # by the ids of their code objects, see call_stack_of


def call_stack_of(
    numbers: tuple[int, ...], call: FrameType, inside: list[FrameType], run: FrameType | None
) -> CallStack:
    """The call stack from inside the call of a module outwards, up to the call of the whole model. It is kept in
    :data:`KNOWN_STACKS`, where the caller has looked for it.

    Args:
        numbers: the ids of the code objects of all these functions.
        call: the frame of the module's call.
        inside: the frames inside of it.
        run: the frame of the model's call; None if it is not known.
    """
    if len(KNOWN_STACKS) >= _MOST:
        KNOWN_STACKS.clear()
    around, frame = [], call
    while frame is not run:
        around.append(frame.f_code)
        if frame.f_back is None:
            break
        frame = frame.f_back
    found = KNOWN_STACKS[numbers] = CallStack.of(around, [frame.f_code for frame in inside])
    return found
