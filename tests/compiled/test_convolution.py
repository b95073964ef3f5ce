"""A convolution as attention, in one compiled graph and as an exported program of any size."""

import pytest
import torch

from regard.convert import conv_to_attention


@pytest.mark.parametrize(("axes", "padding"), [(2, "reflect"), (3, "zeros")])
def test_compiles_to_one_graph(axes, padding):
    kind = (torch.nn.Conv2d, torch.nn.Conv3d)[axes - 2]
    layer = conv_to_attention(kind(2, 4, 3, padding=1, stride=2, groups=2, padding_mode=padding))
    x = torch.randn(2, 2, *[6] * axes)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize(("stride", "padding"), [(1, "zeros"), (2, "zeros"), (1, "reflect")])
def test_exports_with_dynamic_sizes(stride, padding, trainable):
    """The number of images, too: the layer with trainable heads could only be exported for the number that was shown."""
    conv = torch.nn.Conv2d(2, 3, 3, padding=1, stride=stride, padding_mode=padding)
    layer = conv_to_attention(conv, trainable=True) if trainable else conv_to_attention(conv)
    auto, named = torch.export.Dim.AUTO, torch.export.Dim("rows", min=3, max=64)
    sizes = [((auto, auto), False)]
    if stride == 1:
        sizes += [((named, torch.export.Dim("columns", min=3, max=64)), True)]
    for (rows, columns), strict in sizes:
        program = torch.export.export(
            layer,
            (torch.randn(2, 2, 7, 8),),
            dynamic_shapes=({0: torch.export.Dim("images", max=64), 2: rows, 3: columns},),
            strict=strict,
        ).module()
        other = torch.randn(3, 2, 11, 5)
        torch.testing.assert_close(program(other), layer(other))
