"""The all-reduce figures: the replay of messages, titles that state the finding, alt text, refusals."""

import pytest

from dtlab.collectives import Message
from dtlab.figures.all_reduce import bytes_figure, chunk_figure, num_steps, parts_held
from dtlab.figures.style import alt_text, png
from dtlab.widgets.all_reduce import all_reduce_explorer


def ring_messages(ranks: int) -> list[Message]:
    """The messages of a correct ring, made by its definition."""
    first = [
        Message(s, r, (r + 1) % ranks, 100, (r - s) % ranks) for s in range(ranks - 1) for r in range(ranks)
    ]
    second = [
        Message(ranks - 1 + s, r, (r + 1) % ranks, 100, (r + 1 - s) % ranks)
        for s in range(ranks - 1)
        for r in range(ranks)
    ]
    return first + second


SERVER = [Message(r - 1, r, 0, 400, 0) for r in (1, 2, 3)] + [Message(r + 2, 0, r, 400, 0) for r in (1, 2, 3)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_a_ring_finishes_one_chunk_a_rank_at_half_time_and_all_at_the_end(ranks: int) -> None:
    messages = ring_messages(ranks)
    assert num_steps(messages) == 2 * (ranks - 1)
    half = parts_held(messages, ranks, ranks - 1)
    finished = [[chunk for chunk, parts in row.items() if len(parts) == ranks] for row in half]
    assert finished == [[(rank + 1) % ranks] for rank in range(ranks)]
    everyone = frozenset(range(ranks))
    end = parts_held(messages, ranks, 2 * (ranks - 1))
    assert all(parts == everyone for row in end for parts in row.values())
    if ranks > 2:  # with one step less nobody is done
        almost = parts_held(messages, ranks, 2 * (ranks - 1) - 1)
        assert all(any(parts != everyone for parts in row.values()) for row in almost)


def test_messages_of_one_step_bring_what_their_senders_held_before_it() -> None:
    swap = [Message(0, 0, 1, 8, 0), Message(0, 1, 2, 8, 0)]
    held = parts_held(swap, 3, 1)
    assert held[2][0] == {1, 2}  # not 0: rank 1 got that in the same step


@pytest.mark.parametrize(
    ("step", "title"),
    [
        (0, "Ring, before the first message: each rank holds its own numbers"),
        (1, "Ring, step 1 of 6: the fullest chunk is the sum of 2 of 4 ranks"),
        (3, "Ring, step 3 of 6: each rank holds 1 of 4 finished chunks"),
        (6, "Ring, step 6 of 6: every rank holds every sum"),
        (99, "Ring, step 6 of 6: every rank holds every sum"),
    ],
)
def test_the_title_of_a_step_states_what_was_reached(step: int, title: str) -> None:
    assert alt_text(chunk_figure(ring_messages(4), 4, step)).startswith(title + ". ")


def test_a_server_is_drawn_with_the_whole_tensor() -> None:
    words = alt_text(chunk_figure(SERVER, 4, 4, "Parameter server"))
    assert words.startswith("Parameter server, step 4 of 6: 2 of 4 ranks hold the whole sum. ")
    assert words.endswith(
        "rank 0: sum; rank 1: sum; rank 2: 2; rank 3: 3. Arrows: rank 0 sends the whole tensor to rank 1."
    )


def test_alt_text_lists_the_table_and_the_arrows() -> None:
    words = alt_text(chunk_figure(ring_messages(3), 3, 1))
    assert "rank 0: 0, 0, 0+2; rank 1: 0+1, 1, 1; rank 2: 2, 1+2, 2." in words
    assert "rank 2 sends chunk 2 to rank 0" in words


def test_one_rank_without_messages_can_be_drawn() -> None:
    assert png(chunk_figure([], 1, 0)).startswith(b"\x89PNG")


def test_the_same_run_gives_the_same_picture() -> None:
    assert png(chunk_figure(ring_messages(4), 4, 2)) == png(chunk_figure(ring_messages(4), 4, 2))
    assert png(chunk_figure(ring_messages(4), 4, 2)) != png(chunk_figure(ring_messages(4), 4, 3))


def test_bytes_are_stacked_and_the_busiest_rank_is_in_the_title() -> None:
    figure = bytes_figure(
        {
            "ring": [(6000, 6000)] * 4,
            "parameter server": [(12000, 12000)] + [(4000, 4000)] * 3,
        }
    )
    words = alt_text(figure)
    assert words.startswith("Rank 0 moves 24 kB in a parameter server; no rank of a ring more than 12 kB. ")
    assert "rank 3 sends 4 and receives 4 kB" in words
    ring, server = figure.axes
    assert [bar.get_height() for bar in server.patches[:4]] == [12, 4, 4, 4]
    assert [bar.get_y() for bar in server.patches[4:]] == [12, 4, 4, 4]
    assert ring.get_ylim() == server.get_ylim()


def test_no_algorithm_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="moved is empty"):
        bytes_figure({})


def test_the_explorer_shows_its_figure_still_without_a_front_end(capsys: pytest.CaptureFixture[str]) -> None:
    all_reduce_explorer({"ring": ring_messages(4), "parameter server": SERVER}, ranks=4, start=3)
    assert "Ring, step 3 of 6: each rank holds 1 of 4 finished chunks." in capsys.readouterr().out
