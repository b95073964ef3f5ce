"""``intercept``: the block in which an interceptor sees what a model computes.

It enters three contexts, and leaves them in any case: the patches of functions that no mode sees (:class:`Patched`), the
layers that declare their own attention (``listen``), and the interceptor itself, a torch function mode.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from regard.maps._interception import Interceptor
from regard.maps._listener import RecordListener
from regard.maps._monkey_patches import Patched
from regard.observation import listen


@contextmanager
def intercept(
    model: nn.Module, listener: RecordListener, *, keeps_path: bool = True, by: type[Interceptor] = Interceptor
) -> Iterator[Interceptor]:
    """Pass the record of every attention that ``model`` computes in this thread to ``listener``, inside the block.

    Args:
        keeps_path: keep the fast path of ``nn.TransformerEncoder``. There, a listener cannot replace an output.
        by: the class of the interceptor.
    """
    interceptor = by(model, listener, keeps_path)
    with Patched(interceptor), listen(interceptor), ExitStack() as then, interceptor:
        # When the mode sees nothing more: finalizers that run then may call torch functions.
        then.callback(interceptor.finish)
        yield interceptor
