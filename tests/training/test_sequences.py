"""The tasks on sequences: what counts as right, and what a model that can and one that cannot look back shows."""

import pytest
import torch
from torch import nn

import regard
from regard.data import CaseTask
from regard.training import (
    CaseConversion,
    MaskedLanguage,
    Seq2SeqRNNSettings,
    TextEncoderSettings,
    TransformerSettings,
    generation_accuracy,
    sample_figures,
)


class Parrot(nn.Module):
    """Knows the answers, but is wrong at some places: every ``n``-th character of each sentence."""

    def __init__(self, every=None, stop_at=None):
        super().__init__()
        self.every, self.stop_at = every, stop_at

    def generate(self, source, prompt, *, tokens, end, source_keep):
        vocabulary = CaseTask.vocabulary
        said = torch.full((len(source), tokens), end)
        for row, (numbers, keep) in enumerate(zip(source, source_keep, strict=True)):
            text = vocabulary.decode(numbers[keep])
            right = CaseTask().answer(text)
            if self.every:
                wrong = {i for i in range(len(right)) if i % self.every == 0}
                right = "".join(("a" if c != "a" else "b") if i in wrong else c for i, c in enumerate(right))
            right = right[: self.stop_at]
            said[row, : len(right)] = torch.tensor(vocabulary.encode(right), dtype=torch.long)
        return said[:, : self.stop_at + 1] if self.stop_at else said


def test_a_model_that_knows_everything_is_right_everywhere():
    assert generation_accuracy(Parrot(), CaseTask((3, 9), size=20)) == (1.0, 1.0)


def test_characters_are_counted_one_by_one_with_the_end():
    # Sentences of 9 characters and their end; characters 0, 3 and 6 are wrong.
    assert generation_accuracy(Parrot(every=3), CaseTask(9, size=8)) == (pytest.approx(7 / 10), 0.0)


def test_what_is_not_said_is_wrong():
    assert generation_accuracy(Parrot(stop_at=4), CaseTask(9, size=8)) == (pytest.approx(5 / 10), 0.0)  # and its end


def test_a_sweep_has_an_entry_for_each_length():
    right = {"characters": 1.0, "sentences": 1.0}
    assert CaseConversion().by_length(Parrot(), [4, 7], samples=5) == {4: right, 7: right}
    with pytest.raises(ValueError, match="lengths must be 1 or more"):
        CaseConversion().by_length(Parrot(), [0])


@pytest.mark.parametrize("network", [Seq2SeqRNNSettings(dim=4, hidden=6), TransformerSettings(dim=8, heads=2)])
def test_loss_and_accuracy_are_those_of_the_tokens_that_count(network):
    task = CaseConversion(3, 8)
    model = network.build(task).eval()
    batch = task.examples("train", torch.device("cpu")).batch(torch.arange(5), seed=0, epoch=0)
    outcome = task.outcome(model, batch)
    scores = model(batch.source, batch.target_input, source_keep=batch.source_keep)
    loss = right = count = 0
    for row in range(5):
        for at in range(int(batch.target_keep[row].sum())):
            chances = scores[row, at].log_softmax(-1)
            loss -= chances[batch.target[row, at]].item()
            right += int(chances.argmax() == batch.target[row, at])
            count += 1
    assert outcome.loss.item() == pytest.approx(loss, rel=1e-5)
    assert outcome.correct.item() == right
    assert task.targets(batch).item() == count


def test_masked_words_count_where_they_are_asked_for():
    task = MaskedLanguage(length=8, limit=400)
    model = TextEncoderSettings(dim=8, depth=1, heads=2).build(task).eval()
    batch = task.examples("train", torch.device("cpu")).batch(torch.arange(4), seed=0, epoch=0)
    chances = model(batch.tokens).log_softmax(-1)
    asked = batch.targets != -100
    expected = -chances[asked].gather(1, batch.targets[asked][:, None]).sum()
    torch.testing.assert_close(task.outcome(model, batch).loss, expected)
    assert task.targets(batch) == asked.sum()


@pytest.mark.parametrize(
    "network",
    [
        Seq2SeqRNNSettings(dim=4, hidden=6),
        Seq2SeqRNNSettings(dim=4, hidden=6, attention="dot"),
        TransformerSettings(dim=8, heads=2),
    ],
)
def test_an_alignment_says_for_each_character_where_it_was_read(network):
    task = CaseConversion(3, 8)
    model, sample = network.build(task).train(), task.sample("validation", 0)
    seen = task.attend(model, sample)
    read, written = seen.tokens
    assert "".join(read) == task.describe(sample) == task.examples("validation", torch.device("cpu")).example(0)[0]
    assert seen.alignment.shape == (len(written), len(read))
    torch.testing.assert_close(seen.alignment.sum(-1), torch.ones(len(written)))
    # What it writes is what it predicts for what it wrote before.
    assert seen.decoder_input == ["<begin>", *written[:-1]]
    heard = torch.tensor([[task.vocabulary.numbers[token] for token in seen.decoder_input]])
    predicted = model.eval()(sample.batch.source, heard)[0].argmax(-1)
    assert [task.vocabulary.tokens[number] for number in predicted] == written
    assert seen.answer["right"] == (seen.answer["said"] == seen.answer["answer"])
    assert list(sample_figures(task, model)) == ["attention/alignment_0", "attention/alignment_1"]


def test_attending_leaves_the_network_in_its_mode():
    task = CaseConversion(3, 8)
    model = Seq2SeqRNNSettings(dim=4, hidden=6).build(task)
    for mode in (True, False):
        task.attend(model.train(mode), task.sample("train", 1))
        assert model.training is mode


def test_a_model_that_cannot_look_back_has_no_alignment():
    task = CaseConversion(3, 8)
    model = Seq2SeqRNNSettings(dim=4, hidden=6, attention="none").build(task)
    assert task.attend(model, task.sample("validation", 0)).alignment is None
    assert sample_figures(task, model) == {}


def test_the_splits_do_not_overlap():
    task = CaseConversion(8, 24, size=200)
    sentences = {}
    for split in ("train", "validation", "test"):
        examples = task.examples(split, torch.device("cpu"))
        sentences[split] = {tuple(row.tolist()) for row in examples.batch(torch.arange(100), seed=0, epoch=0).source}
    assert not sentences["train"] & sentences["test"]
    assert not sentences["validation"] & sentences["test"]
    assert regard.training.ImageTask("fashion-mini", validation=0).examples("validation", torch.device("cpu")) is None
