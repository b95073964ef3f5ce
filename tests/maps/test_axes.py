"""Axes: what is called heads are the heads, and where that cannot be known, nothing is called heads."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.maps import Maps
from regard.maps.tokens import _axis_evidence


def hand(q, k, v):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


PRODUCTS = {"sdpa": F.scaled_dot_product_attention, "by hand": hand}


def captured(model, *args):
    with torch.no_grad(), regard.capture(model) as maps:
        model(*args)
    return maps


class Projected(nn.Module):
    def __init__(self, heads=4, dim=16, product=hand):
        super().__init__()
        self.heads, self.product = heads, product
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def split(self, x):
        """(3, …, heads, tokens, width)"""
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-2, -3)

    def expected(self, x):
        q, k, _ = self.split(x)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)


class Windows(Projected):
    """As many windows as heads, which come first."""

    heads_first = True

    def forward(self, x):  # (batch, windows, tokens, dim)
        q, k, v = self.split(x)
        if self.heads_first:
            q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        out = self.product(q, k, v)
        out = out.transpose(1, 2) if self.heads_first else out
        return self.proj(out.transpose(-2, -3).flatten(-2))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("heads_first", [False, True])
def test_as_many_windows_as_heads_are_not_exchanged(product, heads_first):
    torch.manual_seed(0)
    layer = Windows(product=PRODUCTS[product])
    layer.heads_first = heads_first
    x = torch.randn(2, 4, 6, 16)
    found = captured(layer, x)["Windows"]
    assert found.axes == "known"
    torch.testing.assert_close(found.weights, layer.expected(x).flatten(0, 1))


def test_windows_and_heads_that_nothing_tells_apart_are_not_folded():
    class Unknown(nn.Module):
        num_heads = 4

        def forward(self, q, k, v):
            return hand(q, k, v)

    qkv = [torch.randn(2, 4, 4, 6, 8) for _ in range(3)]
    found = captured(Unknown(), *qkv)["Unknown"]
    assert found.axes == "ambiguous"
    assert found.weights.shape == (32, 1, 6, 6)
    assert found.agrees


class Loop(Projected):
    """One head at a time, in three axes."""

    def forward(self, x):
        q, k, v = self.split(x)
        each = [self.product(*(y[:, head].clone() for y in (q, k, v))) for head in range(self.heads)]
        return self.proj(torch.cat(each, -1))


@pytest.mark.parametrize("product", PRODUCTS)
def test_samples_of_heads_one_after_the_other_are_no_heads(product):
    torch.manual_seed(0)
    layer, x = Loop(product=PRODUCTS[product]), torch.randn(8, 5, 16)
    maps = captured(layer, x)
    expected = layer.expected(x)
    assert list(maps) == ["Loop"]  # the heads' outputs are concatenated, so that their maps are one
    assert maps[0].axes == "known"
    torch.testing.assert_close(maps[0].weights, expected)
    with torch.no_grad(), regard.capture(layer, rows=[1, 2]) as parts:
        layer(x)
    assert list(parts) == ["Loop", "Loop#2", "Loop#3", "Loop#4"]
    for head, found in enumerate(parts.values()):
        torch.testing.assert_close(found.weights, expected[:, head : head + 1, 1:3])


class Folded(Projected):
    def forward(self, x):
        q, k, v = (y.flatten(0, 1) for y in self.split(x))
        return self.proj(self.product(q, k, v).unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_heads_that_are_folded_into_the_batch_are_heads(product, batch):
    torch.manual_seed(0)
    layer, x = Folded(product=PRODUCTS[product]), torch.randn(batch, 5, 16)
    found = captured(layer, x)["Folded"]
    assert found.axes == "known"
    torch.testing.assert_close(found.weights, layer.expected(x))


class HeadsFirst(Projected):
    """Heads and samples are one axis, in which heads come first, as many a port of the first transformers writes it."""

    gated = False

    def forward(self, x):
        q, k, v = (y.transpose(0, 1).flatten(0, 1) for y in self.split(x))
        out = self.product(q, k, v).unflatten(0, (self.heads, -1))
        out = out * out.sigmoid() if self.gated else out
        return self.proj(out.permute(1, 2, 0, 3).flatten(2))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(("batch", "gated"), [(1, False), (2, False), (4, False), (8, False), (2, True)])
def test_heads_that_come_before_samples_are_heads(product, batch, gated):
    torch.manual_seed(0)
    layer, x = HeadsFirst(product=PRODUCTS[product]), torch.randn(batch, 5, 16)
    layer.gated = gated
    found = captured(layer, x)["HeadsFirst"]
    assert found.axes == "known"
    torch.testing.assert_close(found.weights, layer.expected(x))
    with torch.no_grad(), regard.capture(layer, reduce=lambda total, weights: weights) as folded:
        layer(x)
    torch.testing.assert_close(folded["HeadsFirst"].reduced, layer.expected(x))


def test_samples_and_heads_that_nothing_tells_apart_are_not_folded():
    torch.manual_seed(0)
    layer, x = HeadsFirst(), torch.randn(4, 5, 16)
    layer.gated = True  # the numbers are others when heads are merged, and there are as many samples as heads
    found = captured(layer, x)["HeadsFirst"]
    assert (found.axes, found.shape) == ("ambiguous", (16, 1, 5, 5))
    with torch.no_grad(), pytest.warns(UserWarning, match="one axis"), regard.capture(layer, heads=[0]) as maps:
        layer(x)
    assert [missed.name for missed in maps.missed] == ["HeadsFirst"]


class Gathered(Projected):
    """Each query attends to the tokens around it, which are gathered for it."""

    def forward(self, x):  # (batch, tokens, dim)
        q, k, v = self.split(x)
        near = (torch.arange(x.shape[1])[:, None] + torch.arange(-1, 2)) % x.shape[1]
        out = self.product(q.unsqueeze(-2), k[:, :, near], v[:, :, near]).squeeze(-2)
        return self.proj(out.transpose(1, 2).flatten(2))

    def expected(self, x):
        q, k, _ = self.split(x)
        near = (torch.arange(x.shape[1])[:, None] + torch.arange(-1, 2)) % x.shape[1]
        return (torch.einsum("bhqd,bhqkd->bhqk", q, k[:, :, near]) * q.shape[-1] ** -0.5).softmax(-1)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("tokens", [4, 5])
def test_queries_with_values_of_their_own_are_queries(product, tokens):
    torch.manual_seed(0)
    layer, x = Gathered(product=PRODUCTS[product]), torch.randn(2, tokens, 16)
    found = captured(layer, x)["Gathered"]
    if tokens == layer.heads:
        assert found.axes == "ambiguous"
        assert found.weights.shape == (2 * 4 * 4, 1, 1, 3)
        return
    assert found.over == "samples"
    assert found.axes == "known"
    torch.testing.assert_close(found.weights, layer.expected(x))
    assert found.agrees
    with torch.no_grad(), regard.capture(layer, rows=[1, 2], heads=[3]) as part:
        layer(x)
    torch.testing.assert_close(part["Gathered"].weights, layer.expected(x)[:, 3:, 1:3])


class Deformable(nn.Module):
    """Weights of a projection, values sampled for each query, batch and heads folded, as DETR's successors write it."""

    def __init__(self, heads=4, dim=16, points=3):
        super().__init__()
        self.n_heads, self.points = heads, points
        self.attention_weights, self.value_proj = nn.Linear(dim, heads * points), nn.Linear(dim, dim)
        self.output_proj = nn.Linear(dim, dim)

    def expected(self, x):
        return self.attention_weights(x).unflatten(-1, (self.n_heads, self.points)).softmax(-1).transpose(1, 2)

    def forward(self, x):
        batch, tokens, _ = x.shape
        weights = self.attention_weights(x).view(batch, tokens, self.n_heads, self.points).softmax(-1)
        weights = weights.transpose(1, 2).reshape(batch * self.n_heads, 1, tokens, self.points)
        value = self.value_proj(x).unflatten(-1, (self.n_heads, -1)).permute(0, 2, 3, 1).flatten(0, 1)
        near = (torch.arange(tokens)[:, None] + torch.arange(self.points)) % tokens
        out = (value[:, :, near] * weights).sum(-1)  # (batch · heads, width, queries)
        return self.output_proj(out.unflatten(0, (batch, -1)).permute(0, 3, 1, 2).flatten(2))


def test_queries_of_deformable_attention_are_no_heads():
    torch.manual_seed(0)
    layer, x = Deformable(), torch.randn(2, 7, 16)
    found = captured(layer, x)["Deformable"]
    assert (found.axes, found.over) == ("known", "samples")
    torch.testing.assert_close(found.weights, layer.expected(x))


class Blocked(Projected):
    """Blocks of tokens attend to their own and to the neighboring blocks; heads come after the blocks."""

    size = 4

    def forward(self, x):  # (batch, tokens, dim), tokens = heads · size, so that there are as many blocks as heads
        q, k, v = (y.unflatten(-2, (-1, self.size)) for y in self.split(x))  # (batch, heads, blocks, size, width)
        k, v = (torch.cat([y.roll(1, 2), y], -2) for y in (k, v))
        q, k, v = (y.transpose(1, 2).contiguous() for y in (q, k, v))
        out = self.product(q, k, v).transpose(2, 3).flatten(1, 2)
        return self.proj(out.flatten(-2))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("blocks", [3, 4])
def test_blocks_of_local_attention_are_no_heads(product, blocks):
    torch.manual_seed(0)
    layer, x = Blocked(product=PRODUCTS[product]), torch.randn(2, 4 * blocks, 16)
    found = captured(layer, x)["Blocked"]
    assert found.agrees
    if blocks == layer.heads:
        assert found.axes == "ambiguous"
        assert found.weights.shape == (2 * blocks * 4, 1, 4, 8)
    else:
        assert found.axes == "known"
        assert found.weights.shape == (2 * blocks, 4, 4, 8)


@pytest.mark.parametrize("blocks", [1, 2, 5])
@pytest.mark.parametrize("image", [False, True])
def test_heads_before_blocks_are_folded_with_the_samples(image, blocks):
    """As in HaloNet, whose small images are a single block: (batch · heads, blocks, queries, width)."""

    class Halo(Projected):
        def forward(self, x):
            x = x.flatten(2).mT if image else x
            q, k, v = (y.flatten(0, 1).unflatten(1, (blocks, -1)) for y in self.split(x))
            out = self.product(q, k, v).flatten(1, 2)
            return self.proj(out.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2))

    layer, x = Halo(), torch.randn(3, 16, 2 * blocks, 3) if image else torch.randn(3, 6 * blocks, 16)
    found = captured(layer, x)["Halo"]
    q, k, _ = layer.split(x.flatten(2).mT if image else x)
    q, k = (y.unflatten(2, (blocks, -1)).transpose(1, 2).flatten(0, 1) for y in (q, k))
    assert found.axes == "known"
    torch.testing.assert_close(found.weights, (q @ k.mT / 2).softmax(-1))


def test_grouped_heads_in_two_axes_are_all_heads():
    class Grouped(Projected):
        def forward(self, x):
            q, k, v = self.split(x)
            q = q.unflatten(1, (2, 2))
            k, v = (y[:, ::2].unsqueeze(2) for y in (k, v))
            return self.proj(self.product(q, k, v).flatten(1, 2).transpose(1, 2).flatten(2))

    layer, x = Grouped(), torch.randn(3, 5, 16)
    found = captured(layer, x)["Grouped"]
    q, k, _ = layer.split(x)
    expected = (q @ k[:, ::2].repeat_interleave(2, 1).mT / 2).softmax(-1)
    assert found.axes == "known"
    torch.testing.assert_close(found.weights, expected)


def test_ordinary_layers_are_known_and_files_remember_it(tmp_path):
    layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
    for batch in (1, 3, 4):
        found = captured(layer, torch.randn(batch, 5, 16))[0]
        assert (found.axes, found.shape) == ("known", (batch, 4, 5, 5))
    maps = captured(Loop(), torch.randn(8, 5, 16))
    again = Maps.load(maps.save(tmp_path / "maps"))
    assert [(found.axes, found.shape) for found in again.values()] == [("known", (8, 4, 5, 5))]


class CrossCovariance(Projected):
    """XCiT: channels attend to channels."""

    def forward(self, x):
        q, k, v = (y.mT for y in self.split(x))
        weights = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1)
        return self.proj((weights @ v).permute(0, 3, 1, 2).flatten(2))


@pytest.mark.parametrize("tokens", [9, 4])
def test_attention_over_channels_is_marked_and_refused_by_analyses_of_tokens(tokens):
    maps = captured(CrossCovariance(), torch.randn(2, tokens, 16))
    assert maps[0].over == "channels"
    with pytest.raises(ValueError, match="channels"):
        regard.rollout(maps)
    with pytest.raises(ValueError, match="channels"):
        regard.locality(maps, grid=(2, 2))


def test_features_that_attend_to_tokens_are_linear_attention_and_no_map():
    """As in CoaT: q · (softmax(k)ᵀ v)."""

    class SelfAttention(Projected):
        def forward(self, x):
            q, k, v = self.split(x)
            return self.proj((q @ (k.softmax(-2).mT @ v)).transpose(1, 2).flatten(2))

    layer = SelfAttention()
    with pytest.warns(UserWarning, match="linear attention"):
        maps = captured(layer, torch.randn(2, 9, 16))
    assert not maps
    assert [missed.name for missed in maps.missed] == ["SelfAttention"]


def test_a_batch_never_becomes_heads_where_channels_attend():
    """With as many tokens as make the width of the output projection fit batch · heads heads."""
    maps = captured(CrossCovariance(4, 128), torch.randn(2, 16, 128))
    assert (maps[0].over, maps[0].shape) == ("channels", (2, 4, 32, 32))


def test_values_that_all_blocks_share_are_values():
    """As in BigBird's first block: one axis more in the weights than in the values."""

    class Shared(Projected):
        def forward(self, x):
            q, k, v = self.split(x)
            weights = (q.unflatten(2, (3, 2)) @ k.unsqueeze(2).mT).softmax(-1)
            return torch.einsum("bhlqk,bhkd->bhlqd", weights, v)

    found = captured(Shared(), torch.randn(2, 6, 16))["Shared"]
    assert found.agrees
    assert found.shape == (6, 4, 2, 6)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_heads_that_are_folded_into_samples_of_blocks_are_heads(product, batch):
    """As in HaloNet: (batch · heads, blocks, tokens, width)."""

    class Halo(Projected):
        def forward(self, x):  # (batch, tokens, dim)
            q, k, v = (y.unflatten(2, (3, 2)).flatten(0, 1) for y in self.split(x))
            k, v = (torch.cat([y.roll(1, 1), y], -2) for y in (k, v))
            out = self.product(q, k, v).flatten(1, 2).unflatten(0, (-1, self.heads))
            return self.proj(out.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    layer, x = Halo(product=PRODUCTS[product]), torch.randn(batch, 6, 16)
    found = captured(layer, x)["Halo"]
    q, k, _ = (y.unflatten(2, (3, 2)) for y in layer.split(x))  # (batch, heads, blocks, 2, width)
    k = torch.cat([k.roll(1, 2), k], -2)
    expected = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).transpose(1, 2).flatten(0, 1)
    assert found.axes == "known"
    torch.testing.assert_close(found.weights, expected)


def test_lambda_layers_have_no_map():
    """q · (softmax(k)ᵀ v): the softmax is over tokens, for each feature."""

    class LambdaAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads, self.q, self.k, self.v = 4, nn.Linear(16, 12), nn.Linear(16, 3), nn.Linear(16, 4)

        def forward(self, x):
            content = self.k(x).softmax(1).mT @ self.v(x)  # (batch, features, width)
            q = self.q(x).unflatten(-1, (4, 3)).transpose(1, 2)
            return (q @ content.unsqueeze(1)).transpose(1, 2).flatten(2)

    with pytest.warns(UserWarning, match="linear attention"):
        maps = captured(LambdaAttention(), torch.randn(2, 9, 16))
    assert not maps
    assert [missed.name for missed in maps.missed] == ["LambdaAttention"]


@pytest.mark.parametrize("tokens_attend", [True, False])
def test_images_with_channels_first_are_not_taken_for_the_other_kind(tokens_attend):
    """As many tokens as a head has channels: the memory of the input tells which of them attend."""

    class Convolved(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads, self.qkv = 2, nn.Conv2d(32, 96, 1)

        def forward(self, x):
            q, k, v = self.qkv(x).flatten(2).unflatten(1, (3, 2, 16)).unbind(1)  # (batch, heads, channels, tokens)
            if tokens_attend:
                q, k, v = q.mT, k.mT, v.mT
            return hand(q, k, v)

    found = captured(Convolved(), torch.randn(2, 32, 4, 4))["Convolved"]
    assert found.over == ("tokens" if tokens_attend else "channels")


class Sequences(nn.Module):
    """Attention over sequences ``(batch, channels, tokens)``."""

    def __init__(self, heads, project, way):
        super().__init__()
        self.parts, self.way = heads, way
        self.q, self.k, self.v, self.out = (project(16, 16) for _ in range(4))

    def split(self, x):
        """Queries, keys and values, ``(batch, heads, width, tokens)``."""
        linear = isinstance(self.q, nn.Linear)
        parts = (f(x.mT).mT if linear else f(x) for f in (self.q, self.k, self.v))
        return [part.unflatten(1, (self.parts, -1)) for part in parts]

    def forward(self, x):
        q, k, v = self.split(x)
        if self.way == "folded":
            q, k, v = (part.flatten(0, 1) for part in (q, k, v))
        product = hand if self.way == "folded" else PRODUCTS.get(self.way, hand)
        out = product(q, k, v) if self.way == "channels" else product(q.mT, k.mT, v.mT).mT
        out = out.reshape(x.shape)
        return self.out(out.mT).mT if isinstance(self.out, nn.Linear) else self.out(out)


def convolution(*sizes):
    return nn.Conv1d(*sizes, 1)


def normed_convolution(*sizes):
    return nn.Sequential(nn.Conv1d(*sizes, 1), nn.BatchNorm1d(sizes[-1]))


@pytest.mark.parametrize("way", [*PRODUCTS, "folded", "channels"])
@pytest.mark.parametrize("project", [convolution, normed_convolution, nn.Linear])
@pytest.mark.parametrize(("batch", "heads", "tokens"), [(1, 1, 10), (1, 4, 10), (2, 4, 10), (3, 1, 32), (3, 4, 32)])
def test_in_sequences_with_channels_first_tokens_are_tokens(batch, heads, tokens, project, way):
    torch.manual_seed(0)
    layer, x = Sequences(heads, project, way).eval(), torch.randn(batch, 16, tokens)
    found = captured(layer, x)["Sequences"]
    q, k, _ = layer.split(x)
    scores = q @ k.mT * tokens**-0.5 if way == "channels" else q.mT @ k * (16 // heads) ** -0.5
    assert found.over == ("channels" if way == "channels" else "tokens")
    torch.testing.assert_close(found.weights.reshape(scores.shape), scores.softmax(-1))
    unknown = project is normed_convolution and way == "folded" and heads == 4  # nothing says how many heads there are
    assert unknown or (found.axes, found.shape) == ("known", tuple(scores.shape))


class Spread(nn.Module):
    """As in guided diffusion: the convolutions are in the module around the one that attends."""

    class Attention(nn.Module):
        def __init__(self, heads):
            super().__init__()
            self.n_heads = heads

        def forward(self, qkv):
            q, k, v = qkv.reshape(len(qkv) * self.n_heads, -1, qkv.shape[-1]).chunk(3, 1)
            weights = torch.einsum("bct,bcs->bts", q, k).softmax(-1)
            return torch.einsum("bts,bcs->bct", weights, v).reshape(len(qkv), -1, qkv.shape[-1])

    def __init__(self, heads):
        super().__init__()
        self.qkv, self.attention, self.out = nn.Conv1d(16, 48, 1), self.Attention(heads), nn.Conv1d(16, 16, 1)

    def forward(self, x):
        return self.out(self.attention(self.qkv(x.flatten(2)))).reshape(x.shape)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("shape", [(1, 16, 2, 5), (2, 16, 4, 4), (3, 16, 6, 8)])
def test_convolutions_around_the_module_say_that_channels_come_first(shape, heads):
    torch.manual_seed(0)
    layer, x = Spread(heads), torch.randn(shape)
    found = captured(layer, x)["attention"]
    q, k, _ = layer.qkv(x.flatten(2)).unflatten(1, (heads, -1)).chunk(3, 2)
    torch.testing.assert_close(found.weights, (q.mT @ k).softmax(-1))
    assert (found.axes, found.over) == ("known", "tokens")


class Signals(nn.Module):
    """Attention in a network of convolutions along time, ``(batch, channels, tokens)``."""

    def __init__(self, heads, across):
        super().__init__()
        self.num_heads, self.across = heads, across
        self.q, self.k, self.v, self.proj = (nn.Conv1d(24, 24, 1) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(1, (self.num_heads, -1)).mT for layer in (self.q, self.k, self.v))
        if self.across:
            q, k, v = q.mT, k.mT, v.mT
        out = (q @ k.mT / 3).softmax(-1) @ v
        return self.proj((out if self.across else out.mT).flatten(1, 2))


@torch.no_grad()
@pytest.mark.parametrize("tokens", [5, 6, 8, 24, 31])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("across", [False, True], ids=["over tokens", "over channels"])
def test_signals_with_channels_first_are_not_taken_for_the_other_kind(tokens, batch, heads, across):
    """Their last axis is the tokens. Over it, attention was taken for one over channels, and heads for samples."""
    with regard.capture(model := Signals(heads, across)) as maps:
        model(torch.randn(batch, 24, tokens))
    sides = 24 // heads if across else tokens
    assert maps[0].shape == (batch, heads, sides, sides)
    assert maps[0].over == ("channels" if across else "tokens")


def test_heads_mixed_by_a_convolution_are_followed():
    class Talking(Projected):
        def __init__(self):
            super().__init__()
            self.mix = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            q, k, v = self.split(x)
            return self.proj((self.mix((q @ k.mT).softmax(-1)) @ v).transpose(1, 2).flatten(2))

    layer, x = Talking(), torch.randn(2, 5, 16)
    found = captured(layer, x)["Talking"]
    q, k, _ = layer.split(x)
    torch.testing.assert_close(found.weights, layer.mix((q @ k.mT).softmax(-1)))
    assert found.agrees


def test_queries_before_heads_in_an_einsum_are_queries():
    """Multi-query attention: keys and values have no axis of heads."""

    class MultiQuery(nn.Module):
        num_heads = 4

        def forward(self, q, k, v):
            return torch.einsum("bnhm,bmv->bnhv", torch.einsum("bnhk,bmk->bnhm", q, k).softmax(-1), v)

    q, k, v = torch.randn(2, 6, 4, 8), torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    found = captured(MultiQuery(), q, k, v)["MultiQuery"]
    torch.testing.assert_close(found.weights, torch.einsum("bnhk,bmk->bhnm", q, k).softmax(-1))
    assert found.agrees


class _Unstated(nn.Module):
    """Attention that states no number of heads; only its projections tell it."""

    def __init__(self, attend):
        super().__init__()
        self.q, self.k, self.v, self.to_out = (nn.Linear(12, 12) for _ in range(4))
        self.attend = attend

    def forward(self, x):
        return self.to_out(self.attend(self.q(x), self.k(x), self.v(x)))


def _heads_in_the_queries(q, k, v):
    """Multi-query attention: three heads share keys and values, so that one product serves them all."""
    q = q.unflatten(-1, (3, 4)).transpose(1, 2).flatten(1, 2)
    out = (q @ k[..., :4].mT).softmax(-1) @ v[..., :4]
    return out.unflatten(1, (3, -1)).transpose(1, 2).flatten(2)


def _over_channels(q, k, v):
    q, k, v = (x.unflatten(-1, (3, 4)).permute(0, 2, 3, 1) for x in (q, k, v))
    return ((q @ k.mT).softmax(-1) @ v).permute(0, 3, 1, 2).flatten(2)


def _one_head_over_channels(q, k, v):
    return ((q.mT @ k).softmax(-1) @ v.mT).mT


@pytest.mark.parametrize(
    ("attend", "shape", "expected"),
    [
        (_heads_in_the_queries, (3, 8, 12), ((3, 1, 24, 8), "ambiguous", "tokens")),
        (_heads_in_the_queries, (3, 1, 12), ((3, 1, 3, 1), "ambiguous", "tokens")),
        (_over_channels, (2, 12, 12), ((2, 3, 4, 4), "known", "channels")),
        (_one_head_over_channels, (2, 12, 12), ((2, 1, 12, 12), "inferred", "channels")),
    ],
)
def test_sizes_that_agree_by_chance_do_not_mislead(attend, shape, expected):
    """As many samples as heads, or as many tokens as channels."""
    model = _Unstated(attend)
    with regard.capture(model) as maps:
        model(torch.randn(shape))
    found = maps[0]
    assert (found.shape, found.axes, found.over) == expected


# Values that depend on query and key, for the einsum "bhij,…->bhic": relative positions, or features of pairs.
OWN_VALUES = {"positions": ("ijc", (7, 7, 4)), "pairs": ("bijc", (2, 7, 7, 4))}


@pytest.mark.parametrize("result", ["bhic", "bihc"])
@pytest.mark.parametrize("name", list(OWN_VALUES))
def test_heads_do_not_become_queries_where_each_query_has_values_of_its_own(name, result):
    """None of the axes that only the weights have is the queries: the values have these, too."""
    letters, shape = OWN_VALUES[name]

    class Relative(Projected):
        def forward(self, x):
            q, k, _ = self.split(x)
            out = torch.einsum(f"bhij,{letters}->{result}", (q @ k.mT).softmax(-1), torch.randn(shape))
            return self.proj((out if result == "bihc" else out.transpose(1, 2)).flatten(2))

    layer, x = Relative(), torch.randn(2, 7, 16)
    found = captured(layer, x)["Relative"]
    q, k, _ = layer.split(x)
    assert found.agrees
    assert (found.axes, found.over) == ("known", "samples")
    torch.testing.assert_close(found.weights, (q @ k.mT).softmax(-1))


def test_a_model_without_a_batch_has_heads_and_no_samples():
    """A dense graph attention network, whose input is (nodes, features)."""

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.source, self.target = nn.Linear(16, 12), nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x):
            h = self.project(x).unflatten(-1, (3, 4))
            target, source = self.target(h).squeeze(-1), self.source(h).squeeze(-1)  # (nodes, heads)
            weights = F.leaky_relu(target[:, None] + source[None]).softmax(1)
            self.map = weights.detach().permute(2, 0, 1)
            return torch.einsum("ijh,jhf->ihf", weights, h).flatten(1)

    model = Graph()
    maps = captured(model, torch.randn(7, 16))
    torch.testing.assert_close(maps[0].weights, model.map[None])
    assert (maps[0].axes, maps[0].over) == ("known", "tokens")


class Convolved(nn.Module):
    """Attention whose input has its channels first."""

    num_heads = 2

    def __init__(self):
        super().__init__()
        self.qkv = nn.Conv1d(16, 48, 1)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(1, (3, 2, 8)).unbind(1)
        return ((q.mT @ k).softmax(-1) @ v.mT).mT.flatten(1, 2)


def test_the_modules_of_a_model_are_looked_through_once(monkeypatch):
    looked, named_modules = [], _axis_evidence.named_modules
    monkeypatch.setattr(_axis_evidence, "named_modules", lambda module: looked.append(module) or named_modules(module))
    model = nn.Sequential(Convolved())
    with regard.capture(model) as maps:
        for _ in range(4):
            model(torch.randn(3, 16, 5))
    assert [call.axes.certainty for call in maps[0].calls] == ["known"] * 4
    assert maps[0].calls[0].weights.shape == (3, 2, 5, 5)
    assert len(looked) <= 3
