"""The batch's figure says how many steps are left and how far the rate goes; memory follows the ranks."""

import pytest

from dtlab.figures.batch_rates import batch_rates_figure
from dtlab.figures.rank_memory import memory_by_ranks_figure
from dtlab.figures.style import alt_text


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 8), ("sqrt", 8**0.5)])
@pytest.mark.filterwarnings("ignore")
def test_eight_times_the_batch_leaves_an_eighth_of_the_steps_and_the_rule_moves_the_peak(rule, factor):
    figure = batch_rates_figure(ranks=8, micro_batch=64, accumulation=2, base_batch=128, rule=rule)
    assert alt_text(figure).startswith("Batch 1,024 is 8x 128: 625 steps instead of 5,000")
    (axes,) = figure.axes
    base, scaled, _ = axes.lines
    assert max(base.get_ydata()) == pytest.approx(1e-3)
    assert max(scaled.get_ydata()) == pytest.approx(1e-3 * factor)
    ends = [line.get_xdata()[-1] for line in (base, scaled)]
    assert ends == pytest.approx([640, 640], rel=0.01), "the same samples in both plans"


def test_the_same_batch_is_the_same_plan():
    base, scaled, _ = batch_rates_figure(ranks=2, micro_batch=64).axes[0].lines
    assert list(base.get_ydata()) == list(scaled.get_ydata())


def test_a_run_of_one_step_can_be_drawn():
    assert "1 steps" in alt_text(batch_rates_figure(ranks=64, micro_batch=256, thousand_samples=1))


def test_sharding_over_twice_the_ranks_holds_less_and_ddp_does_not():
    def held(ranks):
        words = alt_text(memory_by_ranks_figure(ranks=ranks))
        return [float(words.split(f"{way}: ")[1].split(" GiB")[0]) for way in (
            f"DDP, {ranks} ranks", f"FSDP, {ranks} ranks",
        )]  # fmt: skip

    (ddp4, fsdp4), (ddp8, fsdp8) = held(4), held(8)
    assert ddp4 == ddp8
    assert fsdp8 < fsdp4 < ddp4
