"""Recipes on sequences: case conversion, which shows the bottleneck of a recurrent encoder, masked words, and repetition."""

from regard.recipes._names import recipe
from regard.training import (
    AdamWSettings,
    CaseConversion,
    MaskedLanguage,
    NetworkSettings,
    Recipe,
    Repetition,
    ScheduleSettings,
    Seq2SeqRNNSettings,
    TextEncoderSettings,
    TransformerSettings,
)


def _case(name: str, network: NetworkSettings) -> Recipe:
    return Recipe(
        name,
        CaseConversion(shortest=8, longest=24, size=8_000),
        network,
        AdamWSettings(3e-3),
        ScheduleSettings(warm_up=0.05, decay="linear"),
        epochs=20,
        batch_size=64,
        clip=1.0,
        evaluate_every=2,
    )


@recipe
def case_rnn() -> Recipe:
    """A recurrent encoder–decoder that keeps a sentence in one hidden state. Sentences of 8 to 24 characters.

    Expected: test accuracy of characters 76.3 % with teacher forcing, 46.7 % in free running (75 % in sentences of 8,
    34 % in sentences of 24); 86 s of processor time, on one thread of an AMD EPYC, one seed
    (benchmarks/results/case-rnn-cpu-2026-11-15.json, case-lengths-cpu-2026-11-15.json).
    Command: ``regard train case-rnn``
    """
    return _case("case-rnn", Seq2SeqRNNSettings(attention="none"))


@recipe
def case_rnn_attention() -> Recipe:
    """The same recurrent network with attention to every state of the encoder.

    Expected: test accuracy of characters 100 %, also in free running; 94 % in sentences of 32 and 35 % in sentences of
    72, three times as long as any in training; 242 s of processor time, on one thread of an AMD EPYC, one seed
    (benchmarks/results/case-rnn-attention-cpu-2026-11-15.json, case-lengths-cpu-2026-11-15.json).
    Command: ``regard train case-rnn-attention``
    """
    return _case("case-rnn-attention", Seq2SeqRNNSettings(attention="additive"))


@recipe
def case_transformer() -> Recipe:
    """The transformer on the same task.

    Expected: test accuracy of characters 99.99 %, also in free running; 77 % in sentences of 32 and 34 % in sentences of
    72, three times as long as any in training; 147 s of processor time, on one thread of an AMD EPYC, one seed
    (benchmarks/results/case-transformer-cpu-2026-11-15.json, case-lengths-cpu-2026-11-15.json).
    Command: ``regard train case-transformer``
    """
    return _case("case-transformer", TransformerSettings())


@recipe
def text_mlm() -> Recipe:
    """The text encoder predicts masked words of the included text.

    Expected: test accuracy 76.9 % (234 masked words; 12.4 % of them are the most frequent word); 72 s of processor
    time, on one thread of an AMD EPYC, one seed (benchmarks/results/text-mlm-cpu-2026-11-15.json).
    Command: ``regard train text-mlm``
    """
    return Recipe(
        "text-mlm",
        MaskedLanguage("word", length=32),
        TextEncoderSettings(dim=64, depth=2, heads=4),
        AdamWSettings(3e-3, weight_decay=0.05),
        ScheduleSettings(warm_up=0.1, decay="linear"),
        epochs=150,
        batch_size=16,
        clip=1.0,
        evaluate_every=15,
    )


@recipe
def induction() -> Recipe:
    """A language model of two layers that learns induction heads, on random letters in which pieces are repeated.

    The next letter can only be looked up: a head of the first layer reads the previous letter; a head of the second layer
    finds where that pair occurred before, and reads what followed (an induction head). 18,241 parameters.

    Expected: test accuracy 99.3 % of the letters that can be looked up; 69 s of processor time, on one thread of an AMD
    EPYC, one seed (benchmarks/results/induction-cpu-2026-11-16.json).
    Command: ``regard train induction``
    """
    return Recipe(
        "induction",
        Repetition(length=64, size=8_000),
        TransformerSettings(dim=32, heads=2, hidden=64, encoder_depth=0, decoder_depth=2),
        AdamWSettings(3e-3),
        ScheduleSettings(warm_up=0.05, decay="linear"),
        epochs=20,
        batch_size=64,
        clip=1.0,
        evaluate_every=2,
    )
