"""Attention maps of a model that runs fused kernels: the cost of each method, and the models that it works for.

    python benchmarks/capture.py                 # ViT-S/16, 197 tokens, batch 8; GPT-2, 128 tokens
    python benchmarks/capture.py --only 2,048    # one case, here the longest
    python benchmarks/capture.py --memory NAME   # run one method in this process and print its peak memory
    python benchmarks/capture.py --device cuda   # ViT-L/16, 512 to 8,192 tokens, and generate, in bf16

Methods: ``regard.capture``; ``output_attentions=True`` with ``attn_implementation="eager"`` (as BertViz documents); timm's
``AttentionExtract`` with fused attention turned off (as documented); TransformerLens if it is installed. Time and memory
are compared with a plain forward pass of the same model with its default kernel. Every method is a snippet that runs as
written, so that its lines can be counted.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import regard
from _measure import arguments, import_timm, milliseconds, print_table, ratios, side_by_side, write

# Each snippet sees `model` and `x`, and leaves the maps in `maps` (a list of tensors).
SNIPPETS = {
    "plain": "model(x)\nmaps = []",
    "regard.capture": """
with regard.capture(model) as captured:
    model(x)
maps = [found.weights for found in captured.values()]""",
    "output_attentions, eager": """
model.set_attn_implementation("eager")
output = model(x, output_attentions=True)
maps = list(output.attentions)""",
    "timm AttentionExtract": """
for module in model.modules():
    if hasattr(module, "fused_attn"):
        module.fused_attn = False
maps = list(AttentionExtract(model, method="hook")(x).values())""",
    "TransformerLens": """
logits, cache = model.run_with_cache(x)
maps = [cache["pattern", layer] for layer in range(model.cfg.n_layers)]""",
}
LENS = importlib.util.find_spec("transformer_lens") is not None
if not LENS:
    del SNIPPETS["TransformerLens"]


def run(way: str, model: Any, x: Any) -> list[torch.Tensor]:
    scope = {"model": model, "x": x, "regard": regard, "torch": torch}
    if "timm" in way:
        from timm.utils import AttentionExtract

        scope["AttentionExtract"] = AttentionExtract
    with torch.no_grad():
        exec(SNIPPETS[way], scope)
    return scope["maps"]


def undo(model: Any) -> None:
    """Back to the default kernel, so that ways can be timed in turn on one model."""
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("sdpa")
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True


def timm_vit() -> Any:
    timm = import_timm()
    if timm is None:
        raise SystemExit("this benchmark needs timm and transformers: pip install 'regard[dev,parity]'")
    return timm.create_model("vit_small_patch16_224", pretrained=False).eval()


def hugging_face_vit() -> Any:
    import_timm()  # its stand-in for torchvision's operators is needed here too
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536, num_labels=1000
    )
    return transformers.ViTForImageClassification(config).eval()


def hugging_face_gpt2() -> Any:
    import_timm()
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers.GPT2Model(transformers.GPT2Config()).eval()


def hugging_face_llama() -> Any:
    """4 layers of 8 heads over 4, width 512: long texts, where the maps are most of the work."""
    import_timm()
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=1408, max_position_embeddings=4096,
    )  # fmt: skip
    return transformers.LlamaModel(config).eval()


def lens_gpt2() -> Any:
    """The same size in TransformerLens' own implementation, the only kind of model that it can look into."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    config = HookedTransformerConfig(
        n_layers=12, d_model=768, n_heads=12, d_head=64, n_ctx=1024, d_vocab=50257, act_fn="gelu_new", device="cpu"
    )
    return HookedTransformer(config).eval()


class Case(NamedTuple):
    """A model of real size, its input, and the ways to its maps; the way ``own`` needs an implementation of its own."""

    build: Callable[[], Any]
    input: Callable[[], torch.Tensor]
    ways: tuple[str, ...]
    own: str = ""
    maps: int = 12
    build_own: Callable[[], Any] | None = None

    def model_for(self, way: str) -> Any:
        return self.build_own() if way == self.own and self.build_own is not None else self.build()

    def models(self) -> dict[str, Any]:
        shared = self.build()
        return {way: self.model_for(way) if way == self.own else shared for way in self.ways}


def images() -> torch.Tensor:
    return torch.randn(8, 3, 224, 224)


def text() -> torch.Tensor:
    return torch.randint(0, 50257, (1, 128))


def long_text() -> torch.Tensor:
    return torch.randint(0, 32000, (1, 2048))


LARGE = {
    "timm ViT-S/16": Case(timm_vit, images, ("plain", "regard.capture", "timm AttentionExtract")),
    "Hugging Face ViT-S/16": Case(hugging_face_vit, images, ("plain", "regard.capture", "output_attentions, eager")),
    "Hugging Face GPT-2": Case(
        hugging_face_gpt2,
        text,
        ("plain", "regard.capture", "output_attentions, eager", *(["TransformerLens"] if LENS else [])),
        "TransformerLens",
        build_own=lens_gpt2,
    ),
    "Hugging Face Llama, 2,048 tokens": Case(
        hugging_face_llama, long_text, ("plain", "regard.capture", "output_attentions, eager"), maps=4
    ),
}


def zoo() -> dict[str, tuple[Any, Any, int]]:
    """Tiny models of every family, an input, and how many maps they have."""
    timm = import_timm()
    import transformers as t
    import vit_pytorch

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    vision = {**small, "image_size": 32, "patch_size": 8}
    tokens, images, sequence = torch.randint(0, 50, (1, 7)), torch.randn(1, 3, 32, 32), torch.randn(1, 7, 32)
    llama = {**small, "num_key_value_heads": 2}
    swin = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4}
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    return {
        "BERT": (t.BertModel(t.BertConfig(vocab_size=50, **small)), tokens, 2),
        "ViT": (t.ViTModel(t.ViTConfig(**vision)), images, 2),
        "GPT-2": (t.GPT2Model(t.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4)), tokens, 2),
        "Llama": (t.LlamaModel(t.LlamaConfig(vocab_size=50, **llama)), tokens, 2),
        "Swin": (t.SwinModel(t.SwinConfig(**swin)), images, 2),
        "timm ViT": (
            timm.models.vision_transformer.VisionTransformer(32, 8, embed_dim=32, depth=2, num_heads=4),
            images,
            2,
        ),
        "timm Swin": (
            timm.models.swin_transformer.SwinTransformer(
                32, 4, embed_dim=16, depths=(2,), num_heads=(2,), window_size=4
            ),
            images,
            2,
        ),
        "vit-pytorch": (
            vit_pytorch.ViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=48),
            images,
            2,
        ),
        "nn.TransformerEncoder": (torch.nn.TransformerEncoder(layer, 2), sequence, 2),
    }


def works(way: str, model: Any, x: Any, count: int) -> str:
    """ "yes", or what happens instead."""
    try:
        maps = run(way, model.eval(), x)
    except Exception as error:
        return type(error).__name__
    finally:
        undo(model)
    stochastic = [m for m in maps if m is not None and m.ndim >= 3 and bool((m.sum(-1) - 1).abs().max() < 1e-3)]
    return "yes" if len(stochastic) == count else f"{len(stochastic)} of {count} maps"


def peak_megabytes(way: str, name: str) -> float | None:
    """Of a process that does nothing else, over what it has once the model is there."""
    command = [sys.executable, __file__, "--memory", way, "--model", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def report_memory(way: str, name: str) -> None:
    torch.set_num_threads(2)
    case = LARGE[name]
    model, x = case.model_for(way), case.input()
    if way != "plain":
        with regard.capture(torch.nn.Identity()):  # what the first one imports is not the maps' memory
            pass
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is held now
    before = held("VmRSS")
    kept = run(way, model, x)
    if way != "plain" and len(kept) != case.maps:
        raise SystemExit(f"{way} found {len(kept)} maps of {case.maps}")
    print(held("VmHWM") - before)


def held(field: str) -> float:
    """Megabytes of this process (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def payload() -> dict[str, float]:
    """Megabytes for 12 layers × 12 heads × 128 tokens: our file, and the numbers written out as JSON, which is how
    they get into BertViz's page."""
    weights = [torch.randn(1, 12, 128, 128).softmax(-1) for _ in range(12)]
    calls = [regard.maps.AttentionRecord.given(w) for w in weights]
    maps = regard.maps.Maps([regard.maps.Map(f"layer.{i}", [call]) for i, call in enumerate(calls)])
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("uint8", "float16"):
            path = maps.save(Path(folder) / dtype, dtype=dtype)
            sizes[f"regard, {dtype}"] = path.stat().st_size / 1e6
    sizes["JSON numbers"] = len(json.dumps([w.tolist() for w in weights])) / 1e6
    return {name: round(size, 2) for name, size in sizes.items()}


def main() -> None:
    parser = arguments(__doc__ or "", device="cpu", rounds=15)
    parser.add_argument("--memory", help="measure the peak memory of one method in this process")
    parser.add_argument("--model", default="timm ViT-S/16")
    parser.add_argument("--only", default="", help="only cases whose names contain this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.memory:
        report_memory(options.memory, options.model)
        return
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    if options.device != "cpu":
        from _capture_cuda import rows_on_cuda

        rows = rows_on_cuda(options)
        print_table(rows, ["model", "way", "ms", "× plain", "peak MB", "maps MB", "residual", "agrees"])
        print(write("capture", options, rows))
        return
    for name, case in LARGE.items():
        if options.only not in name:
            continue
        candidates, x = case.models(), case.input()

        def timed(way: str, model: Any, x: Any = x) -> Callable[[], None]:
            def call() -> None:
                run(way, model, x)
                undo(model)

            return call

        calls = {way: timed(way, model) for way, model in candidates.items()}
        times = side_by_side(calls, rounds=options.rounds, patience=120.0)
        median, slower = milliseconds(times), ratios(times, "plain")
        for way in case.ways:
            memory = peak_megabytes(way, name)
            rows.append(
                {
                    "model": name,
                    "way": way,
                    "ms": median[way],
                    "× plain": round(slower.get(way, 1.0), 3),
                    "peak MB": None if memory is None else round(memory, 1),
                    "lines": len(SNIPPETS[way].strip().splitlines()),
                    "kernel kept": way in ("plain", "regard.capture"),
                    "checked": way == "regard.capture",
                }
            )
    print_table(rows, ["model", "way", "ms", "× plain", "peak MB", "lines", "kernel kept", "checked"])
    if options.only:
        print(write("capture", options, rows))
        return
    models = [
        {"model": name, **{way: works(way, model, x, count) for way in SNIPPETS if way != "plain"}}
        for name, (model, x, count) in zoo().items()
    ]
    print_table(models, ["model", *(way for way in SNIPPETS if way != "plain")])
    sizes = payload()
    print("payload, MB, 12 layers × 12 heads × 128 tokens:", sizes)
    lens = "installed" if LENS else "not installed"
    print("TransformerLens:", lens)
    print(write("capture", options, rows, models=models, payload_mb=sizes, transformer_lens=lens))


if __name__ == "__main__":
    main()
