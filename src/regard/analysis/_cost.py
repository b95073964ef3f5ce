"""``cost``: multiply-adds and bytes of any module, attention included, counted while it runs once."""

import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.analysis._products import has_formula, may_multiply, multiply_adds
from regard.observation import listen
from regard.support.checks import describe

Shape = tuple[int, ...]
Input = Shape | Tensor | None


@dataclass(frozen=True)
class CostRow:
    """The cost of one module, with all that is inside it.

    Attributes:
        name: its path in the model; empty for the model itself.
        kind: its class.
        depth: how many modules that were called are around it.
        calls: how often it was called.
        multiply_adds: in products: linear layers, convolutions, attention. Twice that is FLOPs.
        parameters: how many numbers it has learned.
        parameter_bytes: their size.
        activation_bytes: what its products read and write besides parameters, each operand and result once.
    """

    name: str
    kind: str
    depth: int
    calls: int
    multiply_adds: int
    parameters: int
    parameter_bytes: int
    activation_bytes: int

    @property
    def bytes(self) -> int:
        """What has to move at least: parameters, and operands and results of products."""
        return self.parameter_bytes + self.activation_bytes


@dataclass(frozen=True)
class Cost:
    """What :func:`cost` returns. It has the attributes of the model's own :class:`CostRow`, and prints as a table.

    Attributes:
        rows: one for each module that was called, in the model's order; the first is the model.
        operations: multiply-adds by the operator that did them.
        uncounted: operators that may multiply but for which no count is known, and how often they ran.
    """

    rows: tuple[CostRow, ...]
    operations: dict[str, int]
    uncounted: dict[str, int]

    def __getattr__(self, name: str) -> Any:
        if name in ("multiply_adds", "parameters", "parameter_bytes", "activation_bytes", "bytes"):
            return getattr(self.rows[0], name)
        raise AttributeError(f"Cost has no attribute {name!r}")

    def __getitem__(self, name: str) -> CostRow:
        """The row of the module with this path."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no module {name!r} was called; there are {', '.join(row.name for row in self.rows[1:])}")

    def table(self, depth: int = 2) -> str:
        """As text, with modules up to this depth. Modules that differ by a number in their path and cost the same are
        one line, with their sum; what has neither products nor parameters is left out."""
        lines = [("module", "kind", "calls", "multiply-adds", "share", "parameters", "bytes")]
        whole = max(self.rows[0].multiply_adds, 1)
        groups: dict[tuple[Any, ...], list[CostRow]] = {}
        for row in self.rows:
            if row.depth <= depth and (not row.depth or row.multiply_adds or row.parameters):
                same = (re.sub(r"\d+", "*", row.name), row.kind, row.multiply_adds, row.parameters, row.bytes)
                groups.setdefault(same, []).append(row)
        patterns = Counter(pattern for pattern, *_ in groups)
        for (pattern, kind, *_), rows in groups.items():
            several = pattern if patterns[pattern] == 1 else _numbered(pattern, [row.name for row in rows])
            name = "  " * rows[0].depth + ((several if len(rows) > 1 else rows[0].name) or "(all)")
            calls, multiply_adds, parameters, size = (
                sum(getattr(row, part) for row in rows) for part in ("calls", "multiply_adds", "parameters", "bytes")
            )
            counts = (_short(multiply_adds), f"{multiply_adds / whole:.1%}", _short(parameters), _short(size, "B"))
            lines.append((name, kind, str(calls), *counts))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        text.insert(1, "  ".join("─" * width for width in widths))
        text += [f"uncounted  {name} ({count}×)" for name, count in self.uncounted.items()]
        return "\n".join(text)

    def __str__(self) -> str:
        return self.table()


def cost(
    model: nn.Module,
    input_shape: Shape | Sequence[Input],
    *,
    dtype: torch.dtype | Sequence[torch.dtype | None] | None = None,
    **options: Any,
) -> Cost:
    """Count what one call of a module costs: its multiply-adds, and the bytes it has to move at least.

    The module runs once, forward, in evaluation mode, on the device its parameters are on (``meta`` included, where
    nothing is computed), and every product it really computes is counted as it happens: linear layers, convolutions,
    recurrent layers, fused attention (all pairs, also where a mask hides some), Gaussian heads by the passes of their
    plan, and any operator with a formula registered with torch's ``register_flop_formula``. Sums, norms, activations
    and softmax are not products and count nothing.

    Args:
        model: any module. It is left as it was.
        input_shape: the shape of its input, batch included; for several inputs a list of shapes, in which a tensor or
            None is passed as it is.
        dtype: of the inputs, or one for each; by default that of the parameters. For token numbers an integer type:
            they are all 0.
        options: further arguments of the module, such as ``grid``.

    >>> attention = regard.MultiHeadAttention(16, 4)
    >>> found = regard.cost(attention, (1, 10, 16))
    >>> found.multiply_adds == 4 * 10 * 16 * 16 + 2 * 10 * 10 * 16      # four projections, and every pair twice
    True
    >>> print(found)
    module    kind                calls  multiply-adds   share  parameters    bytes
    ────────  ──────────────────  ─────  ─────────────  ──────  ──────────  ───────
    (all)     MultiHeadAttention      1         13.4 k  100.0%       1.1 k  10.8 kB
      qkv     Linear                  1          7.7 k   57.1%         816   5.8 kB
      output  Linear                  1          2.6 k   19.0%         272   2.4 kB
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    inputs = _inputs(model, input_shape, dtype)
    tally = _Tally(model)
    with tally.running(), torch.no_grad():
        model(*inputs, **options)
    return tally.cost()


def _inputs(model: nn.Module, shapes: Any, dtype: Any) -> list[Tensor | None]:
    if isinstance(shapes, Tensor) or not isinstance(shapes, Sequence):
        raise TypeError(f"input_shape must be a shape such as (1, 3, 32, 32) or a list of them, got {describe(shapes)}")
    single = all(isinstance(n, int) for n in shapes)
    several: list[Any] = [tuple(shapes)] if single else list(shapes)
    dtypes = list(dtype) if isinstance(dtype, Sequence) else [dtype] * len(several)
    if len(dtypes) != len(several):
        raise ValueError(f"dtype has {len(dtypes)} entries but there are {len(several)} inputs")
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(()))
    made: list[Tensor | None] = []
    for shape, kind in zip(several, dtypes, strict=True):
        if shape is None or isinstance(shape, Tensor):
            made.append(shape)
            continue
        if not isinstance(shape, Sequence) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise TypeError(f"input_shape must hold whole numbers of 0 or more, got {describe(shape)}")
        made.append(torch.zeros(tuple(shape), dtype=kind or like.dtype, device=like.device))
    return made


@dataclass
class _Module:
    """What is counted for one module."""

    name: str
    kind: str
    calls: int = 0
    multiply_adds: int = 0
    activation_bytes: int = 0


@dataclass
class _Running:
    """One call of a module that has not returned. ``loose``: bytes of its own products that are not fused kernels."""

    module: nn.Module
    loose: int = 0


@dataclass
class _Tally:
    """Counts by module: a product belongs to every module that is running."""

    model: nn.Module
    running_calls: list[_Running] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.modules = {m: _Module(name, type(m).__name__) for name, m in self.model.named_modules()}
        self.parameter_storages = {_storage(tensor) for tensor in (*self.model.parameters(), *self.model.buffers())}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hooks on the modules, which also keep torch's encoder layers off the path that would hide their products."""
        modes = {module: module.training for module in self.modules}
        fast_path = torch.backends.mha.get_fastpath_enabled()
        with ExitStack() as stack:
            stack.callback(_set_modes, modes)
            stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
            torch.backends.mha.set_fastpath_enabled(False)
            for module in self.modules:
                module.training = False
                stack.callback(module.register_forward_pre_hook(self._enter).remove)
                stack.callback(module.register_forward_hook(self._leave).remove)
            if "torch._dynamo" in sys.modules:  # without it nothing is compiled, and importing it takes seconds
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(listen(self))
            stack.enter_context(_Counting(self))
            yield

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.modules[module].calls += 1
        self.running_calls.append(_Running(module))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.running_calls.pop()

    def add(self, name: str, multiply_adds: int, tensors: list[Tensor], fused: bool) -> None:
        size = sum(_size(tensor) for tensor in tensors if _storage(tensor) not in self.parameter_storages)
        self.operations[name] += multiply_adds
        self._spread(multiply_adds, size)
        if self.running_calls and not fused:
            self.running_calls[-1].loose += size

    def observed(self, module: nn.Module | None, output: Tensor, weights: Any, *, value: Any, **about: Any) -> Tensor:
        """A layer mixed its values tile by tile: what must move is values and outputs, not every tile."""
        if self.running_calls and self.running_calls[-1].module is module and value is not None:
            current = self.running_calls[-1]
            self._spread(0, _size(value) + _size(output) - current.loose)
            current.loose = 0
        return output

    def _spread(self, multiply_adds: int, size: int) -> None:
        for module in {call.module for call in self.running_calls}:
            self.modules[module].multiply_adds += multiply_adds
            self.modules[module].activation_bytes += size

    def cost(self) -> Cost:
        called = {counted.name: module for module, counted in self.modules.items() if counted.calls}
        rows = []
        for name, module in called.items():
            counted = self.modules[module]
            parameters = list(module.parameters())
            around = [other for other in called if other != name and (not other or name.startswith(other + "."))]
            rows.append(
                CostRow(
                    name,
                    counted.kind,
                    len(around),
                    counted.calls,
                    counted.multiply_adds,
                    sum(parameter.numel() for parameter in parameters),
                    sum(parameter.numel() * parameter.element_size() for parameter in parameters),
                    counted.activation_bytes,
                )
            )
        return Cost(tuple(rows), dict(self.operations.most_common()), dict(self.uncounted))


class _Counting(TorchDispatchMode):
    """Sees every operator that really runs, in tiles and written into given memory too."""

    supports_higher_order_operators = True

    def __init__(self, tally: _Tally) -> None:
        super().__init__()
        self.tally = tally

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = getattr(func, "_overloadpacket", func)
        known = has_formula(packet)
        if not known and not isinstance(func, torch._ops.HigherOrderOperator):
            with self:  # what torch can take apart is counted by its parts
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        name = str(packet).removeprefix("aten.")
        if not known:
            if may_multiply(func, name):
                self.tally.uncounted[name] += 1
            return out
        count = multiply_adds(packet, args, kwargs, out)
        given = [
            x for x in tree_leaves((args, {k: v for k, v in kwargs.items() if k != "out"})) if isinstance(x, Tensor)
        ]
        result = next((x for x in tree_leaves(out) if isinstance(x, Tensor)), None)
        tensors = given if result is None else [*given, result]
        self.tally.add(name, count, tensors, fused="attention" in name)
        return out


def _set_modes(modes: dict[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training


def _size(tensor: Tensor) -> int:
    """Bytes of a tensor's distinct elements: an expanded axis is one."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.numel() * tensor.element_size()
    sizes = (n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step or not n)
    return math.prod(sizes) * tensor.element_size()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided and not tensor.is_nested else id(tensor)


def _numbered(pattern: str, names: list[str]) -> str:
    """Names that differ by one number with all of those in its place, where the pattern alone would name others too.

    >>> _numbered("blocks.*.norm", ["blocks.2.norm", "blocks.3.norm", "blocks.4.norm", "blocks.7.norm"])
    'blocks.2–4,7.norm'
    """
    parts = [name.split(".") for name in names]
    differing = [at for at, column in enumerate(zip(*parts, strict=True)) if len(set(column)) > 1]
    if len(differing) != 1 or not all(part[differing[0]].isdigit() for part in parts):
        return pattern
    ranges: list[list[int]] = []
    for number in sorted(int(part[differing[0]]) for part in parts):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = ",".join(f"{first}–{last}" if first != last else str(first) for first, last in ranges)
    return ".".join([*parts[0][: differing[0]], shown, *parts[0][differing[0] + 1 :]])


def _short(count: int, unit: str = "") -> str:
    """A few digits and a prefix: 12.1 M."""
    for prefix, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {prefix}{unit}"
    return f"{count} {unit}".rstrip()
