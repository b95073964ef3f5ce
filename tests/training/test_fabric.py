"""What is asked of this machine, and what it has."""

import pytest

from regard.training import start_fabric


class TestWhatTheMachineHas:
    @pytest.fixture
    def cards(self, monkeypatch):
        def have(count):
            monkeypatch.setattr("torch.cuda.device_count", lambda: count)
            monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)

        return have

    @pytest.mark.parametrize("accelerator", ["cuda", "gpu", "mps"])
    def test_an_accelerator_that_is_not_there_is_named_with_what_is(self, cards, user_errors, accelerator):
        cards(0)
        with pytest.raises(ValueError, match=f"accelerator is '{accelerator}', but this machine has only cpu"):
            start_fabric(accelerator=accelerator)

    @pytest.mark.parametrize("accelerator", ["auto", "cuda"])
    def test_more_devices_than_there_are(self, cards, user_errors, accelerator):
        cards(2)
        with pytest.raises(ValueError, match="devices is 3, but this machine has 2 cuda"):
            start_fabric(accelerator=accelerator, devices=3)

    def test_a_name_that_is_none(self, user_errors):
        with pytest.raises(ValueError, match=r"accelerator must be one of 'auto', .*, got 'abacus'"):
            start_fabric(accelerator="abacus")
