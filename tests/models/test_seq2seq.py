"""The recurrent encoder–decoder: its formula, its alignment, padding that is never read, and greedy decoding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard import reference
from regard.models import Seq2SeqRNN
from regard.models._padded_sequences import run_padded, unrolled
from regard.models._seq2seq import ATTENTIONS, CELLS, POSITIONS

KINDS = {
    "cell": st.sampled_from(sorted(CELLS)),
    "attention": st.sampled_from(ATTENTIONS),
    "positions": st.sampled_from(sorted(POSITIONS)),
    "depth": st.integers(1, 2),
}


def small(cell, attention, positions, depth, **options):
    model = Seq2SeqRNN(
        9, dim=5, hidden=6, cell=cell, attention=attention, positions=positions, depth=depth, length=12, **options
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model.double().eval()


@given(**KINDS, source_tokens=st.integers(1, 6), tokens=st.integers(1, 5))
def test_shapes_and_alignment(cell, attention, positions, depth, source_tokens, tokens):
    model = small(cell, attention, positions, depth, source_vocab_size=7)
    source, target = torch.randint(7, (3, source_tokens)), torch.randint(9, (3, tokens))
    scores = model(source, target)
    assert scores.shape == (3, tokens, 9)
    if attention == "none":
        return
    again, alignment = model(source, target, return_weights=True)
    torch.testing.assert_close(again, scores)
    assert alignment.shape == (3, tokens, source_tokens)
    torch.testing.assert_close(alignment.sum(-1), torch.ones(3, tokens, dtype=torch.float64))


@given(**KINDS)
def test_padding_never_reaches_a_state(cell, attention, positions, depth):
    model = small(cell, attention, positions, depth)
    source, target = torch.randint(9, (3, 6)), torch.randint(9, (3, 4))
    keep = torch.arange(6) < torch.tensor([[6], [4], [1]])
    scores = model(source, target, source_keep=keep)
    for row, length in enumerate((6, 4, 1)):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(scores[row : row + 1], alone)
    if attention != "none":
        alignment = model(source, target, source_keep=keep, return_weights=True)[1]
        assert (alignment.masked_fill(keep[:, None], 0) == 0).all()


@given(cell=KINDS["cell"], depth=KINDS["depth"])
def test_step_by_step_equals_packed(cell, depth):
    network = CELLS[cell](3, 4, depth, batch_first=True).double()
    x, keep = torch.randn(3, 5, 3, dtype=torch.float64), torch.arange(5) < torch.tensor([[5], [2], [0]])
    torch.testing.assert_close(unrolled(network, x, keep), run_padded(network, x, keep))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_one_layer_of_gru_is_the_formula(attention):
    model = small("gru", attention, "none", 1)
    source, target = torch.randint(9, (1, 4)), torch.randint(9, (1, 3))

    def run(network, tokens, state):
        weights = (network.weight_ih_l0, network.weight_hh_l0, network.bias_ih_l0, network.bias_hh_l0)
        states = []
        for x in model.embedding(tokens[0]):
            state = reference.gru_cell(x, state, *weights)
            states.append(state)
        return torch.stack(states)

    encoded = run(model.encoder, source, torch.zeros(6, dtype=torch.float64))
    decoded = run(model.decoder, target, encoded[-1])
    combined = decoded
    if attention == "dot":
        context = (decoded @ encoded.T).softmax(-1) @ encoded
    elif attention == "additive":
        layer = model.attention
        context, _ = reference.additive_attention(
            decoded,
            encoded,
            encoded,
            layer.query.weight,
            layer.key.weight,
            layer.score.weight[0],
            b_hidden=layer.query.bias,
        )
    if attention != "none":
        combined = torch.tanh(model.combine(torch.cat([decoded, context], -1)))
    torch.testing.assert_close(model(source, target)[0], model.output(combined))


@given(**KINDS, prompt=st.integers(1, 2))
def test_generation_says_what_the_whole_model_would(cell, attention, positions, depth, prompt):
    model = small(cell, attention, positions, depth)
    source, start = torch.randint(9, (3, 6)), torch.randint(9, (3, prompt))
    keep = torch.arange(6) < torch.tensor([[6], [4], [1]])
    options = {"tokens": 7, "end": 3, "source_keep": keep}
    said = model.generate(source, start, **options)
    told = torch.cat([start, said], 1)
    best = model(source, told, source_keep=keep).argmax(-1)[:, prompt - 1 : -1]
    ended = (said == 3).cumsum(1) > (said == 3).long()
    assert torch.equal(best[~ended], said[~ended])
    assert (said[ended] == 3).all()
    if attention != "none":
        again, alignment = model.generate(source, start, return_weights=True, **options)
        assert torch.equal(again, said)
        whole = model(source, told, source_keep=keep, return_weights=True)[1][:, prompt - 1 : -1]
        torch.testing.assert_close(alignment[~ended], whole[~ended])


def test_without_attention_the_source_is_one_state():
    model = small("gru", "none", "none", 1)
    source, target = torch.randint(9, (1, 6)), torch.randint(9, (1, 4))
    states, state = model.encode(source)
    scores = model.decode(target, torch.zeros_like(states), state)[0]
    torch.testing.assert_close(scores, model(source, target))
    attentive = small("gru", "dot", "none", 1)
    states, state = attentive.encode(source)
    changed = attentive.decode(target, torch.zeros_like(states), state)[0]
    assert (changed - attentive(source, target)).abs().max() > 1e-3


def test_bad_input(user_errors):
    model = Seq2SeqRNN(9, dim=4, hidden=4, positions="one-hot", length=5)
    source, target = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64)
    holes = torch.tensor([[True, False, True, True, True]]).expand(2, -1)
    calls = [
        (lambda: Seq2SeqRNN(9, cell="transformer"), "cell must be one of 'rnn', 'gru', 'lstm'"),
        (lambda: Seq2SeqRNN(9, attention="soft"), "attention must be one of 'none', 'dot', 'additive'"),
        (lambda: Seq2SeqRNN(9, positions="one-hot"), "length is None, but positions 'one-hot' need"),
        (lambda: Seq2SeqRNN(9, positions="sinusoidal"), "positions must be one of 'none', 'one-hot', 'sine'"),
        (lambda: model(source + 9, target), "source holds numbers from 9 to 9"),
        (lambda: model(source, target, source_keep=holes), "padding must come at the end"),
        (lambda: model(torch.zeros(2, 6, dtype=torch.int64), target), "go beyond the one-hot positions"),
        (
            lambda: Seq2SeqRNN(9, dim=4, hidden=4, attention="none")(source, target, return_weights=True),
            "created with attention='none'",
        ),
    ]
    for call, message in calls:
        with pytest.raises((TypeError, ValueError), match=message):
            call()
