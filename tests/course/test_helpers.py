"""The helpers of the checks: answers under watch, messages, and where checks are found."""

from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import regard
from regard.course import (
    Draw,
    Notebook,
    ReadyMadeError,
    by_hand,
    diagram,
    expect,
    expect_choice,
    expect_numbers,
    expect_parts,
    lines_of,
    numbers,
    picture,
    pictures_of,
    public_checks,
)
from regard.course.grading._codec import Unreadable, pack, unpack

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
        (set(), "think again about 'a'"),
        ({"a", "b"}, "thought"),
    ],
)
def test_choices(got, words):
    offered = {"a": "first", "b": "thought"}
    with pytest.raises(AssertionError, match=words):
        expect_choice(got, {"a"}, offered)
    expect_choice(["a"], {"a"}, offered)


def test_no_keys_tie_and_slips_show_in_a_students_worked_example():
    """Where keys tie, the public check of hard attention refuses a right answer, which shares the weight; so did seed
    2025843130. And wrong answers of one student in eight passed: a matrix that is its own transpose hides a slip."""
    for seed in (*range(300), 2025843130):
        example = {name: torch.tensor(value) for name, value in numbers("1-attention-by-hand", seed).items()}
        hidden, *matrices = (example[name] for name in ("hidden", "w_query", "w_key", "w_value"))
        query, key, value = (hidden @ matrix.mT for matrix in matrices)
        by_query, by_key, by_value = (hidden @ matrix for matrix in matrices)
        scores = query @ key.mT
        best = scores.topk(2)
        assert (best.values[:, 0] > best.values[:, 1]).all(), seed
        for slip in (scores[0], scores[:, 1], (by_query @ by_key.mT)[1]):
            assert not slip.equal(scores[1]), seed
        picked = best.indices[1, 0]
        for slip in (hidden[picked], key[picked], value[1], by_value[picked]):
            assert not slip.equal(value[picked]), seed


def test_draws_depend_on_the_seed_alone():
    assert Draw(3)(4).equal(Draw(3)(4))
    assert not Draw(3)(4).equal(Draw(4)(4))
    with pytest.raises(TypeError, match="SEED"):
        Draw(None)


def test_checks_come_from_the_folder_beside_the_notebook_or_from_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "1-attention-by-hand"
    inside = public_checks(name)
    assert "attention" in inside
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "attention.py").write_text("somebody's own")
    assert public_checks(name) == inside
    (tmp_path / "tests" / name).mkdir()
    (tmp_path / "tests" / name / "attention.py").write_text("the teacher's own")
    assert public_checks(name) == {"attention": "the teacher's own"}
    with pytest.raises(ValueError, match="1-attention-by-hand"):
        public_checks("6-nothing")


def right_scores(hidden, w_query, w_key):
    return (hidden @ w_query.T) @ (hidden @ w_key.T).T


def test_a_notebook_says_that_hidden_checks_remain_and_quotes_only_the_students_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grader = Notebook("1-attention-by-hand")
    passed = grader.check("scores", {"scores_of": right_scores})
    assert passed.passed
    assert repr(passed) == "scores: public checks passed; hidden ones remain"
    assert "hidden ones remain" in passed._repr_html_()
    names = {}
    source = "def softargmax(scores, beta=1.0):\n    return scores + torch.ones(99)\n"
    exec(compile(source, "<cell 3>", "exec"), {"torch": torch}, names)
    monkeypatch.setattr("linecache.getline", lambda *_, **__: "return scores + torch.ones(99)")
    failed = repr(grader.check("softargmax", names))
    assert "in your line" in failed
    for secret in ("expect(", "mistakes", "softmax(-1)", "assert"):
        assert secret not in failed
    assert "nothing there yet" in repr(grader.check("pencil", {}))
    with pytest.raises(ValueError, match="scores"):
        grader.check("nothing")


def test_a_notebook_takes_names_from_its_caller():
    names = {"__name__": "__main__", "scores_of": right_scores, "grader": Notebook("1-attention-by-hand")}
    exec('found = grader.check("scores")', names)
    assert names["found"].passed


def test_pictures_keep_their_words_and_the_view():
    from matplotlib.figure import Figure

    class Shown:
        def _repr_mimebundle_(self, **_):
            return {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "a view"}

    figure = Figure()
    figure.add_subplot()
    data, metadata = picture(figure, "What there   is to see.", shown=Shown())._repr_mimebundle_()
    assert data["text/plain"] == metadata["image/png"]["alt"] == "What there is to see."
    assert data["image/png"].startswith(b"\x89PNG")
    assert "application/vnd.jupyter.widget-view+json" in data
    for name in ("attention", "sequences", "transformer", "vision", "convolution"):
        assert len(diagram(name).alt) > 100
    with pytest.raises(ValueError, match="vision"):
        diagram("nothing")


def test_answers_must_leave_their_arguments_alone():
    with pytest.raises(AssertionError, match="argument 1 in place"):
        by_hand(lambda x: x.add_(1))(torch.ones(2))


@pytest.mark.parametrize(
    "value",
    [None, ..., True, 3, -2.5, float("inf"), "text", (1, [2.0, {"a": {3}}]), torch.ones(2, 3), torch.zeros(0, 4),
     torch.arange(3), torch.tensor([True, False]), torch.ones(2).double(), torch.ones(2, dtype=torch.bfloat16)],
)  # fmt: skip
def test_values_survive_the_way_between_processes(value):
    back = unpack(pack(value))
    if isinstance(value, torch.Tensor):
        assert back.shape == value.shape
        assert torch.equal(back.double(), value.double())
    else:
        assert back == value
        assert type(back) is type(value)


def test_objects_arrive_as_their_name_and_rubbish_is_refused():
    class Strange:
        pass

    assert repr(unpack(pack(Strange()))) == "a Strange"
    for rubbish in (b"", b"\0" * 8, pack(1)[:-1], pack(1) + b"x", pack(torch.ones(3))[:-4]):
        with pytest.raises(Unreadable):
            unpack(rubbish)
    with pytest.raises(ValueError, match="larger"):
        pack(torch.zeros(1).expand(2**40))


@pytest.mark.parametrize("sent", [lambda value: value, lambda value: unpack(pack(value))], ids=["notebook", "grader"])
class TestOtherForms:
    """In the notebook and after the way to the grader, the same answers are right."""

    @pytest.mark.parametrize(
        "got",
        [2, 2.0, np.float32(2), np.int64(2), np.array(2.0), np.array([2.0]), Fraction(4, 2), torch.tensor(2)],
        ids=repr,
    )
    def test_a_number_is_right_whatever_its_type(self, sent, got):
        expect(sent(got), 2.0)
        expect(expect_numbers(sent((got, Fraction(1, 2))), 2), torch.tensor([2.0, 0.5]))

    def test_a_sparse_tensor_is_compared(self, sent):
        right = torch.eye(3)
        expect(sent(right.to_sparse()), right)
        with pytest.raises(AssertionError, match="2 times"):
            expect(sent(2 * right.to_sparse()), right)

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
    def test_a_wrong_imaginary_part_is_not_dropped(self, sent, dtype):
        right = torch.tensor([1.5, 2.0])
        got = sent(torch.complex(right, torch.tensor([5.0, 0.0])).to(dtype))
        with pytest.raises(AssertionError, match="must be real"):
            expect(got, right)
        with pytest.raises(AssertionError, match="must be real"):
            expect(got[:1], 1.5)
        with pytest.raises(AssertionError, match="must be real"):
            expect_numbers(got, 2)

    def test_a_picture_is_found_beside_a_colorbar_and_anything_that_is_drawn(self, sent):
        from matplotlib import pyplot

        right = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
        figure, panel = pyplot.subplots()
        figure.colorbar(panel.imshow(right.numpy()))
        panel.quiver([0], [0], [1], [1])
        panel.fill_between([0, 1], [0, 1])
        panel.vlines(0, 0, 1)
        panel.scatter([0], [1])
        (shown,) = pictures_of(sent(figure), 1)
        assert torch.equal(shown.nan_to_num(9), right.nan_to_num(9).double())
        pyplot.close(figure)

    def test_panels_without_data_and_lines_across_a_panel_are_not_counted(self, sent):
        from matplotlib import pyplot

        figure, panels = pyplot.subplots(2, 2)
        for panel in panels.flat[:3]:
            panel.plot([0, 1], [2, 3])
            panel.axhline(0)
            panel.axvline(0)
            panel.axline((0, 0), slope=1)
        assert [len(lines) for lines in lines_of(sent(figure), 3)] == [1, 1, 1]
        for wrong in (panels[0, 0], panels):
            with pytest.raises(AssertionError, match="return the figure, not a"):
                lines_of(sent(wrong), 3)
        pyplot.close(figure)

    def test_two_numbers_may_come_as_one_tensor(self, sent):
        assert expect_parts(sent(torch.tensor([1, 2])), "rows", "columns") == (1, 2)
        with pytest.raises(AssertionError, match="return 2 things: rows, columns"):
            expect_parts(sent(torch.ones(2, 2)), "rows", "columns")

    def test_names_in_a_list_in_a_list_are_no_stack_trace(self, sent):
        with pytest.raises(AssertionError, match="give a set of names"):
            expect_choice(sent([["a"]]), {"a"}, {"a": "", "b": ""})
