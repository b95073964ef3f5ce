"""The overview of long maps: what a pass with it costs compared with the plain pass, in time and in memory.

    python benchmarks/long_context.py --device cpu     # one layer, 4 heads of width 64, 2,048 to 16,384 tokens
    python benchmarks/long_context.py --device cuda    # layers of Llama-3-8B's shape, bf16, up to 131,072 tokens

Plain and with overview run in turn, and the fastest of each is compared: whatever else the machine does only adds time.
On a CPU the processor time of all threads is compared, too, which neighbors on the machine change less.
On a GPU the plain pass is measured with torch's flash kernel and with cuDNN's; the faster one is the yardstick, and runs
below the overview, too. A million tokens run once: with overview, and plain where that takes less than 20 seconds. The
result file is written after each row.
"""

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from _measure import arguments, positive, print_table, write

CELLS = 128
CHUNK = 16384  # tokens of the feed-forward network at a time, as servers run a long prompt: its memory is not the peak
ON_GPU = ((16384, 2), (131072, 2), (1_000_000, 1))  # tokens and layers
ONCE = 500_000  # as many tokens run once
PATIENCE = 20.0  # seconds for a plain pass of so many
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


class Layer(nn.Module):
    """A pre-norm block of a decoder: causal attention with grouped heads, and a gated feed-forward network."""

    def __init__(self, heads: int, shared: int, width: int, hidden: int) -> None:
        super().__init__()
        dim = heads * width
        self.heads, self.shared = heads, shared
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(2))
        self.query, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * shared * width, bias=False)
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norms[0](x)
        query = self.query(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self.key_value(normed).unflatten(-1, (2, self.shared, -1)).permute(2, 0, 3, 1, 4)
        grouped = self.shared != self.heads
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return torch.cat([self.feed_forward(part) for part in x.split(CHUNK, 1)], 1)

    def feed_forward(self, x: Tensor) -> Tensor:
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def network(device: str, layers: int = 1) -> nn.Module:
    torch.manual_seed(0)
    if device == "cpu":
        return nn.Sequential(*(Layer(4, 4, 64, 704) for _ in range(layers))).eval()
    made = nn.Sequential(*(Layer(32, 8, 128, 14336) for _ in range(layers))).eval()
    return made.to(device, torch.bfloat16)


def inputs(device: str, tokens: int) -> Tensor:
    width, dtype = (256, torch.float32) if device == "cpu" else (4096, torch.bfloat16)
    return torch.randn(1, tokens, width, device=device, dtype=dtype)


def plain(model: nn.Module, x: Tensor) -> Any:
    return model(x)


def with_overview(model: nn.Module, x: Tensor) -> Any:
    with regard.capture(model, overview=CELLS, budget=None) as maps:
        model(x)
    return maps


def folded(model: nn.Module, x: Tensor) -> Any:
    """The mass that each key receives, by ``reduce=``: what there was before overviews."""

    def received(total: Any, weights: Tensor, rows: slice) -> Tensor:
        return weights.sum(-2) if total is None else total + weights.sum(-2)

    with regard.capture(model, reduce=received, budget=None) as maps:
        model(x)
    return maps


WAYS: dict[str, Callable[[nn.Module, Tensor], Any]] = {"plain": plain, "overview": with_overview, "reduce": folded}


def seconds(way: str, model: nn.Module, x: Tensor) -> tuple[float, float]:
    """Seconds on the clock, and of processor time."""
    start, used = time.perf_counter(), time.process_time()
    with torch.no_grad():
        WAYS[way](model, x)
    return time.perf_counter() - start, time.process_time() - used


def fastest(ways: tuple[str, ...], model: nn.Module, x: Tensor, rounds: int) -> dict[str, tuple[float, float]]:
    """The fastest of several rounds, each of which runs all ways in turn."""
    seconds(ways[-1], model, x[:, :256])  # what the first call imports
    times = [{way: seconds(way, model, x) for way in ways} for _ in range(rounds)]
    return {way: (min(each[way][0] for each in times), min(each[way][1] for each in times)) for way in ways}


def peak_on_host(way: str, tokens: int, threads: int) -> float | None:
    """Megabytes of a process that does nothing else, over what it has once the model is there."""
    command = [sys.executable, __file__, "--memory", way, "--tokens", str(tokens), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def report_memory(way: str, tokens: int) -> None:
    model, x = network("cpu"), inputs("cpu", tokens)
    with torch.no_grad():
        WAYS[way](model, x[:, :64])  # what the first call imports is not the overview's memory
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is held now
    before = held("VmRSS")
    with torch.no_grad():
        kept = WAYS[way](model, x)
    print(held("VmHWM") - before if kept is not None else 0.0)


def held(field: str) -> float:
    """Megabytes of this process (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def on_cpu(options: Any) -> list[dict[str, Any]]:
    rows = []
    for tokens in options.lengths or (2048, 8192, 16384):
        model, x = network("cpu"), inputs("cpu", tokens)
        found = fastest(("plain", "overview"), model, x, options.rounds)
        if options.reduce:
            found["reduce"] = seconds("reduce", model, x)
        memory = {way: peak_on_host(way, tokens, options.threads) for way in found}
        with torch.no_grad():
            maps = with_overview(model, x)
        for way, (clock, used) in found.items():
            extra = None if memory[way] is None or memory["plain"] is None else memory[way] - memory["plain"]
            rows.append(
                {
                    "tokens": tokens,
                    "way": way,
                    "seconds": round(clock, 4),
                    "× plain": round(clock / found["plain"][0], 3),
                    "CPU s": round(used, 4),
                    "× plain, CPU": round(used / found["plain"][1], 3),
                    "extra MB": None if extra is None else round(extra, 1),
                    "residual": maps.residual if way == "overview" else None,
                    "agrees": all(found.agrees for found in maps.values()) if way == "overview" else None,
                }
            )
            print_table(rows[-1:], COLUMNS)
    return rows


def on_gpu(options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    kernels, per_pair = list(BACKENDS), 0.0  # seconds of a plain pass for each pair of tokens and each layer
    for tokens, layers in ON_GPU:
        if options.lengths and tokens not in options.lengths:
            continue
        once = tokens >= ONCE
        tried = () if once and not 0 < per_pair * tokens**2 * layers <= PATIENCE else kernels[:1] if once else kernels
        try:
            row = gpu_row(options.device, (tokens, layers), 1 if once else options.rounds, tuple(tried))
        except RuntimeError as failure:  # memory that does not suffice, too: what was measured before is kept
            row = {"tokens": tokens, "layers": layers, "failed": str(failure).partition("\n")[0]}
        torch.cuda.empty_cache()
        if "kernel" in row:
            kernels = sorted(kernels, key=lambda name: name != row["kernel"])
            per_pair = row[f"{row['kernel']} s"] / tokens**2 / layers
        rows.append(row)
        print_table(rows[-1:], GPU_COLUMNS)
        write("long-context", options, rows)
    return rows


def gpu_row(device: str, size: tuple[int, int], rounds: int, kernels: tuple[str, ...]) -> dict[str, Any]:
    """Plain by these kernels, and with overview above the faster one, or above torch's choice if there is none."""
    tokens, layers = size
    model, x = network(device, layers), inputs(device, tokens)
    some = x[:, : max(2048, tokens // 256 * 16)]  # what the first call imports and compiles is not measured
    found: dict[str, tuple[float, int]] = {}
    for name in kernels:
        try:
            with sdpa_kernel(BACKENDS[name]):
                gpu_pass("plain", model, some, 1)
                found[name] = gpu_pass("plain", model, x, rounds)[:2]
        except RuntimeError:  # this kernel does not take these tensors
            continue
    kernel = min(found, key=lambda name: found[name][0]) if found else None
    with nullcontext() if kernel is None else sdpa_kernel(BACKENDS[kernel]):
        gpu_pass("overview", model, some, 1)
        clock, peak, maps = gpu_pass("overview", model, x, rounds)
    row = {"tokens": tokens, "layers": layers, "way": "overview"}
    row |= {f"{name} s": round(clock, 4) for name, (clock, _) in found.items()}
    if kernel is not None:
        plain_clock, plain_peak = found[kernel]
        row |= {
            "kernel": kernel,
            "× plain": round(clock / plain_clock, 3),
            "extra MB": round((peak - plain_peak) / 1e6, 1),
        }
    agrees = all(each.agrees for each in maps.values())
    return row | {"seconds": round(clock, 4), "residual": maps.residual, "agrees": agrees, "notes": maps.notes}


def gpu_pass(way: str, model: nn.Module, x: Tensor, rounds: int) -> tuple[float, int, Any]:
    """Seconds of the fastest of some rounds, the most bytes that were allocated, and the result of the last one."""
    fastest_clock, kept = float("inf"), None
    torch.cuda.reset_peak_memory_stats()
    for _ in range(rounds):
        kept = None
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad():
            kept = WAYS[way](model, x)
        torch.cuda.synchronize()
        fastest_clock = min(fastest_clock, time.perf_counter() - start)
    return fastest_clock, torch.cuda.max_memory_allocated(), kept


GPU_COLUMNS = ["tokens", "layers", "flash s", "cudnn s", "seconds", "× plain", "extra MB", "residual", "agrees"]
COLUMNS = ["tokens", "way", "seconds", "× plain", "CPU s", "× plain, CPU", "extra MB", "residual", "agrees"]


def main() -> None:
    parser = arguments(__doc__ or "", rounds=2 if torch.cuda.is_available() else 3)
    parser.add_argument("--memory", help="measure the peak memory of one way in this process")
    parser.add_argument("--tokens", type=positive, default=16384, help="with --memory")
    parser.add_argument("--lengths", type=positive, nargs="*", help="numbers of tokens; on a GPU, of those in ON_GPU")
    parser.add_argument("--reduce", action="store_true", help="also fold whole rows by reduce=, once (CPU)")
    parser.add_argument("--page", action="store_true", help="also measure the page of 32 × 32 heads")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    if options.memory:
        report_memory(options.memory, options.tokens)
        return
    on_host = options.device == "cpu"
    rows = on_cpu(options) if on_host else on_gpu(options)
    more = {}
    if options.page:
        import long_page

        more["page"] = long_page.page()
    print_table(rows, COLUMNS if on_host else GPU_COLUMNS)
    print(write("long-context", options, rows, **more))


if __name__ == "__main__":
    main()
