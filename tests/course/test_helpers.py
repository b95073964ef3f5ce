"""The helpers of the checks: answers under watch, messages, and where checks are found."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.course import Draw, ReadyMadeError, by_hand, checks, expect, expect_choice

x = torch.linspace(-1, 1, 8).reshape(1, 1, 2, 4)

READY_MADE = {
    "regard.attention": (lambda: regard.attention(x, x, x), ()),
    "another name": (lambda attend=regard.attention: attend(x, x, x), ()),
    "the reference": (lambda: regard.reference.attention(x, x, x), ()),
    "a layer": (lambda: regard.MultiHeadAttention(4, 2)(x[0]), ()),
    "fused": (lambda: F.scaled_dot_product_attention(x, x, x), ()),
    "operator": (lambda: torch.ops.aten.scaled_dot_product_attention(x, x, x), ()),
    "torch's layer": (lambda: torch.nn.MultiheadAttention(4, 2, batch_first=True)(x[0], x[0], x[0]), ()),
    "encoder layer": (lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()(x[0]), ()),
    "NumPy": (lambda: torch.from_numpy(x.numpy()), ()),
    "softmax": (lambda: x.softmax(-1), "softmax"),
    "softmax module": (lambda: torch.nn.Softmax(-1)(x), "softmax"),
    "logsumexp": (lambda: (x - x.logsumexp(-1, keepdim=True)).exp(), "softmax"),
    "layer norm": (lambda: torch.nn.LayerNorm(4)(x), "layer_norm"),
    "gelu": (lambda: torch.nn.GELU()(x), ("layer_norm", "gelu")),
    "convolution": (lambda: torch.nn.Conv2d(1, 1, 1)(x), "convolution"),
    "recurrence": (lambda: torch.nn.RNN(4, 4)(x[0]), "recurrence"),
    "cell": (lambda: torch.nn.GRUCell(4, 4)(x[0, 0]), "recurrence"),
    "kron": (lambda: torch.kron(x[0, 0], x[0, 0]), "kron"),
}


@pytest.mark.parametrize("kind", READY_MADE)
def test_ready_made_functions_are_refused(kind):
    answer, without = READY_MADE[kind]
    answer()  # it works outside
    with pytest.raises(ReadyMadeError, match=r"your answer (calls|leaves)"):
        by_hand(answer, without=without)()


def test_what_is_not_asked_for_may_be_used_and_gradients_flow():
    weight = torch.ones(4, requires_grad=True)
    got = by_hand(lambda: torch.softmax(F.layer_norm(x * weight, (4,)), -1).square().sum())()
    got.backward()
    assert weight.grad is not None


def test_the_watch_ends_with_the_call():
    with pytest.raises(ReadyMadeError):
        by_hand(lambda: regard.attention(x, x, x))()
    assert regard.attention(x, x, x).shape == x.shape


@pytest.mark.parametrize("answer", [None, ..., 3])
def test_a_missing_answer_is_named(answer):
    with pytest.raises(AssertionError, match="run its cell first"):
        by_hand(answer)


def test_an_unknown_kind_is_a_slip_of_the_check():
    with pytest.raises(ValueError, match="softmax"):
        by_hand(len, without="soft max")


right = torch.tensor([[1.0, 2.0], [3.0, 5.0]])


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (None, "nothing there yet"),
        (..., "nothing there yet"),
        ([1.0], "must be a tensor of shape (2, 2), not a list"),
        (torch.ones(3), "shape (3,), but it should be (2, 2)"),
        (right.mT, "rows and columns are swapped"),
        (-right, "the sign is wrong"),
        (3 * right, "3 times what it should be"),
        (right + 2, "off by 2 everywhere"),
        (right / torch.tensor([[1.0, 0.0], [1.0, 1.0]]) * 0, "NaN at 1 of 4 places"),
        (right + torch.tensor([[0.0, 0.0], [0.0, 1.0]]), "wrong at 1 of 4 places, most at (1, 1): 6 instead of 5"),
        (right.square(), "square root forgotten"),
    ],
)
def test_messages_say_what_is_wrong(got, words):
    with pytest.raises(AssertionError) as error:
        expect(got, right, {"square root forgotten": right.square()})
    assert words in str(error.value)


def test_numbers_may_come_as_numbers_or_tensors():
    expect(2, 2.0)
    expect(torch.tensor([2.0]), 2)
    for wrong in (True, "2", torch.ones(2), 3):
        with pytest.raises(AssertionError):
            expect(wrong, 2)


def test_what_is_equal_passes_in_any_dtype():
    expect(right.double(), right)
    expect(right > 2, right > 2)


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (None, "no answer yet"),
        ("a", "give a set"),
        ({"c"}, "not one of the names offered"),
        (set(), "lacks 'a'"),
        ({"a", "b"}, "thought"),
    ],
)
def test_choices(got, words):
    offered = {"a": "first", "b": "thought"}
    with pytest.raises(AssertionError, match=words):
        expect_choice(got, {"a"}, offered)
    expect_choice(["a"], {"a"}, offered)


def test_draws_depend_on_the_seed_alone():
    assert Draw(3)(4).equal(Draw(3)(4))
    assert not Draw(3)(4).equal(Draw(4)(4))
    with pytest.raises(TypeError, match="SEED"):
        Draw(None)


def test_checks_come_from_the_folder_beside_the_notebook_or_from_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside = Path(checks("1-attention-by-hand"))
    assert (inside / "q3_attention.py").is_file()
    (tmp_path / "tests").mkdir()
    assert Path(checks("1-attention-by-hand")) == inside
    (tmp_path / "tests" / "q3_attention.py").touch()
    assert checks("1-attention-by-hand") == "tests"
    (tmp_path / "tests" / "conftest.py").touch()  # somebody's own test suite
    assert Path(checks("1-attention-by-hand")) == inside
    with pytest.raises(ValueError, match="1-attention-by-hand"):
        checks("6-nothing")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_in_colab_has_no_file_and_finds_its_checks(tmp_path, monkeypatch):
    import otter
    from otter.check import utils

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(utils.IPythonInterpreter.COLAB.value, "running", lambda: True)
    grader = otter.Notebook(tests_dir=checks("1-attention-by-hand"))
    assert grader.interpreter is utils.IPythonInterpreter.COLAB
    names = {"scores_of": lambda hidden, w_query, w_key: (hidden @ w_query.T) @ (hidden @ w_key.T).T}
    assert grader.check("q1_scores", global_env=names).passed_all
    assert not grader.check("q2_softargmax", global_env=names).passed_all
