"""Tables for the README and the documentation, made from the files under benchmarks/results. No number is typed by hand."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
Result = dict[str, Any]


def load(folder: Path = RESULTS) -> list[Result]:
    """Every result file, oldest first, with its name under ``"file"``."""
    found = [{**json.loads(path.read_text("utf-8")), "file": path.name} for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda result: result.get("date", ""))


def newest(results: Iterable[Result], benchmark: str, hardware: str = "") -> Result:
    """The latest run of a benchmark on hardware of this name."""
    fitting = [r for r in results if r.get("benchmark") == benchmark and hardware in r.get("hardware", "")]
    if not fitting:
        raise ValueError(f"no result file is about {benchmark!r} on {hardware or 'any hardware'}")
    return fitting[-1]


def table(name: str, prefix: str, results: Sequence[Result] | None = None) -> str:
    """The table of this name in Markdown, with command, hardware and date, and a link to its file under ``prefix``."""
    if name not in TABLES:
        raise ValueError(f"no table is called {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name](load() if results is None else results, prefix)


_BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def replace_tables(text: str, prefix: str, results: Sequence[Result]) -> str:
    """The page with every table between markers replaced by a new one."""
    made, count = _BLOCK.subn(lambda block: f"{block[1]}{table(block[2], prefix, results)}\n{block[3]}", text)
    if count != text.count("<!-- results:"):
        raise ValueError("each <!-- results: NAME --> needs its <!-- end -->")
    return made


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _origin(result: Result, prefix: str) -> str:
    return f"{result['hardware']}, {result['date']}, `{result['command']}` ([file]({prefix}{result['file']}))"


def _milliseconds(value: Any) -> str:
    if not isinstance(value, int | float):
        return "–"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _gaussian(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "gaussian", "NVIDIA")
    columns = {
        "ours": "regard", "banded": "regard, frozen plan", "dense": "dense N×N", "sdpa+bias": "fused + bias",
        "flex": "FlexAttention", "flash": "flash, no position", "depthwise": "depthwise 3×3", "conv": "convolution 3×3",
    }  # fmt: skip
    measured = {key for row in result["rows"] for key, value in row.items() if isinstance(value, int | float)}
    shown = [key for key in columns if key in measured] + sorted(measured - set(columns))
    rows = [[row["grid"], *(_milliseconds(row.get(key)) for key in shown)] for row in result["rows"]]
    text = f"Milliseconds, forward and backward, {result['dtype'].removeprefix('torch.')}, {result['heads']} heads × "
    text += f"{result['width']}, about {result['tokens_in_all'] // 1000} k tokens in total. {_origin(result, prefix)}; "
    text += "–: does not fit into memory, or takes seconds."
    found = [f"{_markdown(['grid', *(columns.get(key, key) for key in shown)], rows)}\n\n{text}"]
    return "\n\n".join(found + _rivals(results, prefix) + _placed(results, prefix))


def _rivals(results: Sequence[Result], prefix: str) -> list[str]:
    """Once they have been measured: what else mixes tokens by place."""
    if not any(r.get("benchmark") == "rivals" for r in results):
        return []
    result = newest(results, "rivals")
    measured = list(dict.fromkeys(key for row in result["rows"] for key in row))
    names = [key for key in measured if f"{key}, memory" in measured]
    rows = [
        [row["grid"], *(f"{_fine(row.get(name))} ({_fine(row.get(f'{name}, memory'))})" for name in names)]
        for row in result["rows"]
    ]
    head = ["grid", *("regard" if name == "ours" else name for name in names)]
    text = "Milliseconds of a call on the device, forward and backward; in parentheses, peak memory in multiples of the value "
    text += "tensor. "
    if "FlexAttention" in names:
        text += "FlexAttention computes the same, but only gradients of values. "
    text += (
        f"Convolutions compute something else; their images are laid out {result['layout']}. {_origin(result, prefix)}"
    )
    text += "; –: not measured, because the run's time limit was reached." if result.get("left_out") else "."
    return [f"{_markdown(head, rows)}\n\n{text}"]


def _placed(results: Sequence[Result], prefix: str) -> list[str]:
    """Once it has been measured: content with place."""
    if not any(r.get("benchmark") == "placed" for r in results):
        return []
    result = newest(results, "placed")
    rows = [[row["grid"], _fine(row["placed"]), _fine(row["flash"]), f"{row['ratio']:.2f} ×"] for row in result["rows"]]
    head = ["grid", "content with position, all gradients", "content alone", "ratio"]
    text = "Milliseconds on the device, forward and backward, bfloat16, 9 heads × 64, full covariance. "
    if errors := result.get("errors"):
        most = {key: max(row[key] for row in errors) for key in errors[0]}
        text += f"For sharpness from {min(row['S'] for row in errors):g} to {most['S']:g}, the relative error of the output is "
        text += (
            f"at most {most['output']:.1e} (content alone: {most['content alone']:.1e}), and that of the gradients of "
        )
        text += f"center and sharpness at most {max(most[_CENTER], most[_MATRIX]):.1e}. "
    return [f"{_markdown(head, rows)}\n\n{text}{_origin(result, prefix)}."]


_CENTER, _MATRIX = "center's gradient", "S's gradient"


def _kernels(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "gaussian", "NVIDIA")
    rows = [
        [row["grid"], *(f"{row[key]:.2f}" for key in ("floor", "ours")), f"{row['ours / floor']:.1f} ×",
         *(f"{row[key]:.2f}" for key in ("ours, eager", "flash", "depthwise"))]
        for row in result["floor"]
    ]  # fmt: skip
    head = [
        "grid",
        "memory traffic alone",
        "regard",
        "regard / memory",
        "regard, host included",
        "flash, no position",
        "depthwise 3×3",
    ]
    wide = result["full_width"]
    text = "Milliseconds on the device, forward and backward, as in the [comparison](../comparison.md#attention-by-position). "
    text += f"*Memory traffic alone*: five tensors at {result['bandwidth'] / 1e12:.2f} TB/s, the rate of a copy. "
    text += f"A whole layer of full-width heads ({wide['layer']}) takes {wide['attention']:.2f} ms, cuDNN's 3×3 convolution "
    text += f"with as many weights {wide['convolution']:.2f} ms. {_origin(result, prefix)}."
    return f"{_markdown(head, rows)}\n\n{text}"


def _sizes(results: Sequence[Result], prefix: str) -> str:
    result = newest([r for r in results if "sizes" in r], "gaussian", "NVIDIA")
    rows = [
        [row["grid"], f"{row['sharpness']:g}", *(f"{row[key]:.2f}" for key in ("floor", "device")),
         f"{row['device / floor']:.1f} ×", "–" if row["eager"] is None else f"{row['eager']:.2f}",
         f"{row['peak / value']:.1f}"]
        for row in result["sizes"]
    ]  # fmt: skip
    head = ["grid", "sharpness", "memory alone", "device", "of memory alone", "100 calls from Python, each", "memory"]
    text = "Milliseconds, forward and backward, bfloat16, 9 heads × 64; *memory* is peak memory besides the inputs, in multiples "
    text += (
        f"of the value tensor. At a sharpness of 1e-06 every token matters to every other. {_origin(result, prefix)}."
    )
    return f"{_markdown(head, rows)}\n\n{text}"


def _wide(results: Sequence[Result], prefix: str) -> str:
    """Wide heads on a GPU: whole axis matrices, and interpolation."""
    result = newest(results, "wide", "NVIDIA")
    rows = [
        [row["grid"], f"{row['side / σ']:g}", row["nodes"] or "–", f"{row['floor']:.2f}",
         f"{row['matrices']:.2f} ({row['matrices / floor']:.1f} ×)",
         f"{row['interpolated']:.2f} ({row['interpolated / floor']:.1f} ×)" if "interpolated" in row else "–"]
        for row in result["rows"]
    ]  # fmt: skip
    head = ["grid", "side / σ", "nodes", "memory alone", "whole matrices", "interpolated"]
    text = "Milliseconds on the device and multiples of the memory traffic alone, forward and backward, bfloat16, 9 heads × 64. "
    text += "*side / σ*: the length of an axis in standard deviations of the heads. "
    return f"{_markdown(head, rows)}\n\n{text}{_origin(result, prefix)}."


def _local(results: Sequence[Result], prefix: str) -> str:
    """Local heads on a CPU, at every sharpness."""
    result = newest(results, "local")
    columns = [f"{name} {side}²" for name in ("ours", "depthwise 7×7") for side in (64, 128)]
    rows = [
        [f"{row['sharpness']:g}", *(_milliseconds(row[key]) for key in columns[:2]), f"{row['growth']:.1f} ×",
         *(_milliseconds(row[key]) for key in columns[2:])]
        for row in result["rows"]
    ]  # fmt: skip
    head = ["sharpness", "regard, 64²", "128²", "growth", "depthwise 7×7, 64²", "128²"]
    text = "Milliseconds, forward and backward, float32, one image, 9 heads × 64. "
    return f"{_markdown(head, rows)}\n\n{text}{_origin(result, prefix)}."


def _attention(results: Sequence[Result], prefix: str) -> str:
    """On a CPU and, once it has been measured there, on a GPU, in both dtypes."""
    head = ["batch × tokens × width", "`regard.MultiHeadAttention`", "`nn.MultiheadAttention`", "timm"]
    found = []
    for is_cpu in (True, False):
        files = [r for r in results if r.get("benchmark") == "attention" and is_cpu == ("thread" in r["hardware"])]
        if not files and not is_cpu:
            continue
        result, rows = newest(files, "attention"), []
        for row in result["rows"]:
            if row["weights"] == "none" and row["pass"] == "forward+backward":
                times = [row["milliseconds"].get(name) for name in ("regard", "torch", "timm")]
                shape = row["shape"] if is_cpu else f"{row['shape']}, {row.get('dtype', 'float32')}"
                rows.append([shape, *(_milliseconds(t) if is_cpu else _fine(t) for t in times)])
        text = f"Milliseconds, forward and backward, no weights returned. {_origin(result, prefix)}."
        found.append(f"{_markdown(head, rows)}\n\n{text}")
    return "\n\n".join(found)


def _fine(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "–"


def _conversion(results: Sequence[Result], prefix: str) -> str:
    """On a CPU and, once it has been measured there, on a GPU."""
    found = []
    for hardware, items in (("thread", 8), ("NVIDIA", 128)):
        if hardware == "NVIDIA" and not any(
            r.get("benchmark") == "conversion" and hardware in r["hardware"] for r in results
        ):
            continue
        result = newest(results, "conversion", hardware)
        more = (
            {"device ratio": "as attention, device", "device taps ratio": "by taps, device"}
            if hardware == "NVIDIA"
            else {}
        )
        rows = [
            [row["layer"], f"{row['conv']:.{1 if items == 8 else 2}f} ms"]
            + [f"{row[key]:.2f}×" for key in ("ratio", "taps ratio", *more)]
            + [f"{row[f'{kind} MiB']:.1f} MiB" for kind in ("conv", "attention", "taps")]
            for row in result["rows"]
        ]
        head = [f"layer, {items} items", "convolution", "as attention", "by taps", *more.values(), "memory"]
        text = f"Forward and backward{', float32' if items == 8 else ''}. {_origin(result, prefix)}."
        found.append(f"{_markdown([*head, 'memory, as attention', 'memory, by taps'], rows)}\n\n{text}")
    return "\n\n".join(found)


def _capture_models(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "capture", "thread")
    ways = [key for key in result["models"][0] if key != "model"]
    rows = [[row["model"], *(row[way] for way in ways)] for row in result["models"]]
    text = (
        f"*yes*: the method returned all maps; otherwise the error, or the number of maps. {_origin(result, prefix)}."
    )
    return f"{_markdown(['model', *ways], rows)}\n\n{text}"


def _capture_cost(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "capture", "thread")
    rows = [
        [row["model"], row["way"], f"{row['× plain']:.2f}", "–" if row["peak MB"] is None else f"{row['peak MB']:.0f}",
         str(row["lines"]), _yes(row["kernel kept"]), _yes(row["checked"])]
        for row in result["rows"]
        if row["way"] != "plain"
    ]  # fmt: skip
    sizes = ", ".join(f"{name} {size:.1f} MB" for name, size in result["payload_mb"].items())
    head = ["model", "method", "time / plain forward", "peak MB", "lines", "keeps the model's kernel", "maps checked"]
    text = f"Images: a batch of 8, 197 tokens each; text: 128 tokens. {_origin(result, prefix)}. "
    text += f"Stored, 12 layers × 12 heads × 128 tokens: {sizes}."
    return f"{_markdown(head, rows)}\n\n{text}"


def _capture_rivals(results: Sequence[Result], prefix: str) -> str:
    result = newest([r for r in results if r.get("rivals")], "capture")
    rows = [
        [f"{row['tool']} {row['version']}", f"{row['× plain']:.2f}",
         "–" if row["peak MB"] is None else f"{row['peak MB']:.0f}",
         ", ".join(model for model, given in row["models"].items() if given == "yes"),
         ", ".join(f"{model} ({given})" for model, given in row["models"].items() if given != "yes")]
        for row in result["rivals"]
    ]  # fmt: skip
    head = ["tool", "time / plain forward", "peak MB", "all maps of", "not of"]
    text = f"GPT-2 with random weights, 128 tokens; small models in the last two columns. {_origin(result, prefix)}."
    return f"{_markdown(head, rows)}\n\n{text}"


def _capture_generation(results: Sequence[Result], prefix: str) -> str:
    result = newest([r for r in results if r.get("generation")], "capture")
    rows = [[row["model"], f"{row['plain ms']:.0f}", f"{row['× plain']:.2f}"] for row in result["generation"]]
    head = ["model", "plain, ms", "with capture and generation()"]
    text = (
        f"32 tokens after a prompt of 32, greedy decoding, as a multiple of the plain call. {_origin(result, prefix)}."
    )
    return f"{_markdown(head, rows)}\n\n{text}"


def _capture_gpu(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "capture", "NVIDIA")
    ways = list(dict.fromkeys(row["way"] for row in result["rows"]))
    found: dict[str, dict[str, Any]] = {}
    for row in result["rows"]:
        found.setdefault(row["model"], {})[row["way"]] = row
    rows = [[model, *(_with_ratio(by.get(way)) for way in ways)] for model, by in found.items()]
    text = "Milliseconds, and in parentheses the ratio to the plain pass; bfloat16, maps are kept in bfloat16 on the device. "
    text += f"Each ratio is the median over rounds in which the methods took turns. {_origin(result, prefix)}."
    return f"{_markdown(['model', *ways], rows)}\n\n{text}"


def _long_context(results: Sequence[Result], prefix: str) -> str:
    on = {
        "NVIDIA": "two layers of Llama-3-8B's shape, bfloat16",
        "AMD": "one layer of 4 heads of width 64, float32",
    }
    rows, origins = [], []
    for hardware, what in on.items():
        result = newest(results, "long-context", hardware)
        plain = {row["tokens"]: row["seconds"] for row in result["rows"] if row["way"] == "plain"}
        rows += [
            [f"{what}; {result['hardware']}", f"{row['tokens']:,}", f"{row['× plain']:.2f} ×", _seconds(row["seconds"]),
             _seconds(plain.get(row["tokens"]) or row[f"{row['kernel']} s"]), f"{row['extra MB']:.0f} MB"]
            for row in result["rows"] if row["way"] == "overview"
        ]  # fmt: skip
        origins.append(_origin(result, prefix))
    head = ["layers", "tokens", "with overview / plain", "with overview", "plain", "more memory"]
    return f"{_markdown(head, rows)}\n\nForward, causal. {'; '.join(origins)}."


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.1f} ms"


def _with_ratio(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return _fine(row["ms"]) + ("" if row["way"] == "plain" else f" ({row['× plain']:.2f} ×)")


def _zoo(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "zoo")
    rows = [
        [row["family"], str(row["models"]), str(row["maps"]), str(row["witnessed"]),
         "–" if row["worst difference"] is None else f"{row['worst difference']:.0e}",
         ", ".join(str(row[key]) for key in ("axes known", "inferred", "ambiguous")),
         *(str(row[key]) for key in ("with missed", "silent", "not run"))]
        for row in result["summary"]
    ]  # fmt: skip
    head = ["family", "models", "maps", "witnessed", "worst difference", "axes known, inferred, ambiguous",
            "with missed", "silently wrong or incomplete", "not run"]  # fmt: skip
    used = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"{_markdown(head, rows)}\n\n{used}. {_origin(result, prefix)}."


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _training(results: Sequence[Result], prefix: str) -> str:
    rows = []
    # A recipe with changes, such as "fashion-vit (epochs 1)", is a trial and stays in its file; the short forms of the
    # paper's networks have a table of their own.
    latest = {
        (r["recipe"], r["hardware"]): r
        for r in results
        if "recipe" in r and "(" not in r["recipe"] and not r["recipe"].endswith("-short")
    }
    for result in sorted(latest.values(), key=lambda r: (r["recipe"], r["hardware"])):
        # A CPU may be shared with other programs, so there we report processor time.
        clock = "train_seconds" if "NVIDIA" in result["hardware"] else "process_seconds"
        accuracy, flipped, seconds = (
            [value for value in result.get(key) or [] if value is not None]
            for key in ("accuracy", "accuracy_flip", clock)
        )
        rows.append(
            [f"`{result['recipe']}`", _percent(accuracy), _percent(flipped), str(len(result["seeds"])),
             f"{result['parameters'] / 1e6:.2f} M", f"{mean(seconds):.0f} s" if seconds else "–",
             f"{result['hardware']}, {result['date']} ([file]({prefix}{result['file']}))"]
        )  # fmt: skip
    head = ["recipe", "accuracy, %", "with flip averaging", "seeds", "parameters", "training", "hardware, date"]
    missing = " (– where they were not kept)" if any(row[5] == "–" for row in rows) else ""
    return (
        f"{_markdown(head, rows)}\n\nTest accuracy, mean ± standard deviation over seeds; compilation not counted. "
        f"Seconds are wall time on a GPU and processor time on a CPU{missing}. "
        f"Each row is from `regard train RECIPE --result FILE`."
    )


_RECORDS = (
    ("cifar10-speedrun", "CIFAR-10 from scratch, quickly"),
    ("cifar10-best", "CIFAR-10 from scratch, accurately"),
)


def _highlights(results: Sequence[Result], prefix: str) -> str:
    """Six results for the README, each with its file."""
    capture, zoo = newest(results, "capture", "thread"), newest(results, "zoo")
    long, gaussian = newest(results, "long-context", "NVIDIA"), newest(results, "gaussian", "NVIDIA")
    rows = [
        ["models whose maps `capture` returns completely", _complete(capture), capture],
        ["maps that were compared with an independent computation", _compared(zoo), zoo],
        ["exact overview of 131,072 tokens, all heads of two layers of Llama-3-8B's shape", _long(long), long],
        ["Gaussian heads on 128², forward and backward", _on_128(gaussian), gaussian],
    ]
    recipes = {r["recipe"]: r for r in results if "recipe" in r}
    for name, what in _RECORDS:
        run = recipes[name]
        said = f"{_percent(run['accuracy'])} % in {mean(run['train_seconds']):.1f} s, {len(run['seeds'])} seed"
        rows.append([f"{what}: `{name}`", f"{said}{'s' * (len(run['seeds']) > 1)}", run])
    linked = [
        [what, said, f"{result['hardware']}, {result['date']} ([file]({prefix}{result['file']}))"]
        for what, said, result in rows
    ]
    return _markdown(["what", "result", "measured on"], linked)


def _complete(capture: Result) -> str:
    ours, *others = (way for way in capture["models"][0] if way != "model")
    count = {way: sum(row[way] == "yes" for row in capture["models"]) for way in (ours, *others)}
    said = ", ".join(f"{way}: {count[way]}" for way in others)
    return f"{count[ours]} of {len(capture['models'])} ({said})"


def _compared(zoo: Result) -> str:
    models, maps, silent = (sum(row[key] for row in zoo["summary"]) for key in ("models", "witnessed", "silent"))
    return f"{models:,} models, {maps:,} maps; wrong or missing, and not reported: {silent}"


def _long(long: Result) -> str:
    row = next(row for row in long["rows"] if row["tokens"] == 131_072)
    plain = row[f"{row['kernel']} s"]
    return f"{row['seconds']:.2f} s (without it: {plain:.2f} s), {row['extra MB']:.0f} MB more memory"


def _on_128(gaussian: Result) -> str:
    row = next(row for row in gaussian["rows"] if row["grid"] == "128²")
    ours, flash, dense, depthwise = (row[key] for key in ("ours", "flash", "dense", "depthwise"))
    return (
        f"{_milliseconds(ours)} ms; flash attention without position {_milliseconds(flash)} ms ({flash / ours:.0f} ×), "
        f"depthwise 3×3 convolution {_milliseconds(depthwise)} ms, dense N×N {_milliseconds(dense)} ms"
    )


def _reproduction(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "reproduction")
    epochs = _same(row["epochs"] for row in result["rows"])
    head = ["network", "parameters", "multiply-adds / image", "published, 300 epochs", "ours, 300 epochs",
            f"ours, {epochs} epochs", f"training, {epochs} epochs"]  # fmt: skip
    rows = [
        [f"`{row['network']}`", f"{row['parameters'] / 1e6:.2f} M", f"{row['multiply-adds (M)']:,} M",
         "–" if row["published, 300 epochs"] is None else f"{row['published, 300 epochs']}",
         "–" if row["ours, 300 epochs"] is None else f"{row['ours, 300 epochs']:.2f}",
         f"{row['accuracy']:.2f}" + (f" ± {row['deviation']:.2f}" if row["deviation"] is not None else ""),
         f"{row['seconds']:.0f} s"]
        for row in result["rows"]
    ]  # fmt: skip
    text = (
        f"Test accuracy in percent, without flip averaging. 300 epochs: the paper's recipe, {_seeds_in_full(result)}; "
    )
    text += f"{epochs} epochs: the short recipe, mean ± standard deviation of "
    text += f"{_same(row['seeds'] for row in result['rows'])} seeds. {_origin(result, prefix)}."
    return f"{_markdown(head, rows)}\n\n{text}"


def _seeds_in_full(result: Result) -> str:
    counts = sorted({row["seeds, 300 epochs"] for row in result["rows"] if row["seeds, 300 epochs"]})
    said = " or ".join(map(str, counts))
    return "no seed yet" if not counts else "one seed" if counts == [1] else f"{said} seeds"


def _pyramid(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "pyramid")
    rows = [
        [row["what"], f"{row['parameters'] / 1e6:.2f} M", f"{row['held out']:.2f}", _milliseconds(row["ms / step"])]
        for row in result["rows"]
    ]
    seeds = "one seed" if result["seeds"] == 1 else f"mean of {result['seeds']} seeds"
    text = (
        f"Accuracy on 5,000 images held out from the training set, after {result['epochs']} epochs on the others in "
        f"batches of 1,000, {seeds}. {result['hardware']}, {result['date']} ([file]({prefix}{result['file']}))."
    )
    return f"{_markdown(['network or change', 'parameters', 'held out, %', 'ms / step'], rows)}\n\n{text}"


def _pyramid_longer(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "pyramid-longer")
    head = ["widths, blocks in a stage", "augmentation", "epochs", "training images, %", "held out, %", "training"]
    rows = [
        [f"{', '.join(map(str, row['widths']))}; {row['blocks']}", row["augmentation"], str(row["epochs"]),
         f"{row['training accuracy']:.1f}", f"{row['held out']:.2f}", f"{row['seconds']:.0f} s"]
        for row in result["rows"]
    ]  # fmt: skip
    text = (
        f"Accuracy on the augmented training images of the last epoch, and on 5,000 images held out; one seed each. "
        f"{result['hardware']}, {result['date']} ([file]({prefix}{result['file']}))."
    )
    return f"{_markdown(head, rows)}\n\n{text}"


def _ablation(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "ablation")
    head = ["change", "parameters", "validation accuracy, %", "difference", "ms / step"]
    base = result["rows"][0]
    rows = []
    for row in result["rows"]:
        spread = f" ± {row['deviation']:.2f}" if row["deviation"] is not None else ""
        difference = "" if row is base else f"{row['held out'] - base['held out']:+.2f}".replace("-", "−")
        rows.append(
            [row["what"], f"{row['parameters'] / 1e6:.2f} M", f"{row['held out']:.2f}{spread}", difference,
             f"{row['ms / step']:.1f}"]
        )  # fmt: skip
    text = f"Accuracy on 5,000 images held out from the training set, after {result['epochs']} epochs on the others, "
    text += f"mean ± standard deviation of {result['seeds']} seeds. {_origin(result, prefix)}."
    return f"{_markdown(head, rows)}\n\n{text}"


PAIRS = {  # of a network with heads and its twin with convolutions: what each row is, and its recipe
    "pyramid, 14 epochs": {
        "9 full-width heads": "cifar10-speedrun",
        "3×3 convolutions": "cifar10-speedrun (network.mixing convolution)",
    },
    "2020 paper, 10 epochs": {
        "9 full-width heads that start anywhere": "a6-gaussian-short",
        "9 full-width heads that start on the grid": "a6-gaussian-short (network.init grid)",
        "9 depthwise convolutions": "a6-depthwise-short",
    },
}


def _rival(results: Sequence[Result], prefix: str) -> str:
    """Networks whose heads may be convolutions: on the test set from the result files of recipes, on held-out images from
    ``benchmarks/rival.py``."""
    by_recipe = {result["recipe"]: result for result in results if "recipe" in result}
    rows = [
        [network, what, f"{run['parameters'] / 1e6:.2f} M", _percent(run["accuracy"]), str(len(run["seeds"])),
         f"[file]({prefix}{run['file']})"]
        for network, pair in PAIRS.items()
        for what, run in ((what, by_recipe[recipe]) for what, recipe in pair.items())
    ]  # fmt: skip
    trained = rivals_by_epochs(results)
    for result in trained:
        for row in result["rows"]:
            network, _, what = row["what"].partition(": ")
            rows.append(
                [f"{network}, {result['epochs']} epochs, held out", what, f"{row['parameters'] / 1e6:.2f} M",
                 _percent(row["accuracy"]), str(len(row["seeds"])), f"[file]({prefix}{result['file']})"]
            )  # fmt: skip
    head = ["network", "what mixes its tokens", "parameters", "accuracy, %", "seeds", ""]
    text = (
        "Test accuracy without averaging, or accuracy on 5,000 images held out from the training set; mean ± standard "
    )
    text += f"deviation. {_same(each['hardware'] for each in trained)}, to {max(each['date'] for each in trained)}."
    return f"{_markdown(head, rows)}\n\n{text}"


def rivals_by_epochs(results: Iterable[Result]) -> list[Result]:
    """Of the runs of ``benchmarks/rival.py``, the latest with each number of epochs; short ones first. One with another number
    than usual is called "rival (epochs 22)"."""
    latest = {r["epochs"]: r for r in results if r.get("benchmark", "").partition(" (")[0] == "rival"}
    if not latest:
        raise ValueError("no result file is about 'rival'")
    return [latest[epochs] for epochs in sorted(latest)]


def _same(values: Iterable[Any]) -> Any:
    """The one value that all rows share, so that a table can state it once."""
    found = set(values)
    if len(found) != 1:
        raise ValueError(f"the rows of one table differ where they must not: {sorted(found)}")
    return found.pop()


def _percent(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{100 * mean(values):.2f}" + (f" ± {100 * stdev(values):.2f}" if len(values) > 1 else "")


def _cost_model(results: Sequence[Result], prefix: str) -> str:
    result = newest(results, "cost-model")
    rows = [
        [row["workload"], row["grid"], row["attention"], row["multiply_adds"], *row["seconds"]]
        for row in _readable(result["rows"], result["gpus"])
    ]
    head = [
        "workload",
        "tokens",
        "attention",
        "multiply-adds / sample",
        *(f"{n} GPU{'s' * (n > 1)}" for n in result["gpus"]),
    ]
    return (
        f"{_markdown(head, rows)}\n\nPredicted, not measured. `{result['command']}` ([file]({prefix}{result['file']}))."
    )


def _readable(rows: Sequence[Any], gpus: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "workload": row["workload"].partition(",")[0],
            "grid": "×".join(map(str, row["grid"])),
            "attention": row["attention"],
            "multiply_adds": f"{row['multiply_adds'] / 1e9:,.1f}\N{NO-BREAK SPACE}G",
            # A number and its unit stay in one line.
            "seconds": [duration(row["epoch_seconds"][str(n)]).replace(" ", "\N{NO-BREAK SPACE}") for n in gpus],
        }
        for row in rows
    ]


def duration(seconds: float | None) -> str:
    """Seconds as text.

    >>> duration(5400), duration(42), duration(0.5), duration(None)
    ('1.5 h', '42 s', '0.5 s', 'does not fit')
    """
    if seconds is None:
        return "does not fit"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size or (seconds >= size and unit == "h"):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


TABLES: dict[str, Callable[[Sequence[Result], str], str]] = {
    "gaussian": _gaussian,
    "kernels": _kernels,
    "sizes": _sizes,
    "wide": _wide,
    "local": _local,
    "attention": _attention,
    "conversion": _conversion,
    "capture-models": _capture_models,
    "capture-cost": _capture_cost,
    "capture-rivals": _capture_rivals,
    "capture-generation": _capture_generation,
    "capture-gpu": _capture_gpu,
    "long-context": _long_context,
    "zoo": _zoo,
    "pyramid": _pyramid,
    "pyramid-longer": _pyramid_longer,
    "training": _training,
    "highlights": _highlights,
    "reproduction": _reproduction,
    "ablation": _ablation,
    "rival": _rival,
    "cost-model": _cost_model,
}
