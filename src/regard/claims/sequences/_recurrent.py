"""Recurrent encoders and decoders."""

from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import functional, models, reference
from regard.claims._claim import Evidence, holds
from regard.claims._pictures import matrices
from regard.claims._trials import Comparison, Trial, trials


def _model(attention: str) -> models.Seq2SeqRNN:
    return models.Seq2SeqRNN(6, dim=5, hidden=7, cell="rnn", attention=attention).double()


def _tokens(trial: Trial, length: int) -> Tensor:
    return torch.randint(6, (2, length), generator=trial.random)


@holds(
    "e182-inference-fixed",
    "question 1 (a), i",
    says={"input", "states", "output"},
    mutant=("the encoder's weights change, too", {"input", "states", "output", "encoder weights"}),
)
def inference_fixed(changing: set[str]) -> Evidence:
    r"""During inference the weights of encoder and decoder stay as they are; input, states and output change.

    Weights are adjusted in training, by gradients, and then frozen: a model is a function with fixed parameters. The
    states are computed from each input. The check runs a recurrent encoder–decoder on different sentences and
    compares which of its parts differ.
    """
    found = Comparison()
    for trial in trials(8):
        model = _model("none").eval()
        seen: list[dict[str, list[Tensor]]] = []
        for _ in range(2):
            source = _tokens(trial, 5)
            states, _ = model.encode(source)
            parts = {"input": [source], "states": [states], "output": [model(source, torch.zeros(2, 4).long())]}
            parts["encoder weights"] = [p.detach().clone() for p in model.encoder.parameters()]
            parts["decoder weights"] = [
                p.detach().clone() for p in (*model.decoder.parameters(), *model.output.parameters())
            ]
            seen.append(parts)
        first, second = seen
        differs = {
            name for name in first if not all(torch.equal(a, b) for a, b in zip(first[name], second[name], strict=True))
        }
        found.true(differs == changing, f"two sentences: {', '.join(sorted(differs))} differ")
    return found.evidence("pairs of sentences")


@holds("e182-gradient-path", "question 1 (a), ii", says="none", mutant=("the same for a model with attention", "dot"))
def gradient_path(attention: str) -> Evidence:
    r"""The loss on the output trains the decoder directly, and reaches the encoder only through the state that is
    passed on.

    Without attention the decoder's scores depend on the source through the last state $h_T$ alone, so by the chain
    rule the encoder's gradient is $\frac{\partial L}{\partial h_T} \frac{\partial h_T}{\partial W_{enc}}$. The check
    cuts that path (`detach`): the decoder's gradient stays the same and the encoder's vanishes; and it sends
    $\partial L / \partial h_T$ back by hand. With attention all states are paths, and cutting one leaves the others.
    """
    found = Comparison()
    for trial in trials(8):
        model = _model(attention)
        source, target, goal = _tokens(trial, 4), _tokens(trial, 3), _tokens(trial, 3)
        encoder = list(model.encoder.parameters())

        states, state = model.encode(source)
        if not isinstance(state, Tensor):
            raise TypeError("a plain recurrent network has one state")
        decoder = [*model.decoder.parameters(), *model.output.parameters()]
        whole = torch.autograd.grad(_loss(model, target, goal, states, state), [*encoder, *decoder], retain_graph=True)
        cut = torch.autograd.grad(
            _loss(model, target, goal, states, state.detach()),
            [*encoder, *decoder],
            retain_graph=True,
            allow_unused=True,
        )
        reached = sum(float(g.abs().sum()) for g in cut[: len(encoder)] if g is not None)
        found.same(reached, 0.0, f"the state cut off: a gradient of {reached:.2g} still reaches the encoder")
        for before, after in zip(whole[len(encoder) :], cut[len(encoder) :], strict=True):
            found.true(after is not None and torch.allclose(before, after), "the decoder's gradient changes")
        passed = state.detach().requires_grad_()
        (arriving,) = torch.autograd.grad(_loss(model, target, goal, states.detach(), passed), passed)
        by_hand = torch.autograd.grad(state, encoder, arriving)
        for expected, got in zip(whole, by_hand, strict=False):
            found.same(got, expected, "the chain rule through the state gives another gradient")
    return found.evidence("comparisons")


def _loss(model: models.Seq2SeqRNN, target: Tensor, goal: Tensor, states: Tensor, state: Tensor) -> Tensor:
    scores, _, _ = model.decode(target, states, state)
    return F.cross_entropy(scores.flatten(0, 1), goal.flatten())


@holds(
    "e182-position-and-counter",
    "question 1 (d), i and iv",
    says={"position", "counter"},
    mutant=("a position in the encoder's states is enough", {"position"}),
)
def position_and_counter(needed: set[str]) -> Evidence:
    r"""To copy a sequence by attention, the encoder's states must carry their position, and the decoder must count
    what it has said.

    Take the words $a^i b \, a^{n - 1 - i}$, which are $n - 1$ letters a and one b. At step $t$ the answer is b
    exactly if $t = i$. A decoder that does not count has written only a's before the b, so its state is the same at
    every such step. Keys that carry letters but no position form the same set for every $i$, so attention returns the
    same output. With both, the query "place $t$" finds the key "place $t$" and the value is the letter. The check
    runs hard attention on all those words, for each selection of the two, and asks whether equal observations ever
    need different answers.
    """
    found = Comparison()
    shown: dict[str, Tensor] = {}
    for n in range(2, 8):
        for size in range(3):
            for given in map(set, combinations(("counter", "position"), size)):
                solvable, weights = _solves(n, given)
                if n == 7:
                    shown[" and ".join(sorted(given)) or "neither"] = weights
                what = f"with {' and '.join(sorted(given)) or 'neither'}"
                found.true(
                    solvable == (needed <= given),
                    f"words of {n} letters, {what}: {'can' if solvable else 'cannot'} be copied",
                )
    return found.evidence("selections", draw=matrices("Where each step looks, word aaabaaa", shown))


def _solves(n: int, given: set[str]) -> tuple[bool, Tensor]:
    """Whether the decoder can tell what to say from its own state and what attention brings it, on all words
    aᶦbaⁿ⁻¹⁻ᶦ.
    """
    answers: dict[tuple[int, ...], int] = {}
    solvable, picture = True, torch.zeros(n, n)
    places = reference.one_hot_positions(n, dtype=torch.float64)
    for at in range(n):
        letters = torch.zeros(n, 2).double()
        letters[:, 0], letters[at] = 1, torch.tensor([0.0, 1.0]).double()
        keys = places if "position" in given else letters
        for step in range(at + 1):  # up to the b: what was said so far is all a's
            state = step if "counter" in given else 0
            query = places[state] if "position" in given else Trial(state, 0).normal(2)
            out, weights = functional.attention(query[None], keys, letters, beta=float("inf"), return_weights=True)
            seen = (state, *(out[0] * 1000).round().int().tolist())
            said = int(letters[step, 1])
            solvable = solvable and answers.setdefault(seen, said) == said
            if at == n // 2:
                picture[step] = weights[0]
    return solvable, picture
