"""The transformer: torch's weights with torch's outputs, a cache that changes nothing, no look into the future."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.models import Seq2SeqRNN, Transformer, character_gpt
from regard.models._transformer import POSITIONS

SMALL = {"dim": 8, "heads": 2, "hidden": 12, "depth": 2}


def randomized(model: nn.Module) -> nn.Module:
    """In double precision, far from zero, so that greedy choices are not ties."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model.double().eval()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@given(
    norm=st.sampled_from(["pre", "post"]),
    activation=st.sampled_from(["relu", "gelu"]),
    bias=st.booleans(),
    padded=st.booleans(),
)
@settings(max_examples=12)
def test_torch_weights_give_torch_outputs(norm, activation, bias, padded):
    theirs = nn.Transformer(
        8, 2, 2, 3, 12, activation=activation, norm_first=norm == "pre", bias=bias, batch_first=True
    )
    theirs = randomized(theirs)
    ours = Transformer.from_torch(theirs, 11)
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True)
    keep = torch.arange(5) < torch.tensor([[5], [3]]) if padded else None
    hidden = None if keep is None else ~keep
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    masks = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
    expected = theirs(x, y, tgt_mask=mask, **masks)
    out = ours.decode(y, ours.encode(x, keep=keep), memory_keep=keep)
    torch.testing.assert_close(out, expected)
    grads = [torch.autograd.grad(result.square().sum(), (x, y)) for result in (out, expected)]
    torch.testing.assert_close(*grads)
    assert ours.config["norm"] == norm
    assert not ours.training


@given(
    norm=st.sampled_from(["pre", "post"]),
    positions=st.sampled_from(POSITIONS),
    decoder_only=st.booleans(),
    prompt=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12)
def test_the_cache_changes_no_token(norm, positions, decoder_only, prompt, seed):
    torch.manual_seed(seed)
    sizes = {**SMALL, "depth": (0, 2)} if decoder_only else SMALL
    model = randomized(Transformer(9, norm=norm, positions=positions, length=12, **sizes))
    source = None if decoder_only else torch.randint(9, (3, 6))
    keep = None if decoder_only else torch.arange(6) < torch.tensor([[6], [4], [1]])
    start = torch.randint(9, (3, prompt))
    options = {"tokens": 8, "end": 4, "source_keep": keep}
    with_cache = model.generate(source, start, **options)
    without = model.generate(source, start, use_cache=False, **options)
    assert torch.equal(with_cache, without)
    # Each of them is what the whole model would say, told the tokens before it.
    told = torch.cat([start, with_cache], 1)
    best = model(source, told, source_keep=keep).argmax(-1)[:, prompt - 1 : -1]
    ended = (with_cache == 4).cumsum(1) > (with_cache == 4).long()
    assert torch.equal(best[~ended], with_cache[~ended])
    assert (with_cache[ended] == 4).all()


def test_a_token_does_not_see_those_after_it():
    model = randomized(Transformer(9, **SMALL))
    source, target = torch.randint(9, (1, 6)), torch.randint(9, (1, 5))
    changed = target.clone()
    changed[0, 3] = (target[0, 3] + 1) % 9
    first, second = model(source, target), model(source, changed)
    torch.testing.assert_close(first[:, :3], second[:, :3])
    assert ((first[:, 3:] - second[:, 3:]).abs().amax(-1) > 1e-5).all()


def test_padding_of_the_source_is_not_seen():
    model = randomized(Transformer(9, **SMALL))
    source, target = torch.randint(9, (2, 6)), torch.randint(9, (2, 5))
    keep = torch.arange(6) < torch.tensor([[6], [4]])
    scores = model(source, target, source_keep=keep)
    torch.testing.assert_close(scores[1:], model(source[1:, :4], target[1:]))


def test_weights_of_every_block():
    model = randomized(Transformer(9, **SMALL))
    source, target = torch.randint(9, (2, 6)), torch.randint(9, (2, 5))
    scores, weights = model(source, target, return_weights=True)
    torch.testing.assert_close(scores, model(source, target))
    assert [tuple(map(len, weights))] == [(2, 2, 2)]
    assert weights.encoder[0].shape == (2, 2, 6, 6)
    assert weights.cross[1].shape == (2, 2, 5, 6)
    assert (weights.decoder[0].triu(1) == 0).all()
    gpt = character_gpt(9, dim=8, depth=3, heads=2).eval()
    assert tuple(map(len, gpt(None, target, return_weights=True)[1])) == (0, 3, 0)


def test_the_embedding_is_also_the_output_layer():
    model, vectors = Transformer(9, **SMALL).double(), torch.randn(2, 3, 8, dtype=torch.float64)
    expected = vectors @ model.embedding.weight.T + model.output_bias
    torch.testing.assert_close(model.scores(vectors), expected)


def test_parameter_count_of_the_original():
    with torch.device("meta"):
        model = Transformer(37_000)
    blocks = 6 * (4 * 512 * 512 + 4 * 512) * 3 + 12 * (2 * 512 * 2048 + 2048 + 512) + 30 * 2 * 512
    assert sum(parameter.numel() for parameter in model.parameters()) == 37_000 * 512 + 37_000 + blocks


def test_generation_stops_when_all_have_ended():
    model = randomized(Transformer(9, **SMALL))
    with torch.no_grad():
        model.output_bias.copy_(nn.functional.one_hot(torch.tensor(4), 9) * 1e3)
    said = model.generate(torch.randint(9, (2, 3)), torch.zeros(2, 1, dtype=torch.int64), tokens=50, end=4)
    assert said.tolist() == [[4], [4]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"positions": "learned"}, "length must be the number of tokens"),
        ({"positions": "rotary"}, "positions must be one of"),
        ({"depth": (-1, 1)}, "depth of the encoder must be 0 or more, and 10000 at most, got -1"),
        ({"depth": (0, 1), "source_vocab_size": 5}, r"source_vocab_size is 5, but depth \(0, 1\) has no encoder"),
        ({"depth": (1, 0)}, "depth of the decoder must be 1 or more"),
        ({"depth": (1, 2, 3)}, "depth must be a number of blocks or a pair"),
        ({"vocab_size": 0}, "vocab_size must be 1 or more"),
    ],
)
def test_says_what_is_wrong_with_an_argument(arguments, message, user_errors):
    with pytest.raises((TypeError, ValueError), match=message):
        Transformer(**{"vocab_size": 9, **SMALL, **arguments})


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_says_what_is_wrong_with_an_input(user_errors):
    model, gpt = Transformer(9, **SMALL), character_gpt(9, dim=8, heads=2, depth=1, length=4)
    source, target = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int64)
    calls = [
        (lambda: model(source + 9, target), "source holds numbers from 9 to 9, but the vocabulary has 0 to 8"),
        (lambda: model(source, target[0]), r"target has shape \(2,\), but must be \(batch, tokens\)"),
        (lambda: model(source, target > 0), "target must be token numbers"),
        (lambda: model(None, target), "memory is needed"),
        (lambda: gpt(source, target), "this model has no encoder: it takes no source"),
        (lambda: gpt.decode(target, torch.ones(2, 3, 8)), "this model has no encoder"),
        (lambda: model(source, target, source_keep=source), "keep must be a boolean tensor"),
        (lambda: model(source, target, source_keep=target > 0), r"keep has shape \(2, 2\), but the tokens are"),
        (lambda: model.encode(torch.ones(2, 3, 7)), "its last axis must be 8 wide"),
        (lambda: gpt.generate(None, target, tokens=9), "go beyond the learned positions"),
        (lambda: model.generate(source, target[:, :0], tokens=1), "with at least one token"),
        (lambda: model.generate(source, target, tokens=0), "tokens must be 1 or more"),
        (lambda: model.generate(source, target, tokens=1, end=9), "end is 9, but the vocabulary has 0 to 8"),
        (lambda: Transformer.from_torch(nn.Linear(2, 2), 5), r"must be a torch\.nn\.Transformer"),
        (
            lambda: Transformer.from_torch(nn.Transformer(8, 2, 1, 1, 12, layer_norm_eps=1e-3), 5),
            "layer norm with eps=0.001",
        ),
        (
            lambda: Transformer.from_torch(nn.Transformer(8, 2, 1, 1, 12, activation=torch.tanh), 5),
            "only torch's relu and gelu are known",
        ),
    ]
    for call, message in calls:
        with pytest.raises((TypeError, ValueError), match=message):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda model, tokens, keep: model(None, tokens, source_keep=keep),
        lambda model, tokens, keep: model.generate(None, tokens, tokens=2, source_keep=keep),
        lambda model, tokens, keep: model.decode(tokens, memory_keep=keep),
    ],
    ids=["forward", "generate", "decode"],
)
def test_a_mask_of_the_source_without_a_source_is_refused(call, user_errors):
    """It was ignored, so that whoever meant a mask of the target got none."""
    model, tokens = character_gpt(11, dim=16, depth=1).eval(), torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(
        ValueError, match=r"_keep masks the source, but this call has no source: .* tensor of shape \(2, 5\)"
    ):
        call(model, tokens, torch.ones(2, 5, dtype=torch.bool))


@pytest.mark.parametrize("make", [lambda: Transformer(11, dim=16, depth=1, heads=2), lambda: Seq2SeqRNN(11)])
def test_source_and_target_that_do_not_fit_are_named(make, user_errors):
    model, tokens = make(), torch.zeros(3, 5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"target has shape \(3, 5\), a batch of 3, but source has a batch of 2"):
        model(tokens[:2], tokens)
    with pytest.raises(ValueError, match=r"prompt has shape \(3, 5\), a batch of 3, but source has a batch of 1"):
        model.generate(tokens[:1], tokens, tokens=2)
    with pytest.raises(ValueError, match=r"source has shape \(3, 0\), .* with at least one token"):
        model(tokens[:, :0], tokens)
    with pytest.raises(ValueError, match=r"target has shape \(3, 0\), .* with at least one token"):
        model(tokens, tokens[:, :0])


def test_a_cache_of_another_depth_is_refused():
    model, tokens = character_gpt(11, dim=16, depth=2).eval(), torch.zeros(1, 5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"cache must be a list with one entry per block of the decoder, 2, .* got"):
        model.decode(tokens, cache=model.empty_cache()[:1])
