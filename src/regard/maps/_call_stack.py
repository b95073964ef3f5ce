"""What the call stack around an attention says: whether beam search, assisted decoding or compiled code is running.

Names of functions are compared once for each sequence of functions, and the answer is cached by the ids of their code
objects.
"""

from collections.abc import Iterable
from types import CodeType, FrameType
from typing import NamedTuple

_MOST = 4096  # call stacks that are cached


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
    def by(cls, around: Iterable[CodeType], inside: Iterable[CodeType] = ()) -> "CallStack":
        """From the functions around the call of a module, and those inside of it.

        >>> def _beam_search(): ...
        >>> CallStack.by([_beam_search.__code__])[:3]
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
_known_stacks: dict[tuple[int, ...], CallStack] = {}


def call_stack_of(
    numbers: tuple[int, ...], call: FrameType, inside: list[FrameType], run: FrameType | None
) -> CallStack:
    """The call stack from inside the call of a module outwards, up to the call of the whole model.

    Args:
        numbers: the ids of the code objects of all these functions.
        call: the frame of the module's call.
        inside: the frames inside of it.
        run: the frame of the model's call; None if it is not known.
    """
    found = _known_stacks.get(numbers)
    if found is None:
        if len(_known_stacks) >= _MOST:
            _known_stacks.clear()
        around, frame = [], call
        while frame is not run:
            around.append(frame.f_code)
            if frame.f_back is None:
                break
            frame = frame.f_back
        found = _known_stacks[numbers] = CallStack.by(around, [frame.f_code for frame in inside])
    return found
