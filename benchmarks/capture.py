"""Attention maps of a model that runs fused kernels: the cost of each method, and the models that it works for.

    python benchmarks/capture.py                 # ViT-S/16, 197 tokens, batch 8; GPT-2, 128 tokens
    python benchmarks/capture.py --only 2,048    # one case, here the longest
    python benchmarks/capture.py --memory NAME   # run one method in this process and print its peak memory
    python benchmarks/capture.py --rivals bertviz=PYTHON transformer_lens=PYTHON nnsight=PYTHON
    python benchmarks/capture.py --device cuda   # ViT-L/16, 512 to 8,192 tokens, and generate, in bf16
    python benchmarks/capture.py --host          # what a capture adds to each attention, in work on the host

Methods: ``regard.capture``; ``output_attentions=True`` with ``attn_implementation="eager"``; timm's ``AttentionExtract`` with
fused attention turned off (as documented); and, with ``--rivals``, BertViz, TransformerLens and nnsight, each run by the
Python of an environment in which it is installed (``_capture_rivals.py``). Time and memory are compared with a plain
forward pass of the same model with its default kernel. Every method is a snippet that runs as written, so that its lines can
be counted. The last table is the cost of capture in ``generate``.
"""

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
}


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


class Case(NamedTuple):
    """A model of real size, its input, and the ways to its maps."""

    build: Callable[[], Any]
    input: Callable[[], torch.Tensor]
    ways: tuple[str, ...]
    maps: int = 12


def images() -> torch.Tensor:
    return torch.randn(8, 3, 224, 224)


def text() -> torch.Tensor:
    return torch.randint(0, 50257, (1, 128))


def long_text() -> torch.Tensor:
    return torch.randint(0, 32000, (1, 2048))


LARGE = {
    "timm ViT-S/16": Case(timm_vit, images, ("plain", "regard.capture", "timm AttentionExtract")),
    "Hugging Face ViT-S/16": Case(hugging_face_vit, images, ("plain", "regard.capture", "output_attentions, eager")),
    "Hugging Face GPT-2": Case(hugging_face_gpt2, text, ("plain", "regard.capture", "output_attentions, eager")),
    "Hugging Face Llama, 2,048 tokens": Case(
        hugging_face_llama, long_text, ("plain", "regard.capture", "output_attentions, eager"), maps=4
    ),
}


def generation(rounds: int) -> list[dict[str, Any]]:
    """The cost of capture in ``generate``: 32 tokens after a prompt of 32, greedily."""
    import transformers as t

    sizes = {
        "GPT-2, 12 layers × 768": t.GPT2Config(bos_token_id=None, eos_token_id=None),
        "GPT-2, 6 layers × 384": t.GPT2Config(n_embd=384, n_layer=6, n_head=6, bos_token_id=None, eos_token_id=None),
    }
    found = []
    for name, config in sizes.items():
        model = t.GPT2LMHeadModel(config).eval()
        prompt = torch.randint(0, 50257, (1, 32))

        def plain(model: Any = model, prompt: Any = prompt) -> None:
            model.generate(prompt, max_new_tokens=32, do_sample=False, pad_token_id=0)

        def captured(model: Any = model, prompt: Any = prompt) -> None:
            with regard.capture(model) as maps:
                model.generate(prompt, max_new_tokens=32, do_sample=False, pad_token_id=0)
            maps.generation()

        with torch.no_grad():
            times = side_by_side({"plain": plain, "captured": captured}, rounds=rounds, patience=60.0)
        slower = ratios(times, "plain")["captured"]
        found.append({"model": name, "plain ms": milliseconds(times)["plain"], "× plain": round(slower, 3)})
    return found


def rival(name: str, python: str, rounds: int) -> dict[str, Any]:
    """The figures of another tool, measured by the Python of its own environment."""
    script = Path(__file__).with_name("_capture_rivals.py")
    done = subprocess.run([python, str(script), name, str(rounds)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} could not be measured:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


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
    model, x = case.build(), case.input()
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
    parser.add_argument(
        "--rivals", nargs="*", default=[], metavar="TOOL=PYTHON", help="other tools, and where they are"
    )
    parser.add_argument("--only", default="", help="only cases whose names contain this")
    parser.add_argument("--host", action="store_true", help="measure the work on the host, with models that do nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.memory:
        report_memory(options.memory, options.model)
        return
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    if options.host:
        from _capture_host import rows_of_host_work

        torch.set_num_threads(1)
        rows = rows_of_host_work(options.rounds, options.device)
        print_table(rows, list(rows[0]))
        print(write("capture-host", options, rows))
        return
    if options.device != "cpu":
        from _capture_cuda import rows_on_cuda

        rows = rows_on_cuda(options)
        if not rows:
            parser.error(f"--only {options.only!r} matches no case")
        print_table(rows, ["model", "way", "ms", "× plain", "peak MB", "maps MB", "residual", "agrees"])
        print(write("capture", options, rows))
        return
    for name, case in LARGE.items():
        if options.only not in name:
            continue
        shared, x = case.build(), case.input()

        def timed(way: str, model: Any, x: Any = x) -> Callable[[], None]:
            def call() -> None:
                run(way, model, x)
                undo(model)

            return call

        calls = {way: timed(way, shared) for way in case.ways}
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
    if not rows:
        parser.error(f"--only {options.only!r} matches no case; there are {', '.join(LARGE)}")
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
    generated = generation(options.rounds)
    print_table(generated, ["model", "plain ms", "× plain"])
    rivals = [rival(*pair.split("=", 1), options.rounds) for pair in options.rivals]
    print_table(rivals, ["tool", "version", "ms", "× plain", "peak MB", "lines"])
    sys.argv[1:] = [word.partition("=")[0] if "=" in word else word for word in sys.argv[1:]]  # no paths in the result
    print(write("capture", options, rows, models=models, payload_mb=sizes, generation=generated, rivals=rivals))


if __name__ == "__main__":
    main()
