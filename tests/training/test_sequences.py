"""The tasks on sequences: what counts as right, and what a model that can and one that cannot look back shows."""

import pytest
import torch
from torch import nn

import regard
from regard.data import CaseTask
from regard.training import CaseConversion, EncoderDecoder, MaskedLanguage, Recurrent, Text, alignment_of, said_right
from regard.training._sequences import answers, length_sweep


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
    assert said_right(Parrot(), CaseTask((3, 9), size=20)) == (1.0, 1.0)


def test_characters_are_counted_one_by_one_with_the_end():
    # Sentences of 9 characters and their end; characters 0, 3 and 6 are wrong.
    assert said_right(Parrot(every=3), CaseTask(9, size=8)) == (pytest.approx(7 / 10), 0.0)


def test_what_is_not_said_is_wrong():
    assert said_right(Parrot(stop_at=4), CaseTask(9, size=8)) == (pytest.approx(5 / 10), 0.0)  # and its end


def test_a_sweep_has_an_entry_for_each_length():
    assert length_sweep(Parrot(), [4, 7], samples=5) == [(1.0, 1.0)] * 2
    with pytest.raises(ValueError, match="lengths must be 1 or more"):
        length_sweep(Parrot(), [0])


@pytest.mark.parametrize("network", [Recurrent(dim=4, hidden=6), EncoderDecoder(dim=8, heads=2)])
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
    model = Text(dim=8, depth=1, heads=2).build(task).eval()
    batch = task.examples("train", torch.device("cpu")).batch(torch.arange(4), seed=0, epoch=0)
    chances = model(batch.tokens).log_softmax(-1)
    asked = batch.targets != -100
    expected = -chances[asked].gather(1, batch.targets[asked][:, None]).sum()
    torch.testing.assert_close(task.outcome(model, batch).loss, expected)
    assert task.targets(batch) == asked.sum()


@pytest.mark.parametrize(
    "network", [Recurrent(dim=4, hidden=6), Recurrent(dim=4, hidden=6, attention="dot"), EncoderDecoder(dim=8, heads=2)]
)
def test_an_alignment_says_for_each_character_where_it_was_read(network):
    task = CaseConversion(3, 8)
    batch = task.examples("validation", torch.device("cpu")).batch(torch.arange(3), seed=0, epoch=0)
    model = network.build(task)
    said, weights = alignment_of(model, batch)
    assert weights.shape == (said.shape[1], batch.source.shape[1])
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))
    assert torch.equal(said[0], answers(model.eval(), batch)[0, : said.shape[1]])
    assert list(task.pictures(model, task.examples("validation", torch.device("cpu")))) == ["alignment"]


def test_a_model_that_cannot_look_back_has_no_alignment():
    task = CaseConversion(3, 8)
    model = Recurrent(dim=4, hidden=6, attention="none").build(task)
    assert task.pictures(model, task.examples("validation", torch.device("cpu"))) == {}


def test_the_splits_do_not_overlap():
    task = CaseConversion(8, 24, size=200)
    sentences = {}
    for split in ("train", "validation", "test"):
        examples = task.examples(split, torch.device("cpu"))
        sentences[split] = {tuple(row.tolist()) for row in examples.batch(torch.arange(100), seed=0, epoch=0).source}
    assert not sentences["train"] & sentences["test"]
    assert not sentences["validation"] & sentences["test"]
    assert regard.training.ImageTask("fashion-mini", validation=0).examples("validation", torch.device("cpu")) is None
