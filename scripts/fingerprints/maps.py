"""Captured maps of every model family that the tests capture, and what the analyses make of them, as SHA-256.

Seeds are fixed, and one thread computes. A family whose library is not installed says so in its line.
"""

import hashlib
import importlib
import importlib.util
import inspect
import struct
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.layers import GatedPositionalAttention, GaussianAttention, MultiHeadAttention, RelativeAttention
from regard.models import ImageEncoder, Seq2SeqRNN, Transformer, VisionTransformer

# Before it had a package of its own, analysis was a part of regard.inspect.
_ANALYSIS = "regard.analysis" if importlib.util.find_spec("regard.analysis") else "regard.inspect"
analysis: Any = importlib.import_module(_ANALYSIS)

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
VISION = {**SMALL, "image_size": 32, "patch_size": 8}
TEXT = {"vocab_size": 50, "max_position_embeddings": 32}
HUGGING_FACE = {
    "Bert": {**TEXT, **SMALL},
    "GPT2": {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "Llama": {**TEXT, **SMALL, "num_key_value_heads": 2},
    "T5": {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "Bart": {
        **TEXT, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    },
    "ViT": VISION,
    "DeiT": VISION,
    "Dinov2": VISION,
    "Dinov2WithRegisters": {**VISION, "num_register_tokens": 3},
    "Swin": {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4},
}  # fmt: skip
TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
GRID = (3, 4)


class Calls(nn.Module):
    """A model that is one function."""

    num_heads = 3

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *args: Any) -> Any:
        return self.function(*args, **self.options)


# Attention written by hand; q, k, v are (batch, heads, tokens, width).
BY_HAND: dict[str, Callable[..., Tensor]] = {
    "operators": lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v,
    "einsum": lambda q, k, v: torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v),
    "einsum, tokens first": lambda q, k, v: torch.einsum(
        "bhqk,bkhd->bqhd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v.transpose(1, 2)
    ),
    "einsum, dots": lambda q, k, v: torch.einsum("...ij,...jd->...id", (q @ k.mT).softmax(-1), v),
    "bmm": lambda q, k, v: torch.bmm(
        F.softmax(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT), -1), v.flatten(0, 1)
    ).unflatten(0, q.shape[:2]),
    "transposed": lambda q, k, v: (v.mT @ (q @ k.mT).softmax(-1).mT).mT,
    "over columns": lambda q, k, v: ((k @ q.mT).softmax(-2)).mT @ v,
    "cast": lambda q, k, v: (q @ k.mT).double().softmax(-1).type_as(v) @ v,
    "masked": lambda q, k, v: (q @ k.mT + torch.ones(5, 5).triu(1) * -1e9).softmax(-1).contiguous() @ v,
    "sum of terms": lambda q, k, v: ((q @ k.mT).softmax(-1).unsqueeze(-1) * v.unsqueeze(2)).sum(-2),
    "logarithm": lambda q, k, v: F.log_softmax(q @ k.mT, -1).exp() @ v,
    "dropout": lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.5) @ v,
    "sink": lambda q, k, v: torch.cat([q @ k.mT, torch.zeros(2, 3, 5, 1)], -1).softmax(-1)[..., :-1] @ v,
    "divided before": lambda q, k, v: ((q @ k.mT).exp() / (q @ k.mT).exp().sum(-1, keepdim=True)) @ v,
    "divided after": lambda q, k, v: ((q @ k.mT).exp() @ v) / (q @ k.mT).exp().sum(-1, keepdim=True),
    "squares": lambda q, k, v: F.normalize((q @ k.mT).square(), p=1, dim=-1) @ v,
    "softmax plus one": lambda q, k, v: ((q @ k.mT).exp() / (1 + (q @ k.mT).exp().sum(-1, keepdim=True))) @ v,
    "sigmoid": lambda q, k, v: (q @ k.mT / 2).sigmoid() @ v,
    "linear attention": lambda q, k, v: q.softmax(-1) @ (k.softmax(-2).mT @ v),
    "reference": lambda q, k, v: regard.reference.attention(q, k, v)[0],
}


def lines() -> Iterator[str]:
    """``family  SHA-256`` for each family, and one for all."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    total = hashlib.sha256()
    for name, build in families():
        torch.manual_seed(0)
        try:
            found = fingerprint(*build())
        except ImportError as missing:
            found = f"not installed ({missing.name})"
        total.update(f"{name} {found}".encode())
        yield f"{name:<40} {found}"
    yield f"{'all':<40} {total.hexdigest()}"


def families() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield from torch_families()
    yield from ((f"by hand, {name}", lambda f=f: (Calls(f), qkv(), False)) for name, f in BY_HAND.items())
    yield from own_families()
    for name in HUGGING_FACE:
        for kernel in ("sdpa", "eager"):
            yield f"transformers {name}, {kernel}", lambda name=name, kernel=kernel: hugging_face(name, kernel)
    yield "timm ViT", lambda: (timm().models.vision_transformer.VisionTransformer(**TIMM).eval(), (images(),), True)
    yield "timm DeiT", lambda: (timm().models.deit.VisionTransformerDistilled(**TIMM).eval(), (images(),), True)
    yield "timm Swin", lambda: (timm_swin("swin_transformer", "SwinTransformer", 5), (images(48),), False)
    yield "timm SwinV2", lambda: (timm_swin("swin_transformer_v2", "SwinTransformerV2", 4), (images(48),), False)
    yield "vit-pytorch ViT", vit_pytorch
    # Last, because libraries that are imported after it would take the stand-in for the real one.
    yield "flash_attn (stand-in)", lambda: (Calls(flash_attn(), causal=True), qkv(), False)


def fingerprint(model: nn.Module, args: Any, analyzed: bool) -> str:
    """SHA-256 of the names, weights, residuals and layouts of all maps and, if ``analyzed``, of the analyses."""
    digest = hashlib.sha256()
    run = (lambda: model(**args)) if isinstance(args, dict) else (lambda: model(*args))
    with torch.no_grad(), regard.capture(model) as maps:
        run()
    for name, found in maps.items():
        digest.update(f"{name} {found.kernel} {_layout(found)}".encode())
        for call in found.calls:
            _add(digest, call.weights)
            digest.update(struct.pack("d?", call.residual, call.agrees))
    digest.update(repr([(missed.name, missed.shape, missed.count) for missed in maps.missed]).encode())
    torch.manual_seed(0)
    with torch.no_grad(), regard.capture(model, heads=[0], rows=slice(0, 2), dtype=torch.float16) as part:
        run()
    for found in part.values():
        _add(digest, found.weights)
    for weights in analysis.entropy(maps).values():
        _add(digest, weights)
    if analyzed:
        _add(digest, regard.rollout(maps))
        fitted = regard.locality(maps)
        for head in fitted:
            digest.update(repr((head.name, head.head, head.center, head.sharpness, head.fit, head.overlap)).encode())
        _add(digest, regard.relevance(model, *args, target=1))
        scores = analysis.importance(model, [(*args, torch.tensor([0, 1]))]).scores
        for found_scores in scores.values():
            _add(digest, found_scores)
        with torch.no_grad(), regard.replace_heads(model, fitted.best(2)):
            _add(digest, run())
    return digest.hexdigest()


def _add(digest: Any, tensor: Tensor) -> None:
    digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _layout(found: Any) -> Any:
    try:
        return found.grid, found.prefix
    except ValueError:
        return None


def qkv(heads: int = 3) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, heads, 5, 4) for _ in range(3))


def images(size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size)


def torch_families() -> Iterator[tuple[str, Callable[[], Any]]]:
    fused = F.scaled_dot_product_attention
    yield "sdpa", lambda: (Calls(fused), qkv(), False)
    yield "sdpa, causal", lambda: (Calls(fused, is_causal=True), qkv(), False)
    yield "sdpa, masked", lambda: (Calls(fused, attn_mask=torch.rand(2, 1, 5, 5) > 0.4), qkv(), False)
    yield "sdpa, bias and dropout", lambda: (Calls(fused, attn_mask=torch.randn(5, 5), dropout_p=0.5), qkv(), False)
    yield "sdpa, five axes", lambda: (Calls(fused), tuple(torch.randn(2, 2, 3, 5, 8) for _ in range(3)), False)
    layer = {"d_model": 16, "nhead": 4, "dim_feedforward": 24, "batch_first": True}
    for first in (False, True):
        for training in (False, True):

            def encoder(first: bool = first, training: bool = training) -> Any:
                one = nn.TransformerEncoderLayer(**layer, norm_first=first, dropout=0.1)
                model = nn.TransformerEncoder(one, 2, enable_nested_tensor=not first)
                return model.train(training), (torch.randn(2, 5, 16),), False

            yield f"TransformerEncoder, norm {first}, train {training}", encoder
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

    def padded() -> Any:
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2).eval()
        return model, {"src": torch.randn(2, 5, 16), "src_key_padding_mask": padding}, False

    yield "TransformerEncoder, padded", padded
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    for mode in (False, True):
        yield (
            f"MultiheadAttention, train {mode}",
            lambda mode=mode: (nn.MultiheadAttention(16, 4, batch_first=True).train(mode), (x, x, x), False),
        )
    yield "flex_attention", lambda: flex()


def flex() -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def change(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score - 0.3 * (q - k).abs()

    mask = create_block_mask(causal, None, None, 16, 16, device="cpu")
    tensors = tuple(torch.randn(2, 4, 16, 8) for _ in range(3))
    return Calls(flex_attention, score_mod=change, block_mask=mask), tensors, False


def flash_attn() -> Callable[..., Tensor]:
    """A function with the name and signature of flash_attn's, which needs a GPU."""
    source = """
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.mT * (softmax_scale or q.shape[-1] ** -0.5)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)
"""
    package, module = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.flash_attn_interface")
    vars(module)["torch"] = torch
    exec(source, vars(module))
    sys.modules.setdefault("flash_attn", package)
    sys.modules.setdefault("flash_attn.flash_attn_interface", module)
    return vars(sys.modules["flash_attn.flash_attn_interface"])["flash_attn_func"]  # type: ignore[no-any-return]


def own_families() -> Iterator[tuple[str, Callable[[], Any]]]:
    layers = {
        "gaussian": lambda: GaussianAttention(8, 4),
        "gaussian, full": lambda: GaussianAttention(8, 4, covariance="full"),
        "gaussian, full width": lambda: GaussianAttention(8, 4, full_width=True),
        "gated": lambda: GatedPositionalAttention(8, 4),
        "relative": lambda: RelativeAttention(8, 4, extent=(5, 5), content=False),
        "relative with content": lambda: RelativeAttention(8, 4, extent=(5, 5)),
    }
    for name, layer in layers.items():
        for training in (False, True):
            yield (
                f"own {name}, train {training}",
                lambda layer=layer, mode=training: (
                    layer().train(mode),
                    {"x": torch.randn(2, 12, 8), "grid": GRID},
                    False,
                ),
            )
    yield "own multi-head", lambda: (MultiHeadAttention(8, 4), (torch.randn(2, 12, 8),), False)
    yield (
        "own multi-head, grouped",
        lambda: (MultiHeadAttention(8, 4, key_value_heads=2), (torch.randn(2, 12, 8),), False),
    )
    center, sharpness = torch.tensor([[0.0, 1.0], [0.3, -2.0]]), torch.tensor([0.7, 3.0])
    gaussian = {"center": center, "sharpness": sharpness, "grid": GRID}
    for plan in ("dense", "separable"):
        yield (
            f"gaussian_attention, {plan}",
            lambda plan=plan: (
                Calls(regard.gaussian_attention, **gaussian, plan=plan),
                (torch.randn(2, 2, 12, 3),),
                False,
            ),
        )
    yield (
        "converted convolution",
        lambda: (
            regard.conv_to_attention(nn.Conv2d(3, 4, 3, padding=1)),
            (torch.randn(2, 3, 5, 6),),
            False,
        ),
    )
    yield "own ViT", lambda: (VisionTransformer(32, 8, 5, dim=16, depth=2, heads=2).eval(), (images(),), True)
    for kind in ("content", "gaussian", "gated", "relative"):
        encoder = {"dim": 16, "depth": 2, "heads": 4, "attention": kind}
        yield (
            f"own image encoder, {kind}",
            lambda options=encoder: (image_encoder(**options), (images(16),), True),
        )
    yield (
        "own image encoder, another size",
        lambda: (
            image_encoder(dim=16, depth=2, heads=4, attention="content"),
            (torch.randn(2, 3, 16, 24),),
            True,
        ),
    )
    words = torch.arange(10).reshape(2, 5) % 11
    yield (
        "own Transformer",
        lambda: (
            transformer(),
            (words, words[:, :4]),
            False,
        ),
    )
    for kind in ("additive", "dot"):
        yield (
            f"own seq2seq, {kind}",
            lambda kind=kind: (Seq2SeqRNN(11, dim=8, hidden=8, attention=kind).eval(), (words, words[:, :4]), False),
        )


def image_encoder(**options: Any) -> nn.Module:
    """For images of 16 × 16 in patches of 2 × 2, whose size older versions do not take as an argument."""
    patch = (2,) if "patch_size" in inspect.signature(ImageEncoder).parameters else ()
    return ImageEncoder(16, *patch, 5, **options, merge=(1,)).eval()  # type: ignore[call-arg]


def transformer() -> nn.Module:
    """One block each. Older versions have an argument for the depth of the encoder and one for that of the decoder."""
    joint = "depth" in inspect.signature(Transformer).parameters
    depth = {"depth": 1} if joint else {"encoder_depth": 1, "decoder_depth": 1}
    return Transformer(13, dim=16, heads=2, hidden=16, **depth).eval()  # type: ignore[arg-type]


def timm() -> Any:
    """timm imports torchvision, of which a build without its compiled operators is enough."""
    if importlib.util.find_spec("timm") is None:
        raise ImportError("timm is not installed", name="timm")
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
    return importlib.import_module("timm")


_kept: list[Any] = []  # a library takes its operators along when it is collected


def timm_swin(module: str, name: str, window: int) -> nn.Module:
    build = getattr(getattr(timm().models, module), name)
    options = {"img_size": 48, "patch_size": 4, "embed_dim": 8, "depths": (2,), "num_heads": (2,), "num_classes": 3}
    return build(**options, window_size=window).eval()  # type: ignore[no-any-return]


def vit_pytorch() -> Any:
    library = importlib.import_module("vit_pytorch")
    options = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 48}
    return library.ViT(**options, dim_head=8).eval(), (images(),), False


def hugging_face(name: str, kernel: str) -> Any:
    timm()
    library = importlib.import_module("transformers")
    library.logging.set_verbosity_error()
    config = getattr(library, f"{name}Config")(**HUGGING_FACE[name])
    config._attn_implementation = kernel
    model = getattr(library, f"{name}Model")(config).eval()
    if "image_size" in HUGGING_FACE[name]:
        return model, {"pixel_values": images()}, False
    tokens = torch.randint(0, 50, (2, 7))
    padding = torch.ones_like(tokens)
    padding[1, 5:] = 0
    decoder = {"decoder_input_ids": tokens[:, :4]} if name in ("T5", "Bart") else {}
    return model, {"input_ids": tokens, "attention_mask": padding, **decoder}, False
