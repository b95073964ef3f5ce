# %% [raw]
# # ASSIGNMENT CONFIG
# name: 2-sequences
# init_cell: false
# export_cell: false
# show_question_points: true
# tests:
#   files: true
#   ok_format: false

# %%
# Run this first. It installs what is missing, from the wheel that lies beside this notebook or from an address.
import importlib.util
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("regard") is None:
    RELEASE = ""
    beside = sorted(Path.cwd().glob("regard-*.whl"))
    wheel = f"{beside[-1]}[notebook,train]" if beside else f"regard[notebook,train] @ {RELEASE}" if RELEASE else None
    if wheel is None:
        raise SystemExit(
            "regard is not installed, and there is no regard-….whl beside this notebook. On Colab: click on the folder on "
            "the left, upload the .whl file you were given, and run this cell again (once per session, about a minute)."
        )
    offline = ["--no-index", "--find-links", "wheels"] if Path("wheels").is_dir() else []
    subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", *offline, wheel])

import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

import regard

# %matplotlib inline
grader = regard.course.Notebook("2-sequences")

# %% [markdown]
# # 2 · Sequences: what one state cannot hold
#
# A recurrent network reads a sequence token by token and keeps what it has seen in one vector, its *state*. A second
# one writes the answer, starting from that state. You will build the reader, watch it fail as sentences grow, give it
# attention, and then ask how a model knows *where* a token is.
#
# The task: change the case of a sentence. The first token says which way.

# %%
regard.course.diagram("sequences")

# %% [markdown]
# Three examples of the task:

# %%
task = regard.data.CaseTask(16)
for index in range(3):
    source, answer = task.example(index)
    print(f"{source!r:24} → {answer!r}")

# %% [raw]
# # BEGIN QUESTION
# name: step
# points: 2

# %% [markdown]
# ## 2.1 One step
#
# A plain recurrent cell mixes the new input with the old state:
#
# $$h' = \tanh(W_x x + W_h h + b)$$
#
# The same three arrays serve every step. Inputs come in a batch, as rows.

# %% [raw]
# # BEGIN SOLUTION


# %%
def rnn_step(x, hidden, w_input, w_hidden, bias):
    """x (batch, inputs), hidden (batch, width), w_input (width, inputs), w_hidden (width, width), bias (width,)
    -> the new state (batch, width)."""
    # BEGIN SOLUTION
    return torch.tanh(x @ w_input.T + hidden @ w_hidden.T + bias)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_one_step(rnn_step):
    from regard.course import Draw, by_hand, expect

    draw = Draw(1)
    x, hidden, w_input, w_hidden, bias = draw(2, 3), draw(2, 4), draw(4, 3), draw(4, 4), draw(4)
    inside = x @ w_input.T + hidden @ w_hidden.T + bias
    mistakes = {
        "tanh is missing: without it the state can grow without bound": inside,
        "the bias is missing": (inside - bias).tanh(),
        "the old state is not used: this cell remembers nothing": (x @ w_input.T + bias).tanh(),
        "W_h is not transposed (states are rows)": (x @ w_input.T + hidden @ w_hidden + bias).tanh(),
    }
    got = by_hand(rnn_step, without="recurrence")(x, hidden, w_input, w_hidden, bias)
    expect(got, inside.tanh(), mistakes, of="the new state")


# %%
# HIDDEN
def test_any_size(rnn_step, SEED):
    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    batch, inputs, width = draw.size(1, 4), draw.size(2, 6), draw.size(2, 6)
    x, hidden = draw(batch, inputs), draw(batch, width)
    w_input, w_hidden, bias = draw(width, inputs), draw(width, width), draw(width)
    right = regard.reference.rnn_cell(x, hidden, w_input, w_hidden, bias)
    got = by_hand(rnn_step, without="recurrence")(x, hidden, w_input, w_hidden, bias)
    expect(got, right, of="the new state")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: encode
# points: 3

# %% [markdown]
# ## 2.2 Reading a sequence
#
# Start from a state of zeros, take the tokens in order, and keep **every** state: `states[:, t]` is the state after
# token $t$. The last one is all that a decoder without attention gets to see.

# %% [raw]
# # BEGIN SOLUTION


# %%
def encode(x, w_input, w_hidden, bias):
    """x (batch, tokens, inputs) -> states (batch, tokens, width)."""
    # BEGIN SOLUTION
    hidden = torch.zeros(len(x), len(bias))
    states = []
    for token in range(x.shape[1]):
        hidden = rnn_step(x[:, token], hidden, w_input, w_hidden, bias)
        states.append(hidden)
    return torch.stack(states, dim=1)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_all_states(encode):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(2)
    x, w_input, w_hidden, bias = draw(2, 5, 3), draw(4, 3), 0.5 * draw(4, 4), draw(4)

    def states(tokens, start):
        hidden, kept = start, []
        for token in tokens:
            hidden = (x[:, token] @ w_input.T + hidden @ w_hidden.T + bias).tanh()
            kept.append(hidden)
        return torch.stack(kept, 1)

    right = states(range(5), torch.zeros(2, 4))
    mistakes = {
        "these are the states before each token; states[:, t] is the one after token t": torch.cat(
            [torch.zeros(2, 1, 4), right[:, :-1]], 1
        ),
        "the tokens are read from the last to the first": states(range(4, -1, -1), torch.zeros(2, 4)),
        "start from zeros, not from ones": states(range(5), torch.ones(2, 4)),
        "each token starts again from zeros: hand the new state on to the next step": (x @ w_input.T + bias).tanh(),
    }
    got = by_hand(encode, without="recurrence")(x, w_input, w_hidden, bias)
    if isinstance(got, torch.Tensor) and got.shape == (5, 2, 4):
        raise AssertionError("the shape should be (batch, tokens, width): stack the states along dim=1")
    if isinstance(got, torch.Tensor) and got.shape == (2, 4):
        raise AssertionError("only the last state is there; keep the state after every token")
    expect(got, right, mistakes, of="the states")


# %%
# HIDDEN
def test_as_torch_does(encode, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    network = torch.nn.RNN(3, 5, batch_first=True)
    w_input, w_hidden, bias = draw(5, 3), 0.5 * draw(5, 5), draw(5)
    with torch.no_grad():
        network.weight_ih_l0.copy_(w_input), network.weight_hh_l0.copy_(w_hidden), network.bias_ih_l0.copy_(bias)
        network.bias_hh_l0.zero_()
        x = draw(3, draw.size(3, 8), 3)
        right, _ = network(x)
    expect(by_hand(encode, without="recurrence")(x, w_input, w_hidden, bias), right, of="the states")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: changes
# points: 2

# %% [markdown]
# ## 2.3 What is stored where
#
# A trained encoder–decoder translates sentence after sentence. Which of these differ from one sentence to the next
# (`changes`)? And which are changed by a step of *training*, on top of that (`learned`)? Answer with sets of names out of
# `input`, `encoder weights`, `last state`, `decoder weights`, `output`.

# %% [raw]
# # BEGIN SOLUTION

# %%
changes = {"input", "last state", "output"}  # SOLUTION
learned = {"encoder weights", "decoder weights"}  # SOLUTION

# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_names(changes, learned):
    from regard.course import expect_choice

    offered = dict.fromkeys(("input", "encoder weights", "last state", "decoder weights", "output"), "")
    for got in (changes, learned):
        expect_choice(got, None, offered)
    if set(changes) & set(learned):
        raise AssertionError("a name is in both sets: learned asks for what training changes *on top* of the others")


# %%
# HIDDEN
def test_changes(changes):
    from regard.course import expect_choice

    offered = {
        "input": "is it the same sentence each time?",
        "encoder weights": "when are weights adjusted, and are they afterwards?",
        "last state": "what is it computed from?",
        "decoder weights": "when are weights adjusted, and are they afterwards?",
        "output": "does the model say the same about every sentence?",
    }
    expect_choice(changes, {"input", "last state", "output"}, offered)


# %%
# HIDDEN
def test_learned(learned):
    from regard.course import expect_choice

    offered = {
        "input": "does an optimizer change the data?",
        "encoder weights": "where does the gradient go, once it is through the last state?",
        "last state": "is a state a parameter?",
        "decoder weights": "where does the gradient go first?",
        "output": "is an output a parameter?",
    }
    expect_choice(learned, {"encoder weights", "decoder weights"}, offered)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: roles
# points: 3

# %% [markdown]
# ## 2.4 The two sequences in training
#
# In training both sequences are known. The **source** is what the encoder reads: it is all the model is told. The **target**
# plays two parts: the decoder reads it, *one step late* (it sees what it should have said so far: *teacher forcing*), and the
# loss compares what the decoder says at each step with the target's token of that step. From both, gradients adjust the
# weights of encoder and decoder. In use there is no target: the decoder reads what it has said itself.
#
# Return what the encoder reads, what the decoder reads and what the loss compares with. The decoder's first input is the
# token `start`.

# %% [raw]
# # BEGIN SOLUTION


# %%
def training_example(source, target, start):
    """source (batch, n), target (batch, m), start a number -> encoder's input, decoder's input (batch, m), labels (batch, m)."""
    # BEGIN SOLUTION
    first = torch.full_like(target[:, :1], start)
    return source, torch.cat([first, target[:, :-1]], dim=1), target
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_one_step_late(training_example):
    import torch

    from regard.course import by_hand, expect, expect_parts

    source, target = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[1, 2, 3]])
    answer = by_hand(training_example)(source, target, 9)
    encoder, decoder, labels = expect_parts(answer, "what the encoder reads", "what the decoder reads", "the labels")
    expect(encoder, source, {"the encoder reads the source, not the target": target}, of="what the encoder reads")
    mistakes = {
        "the decoder sees the token it has to say: give it the target one step late": target,
        "start stands in front, but the last token has to go: the decoder has as many inputs as labels": torch.tensor(
            [[9, 1, 2, 3]]
        ),
        "the target goes one step late, not one step early": torch.tensor([[2, 3, 9]]),
        "the decoder reads the target so far; the source reaches it through the encoder": source[:, :3],
    }
    expect(decoder, torch.tensor([[9, 1, 2]]), mistakes, of="what the decoder reads")
    expect(labels, target, {"the loss compares with the target, not with the source": source[:, :3]}, of="the labels")


# %%
# HIDDEN
def test_batches(training_example, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    batch, steps, start = draw.size(2, 4), draw.size(2, 6), draw.size(50, 60)
    source, target = draw(batch, 5).mul(9).long(), draw(batch, steps).mul(9).long()
    encoder, decoder, labels = by_hand(training_example)(source, target, start)
    expect(encoder, source, of="what the encoder reads")
    expect(decoder, torch.cat([torch.full((batch, 1), start), target[:, :-1]], 1), of="what the decoder reads")
    expect(labels, target, of="the labels")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# **The gradient takes the same road.** The loss (cross-entropy of what the decoder says with the labels) trains the
# decoder's weights directly. The decoder starts from the encoder's last state, so the gradient with respect to that state
# goes on into the encoder, and without attention there is no other way: cut that one wire, and the encoder learns nothing.

# %%
torch.manual_seed(0)
encoder, decoder = nn.GRU(8, 16, batch_first=True), nn.GRU(8, 16, batch_first=True)
for cut in (False, True):
    encoder.zero_grad()
    _, last = encoder(torch.randn(4, 6, 8))
    said, _ = decoder(torch.randn(4, 6, 8), last.detach() if cut else last)
    said.square().sum().backward()
    reached = encoder.weight_ih_l0.grad
    print(
        "wire cut: " if cut else "wire whole:", "no gradient" if reached is None else f"gradient {reached.norm():.3f}"
    )

# %% [raw]
# # BEGIN QUESTION
# name: attend
# points: 4

# %% [markdown]
# ## 2.5 Looking back
#
# Attention gives the decoder a second road: at every step it compares its own state (the query) with **all** states
# of the encoder (keys and values at once), and reads a weighted sum of them, the *context*. Scores are plain dot
# products here.
#
# `keep` is True on tokens and False on padding (`None`: all are tokens); padding must get no weight. You may use
# `torch.softmax` from here on.

# %% [raw]
# # BEGIN SOLUTION


# %%
def attend(queries, states, keep=None):
    """queries (batch, steps, width), states (batch, tokens, width), keep (batch, tokens)
    -> context (batch, steps, width), weights (batch, steps, tokens)."""
    scores = queries @ states.mT  # SOLUTION
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None, :], -torch.inf)  # SOLUTION
    weights = torch.softmax(scores, dim=-1)  # SOLUTION
    context = weights @ states  # SOLUTION
    return context, weights


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_context(attend):
    from regard.course import Draw, by_hand, expect, expect_parts

    draw = Draw(3)
    queries, states = draw(2, 3, 4), draw(2, 5, 4)
    context, weights = expect_parts(by_hand(attend)(queries, states), "the context", "the weights")
    scores = queries @ states.mT
    mistakes = {
        "softmax must run over the tokens of the source (dim=-1), not over the decoder's steps": scores.softmax(1),
        "the scores are scaled; plain dot products are asked for here": (scores / 2).softmax(-1),
        "these are the scores; softmax is missing": scores,
    }
    expect(weights, scores.softmax(-1), mistakes, of="the weights")
    mistakes = {"the queries are mixed; the context is a sum of the encoder's states": scores.softmax(-1).mT @ queries}
    expect(context, scores.softmax(-1) @ states, mistakes, of="the context")


# %%
# HIDDEN
def test_padding(attend, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    queries, states = draw(3, 2, 4), draw(3, 6, 4)
    length = torch.tensor([6, draw.size(1, 5), draw.size(1, 5)])
    keep = torch.arange(6) < length[:, None]
    context, weights = by_hand(attend)(queries, states, keep)
    scores = queries @ states.mT
    right = scores.masked_fill(~keep[:, None], -torch.inf).softmax(-1)
    mistakes = {
        "padding gets weight: keep is not used": scores.softmax(-1),
        "keep is True on tokens; you leave those out and attend to padding": (
            scores.masked_fill(keep[:, None], -torch.inf).softmax(-1).nan_to_num(0)
        ),
        "the weights of padding are zero, but the rest no longer sums to one: mask the scores, before softmax": (
            scores.softmax(-1) * keep[:, None]
        ),
    }
    expect(weights, right, mistakes, of="the weights")
    expect(context, right @ states, of="the context")


# %%
def test_padding_gets_nothing(attend):
    import torch

    from regard.course import Draw, by_hand, expect, expect_parts

    draw = Draw(8)
    queries, states = draw(2, 3, 4), draw(2, 5, 4)
    keep = torch.tensor([[True] * 5, [True, True, False, False, False]])
    _, weights = expect_parts(by_hand(attend)(queries, states, keep), "the context", "the weights")
    scores = queries @ states.mT
    mistakes = {
        "padding gets weight: keep is not used": scores.softmax(-1),
        "keep is True on tokens; you leave those out and attend to padding": (
            scores.masked_fill(keep[:, None], -1e9).softmax(-1)
        ),
        "keep is True on tokens; with those left out nothing remains, and 0/0 is NaN": scores.masked_fill(
            keep[:, None], -torch.inf
        ).softmax(-1),
        "the weights of padding are zero, but the rest no longer sums to one: mask the scores, before softmax": (
            scores.softmax(-1) * keep[:, None]
        ),
    }
    expect(weights, scores.masked_fill(~keep[:, None], -torch.inf).softmax(-1), mistakes, of="the weights with padding")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# ## The bottleneck, measured
#
# The same encoder and decoder (GRUs, which learn faster than the plain cell), with and without your `attend`. One
# model per length of sentence, the same budget for each. Then each decodes freely, from its own characters.


# %%
class Translator(nn.Module):
    def __init__(self, vocabulary, width=64, attend=None):
        super().__init__()
        self.attend = attend
        self.embedding = nn.Embedding(vocabulary, 32)
        self.encoder = nn.GRU(32, width, batch_first=True)
        self.decoder = nn.GRU(32, width, batch_first=True)
        self.output = nn.Linear(width if attend is None else 2 * width, vocabulary)

    def decode(self, target, states, last):
        queries, last = self.decoder(self.embedding(target), last)
        weights = None
        if self.attend is not None:
            context, weights = self.attend(queries, states)
            queries = torch.cat([queries, context], dim=-1)
        return self.output(queries), last, weights

    def forward(self, source, target):
        states, last = self.encoder(self.embedding(source))
        return self.decode(target, states, last)[0]

    @torch.no_grad()
    def say(self, source, token, steps):
        """Greedy decoding: the tokens said, and where the model looked for each."""
        states, last = self.encoder(self.embedding(source))
        said, looked = [], []
        for _ in range(steps):
            scores, last, weights = self.decode(token, states, last)
            token = scores.argmax(-1)
            said.append(token)
            looked.append(weights)
        return torch.cat(said, 1), None if weights is None else torch.cat(looked, 1)


def train(length, attend, steps=220):
    torch.manual_seed(0)
    task = regard.data.CaseTask(length)
    model = Translator(len(task.vocabulary), attend=attend)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.015, total_steps=steps, pct_start=0.15)
    for step in range(steps):
        batch = task.batch(torch.arange(32), seed=0, epoch=step)
        loss = F.cross_entropy(model(batch.source, batch.target_input).flatten(0, 1), batch.target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    test = regard.data.CaseTask(length, split="test").batch(torch.arange(100), seed=0, epoch=0)
    said, weights = model.say(test.source, test.target_input[:, :1], length)
    return (said == test.target[:, :length]).float().mean().item(), test, said, weights


lengths = (2, 4, 8, 16)
trained = [train(length, attend) for length in lengths]
without = [train(length, None)[0] for length in lengths]

# %%
figure, panel = plt.subplots(figsize=(5, 3))
panel.plot(lengths, without, "o-", label="one state")
panel.plot(lengths, [run[0] for run in trained], "o-", label="with attention")
panel.set(
    xlabel="characters in a sentence", ylabel="characters right", ylim=(0, 1.05), title="One state for a sentence"
)
panel.legend()
regard.course.picture(
    figure,
    "Characters right against the length of a sentence. Both models start near one; the model with one state falls as "
    "sentences grow, the one with attention stays far above it.",
)

# %% [markdown]
# **Where did it look?** While it says character $t$, most weight should lie on character $t$ of the source, which
# stands at place $t + 2$: the task's token and a space come first.

# %%
accuracy, test, said, weights = trained[-1]
words = task.vocabulary.tokens
right = int((said == test.target[:, :-1]).sum(1).argmax())  # the sentence it gets best
read = [words[number] for number in test.source[right].tolist()]
written = [words[number] for number in said[right].tolist()]
figure, panel = plt.subplots(figsize=(5, 4.2))
panel.imshow(weights[right], cmap="viridis")
panel.set_xticks(range(len(read)), read)
panel.set_yticks(range(len(written)), written)
panel.set(xlabel="read", ylabel="written", title="The alignment nobody told it")
regard.course.picture(
    figure,
    "The attention map of one sentence, written characters in rows, read ones in columns: most weight lies near a diagonal "
    "that begins two places in.",
    shown=regard.show(weights[right : right + 1], tokens=(read, written)),
)

# %% [raw]
# # BEGIN QUESTION
# name: aligned
# points: 2

# %% [markdown]
# ## 2.6 How often does it look at the right place?
#
# Return the share of all steps (over batch and steps) at which the largest weight of step $t$ lies on token $t + $
# `offset`.

# %% [raw]
# # BEGIN SOLUTION


# %%
def aligned(weights, offset):
    """weights (batch, steps, tokens) -> a number between 0 and 1."""
    # BEGIN SOLUTION
    place = torch.arange(weights.shape[1]) + offset
    return (weights.argmax(-1) == place).float().mean()
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_aligned(aligned):
    import torch

    from regard.course import by_hand, expect

    weights = torch.zeros(2, 3, 6)
    for row, places in enumerate(((1, 2, 3), (1, 5, 0))):
        for step, place in enumerate(places):
            weights[row, step, place] = 0.9
    weights += 0.01
    mistakes = {
        "offset is not used": 0.0,
        "count the steps at which it is so and divide by all, batch and steps": 4.0,
        "this is the mean weight on the right place; ask where the largest weight lies": float(
            torch.stack([weights[:, t, t + 1] for t in range(3)]).mean()
        ),
    }
    expect(by_hand(aligned)(weights, 1), 4 / 6, mistakes, of="the share")


# %%
# HIDDEN
def test_random_maps(aligned, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    weights, offset = draw(5, 4, 8).softmax(-1), draw.size(0, 4)
    weights[:3, torch.arange(4), torch.arange(4) + offset] += 1
    right = (weights.argmax(-1) == torch.arange(4) + offset).double().mean()
    expect(by_hand(aligned)(weights, offset), float(right), of="the share")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
for length, (accuracy, _, _, found) in zip(lengths, trained, strict=True):
    print(f"length {length:2}: {accuracy:4.0%} of the characters right, {aligned(found, 2):4.0%} of the steps aligned")

# %% [raw]
# # BEGIN QUESTION
# name: modules
# points: 4
# manual: true

# %% [markdown]
# ## 2.7 What is kept where
#
# For the case-changing task: what must the one state of a model *without* attention hold, and why does that fail? With
# attention, what do these have to provide, so that the task can be done: the encoder's weights, the attention scores, the
# passed-on state, the decoder's weights? Two sentences for each.

# %% [raw]
# # BEGIN SOLUTION

# %% [markdown]
# **Rubric (4 points).** 1: without attention the state must hold the task and all characters in order, in a fixed width, so
# long sentences do not fit and what came first (the task's token) has to survive every step. 1: encoder weights: states that
# tell a character *and its place*. 1: scores: the decoder's query scores best the state at the index it is about to write,
# so they are a look-up; the passed-on state then needs no characters (the task at most). 1: decoder weights: count, so that
# the query says which index comes next, and change the case of what was found.
#
# **Model answer.** One state has to carry the whole sentence and the direction to the decoder; its width is fixed, the
# sentence's length is not, and every step overwrites a part, so accuracy falls with the length. With attention the encoder's
# weights only have to make each state say which character stood where. The score of the decoder's query is largest at the
# state with the same index; softmax turns that into a look-up. The state that is passed on may forget the characters. The
# decoder's weights count the steps, so that the query asks for the next index, and apply the upper or lower case.

# %% [raw]
# # END SOLUTION

# %% [raw]
# # END QUESTION

# %% [markdown]
# For short sentences one state is enough, and nothing makes the model look at the right place. For long ones it has
# to: then the encoder's states must carry *where* a token stood, and the decoder must count. Recurrence does both on
# the side. **Attention alone cannot**: shuffle the keys together with their values and no output changes. So a model
# without recurrence has to be told positions, wherever order matters. Where it does not (a set of measurements, points of a
# cloud), it needs none; a causal mask tells a little about order, too.

# %% [raw]
# # BEGIN QUESTION
# name: one_hot
# points: 2

# %% [markdown]
# ## 2.8 Positions one by one
#
# The simplest position of token $t$ is *one-hot*: $e_t = (0, \dots, 1, \dots, 0)$, put beside the token's features. A
# linear layer $W$ that reads both computes $W\,(x_t, e_t) = W_x x_t + w_t$ with $w_t$ a column of $W$: **a learned vector
# for each position**. Return these vectors. (So one-hot positions *can* be learned; what they cost is their width, which
# grows with the length.)

# %% [raw]
# # BEGIN SOLUTION


# %%
def position_table(weight, features):
    """weight (out, features + length), the features first -> (length, out): row t is what the layer adds at position t."""
    # BEGIN SOLUTION
    return weight[:, features:].T
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_columns(position_table):
    import torch

    from regard.course import by_hand, expect

    weight = torch.arange(10.0).reshape(2, 5)
    right = torch.tensor([[2.0, 7.0], [3.0, 8.0], [4.0, 9.0]])
    mistakes = {
        "these are columns of W; position t is to be row t": right.T,
        "the features come first; their columns are no positions": weight.T,
        "these belong to the features; the positions come after them": weight[:, :2].T,
    }
    expect(by_hand(position_table)(weight, 2), right, mistakes, of="the table of positions")


# %%
# HIDDEN
def test_same_layer(position_table, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    length, features, out = draw.size(3, 7), draw.size(2, 5), draw.size(2, 5)
    weight, x = draw(out, features + length), draw(length, features)
    table = by_hand(position_table)(weight, features)
    right = torch.cat([x, torch.eye(length)], 1) @ weight.T
    expect(x @ weight[:, :features].T + table, right, of="the layer, with the table in place of one-hot positions")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: sine
# points: 3

# %% [markdown]
# ## 2.9 Positions as waves
#
# $$
# P_{t,2k} = \sin(\omega_k t), \qquad P_{t,2k+1} = \cos(\omega_k t), \qquad
# \omega_k = 10000^{-2k/d}, \quad k = 0 \dots d/2 - 1
# $$
#
# A clock with $d/2$ hands: fast ones tell neighbors apart, slow ones tell the beginning from the end. Positions
# count from 0.

# %% [raw]
# # BEGIN SOLUTION


# %%
def sine_positions(length, width):
    """-> (length, width), sine and cosine of a frequency side by side; width is even."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2) / width)  # SOLUTION
    angle = torch.arange(length)[:, None] * frequency  # SOLUTION
    positions = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # SOLUTION
    return positions


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_waves(sine_positions):
    import torch

    import regard
    from regard.course import by_hand, expect

    right = regard.reference.sinusoidal_positions(9, 6)
    angle = torch.arange(9)[:, None] * 10000.0 ** (-torch.arange(3) / 6)
    later = torch.arange(1, 10)[:, None] * 10000.0 ** (-2 * torch.arange(3) / 6)
    mistakes = {
        "all sines come first, then all cosines; they should take turns": torch.cat([right[:, ::2], right[:, 1::2]], 1),
        "sine and cosine are swapped: even columns are sines": right.unflatten(1, (3, 2)).flip(-1).flatten(1),
        "the exponent is −2k/d; yours is −k/d": torch.stack([angle.sin(), angle.cos()], -1).flatten(1),
        "positions count from 0; yours begin at 1": torch.stack([later.sin(), later.cos()], -1).flatten(1),
    }
    expect(by_hand(sine_positions)(9, 6), right, mistakes, of="the positions")


# %%
# HIDDEN
def test_other_widths(sine_positions, SEED):
    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    length, width = draw.size(3, 40), 2 * draw.size(1, 12)
    right = regard.reference.sinusoidal_positions(length, width)
    expect(by_hand(sine_positions)(length, width), right, of=f"{length} positions of width {width}", tolerance=1e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
regard.course.picture(
    regard.figures.absolute_positions(sine_positions(64, 32)),
    "The sine positions as a picture (64 positions, 32 features: fast waves on the left, slow ones on the right) and how "
    "alike two positions are, which depends on their distance and falls with it.",
)

# %% [raw]
# # BEGIN QUESTION
# name: shift
# points: 4

# %% [markdown]
# ## 2.10 A shift is a rotation
#
# Why waves? Because "$s$ places further on" is the **same linear map** at every position: $P_{t+s} = R_s P_t$ for all
# $t$. Every pair (sine, cosine) is a point on a circle, and going on by $s$ turns it by the angle $\omega_k s$. Build
# $R_s$, a matrix with one $2 \times 2$ block per frequency. Use $\sin(a+b) = \sin a\cos b + \cos a\sin b$ and its
# sibling for the cosine.

# %% [raw]
# # BEGIN SOLUTION


# %%
def shift_matrix(shift, width):
    """-> (width, width) R with sine_positions(n, width)[t + shift] = R @ sine_positions(n, width)[t]."""
    # BEGIN SOLUTION
    angle = shift * 10000.0 ** (-torch.arange(0, width, 2) / width)
    blocks = [torch.tensor([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]) for a in angle.tolist()]
    return torch.block_diag(*blocks)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_one_place_on(shift_matrix):
    import torch

    import regard
    from regard.course import by_hand, expect, expect_tensor

    table = regard.reference.sinusoidal_positions(12, 6)
    got = expect_tensor(by_hand(shift_matrix)(1, 6), 6, 6, of="R")
    mistakes = {
        "this turns the other way: R takes P_t to P_{t−1}": torch.cat([table[:1] @ got.T, table[:-2]]),
    }
    expect(table[:-1] @ got.T, table[1:], mistakes, of="R P_t for t = 0, 1, … beside P_{t+1}")


# %%
# HIDDEN
def test_any_shift(shift_matrix, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    shift, width = draw.size(2, 9), 2 * draw.size(2, 8)
    table = regard.reference.sinusoidal_positions(30, width)
    got = by_hand(shift_matrix)(shift, width)
    expect(table[:-shift] @ got.T, table[shift:], of=f"R P_t beside P_(t+{shift})", tolerance=1e-3)
    expect(got @ got.T, torch.eye(width), of="R Rᵀ of a rotation", tolerance=1e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: lookup
# points: 3

# %% [markdown]
# ## 2.11 Find the same index, without training
#
# Now build by hand what the model above had to learn. Queries are positions, keys are positions, values are the
# tokens: at step $t$ read the token at $t + $ `shift`. The query for that place is $R_s P_t$. Return the output of
# attention with inverse temperature `beta` (no further scaling).

# %% [raw]
# # BEGIN SOLUTION


# %%
def read_at(values, positions, shift, beta):
    """values (tokens, dv), positions (tokens, width) -> (tokens, dv): row t reads token t + shift."""
    # BEGIN SOLUTION
    queries = positions @ shift_matrix(shift, positions.shape[1]).T
    weights = torch.softmax(beta * queries @ positions.T, dim=-1)
    return weights @ values
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_reads_the_next_token(read_at):
    import torch

    import regard
    from regard.course import by_hand, expect, expect_tensor

    values, positions = torch.arange(8.0)[:, None], regard.reference.sinusoidal_positions(8, 16)
    got = expect_tensor(by_hand(read_at)(values, positions, 1, 50.0), 8, 1, of="the tokens read")
    mistakes = {
        "every row reads its own token: turn the queries by the shift": values[:-1],
        "row t reads token t − 1: turn the queries, not the keys": torch.cat([values[:1], values[:-2]]),
    }
    expect(got[:-1], values[1:], mistakes, of="the tokens read", tolerance=1e-2)


# %%
# HIDDEN
def test_soft_reading(read_at, SEED):
    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    values, positions = draw(12, 3), regard.reference.sinusoidal_positions(20, 8)
    shift, beta = draw.size(1, 4), 0.5 * draw.size(1, 6)
    right = (beta * positions[shift : shift + 12] @ positions[:12].T).softmax(-1) @ values
    got = by_hand(read_at)(values, positions[:12], shift, beta)
    expect(got, right, of=f"what is read with β = {beta}", tolerance=1e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# One-hot positions would do as well: then $P_s \cdot P_t$ is 1 for the same place and 0 otherwise. But they are as
# wide as the sentence is long, while waves of a fixed width go on for ever. The wavelengths grow geometrically, from
# $2\pi$ at $k = 0$ to $2\pi \cdot 10000^{1-2/d}$ at the last $k$, just short of $10000 \cdot 2\pi$. The width $d$ is free to
# choose: it need not be twice the length.

# %%
sentence = torch.arange(20.0)[:, None]
figure, panel = plt.subplots(figsize=(5, 2.8))
for beta in (0.3, 1.0, 8.0):
    panel.plot(read_at(sentence, sine_positions(20, 32), 3, beta), "o-", ms=3, label=f"β = {beta}")
panel.plot(range(17), range(3, 20), color="gray", lw=0.8, label="token t + 3")
panel.set(xlabel="step t", ylabel="token read", title="Attention by position: three places further on")
panel.legend(fontsize=8)
regard.course.picture(
    figure,
    "The token that is read against the step, for three β. At β = 8 the curve follows the line t + 3 up to the end of the "
    "sentence; at β = 0.3 it rises far more slowly, around the mean.",
)

# %% [markdown]
# At the end of the sentence the place three further on does not exist; the weight goes to the keys most like it. What
# happens at a border is the question of notebook 5. `regard verify sequences` and `regard verify positions` check
# what is said here.
