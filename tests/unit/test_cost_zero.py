"""ZeRO 0 to 3 to the byte: what is cut, what is padded, what is whole for a moment."""

import pytest

from dtlab.cost.memory import state_bytes_per_rank
from dtlab.cost.zero import zero_bytes
from dtlab.errors import UserError


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_states_are_those_of_the_formula_where_everything_divides(zero: int) -> None:
    items = zero_bytes([800, 800, 400], 8, zero).items  # type: ignore[arg-type]
    held = sum(size for item, size in items.items() if item != "in use")
    assert held == state_bytes_per_rank(2000, 8, zero=zero)  # type: ignore[arg-type]


def test_each_unit_is_padded_by_itself() -> None:
    assert zero_bytes([7, 7, 7], 4, 3, precision="fp32").items["parameters"] == 4 * 3 * 2
    assert zero_bytes([21], 4, 3, precision="fp32").items["parameters"] == 4 * 6


def test_what_is_cut_is_whole_for_a_moment_in_the_largest_unit() -> None:
    in_use = [zero_bytes([10, 30, 20], 4, zero, precision="fp32").items.get("in use", 0) for zero in range(4)]  # type: ignore[arg-type]
    assert in_use == [0, 0, 120, 240]


def test_one_rank_has_everything_and_gathers_nothing() -> None:
    bills = [zero_bytes([100, 50], 1, zero).items for zero in range(4)]  # type: ignore[arg-type]
    assert bills[1:] == bills[:1] * 3
    assert "in use" not in bills[3]


def test_gradients_summed_in_fp32_take_two_bytes_more() -> None:
    plain, summed = (zero_bytes([8], 2, 0, fp32_gradients=flag).total for flag in (False, True))
    assert (plain, summed) == (8 * 16, 8 * 18)


@pytest.mark.parametrize(
    ("units", "ranks", "zero", "message"),
    [
        ([10], 0, 1, "ranks = 0 is not a number of ranks"),
        ([10], True, 1, "ranks = True is not a number of ranks"),
        ([10], 2, 4, "zero = 4 is not a sharding stage"),
        ([], 2, 1, "at least one"),
        ([10, 0], 2, 1, "all above 0"),
        ([1.5], 2, 1, "units: give the number of parameters"),
    ],
)
def test_what_is_no_model_is_refused(units: list, ranks: int, zero: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        zero_bytes(units, ranks, zero)  # type: ignore[arg-type]
