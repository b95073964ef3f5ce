"""Capture on every attention class of timm, every model type of transformers that attends, and others.

    python benchmarks/zoo.py
"""

import argparse
import json
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from _measure import import_timm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--family", default="transformers")
    parser.add_argument("--log", type=Path, default=Path("/tmp/maps-zoo.jsonl"))
    parser.add_argument("--seconds", type=int, default=25)
    parser.add_argument("--part", default="0/1")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import_timm()
    import importlib
    import transformers
    transformers.logging.set_verbosity_error()
    family = importlib.import_module({"transformers": "_zoo.hugging_face", "timm": "_zoo.timm_models"}.get(options.family, "_zoo."+options.family))
    from _zoo.judge import row

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {options.seconds} s")

    signal.signal(signal.SIGALRM, late)
    done = set()
    if options.log.exists() and not options.only:
        done = {json.loads(line)["model"] for line in options.log.read_text().splitlines()}
    index, count = map(int, options.part.split("/"))
    with options.log.open("a") as log:
        for number, kind in enumerate(options.only or family.model_types()):
            if number % count != index or kind in done:
                continue
            started = time.perf_counter()
            signal.alarm(options.seconds)
            try:
                animal = family.animal(kind)
                try:
                    result = row(animal)
                except TimeoutError:
                    raise
                except Exception as error:
                    result = {"model": kind, "verdict": "failed", "why": traceback.format_exc()[-1500:]}
            except Exception as error:
                result = {"model": kind, "verdict": "not run", "why": f"{type(error).__name__}: {error}"[:300]}
            finally:
                signal.alarm(0)
            result["seconds"] = round(time.perf_counter() - started, 1)
            log.write(json.dumps(result, default=str) + "\n")
            log.flush()
            if options.only:
                print(json.dumps(result, indent=1, default=str))


main()
