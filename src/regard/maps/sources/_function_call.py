"""What a source is given, and what it returns."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.maps._attention_scores import AttentionScores
from regard.maps._axes import MapAxes
from regard.maps._module_names import CallSite
from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps.sources._direct_kernels import KernelRun, run_directly


def _overload(name: str) -> Any:
    return getattr(getattr(torch.ops.aten, name, None), "default", None)


# Kernels that return (output, logsumexp, …) in one layout: (batch, heads, queries[, 1]).
KERNELS_WITH_LOGSUMEXP: dict[str, Any] = {
    name: overload
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    )
    if (overload := _overload(name)) is not None
}
_WITH_LOGSUMEXP = set(KERNELS_WITH_LOGSUMEXP.values())
# Those of them that leave the logsumexp out unless their fifth argument asks for it. The output is the same.
_ON_REQUEST = {
    KERNELS_WITH_LOGSUMEXP.get(f"_scaled_dot_product_{name}_attention") for name in ("efficient", "cudnn")
} - {None}
_WITHOUT = {_overload("_scaled_dot_product_attention_math_for_mps"), _overload("_safe_softmax"), _overload("_softmax")}
_WHOLE = _overload("scaled_dot_product_attention")


class KernelWitness(TorchDispatchMode):
    """Sees which kernel runs inside one call, and the logsumexp that it returns."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch imports its compiler for every mode, which takes seconds. Compiled code runs as Python here.
        return False

    def __init__(self) -> None:
        super().__init__()
        self.kernel: str | None = None
        self.logsumexp: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _WHOLE:  # in inference mode the call arrives here in one piece
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if func in _ON_REQUEST:  # without gradients torch does not ask for it
            args = (*args[:4], True, *args[5:])
        out = func(*args, **kwargs)
        if func in _WITH_LOGSUMEXP:
            self.kernel = func.overloadpacket.__name__
            self.logsumexp = out[1] if isinstance(out[1], Tensor) and out[1].numel() else None
        elif func in _WITHOUT and self.kernel is None:
            self.kernel = "math"
        return out


def run_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, KernelRun]:
    """The result of ``scaled_dot_product_attention``, and what ran inside of it."""
    direct = run_directly(args, kwargs)
    if direct is not None:
        return direct
    with KernelWitness() as witness:
        out = func(*args, **kwargs)
    return out, KernelRun(witness.kernel, witness.logsumexp)


@dataclass(frozen=True)
class FunctionCall:
    """One call of a function that computes attention.

    Attributes:
        site: where the model called it.
        function: the function itself, which a source may call again.
        args, kwargs, output: of the call.
        witness: what ran inside the call, for functions of torch.
    """

    site: CallSite
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    witness: KernelRun | None = None

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    def arguments(self) -> dict[str, Any]:
        """All arguments by the function's own names, which change less from version to version than their order."""
        bound = inspect.signature(self.function).bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)


# A source turns a call into a record, or into the reason why it cannot.
Source = Callable[[FunctionCall], AttentionRecord | str]


def kernel_record(
    call: FunctionCall,
    kind: str,
    scores: AttentionScores,
    value: Tensor,
    output: Tensor,
    *,
    restore: Callable[[Tensor], Tensor],
    logsumexp: Any = None,
    clean: Tensor | None = None,
    kernel: str | None = None,
    axes: MapAxes | None = None,
) -> AttentionRecord:
    """The record of a kernel that computes softmax(scores) @ value.

    Args:
        value, output: ``(batch, heads, tokens, width)``.
        restore: turns ``(batch, heads, queries, width)`` into the kernel's own layout.
        logsumexp: as the kernel returned it; not compared if it has another layout.
        clean: the output without dropout, if ``output`` contains dropout.
        kernel: the name of what ran, by default the function's.
        axes: what the axes are; by default it is known that they are as here.
    """
    matching = isinstance(logsumexp, Tensor) and logsumexp.shape == scores.shape[:3]
    return AttentionRecord(
        name=call.site.name,
        kind=kind,
        shape=scores.shape,
        check=Check("kernel" if clean is None else "kernel, run again without dropout"),
        kernel=kernel or call.name,
        axes=axes or MapAxes(),
        computation=Computation(
            weights=scores,
            module=call.site.module,
            output=output,
            value=value,
            expected=clean,
            logsumexp=logsumexp if matching else None,
            restore=restore,
        ),
    )
