"""nn.Transformer taken over: the same outputs where that can be, a refusal with the reason where it cannot."""

import pytest
import torch
from torch import nn

from regard.models import Transformer

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def encoder(depth=2, heads=2, norm="layer", hidden=12, dim=8, **options):
    layer = nn.TransformerEncoderLayer(dim, heads, hidden, **{"batch_first": True, **options})
    norm = nn.LayerNorm(dim) if norm == "layer" else norm
    return nn.TransformerEncoder(layer, depth, norm=norm, enable_nested_tensor=False)


def decoder(depth=1, heads=2, norm="layer", hidden=12, dim=8, **options):
    layer = nn.TransformerDecoderLayer(dim, heads, hidden, **{"batch_first": True, **options})
    return nn.TransformerDecoder(layer, depth, norm=nn.LayerNorm(dim) if norm == "layer" else norm)


def transformer(**options):
    theirs = nn.Transformer(8, 2, 1, 1, 12, batch_first=True, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.7)
    return theirs.double().eval()


def assert_same_outputs(ours, theirs):
    x, y = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 4, 8, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    torch.testing.assert_close(ours.decode(y, ours.encode(x)), theirs(x, y, tgt_mask=mask))


@pytest.mark.parametrize(
    "options",
    [
        {"custom_encoder": encoder(3)},
        {"custom_encoder": encoder(heads=4, activation="gelu"), "custom_decoder": decoder(heads=4, activation="gelu")},
        {"custom_encoder": encoder(norm=None), "custom_decoder": decoder(norm=None)},
        {"custom_encoder": encoder(norm=nn.LayerNorm(8, bias=False))},
        {"custom_encoder": encoder(bias=False)},
    ],
    ids=["deeper", "other heads in both", "no final norms", "final norm without bias", "encoder without biases"],
)
def test_custom_parts_that_fit_give_the_same_outputs(options):
    theirs = transformer(**options)
    assert_same_outputs(Transformer.from_torch(theirs, 11), theirs)


class Doubling(nn.TransformerEncoderLayer):
    def _ff_block(self, x):
        return 2 * super()._ff_block(x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"custom_encoder": encoder(norm=None)}, "encoder has no final norm"),
        ({"custom_decoder": decoder(norm=None)}, "decoder has no final norm"),
        ({"custom_encoder": encoder(norm=nn.RMSNorm(8))}, r"encoder\.norm is a RMSNorm"),
        ({"custom_encoder": encoder(norm=nn.LayerNorm(8, elementwise_affine=False))}, "elementwise_affine=False"),
        ({"custom_encoder": encoder(norm=nn.LayerNorm(8, eps=1e-3))}, r"eps=0\.001 \(encoder\.norm\)"),
        ({"custom_encoder": encoder(heads=4)}, r"decoder\.layers\.0 has nhead=2, but earlier layers have 4"),
        ({"custom_decoder": decoder(activation="gelu")}, "has activation=gelu, but earlier layers have relu"),
        ({"custom_decoder": decoder(activation=torch.tanh)}, "only torch's relu and gelu"),
        ({"custom_encoder": encoder(norm_first=True)}, "norm_first=False, but earlier layers have True"),
        ({"custom_encoder": encoder(hidden=16)}, "dim_feedforward=12, but earlier layers have 16"),
        ({"custom_encoder": encoder(dropout=0.3)}, r"dropout=0\.1, but earlier layers have 0\.3"),
        ({"custom_encoder": encoder(batch_first=False)}, "batch_first=True, but earlier layers have False"),
        ({"custom_encoder": encoder(dim=4), "custom_decoder": decoder(dim=4)}, "module has d_model=8"),
        ({"custom_encoder": nn.TransformerEncoder(Doubling(8, 2, 12, batch_first=True), 1)}, "a Doubling, whose"),
        ({"custom_encoder": nn.Linear(8, 8)}, r"custom_encoder\): Linear; a TransformerEncoder would fit"),
    ],
)
def test_custom_parts_that_do_not_fit_are_refused(user_errors, options, message):
    with pytest.raises(ValueError, match=message):
        Transformer.from_torch(transformer(**options), 11)


def test_layers_that_were_changed_are_refused(user_errors):
    theirs = transformer()
    theirs.encoder.layers[0].dropout1.p = 0.5
    with pytest.raises(ValueError, match=r"several values of dropout, \[0\.1, 0\.5\]"):
        Transformer.from_torch(theirs, 11)
    theirs = transformer()
    theirs.decoder.layers[0].multihead_attn = nn.MultiheadAttention(8, 2, add_zero_attn=True, batch_first=True).double()
    with pytest.raises(ValueError, match=r"must have the nn\.MultiheadAttention"):
        Transformer.from_torch(theirs, 11)
    theirs = transformer()
    theirs.decoder.layers[0].norm2 = None
    with pytest.raises(
        ValueError, match=r"lacks weights that this model has: decoder\.0\.cross_attention_norm\.weight"
    ):
        Transformer.from_torch(theirs, 11)
    theirs = transformer()
    theirs.encoder.extra = nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=r"does not have: encoder\.extra"):
        Transformer.from_torch(theirs, 11)


def test_what_is_frozen_stays_frozen_and_the_rest_does_not():
    theirs = transformer(bias=False)
    theirs.encoder.requires_grad_(False)
    theirs.decoder.layers[0].linear1.weight.requires_grad_(False)
    ours = Transformer.from_torch(theirs, 11)
    frozen = {name for name, parameter in ours.named_parameters() if not parameter.requires_grad}
    assert {name for name in frozen if not name.startswith("encoder")} == {
        "decoder.0.feed_forward.expand.weight",
        "decoder.0.feed_forward.expand.bias",  # which torch's layer lacks
    }
    assert frozen >= {name for name, _ in ours.named_parameters() if name.startswith("encoder")}
    assert_same_outputs(ours, theirs)
