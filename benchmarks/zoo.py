"""Capture on every attention class of timm, every model type of transformers that attends, and others.

    python benchmarks/zoo.py                                        # all, half an hour
    python benchmarks/zoo.py --families faults timm --only nest_tiny  # some of them
    python benchmarks/zoo.py --again results/zoo.json --minutes 5   # those of a result that were not run or had a fault

Models are small, made by rule (``_zoo/by_rule.py``), with random weights. Each is a row: how many maps ``regard.capture``
gave, what it lists as missed, the worst difference of a map from an independent computation that imports nothing of
regard (``_zoo/witness.py``: operators of aten, with torch's own formula in the place of kernels), and how certain the
axes are. The batch axis is checked as well: the maps of one sample alone must be those of the sample in the batch.

Verdicts: *complete*, *complete, the rest in missed*, *in missed*, *no attention*; *not run* if no small model could be
made; *silently wrong* and *silently incomplete* must not occur, and end this program with an error.

``--again`` writes the new rows into the result that it was given, each with its own date and commit. Rows that have this
commit already are done, so that a few minutes at a time come to an end.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import math
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch

from _measure import RESULTS, commit, hardware, import_timm, positive, print_table, write_rows

FAMILIES = {
    "faults": "_zoo.faults",
    "others": "_zoo.others",
    "timm": "_zoo.timm_models",
    "transformers": "_zoo.hugging_face",
}
SILENT = ("silently wrong", "silently incomplete", "failed")
PACKAGES = ("timm", "transformers", "diffusers", "x_transformers", "vit_pytorch", "torchvision")


def rows(family: str, names: list[str], seconds: int) -> Iterator[dict[str, Any]]:
    """A row for each model. Each has a limited time."""
    from _zoo.judge import row

    models = importlib.import_module(FAMILIES[family])

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    for name in names or models.model_types():
        found: dict[str, Any] = {"family": family, "model": name, "maps": 0, "missed": 0}
        started = time.perf_counter()
        animal = None
        signal.alarm(seconds)
        try:
            animal = models.animal(name)
            found = row(animal)
        except Exception as error:
            part = isinstance(error, LookupError) and "a part of" in str(error)
            judged = animal is not None and not isinstance(error, TimeoutError)
            found["verdict"] = "failed" if judged else "a part of others" if part else "not run"
            why = traceback.format_exc() if judged else f"{type(error).__name__}: {error}"
            found["why"] = why[-1500:] if judged else why[:200]
        finally:
            signal.alarm(0)
        yield {**found, "seconds": round(time.perf_counter() - started, 1)}


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for each family."""
    lines = []
    for family in FAMILIES:
        own = [row for row in found if row["family"] == family]
        if not own:
            continue
        axes: Counter[str] = Counter()
        for row in own:
            axes.update(row.get("axes", {}))
        differences = [row["worst difference"] for row in own if row.get("worst difference") is not None]
        verdicts = Counter(row["verdict"] for row in own)
        lines.append(
            {
                "family": family,
                "models": len(own) - verdicts["a part of others"] - verdicts["not run"],
                "maps": sum(row["maps"] for row in own),
                "witnessed": sum(row.get("witnessed", 0) for row in own),
                "worst difference": max(differences, default=None),
                "axes known": axes["known"],
                "inferred": axes["inferred"],
                "ambiguous": axes["ambiguous"],
                "with missed": sum(row["missed"] > 0 for row in own),
                "silent": sum(verdicts[name] for name in SILENT),
                "not run": verdicts["not run"],
            }
        )
    return lines


def again(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a result, in which those of some verdicts are measured again, and new ones added."""
    path, only = options.again, options.only
    result = json.loads(path.read_text())
    found = {(row["family"], row["model"]): row for row in result["rows"]}
    now = {"date": date.today().isoformat(), "commit": commit()}
    until = time.monotonic() + 60 * options.minutes
    for family in options.families:
        models = importlib.import_module(FAMILIES[family])
        for name in only or models.model_types():
            old = found.get((family, name), {"verdict": "not run"})
            wanted = old["verdict"] in options.verdicts and old.get("commit") != now["commit"]
            if not (wanted or only) or time.monotonic() > until:
                continue
            row = {**next(rows(family, [name], options.seconds)), **now}
            found[family, name] = row
            print(f"{name}: {row['verdict']} {row.get('problems') or row.get('why', '')}", flush=True)
            result["rows"] = list(found.values())
            path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    result["summary"], result["versions"] = summary(result["rows"]), {**result["versions"], **versions()}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return list(found.values())


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        if importlib.util.find_spec(package) is not None:
            found[package] = importlib.metadata.version(package.replace("_", "-"))
    return found


def fresh(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each model, apart from those in the log."""
    found: list[dict[str, Any]] = []
    if options.log is not None and options.log.exists():
        found = [json.loads(line) for line in options.log.read_text().splitlines()]
    done = {(row["family"], row["model"]) for row in found}
    for family in options.families:
        models = importlib.import_module(FAMILIES[family])
        names = [name for name in options.only or models.model_types() if (family, name) not in done]
        for row in rows(family, names, options.seconds) if names else ():
            found.append(row)
            print(f"{row['model']}: {row['verdict']} {row.get('problems') or row.get('why', '')}", flush=True)
            if options.log is not None:
                with options.log.open("a") as log:
                    log.write(json.dumps(row) + "\n")
    if not options.only:
        path = options.output or RESULTS / f"zoo-cpu-{date.today().isoformat()}.json"
        print(write_rows("zoo", path, found, hardware("cpu", 1), summary=summary(found), versions=versions()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--only", nargs="*", default=[], help="names of models of the (one) family")
    parser.add_argument("--seconds", type=positive, default=30, help="time limit for each model")
    parser.add_argument("--log", type=Path, help="a file of finished rows, from which a broken-off run continues")
    parser.add_argument("--output", type=Path, help="result file; default results/zoo-cpu-<date>.json")
    parser.add_argument("--again", type=Path, help="a result whose rows that were not run or had a fault are run again")
    parser.add_argument("--minutes", type=float, default=math.inf, help="with --again: begin no model after so long")
    parser.add_argument("--verdicts", nargs="+", default=["not run", *SILENT], help="with --again: rows of these")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import_timm()
    importlib.import_module("transformers").logging.set_verbosity_error()
    if options.again is not None:
        found = again(options)
    else:
        found = fresh(options)
    lines = summary(found)
    print_table(lines, list(lines[0]))
    silent = [row for row in found if row["verdict"] in SILENT]
    sys.exit(f"{len(silent)} models are silently wrong or incomplete" if silent else 0)


if __name__ == "__main__":
    main()
