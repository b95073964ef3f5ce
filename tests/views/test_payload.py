"""What travels to a browser: nothing is lost on the way but what rounding to bytes loses."""

import base64
import json
import struct
import subprocess
import sys
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.views import Payload, Scaled, page

DTYPES = {
    "uint8": torch.uint8,
    "int16": torch.int16,
    "int32": torch.int32,
    "float16": torch.float16,
    "float32": torch.float32,
}


def read(payload):
    """As a browser reads it."""
    header = json.loads(payload.header)
    assert header["version"] == 1
    found = {}
    for name, about in header["arrays"].items():
        assert about["offset"] % 8 == 0
        content = bytearray(payload.buffer[about["offset"] : about["offset"] + about["length"]])
        dtype = DTYPES[about["dtype"]]
        flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
        found[name] = flat.reshape(about["shape"])
    return header, found


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=4),
    kind=st.sampled_from(list(DTYPES)),
)
def test_arrays_of_any_shape_come_back(shapes, kind):
    arrays = {f"a{i}": (100 * torch.rand(shape)).to(DTYPES[kind]) for i, shape in enumerate(shapes)}
    header, found = read(Payload("view", {"name": "ä < b"}, arrays))
    assert header["meta"] == {"name": "ä < b"}
    for name, tensor in arrays.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@given(heads=st.integers(1, 4), queries=st.integers(1, 6), keys=st.integers(1, 40), sharp=st.floats(0, 60))
def test_weights_in_bytes_are_off_by_half_a_step_of_their_row_at_most(heads, queries, keys, sharp):
    weights = (sharp * torch.randn(heads, queries, keys)).softmax(-1)
    kept = Scaled.rows(weights)
    _, found = read(Payload("view", {}, {"map": kept}))
    values = found["map"].float() * found["map.scale"][..., None]
    assert torch.equal(values, kept.values)
    step = weights.amax(-1, keepdim=True) / 255
    assert ((values - weights).abs() <= 0.5001 * step + 1e-12).all()


@given(
    queries=st.integers(1, 6),
    keys=st.integers(1, 40),
    sharp=st.floats(0, 30),
    fine=st.booleans(),
    signed=st.booleans(),
)
def test_roots_are_off_by_what_their_docstring_says(queries, keys, sharp, fine, signed):
    weights = (sharp * torch.randn(3, queries, keys)).softmax(-1)
    if signed:
        weights = weights * torch.randn(3, queries, keys).sign()
    kept = Scaled.roots(weights, fine)
    header, found = read(Payload("view", {}, {"map": kept}))
    assert header["arrays"]["map"]["squared"]
    values = found["map"].double() * found["map"].double().abs() * found["map.scale"][..., None]
    torch.testing.assert_close(values.float(), kept.values, rtol=1e-6, atol=0)
    steps = 255 if kept.stored.dtype == torch.uint8 else 32767
    assert (steps == 255) == (not fine and not bool((weights < 0).any()))
    most = weights.double().abs().amax(-1, keepdim=True)
    allowed = (weights.double().abs() * most).sqrt() / steps + most / (4 * steps**2)
    assert ((values - weights).abs() <= 1.0001 * allowed + 1e-6 * most).all()
    assert (values.sign() * weights.sign() >= 0).all()
    assert torch.allclose(values.abs().amax(-1, keepdim=True), most, rtol=1e-6)


@pytest.mark.parametrize("keys", [100, 1000, 5000])
@pytest.mark.parametrize("fine", [True, False])
def test_weights_beside_a_sink_do_not_become_zero(keys, fine):
    weights = torch.full((1, 1, keys), 0.5 / keys)  # half of uniform attention
    weights[..., 0] = 0.99
    if keys > 500:
        assert (Scaled.rows(weights).values[..., 1:] == 0).all()  # as even steps have it
    torch.testing.assert_close(Scaled.roots(weights, fine).values, weights, rtol=0.005 if fine else 0.5, atol=0)


def test_rows_of_nothing_stay_nothing():
    assert not Scaled.rows(torch.zeros(2, 3)).values.any()
    assert not Scaled.roots(torch.zeros(2, 3), fine=True).values.any()
    assert Scaled.roots(torch.zeros(2, 0), fine=False).values.shape == (2, 0)


def test_numbers_that_are_none_become_null():
    payload = Payload("view", {"residual": float("nan"), "list": [1.0, float("inf")]})
    assert json.loads(payload.header)["meta"] == {"residual": None, "list": [1.0, None]}


def test_one_body_holds_header_and_buffer():
    payload = Payload("view", {"name": "ä"}, {"a": torch.arange(5, dtype=torch.int32)})
    body = payload.body
    (length,) = struct.unpack("<I", body[:4])
    assert body[4 : 4 + length].decode() == payload.header
    start = -(-(4 + length) // 8) * 8
    assert body[start:] == payload.buffer


def test_an_array_that_a_browser_cannot_read_is_refused():
    with pytest.raises(TypeError, match=r"'a' must be one of .*float32, got a float64 tensor of shape \(2,\)"):
        Payload("view", {}, {"a": torch.zeros(2, dtype=torch.float64)}).buffer  # noqa: B018


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(0, 300), min_size=0, max_size=4), chunk=st.integers(1, 64), level=st.booleans())
def test_pieces_are_packed_as_one_stream(sizes, chunk, level):
    """Whatever the pieces and the chunks: a browser unpacks the same bytes."""
    pieces = [memoryview(bytes(number * 7 % 256 for number in range(size))) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "CHUNK", chunk)
        patch.setattr(page, "LARGE", 0 if level else 2**20)
        packed = page._packed(pieces)
    assert zlib.decompress(base64.b64decode(packed)) == b"".join(pieces)


def test_a_large_page_takes_little_more_memory_than_its_bytes(tmp_path):
    """Weights are 64 MB as floats and 16 MB as bytes; their page is written without a copy of either."""
    code = (
        "import resource, sys, torch, regard\n"
        "regard.show({'a': torch.rand(1, 4, 4)}).html()\n"
        "weights = torch.rand(16, 1024, 1024)\n"
        "weights /= weights.sum(-1, keepdim=True)\n"
        "regard.show(weights[:, :8, :8]).html()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"regard.show(weights).save({str(tmp_path / 'large.html')!r})\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert float(done.stdout) < 160  # megabytes; 246 while everything was copied, 86 since
