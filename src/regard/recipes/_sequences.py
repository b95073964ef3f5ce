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

    Expected: to be measured.
    Command: ``regard train case-rnn``
    """
    return _case("case-rnn", Recurrent(attention="none"))


@recipe
def case_rnn_attention() -> Recipe:
    """The same recurrent network, with attention: it may look back at every state of the encoder.

    Expected: to be measured.
    Command: ``regard train case-rnn-attention``
    """
    return _case("case-rnn-attention", Recurrent(attention="additive"))


@recipe
def case_transformer() -> Recipe:
    """The transformer on the same task.

    Expected: to be measured.
    Command: ``regard train case-transformer``
    """
    return _case("case-transformer", EncoderDecoder())


@recipe
def text_mlm() -> Recipe:
    """The text encoder guesses masked words of the embedded text.

    Expected: to be measured.
    Command: ``regard train text-mlm``
    """
    return Recipe(
        "text-mlm",
        MaskedLanguage("word", length=32),
        Text(dim=128, depth=4, heads=4),
        AdamW(1e-3, weight_decay=0.05),
        Schedule(warm_up=0.1, decay="linear"),
        epochs=40,
        batch_size=32,
        clip=1.0,
        evaluate_every=4,
    )
