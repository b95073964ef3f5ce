"""``cost``: the multiply-adds and bytes of any module, attention included, counted in one run."""

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

from regard.analysis._products import formulas, may_multiply
from regard.observation import listen
from regard.support.checks import describe
from regard.support.tables import text_table
from regard.support.text import format_count, format_size

Shape = tuple[int, ...]
Input = Shape | Tensor | None


@dataclass(frozen=True)
class CostRow:
    """The cost of one module and of everything inside it.

    Attributes:
        name: the path of the module in the model; empty for the model itself.
        kind: the class of the module.
        depth: the number of called modules around it.
        calls: how often it was called.
        multiply_adds: the multiply-adds of its products (linear layers, convolutions, attention), half of the FLOPs.
        parameters: the number of its parameters.
        parameter_bytes: the size of its parameters.
        activation_bytes: the bytes that its products read and write besides parameters, each operand and result once.
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
        """The least memory traffic: parameters, and operands and results of products."""
        return self.parameter_bytes + self.activation_bytes


@dataclass(frozen=True)
class Cost:
    """What :func:`cost` returns. It has the attributes of the model's own :class:`CostRow`, and prints as a table.

    Attributes:
        rows: one row for each called module, in the order of the model; the first is the model.
        operations: multiply-adds by operator.
        uncounted: operators without a formula that may multiply, and how often they ran.
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
        """A text table of the modules up to this depth. Modules with the same cost whose paths differ in one number
        share a line with their sum. Modules without products and parameters are omitted."""
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
            counts = (format_count(multiply_adds), f"{multiply_adds / whole:.1%}", format_count(parameters))
            lines.append((name, kind, str(calls), *counts, format_size(size)))
        unknown = [f"uncounted  {name} ({count}×)" for name, count in self.uncounted.items()]
        return "\n".join(text_table(lines, right=range(2, 7)) + unknown)

    def __str__(self) -> str:
        return self.table()


def cost(
    model: nn.Module,
    input_shape: Shape | Sequence[Input],
    *,
    dtype: torch.dtype | Sequence[torch.dtype | None] | None = None,
    **options: Any,
) -> Cost:
    """Count the multiply-adds of one call of a module, and the bytes that it must at least read and write.

    The module runs forward once, in evaluation mode, on the device of its parameters (on ``meta`` nothing is computed).
    Every product that runs is counted: linear layers, convolutions, recurrent layers, fused attention (all pairs, also
    masked ones), Gaussian heads by the passes of their plan, and every operator with a formula that was registered with
    torch's ``register_flop_formula``. Sums, norms, activations and softmax are not products and are not counted.

    Args:
        model: any module. It is not changed.
        input_shape: the shape of its input, with the batch; for several inputs a list of shapes. Tensors and None in the
            list are passed as they are.
        dtype: the dtype of the inputs, or one for each; default: that of the parameters. Token numbers need an integer
            dtype; all of them are 0.
        options: further arguments of the module, such as ``grid``.

    >>> attention = regard.MultiHeadAttention(16, 4)
    >>> found = regard.cost(attention, (1, 10, 16))
    >>> found.multiply_adds == 4 * 10 * 16 * 16 + 2 * 10 * 10 * 16      # four projections, and every pair twice
    True
    >>> print(found)
    module    kind                calls  multiply-adds   share  parameters    bytes
    ────────  ──────────────────  ─────  ─────────────  ──────  ──────────  ───────
    (all)     MultiHeadAttention      1         13.4 k  100.0%      1.09 k  10.8 kB
      qkv     Linear                  1         7.68 k   57.1%         816  5.82 kB
      output  Linear                  1         2.56 k   19.0%         272  2.37 kB
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    inputs = _inputs(model, input_shape, dtype)
    tally = _Tally(model)
    try:
        with tally.running(), torch.no_grad():
            model(*inputs, **options)
    except (RuntimeError, IndexError, TypeError) as error:
        said = str(error).partition("\n")[0]
        raise ValueError(
            f"input_shape is {input_shape!r:.100} and dtype {dtype}, but must be what the model "
            f"({type(model).__name__}) takes: {said}"
        ) from error
    return tally.cost()


def _inputs(model: nn.Module, shapes: Any, dtype: Any) -> list[Tensor | None]:
    if isinstance(shapes, Tensor) or not isinstance(shapes, Sequence):
        raise TypeError(f"input_shape must be a shape such as (1, 3, 32, 32) or a list of them, got {describe(shapes)}")
    single = all(isinstance(n, int) for n in shapes)
    several: list[Any] = [tuple(shapes)] if single else list(shapes)
    dtypes = list(dtype) if isinstance(dtype, Sequence) else [dtype] * len(several)
    if not all(kind is None or isinstance(kind, torch.dtype) for kind in dtypes):
        raise TypeError(f"dtype must be a torch.dtype, or one for each input, got {describe(dtype)}")
    if len(dtypes) != len(several):
        raise ValueError(f"dtype is {describe(dtype)}, {len(dtypes)} entries, but there are {len(several)} inputs")
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(()))
    made: list[Tensor | None] = []
    for shape, kind in zip(several, dtypes, strict=True):
        if shape is None or isinstance(shape, Tensor):
            made.append(shape)
            continue
        if not isinstance(shape, Sequence) or not all(
            isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63 for n in shape
        ):
            raise TypeError(f"input_shape must hold whole numbers of 0 or more, got {describe(shape)}")
        made.append(torch.zeros(tuple(shape), dtype=kind or like.dtype, device=like.device))
    return made


@dataclass
class _Module:
    """The counts of one module."""

    name: str
    kind: str
    calls: int = 0
    multiply_adds: int = 0
    activation_bytes: int = 0


@dataclass
class _Running:
    """A call of a module that has not returned. ``loose``: bytes of its own products outside fused kernels."""

    module: nn.Module
    loose: int = 0


@dataclass
class _Tally:
    """Counts by module: a product counts for every module that is running."""

    model: nn.Module
    running_calls: list[_Running] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.modules = {m: _Module(name, type(m).__name__) for name, m in self.model.named_modules()}
        self.parameter_storages = {_storage(tensor) for tensor in (*self.model.parameters(), *self.model.buffers())}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the operators that run in the block. torch's fast path for encoder layers is off, because it hides products."""
        modes = {module: module.training for module in self.modules}
        fast_path = torch.backends.mha.get_fastpath_enabled()
        with ExitStack() as stack:
            stack.callback(_set_modes, modes)
            stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
            torch.backends.mha.set_fastpath_enabled(False)
            for module in self.modules:
                module.training = False
                stack.callback(module.register_forward_pre_hook(self._enter).remove)
                stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            if "torch._dynamo" in sys.modules:  # if it is not imported, nothing is compiled; importing it takes seconds
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(listen(self, heads=False))
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

    def observed(self, module: nn.Module | None, output: Tensor, weights: Any, **about: Any) -> Tensor:
        """A layer mixed its values in tiles: count the bytes of values and outputs, not those of every tile."""
        value = about["value"]
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
    """Sees every operator that runs and counts it by torch's formulas.

    torch's own FlopCounterMode is not used as a mode: it refuses FlexAttention in eager mode, gives modules that are
    shared the name of their last path, and counts no bytes.
    """

    supports_higher_order_operators = True

    def __init__(self, tally: _Tally) -> None:
        super().__init__()
        self.tally = tally
        self.formulas = formulas()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = getattr(func, "_overloadpacket", func)
        if packet not in self.formulas and getattr(func, "namespace", "") == "regard":
            self.formulas = formulas()  # our kernels are registered as operators at their first use
        known = packet in self.formulas
        if not known and not isinstance(func, torch._ops.HigherOrderOperator):
            with self:  # composite operators are counted by their parts
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        name = str(packet).removeprefix("aten.")
        if not known:
            if may_multiply(func, name):
                self.tally.uncounted[name] += 1
            return out
        count = self.formulas[packet](*args, **kwargs, out_val=out) // 2
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
    """Bytes of the distinct elements of a tensor: an expanded axis counts once."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.numel() * tensor.element_size()
    sizes = (n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step or not n)
    return math.prod(sizes) * tensor.element_size()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided and not tensor.is_nested else id(tensor)


def _numbered(pattern: str, names: list[str]) -> str:
    """One name for several names that differ in one number, more exact than the given pattern.

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
