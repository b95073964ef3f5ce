"""Attention in blocks, where no single product has the whole map. The map is measured with unit values.

Block-sparse attention (BigBird), sliding windows with global tokens (Longformer, LED), local attention with summaries
(LongT5, Pegasus-X) and landmarks (Nyströmformer) multiply several parts of weights with several parts of values. All of
them are linear in the values: if the value of one key is 1 and all others are 0, the output of each query is its weight
for this key. As many keys fit into one run of the layer as a head is wide. Nothing else of the layer changes, so the
map is exact, and it is compared with the layer's own output for its own values.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.maps._module_names import CallSite
from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps.sources._tensor_facts import SOFTMAXES
from regard.maps.tokens._axis_evidence import heads_of
from regard.maps.weights._attention_scores import Selection, exact
from regard.observation import unobserved


@dataclass(frozen=True)
class BlockLayer:
    """Where to find the values and the output of a layer.

    Attributes:
        values: names of the submodules that project values. All of them project the same tokens. A second call of one adds
            further keys (summaries of the text).
        output: the name of the output projection; None if the layer returns the heads' outputs, as its first result.
        tokens_first: whether values are projected as ``(tokens, batch, channels)``.
        backwards: whether the outputs of the additional tokens come before those of the text.
        beside: the name of a submodule whose output is added to that of attention, and is not part of the map.
    """

    values: tuple[str, ...]
    output: str | None = None
    tokens_first: bool = False
    backwards: bool = False
    beside: str | None = None


# The known layers, by the name of their class.
BLOCK_LAYERS: dict[str, BlockLayer] = {
    "BigBirdBlockSparseAttention": BlockLayer(("value",)),
    "BigBirdPegasusBlockSparseAttention": BlockLayer(("value",)),
    "LongformerSelfAttention": BlockLayer(("value", "value_global"), tokens_first=True),
    "LEDEncoderSelfAttention": BlockLayer(("value", "value_global"), tokens_first=True),
    "LongT5LocalAttention": BlockLayer(("v",), "o"),
    "LongT5TransientGlobalAttention": BlockLayer(("v",), "o"),
    "PegasusXGlobalLocalAttention": BlockLayer(("v_proj",), "out_proj", backwards=True),
    "NystromformerSelfAttention": BlockLayer(("value",), beside="conv"),
}


class BlockLayers:
    """Whether a model has layers with block attention, and which of them is running."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._some = any(kind.__name__ in BLOCK_LAYERS for kind in set(map(type, modules)))
        self._running: FrameType | None = None

    def __bool__(self) -> bool:
        return self._some

    def state(self, site: CallSite | None, function: str) -> Literal["outside", "begins", "inside"]:
        """Whether such a layer is running. It "begins" at the first softmax of its call: then its map is recorded."""
        call = None if site is None or type(site.module).__name__ not in BLOCK_LAYERS else _call_frame(site)
        if call is not None and call is self._running:
            return "inside"
        if call is None or function not in SOFTMAXES:
            return "outside"
        self._running = call
        return "begins"

    def forget(self) -> None:
        self._running = None


class _Run(TorchFunctionMode):
    """A function mode for one more run of a layer: with its own values, or with unit values from the key ``start`` on.

    It turns dropout off, and collects the values and the outputs.
    """

    def __init__(self, module: nn.Module, layer: BlockLayer, heads: int, start: int | None) -> None:
        super().__init__()
        self.heads, self.start, self.layer = heads, start, layer
        children = dict(module.named_modules())
        self.projections = {id(children[name].weight): name for name in layer.values if name in children}
        self.output = None if layer.output is None else children[layer.output].weight
        self.beside = children[layer.beside].weight if layer.beside in children else None
        self.values: dict[str, list[Tensor]] = {}
        self.outputs: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if "dropout" in name and args:
            return args[0]
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if name == "linear" and weight is not None and weight is self.output:
            self.outputs.append(args[0].detach())
        out = func(*args, **kwargs)
        if weight is not None and weight is self.beside:
            return torch.zeros_like(out)
        if name == "linear" and id(weight) in self.projections:
            return self._valued(self.projections[id(weight)], out)
        return out

    def _valued(self, name: str, out: Tensor) -> Tensor:
        """Collect projected values. Returns those with which the layer goes on: its own, or unit values.

        The value of key ``start + i`` is 1 in channel i and 0 elsewhere, so channel i of an output is its weight.
        """
        calls = self.values.setdefault(name, [])
        first = sum(x.shape[0 if self.layer.tokens_first else 1] for x in calls)
        calls.append(out.detach())
        if self.start is None:
            return out
        split = out.unflatten(-1, (self.heads, -1))
        tokens, width = split.shape[0 if self.layer.tokens_first else 1], split.shape[-1]
        keys = torch.arange(first, first + tokens, device=out.device)
        units = (keys[:, None] - self.start == torch.arange(width, device=out.device)).to(out.dtype)  # (tokens, width)
        units = units[:, None, None] if self.layer.tokens_first else units[:, None]
        return units.expand(split.shape).flatten(-2)

    def by_head(self, parts: list[Tensor], tokens_first: bool) -> Tensor:
        """The collected tensors of all calls as one, ``(batch, heads, tokens, width)``."""
        split = [x.unflatten(-1, (self.heads, -1)) for x in parts]
        order = (1, 2, 0, 3) if tokens_first else (0, 2, 1, 3)
        return torch.cat([x.permute(order) for x in split], 2)


def block_layer(site: CallSite) -> AttentionRecord | str:
    """The record of a running layer of :data:`BLOCK_LAYERS`."""
    module, layer = site.module, BLOCK_LAYERS[type(site.module).__name__]
    heads, frame = heads_of(module), _call_frame(site)
    if heads is None or frame is None:
        return "it attends in blocks, and its number of heads or its arguments are not known"

    args, kwargs = frame.f_locals["args"], frame.f_locals["kwargs"]

    def run(start: int | None) -> tuple[_Run, Tensor]:
        probe = _Run(module, layer, heads, start)
        with torch.no_grad(), torch._C._EnableTorchFunction(), probe:
            result = module.forward(*args, **kwargs)
        outputs = probe.outputs or [(result[0] if isinstance(result, tuple) else result).detach()]
        return probe, probe.by_head(outputs[::-1] if layer.backwards else outputs, False)

    own, output = unobserved(run, None)
    values = [own.by_head(own.values[name], layer.tokens_first) for name in layer.values if name in own.values]
    value = values[0]

    @functools.cache
    def whole() -> Tensor:
        return _weights(lambda start: exact(unobserved(run, start)[1]), value.shape[2], output)

    def build(rows: Selection, chosen: Selection) -> tuple[Tensor, None]:
        return whole()[:, chosen][:, :, rows].clone(), None

    def compare(weights: Tensor, rows: Selection, chosen: Selection) -> Tensor:
        """The error. A global token uses the values of another projection, so for each query the better fit counts."""
        expected = exact(output[:, chosen][:, :, rows])
        errors = [(weights @ exact(x[:, chosen]) - expected).abs().amax(-1) for x in values]
        return torch.stack(errors).amin(0).amax() if expected.numel() else expected.new_zeros(())

    record = AttentionRecord(
        name=site.name,
        kind="blocks",
        shape=(output.shape[0], heads, output.shape[2], value.shape[2]),
        check=Check("layer, run again"),
        computation=Computation(
            weights=build, module=module, output=output, value=value, compare=compare if len(values) > 1 else None
        ),
    )
    record.remarks.append(
        "maps of attention in blocks are read off the layer's response to unit values, in one more run of the layer for each "
        f"{output.shape[3]} keys"
    )
    return record


def _weights(response: Callable[[int], Tensor], keys: int, output: Tensor) -> Tensor:
    """The whole map. ``response(start)``: the weights of as many keys from ``start`` on as a head is wide."""
    width = output.shape[3]
    parts = [response(start) for start in range(0, width * math.ceil(keys / width), width)]
    return torch.cat(parts, -1)[..., :keys]


def _call_frame(site: CallSite) -> FrameType | None:
    """The frame of the module's call; None if one of its methods was called directly."""
    return next((frame for _, frame in site.calls()), None)
