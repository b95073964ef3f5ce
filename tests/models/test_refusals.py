"""What models refuse, each with an error that names the argument or the tensor."""

import pytest
import torch

from regard.models import ImageEncoder, Seq2SeqRNN, Transformer, VisionTransformer

TIMM = {
    "patch_embed.proj.weight": (8, 3, 4, 4),
    "cls_token": (1, 1, 8),
    "pos_embed": (1, 5, 8),
    "blocks.0.norm1.weight": (8,),
    "blocks.0.attn.qkv.weight": (24, 8),
    "blocks.0.attn.proj.weight": (8, 8),
    "blocks.0.norm2.weight": (8,),
    "blocks.0.mlp.fc1.weight": (16, 8),
    "blocks.0.mlp.fc2.weight": (8, 16),
    "norm.weight": (8,),
}


def read_timm(without=(), heads=2, **changed):
    shapes = {name: shape for name, shape in (TIMM | changed).items() if name not in without}
    return VisionTransformer.from_timm({name: torch.ones(shape) for name, shape in shapes.items()}, heads=heads)


def encode(**options):
    return ImageEncoder(8, 2, 3, dim=8, depth=1, heads=2, **options)


def generate(end):
    model = Transformer(9, dim=8, depth=(0, 1), heads=2, dropout=0.0)
    return model.generate(None, torch.zeros(1, 2, dtype=torch.long), tokens=3, end=end)


def encode_words(source):
    return Seq2SeqRNN(9, dim=4, hidden=4).encode(source, keep=torch.ones(1, 2, dtype=torch.bool))


def test_a_state_without_biases_is_read():
    model = read_timm()
    assert (model.grid, model.prefix_tokens, model.config["hidden"]) == ((2, 2), 1, 16)
    assert not model.blocks[0].attention.qkv.bias.any()


EXTRA = {f"other.{number}": (1,) for number in range(7)}
REFUSED = [
    (lambda: read_timm(heads=None), "heads is needed"),
    (lambda: read_timm(without=["norm.weight"]), "source has no norm.weight"),
    (lambda: read_timm(**EXTRA), "does not have: other.0, other.1, other.2, other.3, other.4 and 2 more"),
    (lambda: read_timm(without=["pos_embed"]), "no positions that determine the number of patches"),
    (lambda: read_timm(pos_embed=(1, 7, 8)), "7 positions and 1 prefix tokens do not determine a square grid"),
    (lambda: read_timm(without=["cls_token"]), "its pooling cannot be determined"),
    (lambda: encode(attention=3), "attention must be a kind"),
    (lambda: encode(attention={"kin": "content"}), "attention has the settings"),
    (lambda: generate("."), "end must be the number of a token"),
    (lambda: generate(9), "end is 9, but the vocabulary has 0 to 8"),
    (lambda: encode_words([[1, 2]]), "source must be a tensor"),
    (lambda: encode_words(torch.zeros(1, 3, dtype=torch.long)), r"keep has shape \(1, 2\)"),
    (lambda: Transformer(9, dim=8, depth=1, heads=2).encode(torch.zeros(1, 2, 8), maps=()), "maps must be a list"),
]


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_arguments_that_do_not_fit_are_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_second_output_layer_returns_the_weights_of_the_first():
    layer = encode(attention={"second_output": True}).blocks[0].attention
    x = torch.randn(2, 16, 8)
    out, weights = layer(x, grid=(4, 4), return_weights=True)
    assert torch.equal(out, layer(x, grid=(4, 4)))
    assert torch.equal(weights, layer.inner(x, grid=(4, 4), return_weights=True)[1])
