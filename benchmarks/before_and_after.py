"""This tree against an earlier commit: does a change make anything slower?

    python benchmarks/before_and_after.py --before REVISION

Two processes stay alive, one with the sources of each side, and take turns: every round runs each case once on either
side. What counts is processor time on one thread, so that other programs on the machine matter little; the figure of a
case is the median over rounds of now / before.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _measure import arguments, print_table, write

ROOT = Path(__file__).resolve().parent.parent


def cases() -> dict[str, Any]:
    """What is timed: callables that use only names which both sides have."""
    import torch
    from torch import nn

    import regard

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(192, 3, 768, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    images, text = torch.randn(4, 197, 192), torch.randn(1, 512, 192)
    query, key, value = (torch.randn(8, 3, 197, 64, requires_grad=True) for _ in range(3))
    planes = torch.randn(4, 9, 32 * 32, 32, requires_grad=True)
    center, sharpness = torch.randn(9, 2, requires_grad=True), torch.full((9,), 0.7, requires_grad=True)

    def capture(x: torch.Tensor) -> None:
        with torch.no_grad(), regard.capture(encoder):
            encoder(x)

    def backward(out: torch.Tensor) -> None:
        out.sum().backward()

    return {
        "capture, 4 × 197 tokens": lambda: capture(images),
        "capture, 512 tokens": lambda: capture(text),
        "attention, 8 × 197": lambda: backward(regard.attention(query, key, value)),
        "attention with weights, 8 × 197": lambda: backward(
            regard.attention(query, key, value, return_weights=True)[0]
        ),
        "gaussian_attention, 32²": lambda: backward(regard.gaussian_attention(planes, center, sharpness, (32, 32))),
    }


def serve() -> None:
    """Run the case that a line on stdin names, and answer with its processor seconds."""
    import torch

    torch.set_num_threads(1)
    made = cases()
    for call in made.values():
        call(), call()  # the first calls load kernels
    print(json.dumps(list(made)), flush=True)
    for line in sys.stdin:
        call, begun, calls = made[line.rstrip("\n")], time.process_time(), 0
        while calls < 1 or time.process_time() - begun < 0.05:
            call()
            calls += 1
        print((time.process_time() - begun) / calls, flush=True)


class Side:
    """A process that imports regard from one source tree."""

    def __init__(self, sources: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1", "REGARD_TYPECHECK": "0"}
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.cases: list[str] = json.loads(self.answer())

    def answer(self) -> str:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit("one side stopped; its message stands above")
        return line

    def seconds(self, case: str) -> float:
        assert self.process.stdin
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        return float(self.answer())

    def stop(self) -> None:
        self.process.communicate()


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], rounds=30, threads=1)
    parser.add_argument("--before", required=True, help="the commit to compare with")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", options.before, "src"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        before, now = Side(Path(folder, "src")), Side(ROOT / "src")
        rows = []
        for case in now.cases:
            pairs = [(before.seconds(case), now.seconds(case)) for _ in range(options.rounds)]
            old, new = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
            ratio = statistics.median(b / a for a, b in pairs)
            rows.append({"case": case, "before_ms": 1e3 * old, "now_ms": 1e3 * new, "ratio": ratio})
        before.stop(), now.stop()
    print_table(rows, ["case", "before_ms", "now_ms", "ratio"])
    write("before-and-after", options, rows, before=options.before)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
