"""``capture.py --host``: how much work on the host a capture adds to each attention; with ``--device cuda`` that of a GPU's host.

Models are so small that kernels take no time: what is left is Python and the calls of torch. Times are those of the processor, a
plain pass and a captured one in turn. The first block learns the model; later ones know it. An empty block is the share that
is paid once for each block. The stages of a block are to make the capture, to enter it, to run the model (less a plain run) and
to leave it; what each of them takes is given for the whole block, while everything else is given for one attention.
"""

import gc
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

import regard
from _measure import import_timm

LAYERS, STEPS = 8, 16


class Case(NamedTuple):
    """A model, a run of it, how often it attends in the run, and options of the capture."""

    model: nn.Module
    run: Callable[[], Any]
    count: int
    options: dict[str, Any]


class Stack(nn.Module):
    """Layers one after the other; ``call`` says how one is called."""

    def __init__(self, layers: list[nn.Module], call: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers, self.call = nn.ModuleList(layers), call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.call(layer, x)
        return x


class ByHand(nn.Module):
    """Attention that is written out: the capture sees every function of such a model."""

    num_heads = 4

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * 16**-0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def cases(device: str = "cpu") -> dict[str, Case]:
    timm = import_timm()
    import transformers as t

    t.logging.set_verbosity_error()
    config = t.LlamaConfig(
        vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=16,
        num_key_value_heads=4, head_dim=8, max_position_embeddings=256, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    text = t.LlamaForCausalLM(config).eval()
    vision = {"hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 64}
    image = t.ViTModel(t.ViTConfig(**vision, image_size=32, patch_size=16)).eval()
    bert = t.BertModel(t.BertConfig(**vision, vocab_size=100)).eval()
    timm_image = timm.models.vision_transformer.VisionTransformer(
        32, 16, embed_dim=64, depth=LAYERS, num_heads=4
    ).eval()
    multi_head = [nn.MultiheadAttention(64, 4, batch_first=True) for _ in range(LAYERS)]
    torch_stack = Stack(multi_head, lambda layer, x: layer(x, x, x, need_weights=False)[0]).eval()
    own = Stack([regard.layers.MultiHeadAttention(64, 4) for _ in range(LAYERS)], lambda layer, x: layer(x)).eval()
    by_hand = Stack([ByHand() for _ in range(LAYERS)], lambda layer, x: layer(x)).eval()
    ids, pixels, tokens = torch.randint(1, 100, (1, 4)), torch.randn(1, 3, 32, 32), torch.randn(1, 4, 64)
    # On a GPU the fused kernels of grouped heads take half precision alone.
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    for made in (text, image, bert, timm_image, torch_stack, own, by_hand):
        made.to(device, dtype)
    ids, pixels, tokens = ids.to(device), pixels.to(device, dtype), tokens.to(device, dtype)
    greedy = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False, "pad_token_id": 0}
    found = {
        "Llama": Case(text.model, lambda: text.model(ids), LAYERS, {}),
        "Llama, one row": Case(text.model, lambda: text.model(ids), LAYERS, {"rows": -1}),
        "Llama, overview": Case(text.model, lambda: text.model(ids), LAYERS, {"overview": 4}),
        "Hugging Face ViT": Case(image, lambda: image(pixels), LAYERS, {}),
        "BERT": Case(bert, lambda: bert(ids), LAYERS, {}),
        "timm ViT": Case(timm_image, lambda: timm_image(pixels), LAYERS, {}),
        "nn.MultiheadAttention": Case(torch_stack, lambda: torch_stack(tokens), LAYERS, {}),
        "regard MultiHeadAttention": Case(own, lambda: own(tokens), LAYERS, {}),
        "attention by hand": Case(by_hand, lambda: by_hand(tokens), LAYERS, {}),
    }
    return found | {"Llama, generate": Case(text, lambda: text.generate(ids, **greedy), STEPS * LAYERS, {})}


def seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    kept = run()
    spent = time.process_time() - start
    del kept
    return spent


def captured(case: Case) -> Any:
    with regard.capture(case.model, **case.options) as maps:
        case.run()
    return maps


STAGES = ("make", "enter", "run", "leave")


def stages(case: Case) -> list[float]:
    """The processor's seconds of each stage of a block, and of all of them with what is freed at the end."""
    clock = time.process_time
    times = [clock()]
    capture = regard.capture(case.model, **case.options)
    times.append(clock())
    maps = capture.__enter__()
    times.append(clock())
    kept = case.run()
    times.append(clock())
    capture.__exit__(None, None, None)
    times.append(clock())
    del kept, capture
    whole = clock() - times[0]
    del maps  # as in a program that keeps the maps, they are not freed inside of the block
    return [*(b - a for a, b in pairwise(times)), whole]


def rows_of_host_work(rounds: int, device: str = "cpu") -> list[dict[str, Any]]:
    """Microseconds of host work per attention, and of the stages per block, in the median of ``rounds``."""
    rows = []

    def wait() -> None:  # between two times, so that none of them waits for the work of the one before
        if device != "cpu":
            torch.cuda.synchronize()

    with torch.no_grad():
        for name, case in cases(device).items():
            for _ in range(3):
                case.run()

            def empty(case: Case = case) -> None:
                with regard.capture(case.model, **case.options):
                    pass

            first, plain = seconds(lambda case=case: captured(case)), seconds(case.run)
            pairs, blocks, parts = [], [], []
            gc.collect()
            for _ in range(rounds):
                wait()
                plain_pass = seconds(case.run)
                wait()
                *part, whole = stages(case)
                pairs.append((plain_pass, whole))
                parts.append(part)
                wait()
                blocks.append(seconds(empty))
            without, within = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            each = 1e6 / case.count
            staged = dict(zip(STAGES, (statistics.median(times) for times in zip(*parts, strict=True)), strict=True))
            staged["run"] -= without
            rows.append(
                {
                    "model": name,
                    "plain µs": round(without * each, 1),
                    "added µs": round((within - without) * each, 1),
                    "of which the block": round(statistics.median(blocks) * each, 1),
                    "first block added µs": round((first - plain) * each, 1),
                    "× plain": round(ratio, 2),
                    **{f"{stage}, block µs": round(1e6 * spent, 1) for stage, spent in staged.items()},
                }
            )
    return rows
