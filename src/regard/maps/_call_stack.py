"""What the functions that run around an attention tell of it, found out once for each sequence of functions."""

from collections.abc import Iterable
from types import CodeType, FrameType
from typing import NamedTuple

_MOST = 4096  # ways that are kept


class CallStack(NamedTuple):
    """What runs around an attention.

    Attributes:
        beams: beams are searched.
        guessed: an assistant, or prompt lookup, guesses tokens.
        compiled: compiled code may be among the functions.
        codes: of the functions. They are kept, so that their numbers stay theirs.
    """

    beams: bool
    guessed: bool
    compiled: bool
    codes: tuple[CodeType, ...] = ()

    @classmethod
    def by(cls, around: Iterable[CodeType], inside: Iterable[CodeType] = ()) -> "CallStack":
        """By the functions around the call of a module, and those inside of it.

        >>> def _beam_search(): ...
        >>> CallStack.by([_beam_search.__code__])[:3]
        (True, False, False)
        """
        around, inside = tuple(around), tuple(inside)
        names = {code.co_name for code in around}
        compiled = "compile_wrapper" in names or any(code.co_name == "compile_wrapper" for code in inside)
        return cls("_beam_search" in names, "_assisted_decoding" in names, compiled, inside + around)

    def within(self, other: "CallStack") -> "CallStack":
        """Both: the functions of the other one run around these."""
        return CallStack(self.beams or other.beams, self.guessed or other.guessed, self.compiled or other.compiled)


USUAL = CallStack(False, False, False)
_known_stacks: dict[tuple[int, ...], CallStack] = {}


def call_stack_of(
    numbers: tuple[int, ...], call: FrameType, inside: list[FrameType], run: FrameType | None
) -> CallStack:
    """That of the functions inside the call of a module, and from there outwards up to the model's run.

    Args:
        numbers: of the codes of all these functions.
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
