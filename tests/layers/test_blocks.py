"""Encoder and decoder blocks equal torch's layers on the same weights, and take other attentions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard import MultiHeadAttention
from regard.layers import DecoderBlock, DecoderCache, EncoderBlock, GaussianAttention


def copied(block: EncoderBlock | DecoderBlock, theirs: nn.Module) -> None:
    """Random weights into torch's layer, the same into ours."""
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    norms = ["attention_norm", "feed_forward_norm"]
    block.attention = MultiHeadAttention.from_torch(theirs.self_attn)
    if isinstance(block, DecoderBlock):
        block.cross_attention = MultiHeadAttention.from_torch(theirs.multihead_attn)
        norms.insert(1, "cross_attention_norm")
    for i, name in enumerate(norms, 1):
        getattr(block, name).load_state_dict(getattr(theirs, f"norm{i}").state_dict())
    block.feed_forward.expand.load_state_dict(theirs.linear1.state_dict())
    block.feed_forward.contract.load_state_dict(theirs.linear2.state_dict())


def options_of(norm: str, activation: str) -> dict:
    return {"norm_first": norm == "pre", "activation": activation, "batch_first": True, "dtype": torch.float64}


@given(
    norm=st.sampled_from(["pre", "post"]),
    activation=st.sampled_from(["relu", "gelu"]),
    causal=st.booleans(),
    training=st.booleans(),
)
def test_encoder_block_equals_torch(norm, activation, causal, training):
    theirs = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, **options_of(norm, activation))
    ours = EncoderBlock(8, 2, 12, norm=norm, activation=activation).double()
    copied(ours, theirs)
    ours.train(training), theirs.train(training)
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64) if causal else None
    expected, out = theirs(x, src_mask=mask), ours(x, causal=causal)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(ours(x, causal=causal, return_weights=True)[0], expected)
    grads = (torch.autograd.grad(y.square().sum(), x)[0] for y in (out, expected))
    torch.testing.assert_close(*grads)


@given(norm=st.sampled_from(["pre", "post"]), activation=st.sampled_from(["relu", "gelu"]), causal=st.booleans())
def test_decoder_block_equals_torch(norm, activation, causal):
    theirs = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, **options_of(norm, activation))
    ours = DecoderBlock(8, 2, 12, norm=norm, activation=activation).double()
    copied(ours, theirs)
    x = torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(2, 6, 8, dtype=torch.float64)
    hidden = torch.rand(2, 6) < 0.4
    hidden[:, 0] = False
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64) if causal else None
    expected = theirs(x, memory, tgt_mask=mask, memory_key_padding_mask=hidden)
    out, weights = ours(x, memory, causal=causal, memory_keep=~hidden[:, None, None], return_weights=True)
    torch.testing.assert_close(out, expected)
    grads = (torch.autograd.grad(y.square().sum(), x)[0] for y in (out, expected))
    torch.testing.assert_close(*grads)
    assert weights.attention.shape == (2, 2, 4, 4)
    assert (weights.attention.triu(1) == 0).all() == causal
    assert (weights.cross_attention[hidden[:, None, None].expand(2, 2, 4, 6)] == 0).all()


@given(norm=st.sampled_from(["pre", "post"]), memory_dim=st.sampled_from([None, 5]), tokens=st.integers(1, 5))
def test_decoding_step_by_step_equals_the_whole_sequence(norm, memory_dim, tokens):
    block = DecoderBlock(8, 2, norm=norm, memory_dim=memory_dim).double().eval()
    x = torch.randn(2, tokens, 8, dtype=torch.float64)
    memory = torch.randn(2, 6, memory_dim or 8, dtype=torch.float64)
    cache = DecoderCache.empty()
    with torch.no_grad():
        steps = [block(x[:, i : i + 1], memory, cache=cache) for i in range(tokens)]
        torch.testing.assert_close(torch.cat(steps, 1), block(x, memory))


class Shift(nn.Module):
    """An attention that takes a grid and nothing else, as a positional one does."""

    def forward(self, x: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        rows = x.unflatten(1, grid)
        return rows.roll(1, 1).flatten(1, 2)


def test_another_attention_can_be_plugged_in_with_its_own_arguments():
    block = EncoderBlock(4, attention=Shift())
    x = torch.randn(1, 6, 4)
    y = x + Shift()(block.attention_norm(x), (2, 3))
    expected = y + block.feed_forward(block.feed_forward_norm(y))
    torch.testing.assert_close(block(x, grid=(2, 3)), expected)
    decoder = DecoderBlock(4, 2, attention=Shift())
    assert decoder(x, torch.randn(1, 2, 4), causal=False, grid=(2, 3)).shape == x.shape


def test_gaussian_attention_fits_in():
    block, x = EncoderBlock(8, attention=GaussianAttention(8, 2)), torch.randn(2, 6, 8)
    out, weights = block(x, grid=(2, 3), return_weights=True)
    torch.testing.assert_close(out, block(x, grid=(2, 3)))
    assert weights.shape[-3:] == (2, 6, 6)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_dropout_acts_in_training_alone(norm):
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    encoder, decoder = (block(8, 2, dropout=0.5, norm=norm) for block in (EncoderBlock, DecoderBlock))
    for block, inputs in ((encoder, (x,)), (decoder, (x, memory))):
        assert torch.equal(block.eval()(*inputs), block(*inputs))
        assert not torch.equal(block.train()(*inputs), block(*inputs))
        assert block.attention.dropout == block.feed_forward.dropout == 0.5
        block.attention.dropout = block.feed_forward.dropout = 0.0
        assert not torch.equal(block(*inputs), block(*inputs))  # what the sub-layers give is dropped as well


def test_bad_input_is_named(user_errors):
    with pytest.raises(ValueError, match="norm must be one of 'pre', 'post', got 'middle'"):
        EncoderBlock(4, 2, norm="middle")
    with pytest.raises(ValueError, match="heads is needed to create attention"):
        EncoderBlock(4)
    with pytest.raises(ValueError, match="heads is needed to create cross_attention"):
        DecoderBlock(4, attention=Shift())
    with pytest.raises(TypeError, match=r"attention must be an nn\.Module"):
        EncoderBlock(4, attention="gaussian")
    with pytest.raises(ValueError, match="activation must be one of"):
        EncoderBlock(4, 2, activation="sine")
    with pytest.raises(ValueError, match=r"x has shape \(2, 3, 5\), but its last axis must be 4 wide"):
        EncoderBlock(4, 2)(torch.zeros(2, 3, 5))
    with pytest.raises(ValueError, match="memory has shape"):
        DecoderBlock(4, 2)(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5))
    with pytest.raises(TypeError, match="kep"):
        EncoderBlock(4, 2)(torch.zeros(2, 3, 4), kep=None)
    assert "norm='post'" in repr(EncoderBlock(4, 2, norm="post"))
