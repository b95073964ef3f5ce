"""Recipes on sequences: the case task, where a bottleneck shows, and masked words."""

from regard.recipes._names import recipe
from regard.training import (
    AdamW,
    CaseConversion,
    EncoderDecoder,
    MaskedLanguage,
    Network,
    Recipe,
    Recurrent,
    Schedule,
    Text,
)


def _case(name: str, network: Network) -> Recipe:
    return Recipe(
        name,
        CaseConversion(shortest=8, longest=24, size=8_000),
        network,
        AdamW(3e-3),
        Schedule(warm_up=0.05, decay="linear"),
        epochs=20,
        batch_size=64,
        clip=1.0,
        evaluate_every=2,
    )


@recipe
def case_rnn() -> Recipe:
    """A recurrent encoder–decoder: all it knows of a sentence is one state. Sentences of 8 to 24 characters.

    Expected: 76.3 % of characters where it is told the right ones so far, 46.7 % where it writes by itself (75 % in
    sentences of 8, 34 % in sentences of 24); 86 s of processor time, on one thread of an AMD EPYC
    (benchmarks/results/case-rnn-cpu-2026-11-15.json, case-lengths-cpu-2026-11-15.json).
    Command: ``regard train case-rnn``
    """
    return _case("case-rnn", Recurrent(attention="none"))


@recipe
def case_rnn_attention() -> Recipe:
    """The same recurrent network, with attention: it may look back at every state of the encoder.

    Expected: 100 % of characters, told the right ones or not; 94 % in sentences of 32 and 35 % in sentences of 72, three
    times as long as any in training; 242 s of processor time, on one thread of an AMD EPYC
    (benchmarks/results/case-rnn-attention-cpu-2026-11-15.json, case-lengths-cpu-2026-11-15.json).
    Command: ``regard train case-rnn-attention``
    """
    return _case("case-rnn-attention", Recurrent(attention="additive"))


@recipe
def case_transformer() -> Recipe:
    """The transformer on the same task.

    Expected: 99.99 % of characters, told the right ones or not; 77 % in sentences of 32 and 34 % in sentences of 72, three
    times as long as any in training; 147 s of processor time, on one thread of an AMD EPYC
    (benchmarks/results/case-transformer-cpu-2026-11-15.json, case-lengths-cpu-2026-11-15.json).
    Command: ``regard train case-transformer``
    """
    return _case("case-transformer", EncoderDecoder())


@recipe
def text_mlm() -> Recipe:
    """The text encoder guesses masked words of the embedded text.

    Expected: 76.9 % of 234 masked words of the test text, of which 12.4 % are its most frequent word; 72 s of processor
    time, on one thread of an AMD EPYC (benchmarks/results/text-mlm-cpu-2026-11-15.json).
    Command: ``regard train text-mlm``
    """
    return Recipe(
        "text-mlm",
        MaskedLanguage("word", length=32),
        Text(dim=64, depth=2, heads=4),
        AdamW(3e-3, weight_decay=0.05),
        Schedule(warm_up=0.1, decay="linear"),
        epochs=150,
        batch_size=16,
        clip=1.0,
        evaluate_every=15,
    )
