"""What an interceptor consists of. Most of it is made when it is needed: of a model that is known, only operators are watched."""

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
from regard.maps._outputs import OutputTracker
from regard.maps._record import WeightsOf
from regard.maps._silent_modules import SilentModules
from regard.maps._token_layouts import TokenLayouts
from regard.maps.sources import BlockLayers, HandwrittenAttention


class InterceptorParts(TorchFunctionMode):
    """The parts of :class:`regard.maps.Interceptor`.

    Args:
        names: of the model's modules, if they are known already.
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
        self._count = 0  # of records
        self._accounted: set[str] = set()
        self._linear: set[str] = set()  # linear attention of which the second product follows
        self._last_output: weakref.ref[Tensor] | None = None
        # The latest output that the listener replaced, and the weights that give it.
        self._replaced: tuple[weakref.ref[Tensor], WeightsOf] | None = None
        self.is_prepared = False

    def prepare(self) -> None:
        """Make what is needed to see every function of torch."""
        if self.is_prepared:
            return
        self.is_prepared = True
        self.handwritten = HandwrittenAttention(self._running)
        self.blocks = BlockLayers(self.names.modules.values())
        self.outputs = OutputTracker(
            self.listener, self._call_listener, self._follow, self.names, self.handwritten.before
        )
        # All are empty while nothing is followed.
        history, self._derived = self.handwritten.history, self.outputs.derived.known
        self._origins, self._random = history.origins, history.random.known
        self._handlers = self.handlers()
        # Layers of blocks need to know everything, and whoever waits for a projection each product.
        quiet = () if self.blocks else self.outputs.quiet
        shown = () if self.listener.projections is None else PROJECTIONS
        self._functions = FunctionTable(self._handlers, quiet, shown)

    def release(self) -> None:
        """These refer back to us: without them, the model is freed before the next garbage collection."""
        if self.is_prepared:
            self.blocks.forget()
            self._handlers.clear()
            self._functions.clear()
            self.outputs.handlers.clear()
            self.handwritten.close()
            del self.outputs, self.handwritten

    @abstractmethod
    def handlers(self) -> dict[str, Callable[..., Any]]:
        """What runs functions of these names instead."""

    @abstractmethod
    def _call_listener(self, function: Callable[..., Any], *args: Any) -> Any:
        """A call of the listener that no interceptor sees."""

    @abstractmethod
    def _follow(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """A function ran that has a handler among those of outputs."""

    def _running(self) -> str | None:
        """The name of the module that runs; None outside of the model."""
        site = self.names.locate(count=False)
        return None if site is None else site.name
