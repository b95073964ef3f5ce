"""The learning rate over the steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.training import ScheduleSettings

DECAYS = ("cosine", "linear", "constant")
shares = st.floats(0, 1)


@given(shares, st.sampled_from(DECAYS), shares, st.integers(1, 300))
def test_it_rises_to_the_peak_and_never_rises_again(warm_up, decay, final, total):
    schedule = ScheduleSettings(warm_up, decay, final)
    factors = [schedule.factor(step, total) for step in range(total)]
    warm = round(warm_up * total)
    assert all(0 < factor <= 1 for factor in factors[:warm])
    assert all(final - 1e-12 <= factor <= 1 for factor in factors[warm:])
    assert factors[:warm] == sorted(factors[:warm])
    assert factors[warm:] == sorted(factors[warm:], reverse=True)
    if warm > 0:
        assert factors[warm - 1] == 1
    if warm < total:
        assert factors[warm] == pytest.approx(1)


@given(st.sampled_from(("cosine", "linear")), shares)
def test_half_way_down_it_is_half_way_between_peak_and_end(decay, final):
    assert ScheduleSettings(0.0, decay, final).factor(500, 1000) == pytest.approx((1 + final) / 2)


def test_it_changes_with_every_step_not_with_every_epoch():
    factors = [ScheduleSettings(0.1, "cosine").factor(step, 100) for step in range(100)]
    assert len(set(factors[10:])) == 90


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"decay": "step"}, "decay must be one of 'cosine', 'linear', 'constant', got 'step'"),
        ({"warm_up": 5}, r"warm_up must be a share in \[0, 1\], got 5"),
        ({"final": -0.1}, "final must be a share"),
        ({"warm_up": True}, "warm_up must be a share"),
    ],
)
def test_what_does_not_fit_is_refused(user_errors, settings, words):
    with pytest.raises(ValueError, match=words):
        ScheduleSettings(**settings)
