"""Every listed statement is there, and the evidence decides it as recorded; a wrong variant is always rejected."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import regard
from regard import functional, reference
from regard.claims import SOURCES, TOPICS, Evidence, all_claims, examine, select, verify
from regard.claims._shifts import shifts
from regard.claims.convolution import _moving

IDS = """
hw4-matrix-form hw4-beta-spread hw4-softargmax-sign hw4-beta-scale hw4-beta-one hw4-beta-zero hw4-doubly-stochastic
hw4-preserve hw4-uniform-weight hw4-dense-equivalent hw4-four-types hw4-key-noise hw4-key-stretch hw4-multihead
hw4-heads-like-kernels hw4-position hw4-identity hw4-running-linear hw4-conv-from-beta hw4-no-recurrence
hw4-decoder-attention hw4-ffn hw4-postnorm hw4-patch-is-conv hw4-vit-position hw4-class-token c182-matrix-form
c182-variance-order c182-variance-product c182-scale c182-mean-exact c182-variance-exact c182-kernel-regression
c182-split-heads c182-key-query-width c182-cost c182-heads-cost c182-head-pruning c182-pooling c182-cnn-bias
c182-data-scale c182-cross-attention ex05-scale ex05-map ex05-self ex05-graph ex05-residual a6-parameters
a6-query-form a6-permutation a6-absolute a6-relative a6-gaussian-simplify a6-cost a6-sum-of-heads a6-theorem-1
a6-limit a6-constant a6-main-theorem a6-padding a6-dilation a6-stride a6-gelu a6-heads-move e182-inference-fixed
e182-gradient-path e182-bottleneck e182-attention-bypass e182-position-and-counter e182-one-hot e182-sine
e182-scores e182-argmax e182-many-heads regard-separable regard-quadrant regard-placed
""".split()  # noqa: SIM905 (a list would take 77 lines)
SLOW = {"c182-head-pruning", "c182-cnn-bias", "a6-heads-move", "e182-bottleneck", "e182-attention-bypass"}
QUICK = [name for name in IDS if name not in SLOW]


def test_every_listed_statement_is_there_exactly_once() -> None:
    assert len(IDS) == len(set(IDS)) == 77
    assert sorted(claim.id for claim in all_claims()) == sorted(IDS)
    assert {claim.id for claim in all_claims() if claim.slow} == SLOW


def test_claims_are_filed_by_topic_and_source() -> None:
    assert {claim.topic for claim in all_claims()} == set(TOPICS)
    assert {claim.source for claim in all_claims()} == set(SOURCES)
    for claim in all_claims():
        assert claim.id.startswith(claim.source + "-")
        assert claim.place
        assert (claim.condition is not None) == (claim.verdict == "holds under")
        assert (claim.instead is not None) == (claim.verdict == "fails")


@pytest.mark.parametrize("name", QUICK)
def test_the_evidence_decides_as_recorded(examined, name: str) -> None:
    row = examined(name)
    assert row.says is not None
    assert row.computed == row.claim.verdict, row.evidence
    if row.claim.verdict != "holds":
        assert not row.says.accepted
        assert row.says.counterexample, "nothing shows why it was rejected"
        assert row.true is not None
        assert row.true.accepted, row.true.line
    assert row.agrees


@pytest.mark.parametrize("name", QUICK)
def test_the_same_check_rejects_the_mutant(examined, name: str) -> None:
    mutant = examined(name).mutant
    assert mutant is not None
    assert not mutant.broke, f"rejected only because its check broke down: {mutant.line}"
    assert not mutant.accepted


def test_evidence_is_the_same_every_time(examined) -> None:
    torch.manual_seed(12345)
    for name in ("hw4-identity", "c182-variance-exact", "c182-split-heads", "hw4-vit-position"):
        again, before = examine(select(name)[0]), examined(name)
        assert [e and (e.accepted, e.line) for e in (again.says, again.true, again.mutant)] == [
            e and (e.accepted, e.line) for e in (before.says, before.true, before.mutant)
        ]


def test_examining_leaves_the_random_state_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    verify("hw4-postnorm")
    assert torch.equal(torch.get_rng_state(), before)


def _negated(query, key, value, **options):
    return ATTENTION(-query, key, value, **options)


def _transposed_weights(query, key, value, *, return_weights=False, **options):
    out, weights = ATTENTION(query, key, value, return_weights=True, **options)
    mixed = weights.softmax(-2)
    return (out, mixed) if return_weights else out


def _half_sharp(center, sharpness, grid, **options):
    return GAUSSIAN(center, sharpness / 2, grid, **options)


def _mirrored(value, center, sharpness, grid, **options):
    return GAUSSIAN_ATTENTION(value, -center, sharpness, grid, **options)


def _unscaled(query, key, value, *, beta=None, **options):
    return ATTENTION(query, key, value, beta=1.0 if beta is None else beta, **options)


ATTENTION, GAUSSIAN = functional.attention, functional.gaussian_weights
GAUSSIAN_ATTENTION = functional.gaussian_attention
PLANTED = [
    ("regard.functional.attention", _negated, ("hw4-preserve", "c182-matrix-form", "c182-kernel-regression")),
    ("regard.functional.attention", _transposed_weights, ("hw4-beta-zero",)),
    ("regard.functional.attention", _unscaled, ("ex05-graph",)),
    ("regard.layers._multi_head.attention", _unscaled, ("ex05-scale", "ex05-self", "hw4-postnorm")),
    ("regard.functional.softargmax", lambda z, beta=1.0, **o: reference.softargmax(-z, beta, **o), ("hw4-beta-one",)),
    ("regard.functional.gaussian_weights", _half_sharp, ("a6-gaussian-simplify",)),
    ("regard.functional.gaussian_attention", _mirrored, ("a6-padding", "a6-dilation", "a6-stride")),
    ("regard.reference.gelu_tanh", torch.relu, ("a6-gelu",)),
]


@pytest.mark.parametrize(("place", "bug", "names"), PLANTED, ids=lambda x: getattr(x, "__name__", None))
def test_a_bug_in_the_library_shows(monkeypatch, place: str, bug, names: tuple[str, ...]) -> None:
    monkeypatch.setattr(place, bug)
    for name in names:
        row = verify(name)[0]
        assert not row.agrees, name
        assert "DISAGREES" in row.evidence


def test_a_check_that_breaks_down_supports_nothing(monkeypatch) -> None:
    def broken(*args, **options):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("regard.functional.attention", broken)
    for name in ("hw4-beta-zero", "hw4-preserve", "hw4-identity"):  # of each verdict
        row = verify(name)[0]
        assert not row.agrees
        assert "no such kernel" in row.evidence


@pytest.mark.parametrize("name", ["hw4-beta-zero", "hw4-preserve", "hw4-identity"])
def test_a_wrong_record_is_found_out(name: str) -> None:
    claim = select(name)[0]
    for verdict in {"holds", "holds under", "fails"} - {claim.verdict}:
        assert not examine(dataclasses.replace(claim, verdict=verdict)).agrees


@pytest.mark.parametrize("name", ["hw4-beta-zero", "hw4-preserve", "hw4-identity"])
def test_a_mutant_that_passes_is_a_disagreement(name: str) -> None:
    claim = select(name)[0]
    true = claim.says if claim.true is None else claim.true.candidate
    passing = dataclasses.replace(claim, mutant=dataclasses.replace(claim.mutant, candidate=true))
    row = examine(passing)
    assert row.mutant_rejected is False
    assert not row.agrees


def test_a_correction_that_is_not_proved_is_a_disagreement() -> None:
    claim = select("hw4-preserve")[0]
    wrong = dataclasses.replace(claim, instead=dataclasses.replace(claim.instead, candidate=0.5))
    assert not examine(wrong).agrees


def test_the_limit_is_checked_between_pixels_too() -> None:
    """Several nearest pixels share; a weight of one for each of them is wrong."""
    claim = select("a6-limit")[0]
    assert not claim.examine(claim.says._replace(of=lambda distance, nearest: (distance == nearest).double())).accepted


def test_both_ways_to_count_wavelengths_are_checked() -> None:
    claim = select("e182-sine")[0]
    true = claim.instead.candidate
    assert not claim.examine(true._replace(longest=lambda width, first: 10000)).accepted  # so it is from 1 alone
    assert not claim.examine(true._replace(shortest=lambda width, first: true.shortest(width, 1))).accepted


def test_projections_cost_more_below_the_length_that_is_stated() -> None:
    claim = select("c182-cost")[0]
    assert not claim.examine(claim.condition.candidate._replace(larger_from=1.25)).accepted


@pytest.mark.parametrize(
    "told",
    [{"query", "key", "value"}, {"query", "key"}, {"query", "value"}, {"query"}, {"key"}, {"value"}, set()],
    ids=sorted,
)
def test_what_the_encoder_gives_is_checked_for_each_of_the_three(told: set[str]) -> None:
    claim = select("hw4-decoder-attention")[0]
    assert not claim.examine(claim.instead.candidate._replace(from_encoder=frozenset(told))).accepted


def test_select_takes_sources_topics_and_ids() -> None:
    assert {claim.source for claim in select("c182")} == {"c182"}
    assert {claim.topic for claim in select("convolution")} == {"convolution"}
    assert [claim.id for claim in select(["a6-gelu", "e182-sine"])] == ["e182-sine", "a6-gelu"]
    assert len(select()) == 77
    with pytest.raises(ValueError, match=r"no claim is called 'c183'.*source.*hw4"):
        select("c183")


def test_slow_ones_are_listed_but_not_run(examined) -> None:
    for name in SLOW:
        row = examined(name)
        assert not row.ran
        assert row.verdict == row.claim.verdict
        assert row.agrees
        assert "not run" in row.evidence


@pytest.mark.parametrize("name", sorted(SLOW))
def test_the_code_of_slow_ones_runs_and_says_that_it_shows_nothing(name: str) -> None:
    row = verify(name, smoke=True)[0]
    assert not row.ran
    assert row.mutant_rejected is None
    assert "says nothing about the claim" in row.evidence
    for evidence in (row.says, row.true, row.mutant):
        if evidence is not None:
            assert isinstance(evidence, Evidence)
            assert evidence.line
            assert evidence.numbers
    draw = row.says.draw
    assert draw is not None
    assert draw().axes


def test_verify_is_a_name_of_the_package() -> None:
    assert regard.verify is verify


def test_a_recorded_training_counts_as_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = [list(map(float, shift)) for shift in shifts(3)]
    lines = [
        {"version": 1, "grid": [16, 16], "layers": ["arrives", "stays"]},
        {"step": 0, "center": [[[0.1, 0.0]] * 9] * 2, "sharpness": [[0.5] * 9] * 2},
        {"step": 10, "center": [grid, [[0.1, 0.0]] * 9], "sharpness": [[20.0] * 9, [0.5] * 9]},
    ]
    path = tmp_path / "heads.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert [course.on_grid() for course in _moving.recorded(path).values()] == [True, False]
    assert not _moving.recorded(tmp_path / "none.jsonl")

    monkeypatch.setattr(_moving, "CIFAR10", path)
    found = select("a6-heads-move")[0].examine(_moving.Movement("classes", spread=True), "smoke")
    assert not found.accepted
    assert found.numbers["on_cifar10"]["shifts_covered_at_last"] == [9, 1]
    assert "on CIFAR-10, by layer, heads look at 9, 1 different pixels at last, of a kernel's nine shifts" in found.line
    assert found.draw is not None
    assert [panel.get_title() for panel in found.draw().axes][2:] == ["CIFAR-10, layer 1", "CIFAR-10, layer 2"]


def test_the_recorded_training_shows_what_the_text_says_of_it() -> None:
    courses = list(_moving.recorded(_moving.CIFAR10).values())
    assert len(courses) == 6
    assert [course.distinct(-1) for course in courses] == [9] * 6  # nine places for nine heads
    assert min(course.distinct(0) for course in courses) < 9
    for course in courses[:3]:
        assert course.peak(-1) > 1.4 * course.peak(0)  # sharper in the first layers
    for course in courses[3:]:
        assert course.reach(-1) > course.reach(0) + 0.5  # outwards in the deeper ones
        assert course.peak(-1) < 1.1 * course.peak(0)
    assert not any(course.on_grid() for course in courses)
    assert max(course.covered(-1) for course in courses) < 9
