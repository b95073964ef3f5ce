"""Weights and masks carried to and from torch's and timm's layouts, exactly."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from regard import MultiHeadAttention
from regard.layers import PlacedAttention, keep_from_torch
from regard.models import VisionTransformer

HIDDEN = st.sampled_from(["none", "bool", "float"])


@given(
    heads=st.integers(1, 3),
    width=st.integers(1, 4),
    key_width=st.sampled_from([None, 5]),
    value_width=st.sampled_from([None, 7]),
    bias=st.booleans(),
    batch_first=st.booleans(),
)
def test_torch_round_trip_is_exact(heads, width, key_width, value_width, bias, batch_first):
    dim = heads * width
    options = {"kdim": key_width, "vdim": value_width, "bias": bias, "batch_first": batch_first, "dropout": 0.25}
    theirs = nn.MultiheadAttention(dim, heads, dtype=torch.float64, **options)
    if bias:  # they start at zero, where a lost one would not show
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours = MultiHeadAttention.from_torch(theirs)
    back = ours.to_torch(batch_first=batch_first)
    assert repr(back) == repr(theirs)
    assert (back.batch_first, back.dropout, back.kdim, back.vdim) == (batch_first, 0.25, theirs.kdim, theirs.vdim)
    assert back.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in back.state_dict().items())
    again = MultiHeadAttention.from_torch(back).state_dict()
    assert all(torch.equal(value, ours.state_dict()[name]) for name, value in again.items())


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@given(
    kind=st.sampled_from(["self", "cross", "widths"]),
    batch_first=st.booleans(),
    mask=HIDDEN,
    per_head=st.booleans(),
    padding=HIDDEN,
)
def test_torch_parity_with_masks(kind, batch_first, mask, per_head, padding):
    batch, queries, heads, dim = 2, 3, 2, 6
    keys = queries if kind == "self" else 4
    widths = {"kdim": 5, "vdim": 7} if kind == "widths" else {}
    theirs = nn.MultiheadAttention(dim, heads, batch_first=batch_first, dtype=torch.float64, **widths)
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(batch, queries, dim, dtype=torch.float64)
    context = x if kind == "self" else torch.randn(batch, keys, widths.get("kdim", dim), dtype=torch.float64)
    value = torch.randn(batch, keys, 7, dtype=torch.float64) if kind == "widths" else context
    attn_mask = draw_mask(mask, (batch * heads, queries, keys) if per_head else (queries, keys))
    key_padding_mask = draw_mask(padding, (batch, keys))

    inputs = [t if batch_first else t.transpose(0, 1) for t in (x, context, value)]
    expected, expected_weights = theirs(
        *inputs, attn_mask=attn_mask, key_padding_mask=key_padding_mask, average_attn_weights=False
    )
    expected = expected if batch_first else expected.transpose(0, 1)
    keep, bias = keep_from_torch(attn_mask, key_padding_mask, heads=heads)
    out, weights = ours(x, context, value, keep=keep, bias=bias, return_weights=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(ours(x, context, value, keep=keep, bias=bias), expected)


def draw_mask(kind: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The first key stays open, for torch gives NaN where every key is hidden."""
    if kind == "none":
        return None
    hidden = torch.rand(shape) < 0.4
    hidden[..., 0] = False
    return hidden if kind == "bool" else torch.randn(shape, dtype=torch.float64).masked_fill(hidden, float("-inf"))


def test_a_mask_read_the_wrong_way_round_is_noticed():
    """What keep_from_torch is for: handing torch's mask over as it is gives another result."""
    theirs = nn.MultiheadAttention(6, 2, batch_first=True)
    ours, x = MultiHeadAttention.from_torch(theirs), torch.randn(1, 4, 6)
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
    expected = theirs(x, x, x, attn_mask=hidden)[0]
    torch.testing.assert_close(ours(x, keep=keep_from_torch(hidden)[0]), expected)
    assert not torch.allclose(ours(x, keep=hidden), expected, atol=1e-3)


@pytest.mark.parametrize("batch", [None, 0, 2])
def test_masks_of_no_keys_or_no_items_are_masks(batch):
    shape = (0,) if batch is None else (batch, 0)
    assert keep_from_torch(key_padding_mask=torch.zeros(shape, dtype=torch.bool))[0].shape == (
        1 if batch is None else batch, 1, 1, 0)  # fmt: skip
    assert keep_from_torch(torch.zeros(0, 3, 0), heads=2)[1].shape == (0, 2, 3, 0)


def test_gradients_match_torch():
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    ours, x = MultiHeadAttention.from_torch(theirs), torch.randn(2, 5, 8, dtype=torch.float64)
    theirs(x, x, x)[0].square().sum().backward()
    for call in (lambda: ours(x), lambda: ours(x, return_weights=True)[0]):
        ours.zero_grad()
        call().square().sum().backward()
        torch.testing.assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad)
        torch.testing.assert_close(ours.qkv.bias.grad, theirs.in_proj_bias.grad)
        torch.testing.assert_close(ours.output.weight.grad, theirs.out_proj.weight.grad)


def test_conversion_keeps_mode_and_leaves_the_original_alone():
    theirs = nn.MultiheadAttention(8, 2, dtype=torch.bfloat16).eval().requires_grad_(False)
    state = torch.get_rng_state()
    ours = MultiHeadAttention.from_torch(theirs)
    assert torch.equal(torch.get_rng_state(), state)
    assert not ours.training
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    assert ours.qkv.weight.dtype is torch.bfloat16
    ours.qkv.weight.zero_()
    assert theirs.in_proj_weight.abs().sum() > 0


@pytest.mark.parametrize("kdim", [None, 5], ids=["packed", "apart"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_what_is_frozen_stays_frozen_parameter_by_parameter(kdim, grad):
    theirs = nn.MultiheadAttention(8, 2, kdim=kdim)
    names = [name for name, _ in theirs.named_parameters()]
    for frozen in names:
        theirs.requires_grad_(True).get_parameter(frozen).requires_grad_(False)
        with torch.set_grad_enabled(grad):
            ours = MultiHeadAttention.from_torch(theirs)
            back = ours.to_torch()
        assert [name for name, parameter in back.named_parameters() if not parameter.requires_grad] == [frozen]
        expected = {name for name, source in ours_of(theirs, ours).items() if source == frozen}
        assert {name for name, parameter in ours.named_parameters() if not parameter.requires_grad} == expected


def ours_of(theirs, ours):
    """The name of torch's parameter that each of ours comes from."""
    table = {"query": "q", "key": "k", "value": "v"}
    found = {}
    for name, _ in ours.named_parameters():
        part, kind = name.split(".")
        if part == "output":
            found[name] = f"out_proj.{kind}"
        elif kind == "bias" or part == "qkv":
            found[name] = f"in_proj_{kind}"
        else:
            found[name] = f"{table[part]}_proj_weight"
    assert set(found.values()) == {name for name, _ in theirs.named_parameters()}
    return found


def test_a_joined_bias_is_frozen_only_if_all_its_parts_are():
    ours = MultiHeadAttention(8, 2, context_dim=5)
    ours.query.bias.requires_grad_(False)
    assert ours.to_torch().in_proj_bias.requires_grad
    ours.key.bias.requires_grad_(False)
    ours.value.bias.requires_grad_(False)
    assert not ours.to_torch().in_proj_bias.requires_grad


def test_timm_layers_stay_frozen_parameter_by_parameter(timm):
    theirs = timm.layers.Attention(12, 3, qkv_bias=True)
    theirs.qkv.weight.requires_grad_(False)
    ours = MultiHeadAttention.from_timm(theirs)
    assert [name for name, parameter in ours.named_parameters() if not parameter.requires_grad] == ["qkv.weight"]


@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("head_dim", [None, 5])
def test_timm_parity_and_round_trip(timm, qkv_bias, head_dim):
    theirs = timm.layers.Attention(12, 3, qkv_bias=qkv_bias, attn_head_dim=head_dim, attn_drop=0.1).double().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = MultiHeadAttention.from_timm(theirs)
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(ours(x), theirs(x))
    (expected,) = torch.autograd.grad(theirs(x).square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(ours(x).square().sum(), x)[0], expected)
    hidden = torch.rand(2, 1, 5, 5) < 0.5
    hidden[..., 0] = True
    torch.testing.assert_close(ours(x, keep=hidden), theirs(x, attn_mask=hidden))  # timm's True attends, as ours

    state = theirs.state_dict()
    assert ours.dropout == 0.1
    assert ours.to_timm().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in ours.to_timm().items())
    from_state = MultiHeadAttention.from_timm(state, heads=3)
    assert all(torch.equal(value, ours.state_dict()[name]) for name, value in from_state.state_dict().items())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"qk_norm": True, "norm_layer": nn.LayerNorm}, "qk_norm"),
        ({"scale_norm": True, "norm_layer": nn.LayerNorm}, "scale_norm"),
        ({"gated": True}, "gate"),
        ({"proj_drop": 0.1}, "proj_drop=0.1"),
    ],
)
def test_timm_variants_are_refused_with_their_reason(timm, user_errors, options, reason):
    with pytest.raises(ValueError, match=reason):
        MultiHeadAttention.from_timm(timm.layers.Attention(12, 3, **options))


def test_timm_modules_that_normalize_keys_alone_are_refused(timm, user_errors):
    module = timm.layers.Attention(12, 3)
    module.k_norm = nn.LayerNorm(4, elementwise_affine=False)
    with pytest.raises(ValueError, match="qk_norm"):
        MultiHeadAttention.from_timm(module)


def test_other_fused_layouts_are_refused(user_errors):
    good = {"qkv.weight": torch.zeros(12, 4), "proj.weight": torch.zeros(4, 4)}
    with pytest.raises(ValueError, match=r"no qkv\.weight"):
        MultiHeadAttention.from_timm({"proj.weight": torch.zeros(4, 4)}, heads=2)
    with pytest.raises(ValueError, match="also relative_position_bias_table"):
        MultiHeadAttention.from_timm({**good, "relative_position_bias_table": torch.zeros(3)}, heads=2)
    with pytest.raises(ValueError, match="heads is needed"):
        MultiHeadAttention.from_timm(good)
    with pytest.raises(ValueError, match=r"\(12, 4\).*width a multiple of 3"):
        MultiHeadAttention.from_timm(good, heads=3)


def test_what_torch_has_and_we_do_not_is_refused(user_errors):
    with pytest.raises(ValueError, match="add_bias_kv"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(4, 2, add_bias_kv=True))
    with pytest.raises(ValueError, match="add_zero_attn"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(4, 2, add_zero_attn=True))
    with pytest.raises(TypeError, match="got Linear"):
        MultiHeadAttention.from_torch(nn.Linear(4, 4))
    doubling = type("Doubling", (nn.MultiheadAttention,), {"forward": lambda self, *inputs: None})
    with pytest.raises(TypeError, match="module is a Doubling, which replaces forward"):
        MultiHeadAttention.from_torch(doubling(4, 2))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"key_value_heads": 1}, "key_value_heads"),
        ({"slice_heads": True}, "slice_heads"),
        ({"beta": 2.0}, "beta"),
        ({"out_dim": 3}, "out_dim"),
        ({"head_dim": 3}, "head_dim"),
        ({"bias": False, "output_bias": True}, "bias=False, output_bias=True"),
    ],
)
def test_what_we_have_and_torch_does_not_is_refused(user_errors, options, name):
    with pytest.raises(ValueError, match=name):
        MultiHeadAttention(4, 2, **options).to_torch()


def test_what_we_have_and_timm_does_not_is_refused(user_errors):
    with pytest.raises(ValueError, match="context_dim"):
        MultiHeadAttention(4, 2, context_dim=3).to_timm()


def test_torch_masks_that_do_not_fit_are_refused(user_errors):
    with pytest.raises(ValueError, match=r"\(4, 3, 3\): pass heads"):
        keep_from_torch(torch.zeros(4, 3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="which 3 heads do not divide"):
        keep_from_torch(torch.zeros(4, 3, 3, dtype=torch.bool), heads=3)
    with pytest.raises(ValueError, match=r"attn_mask has shape \(3,\)"):
        keep_from_torch(torch.zeros(3))
    with pytest.raises(ValueError, match=r"key_padding_mask has shape \(1, 2, 3\)"):
        keep_from_torch(key_padding_mask=torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match="attn_mask has 3 keys but key_padding_mask has 4"):
        keep_from_torch(torch.zeros(3, 3), torch.zeros(2, 4))
    with pytest.raises(TypeError, match="int64"):
        keep_from_torch(torch.zeros(3, 3, dtype=torch.int64))


class Louder(MultiHeadAttention):
    def forward(self, x, **options):
        return 3 * super().forward(x, **options)


class Adapted(nn.Linear):
    """As a low-rank adapter: its weight is only a part of what it computes."""

    def forward(self, x):
        return super().forward(x) + x.mean(-1, keepdim=True)


def adapted(layer, name="qkv"):
    old = getattr(layer, name)
    setattr(layer, name, Adapted(old.in_features, old.out_features))
    return layer


@pytest.mark.parametrize("way", ["to_torch", "to_timm", "from_multi_head"])
def test_what_the_weights_do_not_say_is_not_carried_away(way):
    convert = PlacedAttention.from_multi_head if way == "from_multi_head" else lambda layer: getattr(layer, way)()
    assert convert(MultiHeadAttention(8, 2))
    with pytest.raises(TypeError, match="the layer is a Louder, which replaces forward"):
        convert(Louder(8, 2))
    with pytest.raises(TypeError, match=r"the qkv of the layer is no plain nn\.Linear \(Adapted\)"):
        convert(adapted(MultiHeadAttention(8, 2)))


def test_what_timms_weights_do_not_say_is_not_loaded(timm):
    """Only the first block of a network was looked at."""
    attention = timm.layers.Attention
    transformer = timm.models.vision_transformer.VisionTransformer
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}

    class Twice(attention):
        def forward(self, x, **options):
            return 2 * super().forward(x, **options)

    class Brighter(transformer):
        def forward_features(self, x, **options):
            return super().forward_features(2 * x, **options)

    with pytest.raises(TypeError, match="module is a Twice, which replaces forward"):
        MultiHeadAttention.from_timm(Twice(16, num_heads=2))
    with pytest.raises(TypeError, match=r"the qkv of module is no plain nn\.Linear \(Adapted\)"):
        MultiHeadAttention.from_timm(adapted(attention(16, num_heads=2, qkv_bias=True)))
    with pytest.raises(TypeError, match="module is a Brighter, which replaces forward"):
        VisionTransformer.from_timm(Brighter(**sizes))
    other = transformer(**sizes)
    other.blocks[1].attn = Twice(16, num_heads=2, qkv_bias=True)
    with pytest.raises(TypeError, match="module is a Twice, which replaces forward"):
        VisionTransformer.from_timm(other)
    other = transformer(**sizes)
    adapted(other.blocks[1].mlp, "fc1")
    with pytest.raises(TypeError, match=r"the blocks\.1\.mlp\.fc1 of module is no plain nn\.Linear"):
        VisionTransformer.from_timm(other)
    other = transformer(**sizes)
    other.blocks[1].mlp.act = nn.ReLU()
    with pytest.raises(ValueError, match=r"its activation is ReLU"):
        VisionTransformer.from_timm(other)
    other = transformer(**sizes)
    other.blocks[1].norm2.eps = 1e-3
    with pytest.raises(ValueError, match=r"its norm is LayerNorm"):
        VisionTransformer.from_timm(other)


@pytest.mark.parametrize("bias", [True, False])
def test_weights_that_torch_computes_are_carried_over(bias):
    theirs, x = nn.MultiheadAttention(8, 2, bias=bias, batch_first=True).double(), torch.randn(2, 5, 8).double()
    parametrizations.weight_norm(theirs.out_proj)
    theirs.out_proj.parametrizations.weight.original0.data *= 2
    ours = MultiHeadAttention.from_torch(theirs)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0])
