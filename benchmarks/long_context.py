"""The overview of long maps: what a pass with it costs beside the plain pass, in time and in memory.

    python benchmarks/long_context.py --device cpu     # one layer, 4 heads of width 64, 2,048 to 16,384 tokens
    python benchmarks/long_context.py --device cuda    # layers of Llama-3-8B's shape, bf16, up to 131,072 tokens

Plain and with overview run in turn, and the fastest of each is compared: whatever else the machine does only adds time.
On a CPU the processor time of all threads is compared, too, which neighbors on the machine change less.
On a GPU the plain pass is measured with torch's flash kernel and with cuDNN's, and the faster one is the yardstick.
"""

import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from _measure import arguments, print_table, write

CELLS = 128


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
    on_gpu = x.is_cuda
    if on_gpu:
        torch.cuda.synchronize()
    start, used = time.perf_counter(), time.process_time()
    with torch.no_grad():
        WAYS[way](model, x)
    if on_gpu:
        torch.cuda.synchronize()
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
    rows = []
    for tokens, layers in options.lengths or ((16384, 4), (65536, 4), (131072, 4), (1_000_000, 1)):
        model, x = network(options.device, layers), inputs(options.device, tokens)
        kernels = {}
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    kernels[name] = fastest(("plain",), model, x, options.rounds)["plain"][0]
            except RuntimeError:  # this kernel does not take these tensors
                kernels[name] = float("inf")
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            plain(model, x)
        before = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            maps = with_overview(model, x)
        extra = torch.cuda.max_memory_allocated() - before
        time_taken = fastest(("overview",), model, x, options.rounds)["overview"][0]
        rows.append(
            {
                "tokens": tokens,
                "layers": layers,
                "way": "overview",
                **{f"{name} s": round(each, 4) for name, each in kernels.items()},
                "seconds": round(time_taken, 4),
                "× plain": round(time_taken / min(kernels.values()), 3),
                "extra MB": round(extra / 1e6, 1),
                "residual": maps.residual,
                "agrees": all(found.agrees for found in maps.values()),
                "notes": maps.notes,
            }
        )
        print_table(rows[-1:], COLUMNS)
        del model, x, maps
        torch.cuda.empty_cache()
    return rows


def page(layers: int = 32, heads: int = 32, tokens: int = 131072) -> dict[str, float]:
    """Megabytes of the page of as many heads, and the seconds that it takes to write it."""
    cells = tokens // CELLS
    overview = regard.maps.Overview.empty((1, heads, tokens, tokens), CELLS, torch.device("cpu"))
    for x in overview.tensors.values():
        x.copy_(torch.rand(x.shape) if x.is_floating_point() else torch.randint(0, tokens, x.shape))
    overview.mass[:] = cells * torch.rand(overview.mass.shape).softmax(-1).tril()
    kept = overview.kept()
    shape = (1, heads, tokens, tokens)
    record = regard.maps.AttentionRecord("layer", "sdpa", shape, regard.maps.Check("kernel"))
    record.overview = kept
    maps = regard.maps.Maps([regard.maps.Map(f"layers.{n}.attention", [record]) for n in range(layers)])
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        path = regard.show(maps).save(Path(folder) / "long.html")
        return {"page MB": round(path.stat().st_size / 1e6, 2), "written in s": round(time.perf_counter() - start, 2)}


COLUMNS = ["tokens", "way", "seconds", "× plain", "CPU s", "× plain, CPU", "extra MB", "residual", "agrees"]


def main() -> None:
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument("--memory", help="measure the peak memory of one way in this process")
    parser.add_argument("--tokens", type=int, default=16384, help="with --memory")
    parser.add_argument("--lengths", type=int, nargs="*", help="numbers of tokens (CPU)")
    parser.add_argument("--reduce", action="store_true", help="also fold whole rows by reduce=, once (CPU)")
    parser.add_argument("--page", action="store_true", help="also write the page of 32 × 32 heads")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    if options.memory:
        report_memory(options.memory, options.tokens)
        return
    rows = on_cpu(options) if options.device == "cpu" else on_gpu(options)
    more = {"page": page()} if options.page else {}
    print_table(rows, COLUMNS)
    print(write("long-context", options, rows, **more))


if __name__ == "__main__":
    main()
