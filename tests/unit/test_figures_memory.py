"""Memory against cards: titles, verdicts and lengths come from the bill; what is unknown is said."""

import pytest

from dtlab.cost.cards import cards
from dtlab.cost.memory import MemoryBill, training_bytes
from dtlab.cost.presets import PRESETS
from dtlab.figures.memory import memory_figure, preset_memory_figure
from dtlab.figures.style import alt_text, png
from dtlab.widgets.scaling import memory_explorer


def test_the_title_names_the_largest_item_and_its_share() -> None:
    words = alt_text(memory_figure(MemoryBill({"parameters": 2**30, "activations": 3 * 2**30}), "a model"))
    assert words.startswith("a model: 4.0 GiB, 75% of it activations. ")
    assert "parameters 1.00, activations 3.00" in words


def test_bars_are_as_long_as_the_bytes_they_stand_for() -> None:
    bill = training_bytes("BERT-large", 4, ddp_buckets=True)
    figure = memory_figure(bill, "BERT-large", on=["T4 16 GiB", "V100 32 GiB"])
    (axes,) = figure.axes
    items, boxes = axes.patches[: len(bill.items)], axes.patches[len(bill.items) :]
    assert sum(bar.get_width() for bar in items) == pytest.approx(bill.total / 2**30)
    assert [bar.get_width() for bar in boxes] == [16, 32]
    ends = [bar.get_x() + bar.get_width() for bar in items]
    assert [bar.get_x() for bar in items] == pytest.approx([0.0, *ends[:-1]])


@pytest.mark.parametrize(("share", "verdict"), [(0.5, "fits"), (0.85, "risky"), (0.95, "does not fit")])
def test_a_card_carries_the_verdict_of_the_bill(share: float, verdict: str) -> None:
    bill = MemoryBill({"optimizer": round(share * cards()["V100 32 GiB"])})
    figure = memory_figure(bill, "x", on=["V100 32 GiB"])
    assert [text.get_text() for text in figure.axes[0].texts] == [verdict]


def test_what_is_not_known_is_in_the_words_and_no_card_is_said_to_fit() -> None:
    words = alt_text(preset_memory_figure("S3 multimodal 320M", 128))
    assert words.startswith("S3 multimodal 320M, micro-batch 128: 4.8 GiB and more. ")
    assert "Not drawn, because not known: activations" in words
    assert ": fits" not in words


def test_a_model_larger_than_the_common_cards_is_held_against_the_largest() -> None:
    assert "B300" not in alt_text(preset_memory_figure("BERT-large", 4))
    assert "B300 268.6 GiB: does not fit" in alt_text(preset_memory_figure("GPT-3 175B", 1))


@pytest.mark.parametrize("model", PRESETS)
def test_every_choice_of_the_explorer_can_be_drawn(model: str) -> None:
    for recompute in (False, True):
        figure = preset_memory_figure(
            model, 256, precision="amp", optimizer="sgd", recompute=recompute, ddp=True
        )
        assert alt_text(figure).startswith(model)


def test_recomputing_and_buckets_change_the_bill_that_is_drawn() -> None:
    plain = training_bytes("Llama 7B", 1).total
    full = training_bytes("Llama 7B", 1, recompute="full").total
    ddp = training_bytes("Llama 7B", 1, ddp_buckets=True).total
    assert full < plain < ddp
    for total, choices in ((plain, {}), (full, {"recompute": True}), (ddp, {"ddp": True})):
        words = alt_text(preset_memory_figure("Llama 7B", 1, **choices))
        assert f"Llama 7B, micro-batch 1: {total / 2**30:.1f} GiB" in words


def test_the_same_bill_gives_the_same_picture() -> None:
    assert png(preset_memory_figure("BERT-large", 4)) == png(preset_memory_figure("BERT-large", 4))
    assert png(preset_memory_figure("BERT-large", 4)) != png(preset_memory_figure("BERT-large", 8))


def test_the_explorer_shows_its_figure_still_without_a_front_end(capsys: pytest.CaptureFixture[str]) -> None:
    memory_explorer()
    assert "BERT-large, micro-batch 4: 13.4 GiB, 63% of it activations" in capsys.readouterr().out
