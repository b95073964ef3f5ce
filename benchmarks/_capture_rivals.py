"""BertViz, TransformerLens and nnsight, each measured by the Python of an environment in which it is installed.

    path/to/environment/bin/python benchmarks/_capture_rivals.py bertviz

``benchmarks/capture.py --rivals bertviz=path/to/python …`` runs this and puts the figures beside regard's. Each method is a
function that does what the tool's documentation shows, so that its lines can be counted.
"""

import importlib.metadata
import inspect
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from _measure import import_timm, milliseconds, ratios, side_by_side


def bertviz(model: Any, x: torch.Tensor) -> list[Any]:
    from bertviz import head_view

    model.set_attn_implementation("eager")
    attention = model(x, output_attentions=True).attentions
    head_view(attention, [str(token) for token in x[0].tolist()], html_action="return")
    return list(attention)


def transformer_lens(bridge: Any, x: torch.Tensor) -> list[Any]:
    _, cache = bridge.run_with_cache(x)
    return [cache["pattern", layer] for layer in range(bridge.cfg.n_layers)]


def nnsight(model: Any, x: torch.Tensor) -> list[Any]:
    from nnsight import NNsight

    written_out(model)
    seen = NNsight(model)
    with seen.trace(x):
        maps = [weights_of(module) for module in seen.modules() if weights_of(module, known=True)]
        maps.save()
    return maps


def written_out(model: Any) -> None:
    """Attention by hand instead of by a kernel: nothing can be saved out of a kernel."""
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False


def weights_of(module: Any, known: bool = False) -> Any:
    """The weights of a module whose code one has read: transformers return them second, timm drops some of them out."""
    kind = type(module._module).__name__
    dropped = hasattr(module._module, "attn_drop") and hasattr(module._module, "fused_attn")
    second = kind.endswith(("SelfAttention", "GPT2Attention", "LlamaAttention", "ViTAttention"))
    if known:
        return dropped or second
    return module.attn_drop.input if dropped else module.output[1]


RIVALS: dict[str, Callable[[Any, torch.Tensor], list[Any]]] = {
    "bertviz": bertviz,
    "transformer_lens": transformer_lens,
    "nnsight": nnsight,
}


def prepared(name: str, model: Any) -> Any:
    """What the tool works on. TransformerLens wraps a model of transformers, which it reads from a folder."""
    if name != "transformer_lens":
        return model
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({str(n): n for n in range(50)}, unk_token="0"))
    special = dict.fromkeys(("unk_token", "pad_token", "bos_token", "eos_token"), "0")
    with tempfile.TemporaryDirectory() as folder:
        model = with_head(model)
        model.save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
        return TransformerBridge.boot_transformers(folder, hf_model=model)


def with_head(model: Any) -> Any:
    """A new model of this configuration with the head that TransformerLens expects."""
    import transformers as t

    if type(model).__name__.startswith(("Bert", "GPT2", "Llama")):
        kind = t.AutoModelForMaskedLM if "Bert" in type(model).__name__ else t.AutoModelForCausalLM
        return kind.from_config(model.config).eval()
    return model


def gpt2(name: str) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    kind = transformers.GPT2LMHeadModel if name == "transformer_lens" else transformers.GPT2Model
    return kind(transformers.GPT2Config()).eval()


def works(name: str, model: Any, x: Any, count: int) -> str:
    """ "yes", or what happens instead."""
    try:
        with torch.no_grad():
            maps = RIVALS[name](prepared(name, model.eval()), x)
    except Exception as error:
        return type(error).__name__
    given = [
        m for m in maps if isinstance(m, torch.Tensor) and m.ndim >= 3 and bool((m.sum(-1) - 1).abs().max() < 1e-3)
    ]
    return "yes" if len(given) == count else f"{len(given)} of {count} maps"


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Time and memory for GPT-2 and 128 tokens, and for which of the small models the tool gives all maps."""
    from capture import zoo

    torch.set_num_threads(1)
    x = torch.randint(0, 50257, (1, 128))
    plain, own = gpt2(name), prepared(name, gpt2(name))
    with torch.no_grad():
        times = side_by_side(
            {"plain": lambda: plain(x), name: lambda: RIVALS[name](own, x)}, rounds=rounds, patience=60.0
        )
    code = inspect.getsource(RIVALS[name]).strip().splitlines()[1:]
    return {
        "tool": name,
        "version": importlib.metadata.version(name.replace("_", "-")),
        "ms": milliseconds(times)[name],
        "× plain": round(ratios(times, "plain")[name], 3),
        "peak MB": memory_in_a_process(name),
        "lines": len([line for line in code if line.strip() and "import" not in line and "return" not in line]),
        "models": {kind: works(name, model, given, count) for kind, (model, given, count) in zoo().items()},
    }


def memory_in_a_process(name: str) -> float | None:
    done = subprocess.run([sys.executable, __file__, name, "--memory"], capture_output=True, text=True, check=False)
    return round(float(done.stdout.split()[-1]), 1) if done.returncode == 0 else None


def peak_megabytes(name: str) -> float:
    """Over what the process holds once the model is there."""
    from capture import held

    model, x = prepared(name, gpt2(name)), torch.randint(0, 50257, (1, 128))
    Path("/proc/self/clear_refs").write_text("5")
    before = held("VmRSS")
    with torch.no_grad():
        kept = RIVALS[name](model, x)
    if len(kept) != 12:
        raise SystemExit(f"{name} gave {len(kept)} maps of 12")
    return held("VmHWM") - before


def main() -> None:
    warnings.simplefilter("ignore")
    import_timm()
    name = sys.argv[1]
    if "--memory" in sys.argv:
        print(peak_megabytes(name))
    else:
        print(json.dumps(measure(name, int(sys.argv[2]) if len(sys.argv) > 2 else 9)))


if __name__ == "__main__":
    main()
