"""Every kernel compiles for real cards, with the blocks it is really launched with. Needs no GPU: Triton brings the whole
compiler. The interpreter, which runs the other tests here, takes programs that the compiler does not."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or importlib.util.find_spec("triton.backends.nvidia") is None,
    reason="this Triton has no compiler for NVIDIA's cards",
)

SHARED = {90: 232448, 80: 166912, 86: 101376}  # bytes that a program can have: H100 and H200, A100, RTX 30 and A10
ALL = {
    "matrices_forward", "matrices_backward", "pass_forward", "pass_backward", "plane_forward", "plane_backward",
    "map_prepare", "map_check", "map_pack", "map_finish",
    "map_gradient", "map_overview", "map_weights", "axis_forward", "axis_backward", "row_moments", "add_up",
    "stream_forward", "stream_backward",
    "weight_table", "wide_mix", "wide_pairs",
    "block_edges", "block_sums",
    "placed_columns", "padded_columns", "longest_rows", "costs_of_heads", "place_moments", "moments_of_heads", "axis_taps",
    "image_batch",
    "node_weights", "mix_rows", "gather_rows",
}  # fmt: skip


def case(grid, width, dtype, **more):
    return {"grid": grid, "width": width, "dtype": dtype, **more}


def by_matrices(grid, width, dtype, **more):
    """Not Gaussian heads themselves but matrices made elsewhere."""
    return case(grid, width, dtype, outputs=grid, **more)


def of_map(tokens, width, dtype, **more):
    """Weights and overview of an attention map."""
    return {"tokens": tokens, "width": width, "dtype": dtype, **more}


STRONGEST = {"crop": 4, "flip": "random", "border": "zeros", "cutout": 4, "mixup": 0.3, "trivial_augment": True}
HOPPER = [
    {"images": (4, 3, 32, 32), "dtype": "float32", "crop": 4, "cutmix": 0.3, "trivial_augment": True},
    {"converted": 32, "channels": 64, "dtype": "bfloat16"},
    {"placed": (64, 64), "width": 64, "dtype": "bfloat16"},
    {"placed": (64, 64), "width": 64, "dtype": "float32"},
    {"placed": (64, 64), "width": 128, "dtype": "float32"},
    {"wide": (256, 200), "nodes": (32, 24), "width": 64, "dtype": "bfloat16"},
    {"wide": (300, 40, 20), "nodes": (64, 64, 12), "width": 128, "dtype": "float32", "value_heads": 1},
    {"placed": (700,), "width": 64, "dtype": "bfloat16"},
    {"side": "before", "size": 200, "width": 16, "dtype": "bfloat16"},
    of_map(1024, 128, "bfloat16", right=0, cells=4, padded=True, softcap=30.0, sloped=True),
    by_matrices((40, 70), 16, "bfloat16"),
    by_matrices((40, 70), 64, "float32", value_heads=1),
    case((8, 8), 16, "float32"),
    case((16, 16), 64, "bfloat16"),
    case((16, 16), 64, "bfloat16", value_heads=1),
    case((16, 16), 128, "float32", value_heads=1),
    by_matrices((64, 64), 64, "bfloat16", learned="heads"),
    by_matrices((128, 128), 128, "bfloat16"),
    by_matrices((128, 128), 64, "float32"),
    case((5, 7), 16, "float32", value_heads=1),
    case((5, 7), 16, "float32", learned="value"),
    by_matrices((20, 6), 64, "bfloat16", learned="both") | {"outputs": (3, 2)},
    case((1024, 64), 64, "bfloat16"),
    case((128, 16), 64, "bfloat16"),
    case((1024, 32), 16, "float32", learned="heads"),
    case((1 << 20,), 64, "bfloat16", learned="value"),
    case((16, 64, 64), 64, "bfloat16", value_heads=1),
]
AMPERE = [
    {"images": (4, 1, 64, 64), "dtype": "bfloat16", "cutmix": 1.0, **STRONGEST},
    {"converted": 128, "channels": 8, "dtype": "float16", "stride": 2},
    {"placed": (4, 6, 30), "width": 64, "dtype": "float16", "prefix": 1, "causal": True},
    {"wide": (4000,), "nodes": (96,), "width": 16, "dtype": "float32"},
    {"wide": (500, 90), "nodes": (96, 48), "width": 64, "dtype": "bfloat16"},
    {"side": "both", "size": 100, "width": 16, "dtype": "float32"},
    of_map(512, 16, "float32", cells=16),
    by_matrices((40, 70), 64, "bfloat16"),
    case((16, 16), 128, "bfloat16", value_heads=1),
    case((8, 8), 64, "float32"),
    case((512, 40), 64, "bfloat16"),
    case((140, 33), 64, "float32", value_heads=1),
]
CROWDED = [by_matrices((128, 128), 64, "bfloat16"), case((16, 16), 64, "bfloat16", value_heads=1)]
TOO_LARGE = by_matrices((128, 8), 64, "float32", learned="heads")


def launches(architecture, cases, cache):
    """Of each case, what was compiled, and whether the card had room for it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "REGARD_TYPECHECK": "0"}
    script = Path(__file__).with_name("absent_card.py")
    command = [sys.executable, script, str(architecture), str(SHARED[architecture]), json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["refuses"]  # it is the compiler that ran
    return found["launches"]


@pytest.mark.parametrize(("architecture", "cases"), [(90, HOPPER), (80, AMPERE)], ids=["hopper", "ampere"])
def test_every_kernel_compiles_and_fits_at_the_first_try(architecture, cases, tmp_path):
    found = launches(architecture, cases, tmp_path)
    assert {launch["kernel"] for each in found for launch in each} == ALL
    for each in found:
        for launch in each:
            assert launch["fits"], launch
            assert launch["shared"] <= SHARED[architecture]
            if launch["kernel"].startswith("matrices") or launch["kernel"] in ("row_moments", "add_up", "weight_table"):
                assert launch["shared"] <= 2**14  # these have no other way, and need none


def test_on_a_smaller_card_blocks_get_smaller_and_then_torch_takes_over(tmp_path):
    *small, last = launches(86, [*CROWDED, TOO_LARGE], tmp_path)
    for each in small:
        assert not all(launch["fits"] for launch in each)
        assert "plain" not in {launch["kernel"] for launch in each}
    assert "plain" in {launch["kernel"] for launch in last}
    for each in (*small, last):
        assert all(launch["fits"] == (launch["shared"] <= SHARED[86]) for launch in each)
