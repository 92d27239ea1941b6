"""S0's 92 % to 68 %: the total comes out, and accumulation, not autocast, gets the credit."""

import pytest

from dtlab.cost.memory_claim import amp_and_accumulation
from dtlab.errors import UserError

CARD = 16 * 2**30


def test_the_total_is_the_authors() -> None:
    credit = amp_and_accumulation()
    assert credit.before == pytest.approx(0.92, abs=0.01)
    assert credit.both == pytest.approx(0.68, abs=0.01)


def test_the_credit_adds_up_and_goes_to_accumulation() -> None:
    credit = amp_and_accumulation()
    assert credit.amp + credit.accumulation == pytest.approx(credit.before - credit.both)
    assert credit.accumulation > 4 * credit.amp > 0


def test_alone_each_saves_what_was_measured_on_a_v100() -> None:
    credit = amp_and_accumulation(micro_batch=4, accumulate=4, seq_len=512, ddp=False)
    measured = {"before": 14949, "amp_alone": 13939, "accumulation_alone": 8681}
    for name, mib in measured.items():
        assert getattr(credit, name) * CARD == pytest.approx(mib * 2**20, rel=0.02), name
    assert credit.both > credit.accumulation_alone, "with one sample left, the weights' copies cost more"


def test_accumulation_without_a_smaller_micro_batch_saves_nothing() -> None:
    credit = amp_and_accumulation(accumulate=1)
    assert credit.accumulation == 0
    with pytest.raises(UserError, match="accumulate = 3 does not divide micro_batch = 22"):
        amp_and_accumulation(accumulate=3)
