"""``capture.py --device cuda``: a plain pass, the slow kernel that others ask for, and capture, side by side on a GPU."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import torch

import regard
from _measure import import_timm, milliseconds, ratios, side_by_side

ATTENTION = {"num_hidden_layers": 8, "num_attention_heads": 16, "hidden_size": 1024, "intermediate_size": 2816}


def llama() -> Any:
    """8 layers of 16 heads over 4, width 1,024."""
    import_timm()  # its stand-in for torchvision's operators is needed here too
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        vocab_size=32000, num_key_value_heads=4, max_position_embeddings=16384, **ATTENTION
    )
    return transformers.LlamaForCausalLM(config)


def vit_large() -> Any:
    import_timm()
    import transformers

    config = transformers.ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=1000
    )
    return transformers.ViTForImageClassification(config)


def captured(model: Any, x: torch.Tensor, **options: Any) -> Any:
    with regard.capture(model, dtype=torch.bfloat16, budget=None, **options) as maps:
        model(x)
    return maps


def generated(model: Any, x: torch.Tensor, capture: bool) -> Any:
    options = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "pad_token_id": 0}
    if not capture:
        return model.generate(x, **options)
    with regard.capture(model, dtype=torch.bfloat16, budget=None) as maps:
        model.generate(x, **options)
    return maps


def passes(model: Any, x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    slow = copy.deepcopy(model)
    slow.set_attn_implementation("eager")
    return {
        "plain": lambda: model(x),
        "eager, output_attentions": lambda: slow(x, output_attentions=True),
        "capture": lambda: captured(model, x),
        "capture, one row": lambda: captured(model, x, rows=-1),
    }


def compare(name: str, ways: dict[str, Callable[[], Any]], options: Any) -> list[dict[str, Any]]:
    with torch.inference_mode():
        times = side_by_side(ways, rounds=options.rounds, device=options.device, patience=options.patience)
        median, slower = milliseconds(times), ratios(times, "plain")
        rows = []
        for way, run in ways.items():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            kept = run()
            torch.cuda.synchronize()
            row = {"model": name, "way": way, "ms": median[way], "× plain": round(slower.get(way, 1.0), 3)}
            row["peak MB"] = round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)
            if isinstance(kept, regard.maps.Maps):
                stored = [call.stored for call in kept.records if call.stored is not None]
                row |= {"maps MB": round(sum(x.nbytes for x in stored) / 1e6, 1), "residual": kept.residual}
                row |= {"agrees": all(found.agrees for found in kept.values()), "notes": kept.notes}
            rows.append(row)
            del kept
            gc.collect()
    return rows


def rows_on_cuda(options: Any) -> list[dict[str, Any]]:
    """ViT-L/16 with 32 images, 512 to 8,192 tokens, and ``generate`` of 64 tokens; everything in bf16."""
    place, rows = {"device": options.device, "dtype": torch.bfloat16}, []
    if options.only in (name := "ViT-L/16, 32 images"):
        vit = vit_large().to(**place).eval()
        rows += compare(name, passes(vit, torch.randn(32, 3, 224, 224, **place)), options)
        del vit
    model = llama().to(**place).eval()
    for tokens in (512, 2048, 4096, 8192):
        if options.only in (name := f"Llama-like, {tokens:,} tokens"):
            x = torch.randint(0, 32000, (1, tokens), device=options.device)
            rows += compare(name, passes(model.model, x), options)
            torch.cuda.empty_cache()
    if options.only in (name := "Llama-like, generate 64"):
        x = torch.randint(0, 32000, (1, 128), device=options.device)
        ways = {"plain": lambda: generated(model, x, False), "capture": lambda: generated(model, x, True)}
        rows += compare(name, ways, options)
    return rows
