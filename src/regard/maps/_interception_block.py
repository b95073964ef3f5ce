"""``intercept``: the block in which an interceptor sees what a model computes.

It enters three contexts, and leaves them in any case: the patches of functions that no mode sees (:class:`Patched`), the
layers that declare their own attention (``listen``), and the interceptor itself, a torch function mode.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import nn

from regard.maps._interception import Interceptor
from regard.maps._listener import RecordListener
from regard.maps._monkey_patches import Patched
from regard.observation import listen


class Interception:
    """See :func:`intercept`. A class takes less time than a generator with ``contextmanager``."""

    def __init__(self, make: Callable[[], Interceptor]) -> None:
        self._make: Callable[[], Interceptor] | None = make
        self._around: list[AbstractContextManager[Any]] = []  # what was entered, outermost first
        self._interceptor: Interceptor | None = None

    def __enter__(self) -> Interceptor:
        make, self._make = (
            self._make,
            None,
        )  # it refers to the model and to the listener, which may refer to this object
        if make is None:
            raise RuntimeError("an interception is entered once")
        interceptor = make()
        try:
            for context in (Patched(interceptor), listen(interceptor), interceptor):
                context.__enter__()
                self._around.append(context)
        except BaseException as error:
            self._leave(type(error), error, error.__traceback__)
            raise
        self._interceptor = interceptor
        return interceptor

    def __exit__(self, *error: Any) -> None:
        interceptor, self._interceptor = self._interceptor, None
        try:
            if interceptor is not None:
                interceptor.finish()
        finally:
            self._leave(*error)

    def _leave(self, *error: Any) -> None:
        """Leave all contexts, even if leaving one of them fails."""
        try:
            while self._around:
                self._around.pop().__exit__(*error)
        finally:
            if self._around:
                self._leave(*error)


def intercept(
    model: nn.Module, listener: RecordListener, *, keeps_path: bool = True, by: type[Interceptor] = Interceptor
) -> Interception:
    """Pass the record of every attention that ``model`` computes in this thread to ``listener``, inside the block.

    Args:
        keeps_path: keep the fast path of ``nn.TransformerEncoder``. There, a listener cannot replace an output.
        by: the class of the interceptor.
    """
    return Interception(partial(by, model, listener, keeps_path))
