"""Compiled models and ONNX files give what the models give."""

import subprocess
import sys

import onnxruntime
import pytest
import torch

from regard.models import VisionTransformer, export_onnx

# Without the run-time shape checks of the tests, which are no part of what a user compiles or exports.
pytestmark = pytest.mark.usefixtures("user_errors")


@pytest.mark.parametrize("name", ["vit-relative", "transformer", "text"])
def test_compiles_as_one_graph(name, build):
    case = build(name)
    torch.compiler.reset()
    compiled = torch.compile(case.model, backend="eager", fullgraph=True)
    torch.testing.assert_close(case.run(compiled), case.run(), atol=1e-6, rtol=1e-5)


COMPILED = """
import torch
from regard.models import ImageEncoder, Seq2SeqRNN

def gradients(model, call):
    model.zero_grad()
    call().square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]

images = torch.randn(2, 3, 8, 8)
for attention, merge in (("gaussian", ()), ("gaussian", (0,)), ("gaussian-full", ()), ("relative", ()), ("gated", ())):
    model = ImageEncoder(8, 2, 3, dim=18, depth=1, heads=9, attention=attention, merge=merge)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-4)
    pair = (gradients(model, lambda: run(images)) for run in (compiled, model))
    torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-4)
source, target = torch.randint(9, (2, 6)), torch.randint(9, (2, 4))
keep = torch.arange(6) < torch.tensor([[6], [3]])
for cell in ("gru", "lstm"):
    model = Seq2SeqRNN(9, dim=4, hidden=5, cell=cell)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(source, target, source_keep=keep), model(source, target, source_keep=keep))
print("same")
"""


def test_models_whose_code_the_shape_checks_hide_from_the_compiler():
    """In a process of its own, without those checks: Gaussian heads in one graph, recurrent networks with breaks."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "same", run.stderr[-3000:]


@pytest.mark.parametrize("name", ["vit-relative", "image-gaussian", "image-merged", "resnet"])
def test_onnx_gives_the_same_for_any_batch(name, build, tmp_path):
    case = build(name)
    case.model.train()
    export_onnx(case.model, case.inputs[0][:1], tmp_path / "model.onnx")
    assert case.model.training
    case.model.eval()
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for batch in (1, 5):
        images = torch.randn(batch, 3, 8, 8)
        (out,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
        torch.testing.assert_close(torch.from_numpy(out), case.model(images).detach(), atol=1e-5, rtol=1e-4)


def test_onnx_says_what_is_wrong(tmp_path):
    model = VisionTransformer(8, 4, 3, dim=16, depth=1, heads=2)
    with pytest.raises(ValueError, match="need one common batch size"):
        export_onnx(model, (torch.ones(1, 3, 8, 8), torch.ones(2, 3)), tmp_path / "model.onnx")
    with pytest.raises(TypeError, match="inputs must be a tensor"):
        export_onnx(model, ["image"], tmp_path / "model.onnx")
