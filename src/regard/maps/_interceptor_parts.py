"""The parts of an interceptor: what it needs to recognize, name and follow attention.

Most parts are made by :meth:`InterceptorParts.prepare`, when the function mode is first needed. A capture of a model
that was captured before may never need them: it only watches operators (see :mod:`regard.maps.repeats._learning`).
"""

import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.maps._contributions import PROJECTIONS
from regard.maps._function_table import FunctionTable
from regard.maps._listener import RecordListener
from regard.maps._module_names import ModuleNames
from regard.maps._record import WeightsOf
from regard.maps._silent_modules import SilentModules
from regard.maps.outputs._outputs import OutputTracker
from regard.maps.sources import BlockLayers, HandwrittenAttention
from regard.maps.tokens._token_layouts import TokenLayouts


class InterceptorParts(TorchFunctionMode):
    """The base class of :class:`regard.maps.Interceptor`, which holds its parts.

    Args:
        keeps_path: keep the fast path of ``nn.TransformerEncoder``.
        names: the names of the model's modules, if they are known from an earlier capture.

    Attributes:
        names: finds the module that attends.
        silent: reports modules that look like attention and gave no map.
        layouts: adds to a record how its tokens lie.
        handwritten: recognizes attention from its softmaxes and products.
        blocks: recognizes layers with block attention.
        outputs: follows what the model does with the outputs of attention.
    """

    handwritten: HandwrittenAttention
    blocks: BlockLayers
    outputs: OutputTracker

    def __init__(
        self, model: nn.Module, listener: RecordListener, keeps_path: bool, names: ModuleNames | None = None
    ) -> None:
        super().__init__()
        self.listener = listener
        self.keeps_path = keeps_path
        self.names = ModuleNames(model) if names is None else names
        self.silent = SilentModules(model, self.names)
        self.layouts = TokenLayouts()
        self._count = 0  # the number of records so far
        self._accounted: set[str] = set()  # modules that gave a map, or for which it is known why not
        self._linear: set[str] = set()  # modules with linear attention whose second product is still to come
        self._last_output: weakref.ref[Tensor] | None = None
        # The latest output that the listener replaced, and the edited weights that give it.
        self._replaced: tuple[weakref.ref[Tensor], WeightsOf] | None = None
        self.is_prepared = False

    def prepare(self) -> None:
        """Make the parts that the function mode needs."""
        if self.is_prepared:
            return
        self.is_prepared = True
        self.handwritten = HandwrittenAttention(self._running)
        self.blocks = BlockLayers(self.names.modules.values())
        self.outputs = OutputTracker(
            self.listener, self._call_listener, self._follow, self.names, self.handwritten.before
        )
        # Dictionaries of followed tensors. Most calls of torch functions have none of these, and so concern no attention.
        history, self._derived = self.handwritten.history, self.outputs.derived.known
        self._origins, self._random, self._concerns = history.origins, history.random.known, history.concerns
        self._handlers = self.handlers()
        # Block attention needs to see every call, and the norms of values=True need every product.
        quiet = () if self.blocks else self.outputs.quiet
        shown = () if self.listener.projections is None else PROJECTIONS
        self._functions = FunctionTable(self._handlers, quiet, shown)

    def release(self) -> None:
        """Break the reference cycles of the parts, so that the model is freed without waiting for the garbage collector."""
        if self.is_prepared:
            self.blocks.forget()
            self._handlers.clear()
            self._functions.clear()
            self.outputs.handlers.clear()
            self.handwritten.close()
            del self.outputs, self.handwritten, self._concerns

    @abstractmethod
    def handlers(self) -> dict[str, Callable[..., Any]]:
        """The methods that run torch functions, by the names of the functions."""

    @abstractmethod
    def _call_listener(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the listener while nothing is intercepted."""

    @abstractmethod
    def _follow(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Follow tensors through a function that ran."""

    def _running(self) -> str | None:
        """The name of the module that runs; None outside of the model."""
        site = self.names.locate(count=False)
        return None if site is None else site.name
