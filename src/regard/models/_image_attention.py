"""The settings of an image encoder's attention."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.layers import GatedPositionalAttention, GaussianAttention, MultiHeadAttention, RelativeAttention
from regard.models._depthwise import DepthwiseMixing
from regard.models._signed import SignedGaussians
from regard.support.checks import check_choice, check_flag, check_positive, describe

ATTENTIONS = (
    "gaussian",
    "gaussian-diagonal",
    "gaussian-full",
    "signed",
    "relative",
    "relative-content",
    "gated",
    "content",
)
KINDS = (*ATTENTIONS, "depthwise")


@dataclass(frozen=True)
class AttentionSettings:
    """The attention of an :class:`ImageEncoder`.

    Args:
        kind: what its heads look at, see :class:`ImageEncoder`.
        head_dim: width of a head, default ``dim / heads``; for Gaussian heads, plain content attention and depthwise
            convolution.
        full_width: every head reads the whole token (:class:`GaussianAttention`'s ``full_width``); for attention by
            position alone and depthwise convolution.
        init: where Gaussian heads start, ``"normal"`` or ``"grid"``; others have no place to start from.
        second_output: whether another linear layer follows the attention's own, as in the code of the 2020 paper.

    >>> from regard.models import AttentionSettings, ImageEncoder
    >>> attention = AttentionSettings("gaussian", full_width=True, init="grid")
    >>> ImageEncoder(8, 2, 10, dim=6, depth=1, heads=9, attention=attention).blocks[0].attention.head_dim
    6
    """

    kind: str = "gaussian"
    head_dim: int | None = None
    full_width: bool = False
    init: str = "normal"
    second_output: bool = False

    def __post_init__(self) -> None:
        check_choice("the kind of attention", self.kind, KINDS)
        check_flag("full_width", self.full_width)
        check_flag("second_output", self.second_output)
        check_choice("init", self.init, ("normal", "grid"))
        if self.head_dim is not None:
            check_positive("head_dim", self.head_dim)
        gaussian = self.kind.startswith("gaussian")
        if self.full_width and not (gaussian or self.kind in ("relative", "depthwise")):
            raise ValueError(
                f"full_width is for attention by position alone ('gaussian…', 'relative') and 'depthwise', got "
                f"{self.kind!r}"
            )
        if self.full_width and self.head_dim is not None:
            raise ValueError(f"head_dim is {self.head_dim}, but with full_width every head is as wide as the token")
        if self.head_dim is not None and not (gaussian or self.kind in ("signed", "content", "depthwise")):
            raise ValueError(f"head_dim is {self.head_dim}, but {self.kind!r} splits dim between its heads")
        if self.init != "normal" and not (gaussian or self.kind in ("signed", "gated")):
            raise ValueError(
                f"init is {self.init!r}, which is for Gaussian heads ('gaussian…', 'signed', 'gated'), but attention is "
                f"{self.kind!r}: with it init must be 'normal'"
            )

    @classmethod
    def of(cls, given: Any) -> "AttentionSettings":
        """Settings from a caller's argument: a kind, settings, or settings as a dictionary."""
        if isinstance(given, AttentionSettings):
            return given
        if isinstance(given, Mapping):
            known = {field.name for field in fields(cls)}
            if not known.issuperset(given):
                raise TypeError(f"attention has the settings {', '.join(sorted(known))}, got {describe(given)}")
            return cls(**given)
        if isinstance(given, str):
            return cls(given)
        raise TypeError(f"attention must be a kind such as 'gaussian' or AttentionSettings, got {describe(given)}")

    def twice_as_wide(self) -> "AttentionSettings":
        """The settings for tokens of twice the width."""
        return self if self.head_dim is None else replace(self, head_dim=2 * self.head_dim)

    def build(self, dim: int, heads: int, grid: tuple[int, int], dropout: float) -> nn.Module:
        """The layer for tokens of width ``dim`` on a grid of at most this size."""
        layer = self._layer(dim, heads, grid, dropout)
        return SecondOutput(layer, dim) if self.second_output else layer

    def _layer(self, dim: int, heads: int, grid: tuple[int, int], dropout: float) -> nn.Module:
        widths: dict[str, Any] = {"head_dim": self.head_dim, "full_width": self.full_width}
        start: Any = self.init
        if self.kind.startswith("gaussian"):
            covariance: Any = self.kind.partition("-")[2] or "isotropic"
            return GaussianAttention(dim, heads, covariance=covariance, init=start, dropout=dropout, **widths)
        if self.kind == "depthwise":
            return DepthwiseMixing(dim, heads, **widths)
        if self.kind == "signed":
            return SignedGaussians(dim, heads, head_dim=self.head_dim, init=start, dropout=dropout)
        if self.kind == "gated":
            return GatedPositionalAttention(dim, heads, init=start, dropout=dropout)
        if self.kind == "content":
            return MultiHeadAttention(dim, heads, head_dim=self.head_dim, dropout=dropout)
        content = self.kind == "relative-content"
        return RelativeAttention(dim, heads, grid, content=content, full_width=self.full_width, dropout=dropout)


class SecondOutput(nn.Module):
    """An attention layer with one more linear layer after it."""

    def __init__(self, attention: nn.Module, dim: int) -> None:
        super().__init__()
        self.inner = attention
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "batch tokens dim"], **options: Any) -> Tensor | tuple[Tensor, Tensor]:
        """``options`` are those of the attention layer."""
        out = self.inner(x, **options)
        return (self.output(out[0]), out[1]) if isinstance(out, tuple) else self.output(out)
