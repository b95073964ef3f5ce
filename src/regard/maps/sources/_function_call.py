"""``FunctionCall``: what a source is given. ``kernel_record``: the record that most sources return.

Also :class:`KernelWitness`, which sees the kernel that runs inside of ``scaled_dot_product_attention``.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.maps._module_names import CallSite
from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps.sources._direct_kernels import KernelRun, run_directly
from regard.maps.tokens._axes import MapAxes
from regard.maps.weights._attention_scores import AttentionScores


def _overload(name: str) -> Any:
    """The aten operator of this name; None if this version of torch does not have it."""
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
# Kernels that return the logsumexp only if their fifth argument is True. The output is the same.
_ON_REQUEST = {
    KERNELS_WITH_LOGSUMEXP.get(f"_scaled_dot_product_{name}_attention") for name in ("efficient", "cudnn")
} - {None}
# Operators that show that no fused kernel ran.
_WITHOUT = {_overload("_scaled_dot_product_attention_math_for_mps"), _overload("_safe_softmax"), _overload("_softmax")}
_WHOLE = _overload("scaled_dot_product_attention")


class KernelWitness(TorchDispatchMode):
    """A dispatch mode that sees which kernel runs inside a call, and the logsumexp that it returns."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch imports its compiler for the mode, which takes seconds. Compiled code runs as Python here anyway.
        return False

    def __init__(self) -> None:
        super().__init__()
        self.kernel: str | None = None
        self.logsumexp: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _WHOLE:  # in inference mode the call is not decomposed before it arrives here
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
        args, kwargs, output: the arguments and the output of the call.
        witness: which kernel ran inside the call, for functions of torch.
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
        """All arguments by name. Names change less between versions than the order of arguments."""
        bound = inspect.signature(self.function).bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)


# A source turns a call into a record, or returns the reason why it cannot.
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
        kernel: the name of the kernel, by default that of the function.
        axes: what the axes are; by default they are known to be batch, heads, queries and keys.
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
