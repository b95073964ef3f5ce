"""Networks as ONNX files, which other runtimes can read."""

import importlib.util
import os
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.support.checks import check_tensor


def export_onnx(model: nn.Module, inputs: Tensor | Sequence[Tensor], path: str | os.PathLike[str]) -> None:
    """Write ``model`` as an ONNX file that takes batches of any size.

    Args:
        model: exported in evaluation mode, without dropout. Afterwards it is in the mode it was in.
        inputs: an example input, batch first: one tensor, or several.
        path: the file to write. An existing file is replaced.

    >>> from regard.models import ResNet18, export_onnx
    >>> export_onnx(ResNet18(num_classes=3, width=4), torch.randn(1, 3, 16, 16), "network.onnx")  # doctest: +SKIP

    The guide *Build, save and export a network* runs such a file with onnxruntime.
    """
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"export_onnx needs {package}: pip install onnx onnxscript", name=package)
    examples = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    for example in examples:
        check_tensor("inputs", example)
        if example.ndim == 0 or example.shape[0] != examples[0].shape[0] or example.shape[0] == 0:
            raise ValueError(f"inputs have shapes {[tuple(x.shape) for x in examples]}, but need one common batch size")
    if examples[0].shape[0] == 1:  # the exporter would treat a batch size of one as a constant
        examples = tuple(example.expand(2, *example.shape[1:]) for example in examples)
    batch = torch.export.Dim("batch")
    modes = {module: module.training for module in model.modules()}
    try:
        # Without gradients: with them torch 2.13 chooses kernels for a learned bias that its exporter cannot translate.
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # from inside torch's exporter
            program = torch.onnx.export(
                model.eval(), examples, dynamo=True, dynamic_shapes=tuple({0: batch} for _ in examples), verbose=False
            )
    finally:
        for module, training in modes.items():
            module.training = training
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    program.save(path)
