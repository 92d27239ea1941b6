"""Degrees of parallelism: the rest is filled in, what does not divide is refused with names and numbers."""

import pytest

from dtlab.errors import UserError
from dtlab.figures.rank_grid import rank_grid_figure
from dtlab.figures.style import alt_text, png
from dtlab.parallel.dims import AXES, ParallelDims, Place
from dtlab.parallel.vocabulary import padded_vocab_size


@pytest.mark.parametrize("axis", AXES)
def test_minus_one_is_the_rest_of_the_ranks_on_any_axis(axis):
    degrees = {"dp_replicate": 1, "dp_shard": 2, "tp": 2, "pp": 1, axis: -1}
    dims = ParallelDims(**degrees).of(24)
    rest = 24
    for name, degree in degrees.items():
        rest //= degree if name != axis else 1
    assert getattr(dims, axis) == rest
    assert dims.size == 24


@pytest.mark.parametrize(
    ("degrees", "world", "said"),
    [
        ({"tp": 3}, 8, "pp 1 x dp_replicate 1 x dp_shard 1 x tp 3 = 3, but there are 8 ranks"),
        ({"pp": 2, "dp_replicate": -1, "tp": 3}, 8, "= 6 does not divide the 8 ranks.* dp_replicate = -1"),
        ({"tp": 2, "pp": 2}, 2, "= 4, but there are 2 ranks"),
        ({"tp": 2}, 0, "world_size = 0"),
    ],
)
def test_a_product_that_is_not_the_world_size_is_refused_with_every_degree(degrees, world, said):
    with pytest.raises(UserError, match=said):
        ParallelDims(**degrees).of(world)


@pytest.mark.parametrize("degree", [0, -2, 1.5, True, "2"])
@pytest.mark.parametrize("axis", AXES)
def test_a_degree_that_is_no_number_of_ranks_is_refused_by_name(axis, degree):
    with pytest.raises(UserError, match=f"{axis} = {degree!r}"):
        ParallelDims(**{axis: degree})


def test_two_rests_are_refused():
    with pytest.raises(UserError, match="dp_shard and pp are -1"):
        ParallelDims(dp_shard=-1, pp=-1)


def test_degrees_that_are_not_filled_in_have_no_size():
    with pytest.raises(UserError, match=r"tp = -1: call .of\(world_size\) first"):
        _ = ParallelDims(tp=-1).size


def test_ranks_next_to_each_other_are_tensor_parallel_peers():
    dims = ParallelDims(dp_replicate=2, dp_shard=3, tp=2, pp=2)
    assert dims.place(0) == (0, 0, 0, 0)
    assert dims.place(1) == Place(pp=0, dp_replicate=0, dp_shard=0, tp=1)
    assert dims.place(2) == Place(pp=0, dp_replicate=0, dp_shard=1, tp=0)
    assert dims.place(6) == Place(pp=0, dp_replicate=1, dp_shard=0, tp=0)
    assert dims.place(12) == Place(pp=1, dp_replicate=0, dp_shard=0, tp=0)
    with pytest.raises(UserError, match="rank = 24: there are 24 ranks"):
        dims.place(24)


@pytest.mark.parametrize("axis", AXES)
def test_groups_of_an_axis_hold_every_rank_once_and_differ_in_that_axis_alone(axis):
    dims = ParallelDims(dp_replicate=2, dp_shard=3, tp=2, pp=2)
    groups = dims.groups(axis)
    assert sorted(rank for group in groups for rank in group) == list(range(24))
    for group in groups:
        assert [getattr(dims.place(rank), axis) for rank in group] == list(range(getattr(dims, axis)))
        assert len({dims.place(rank)._replace(**{axis: 0}) for rank in group}) == 1


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"num_heads": 6}, "tp = 4 does not divide num_heads = 6; degrees that do: 1, 2, 3, 6"),
        ({"hidden": 10}, "tp = 4 does not divide hidden = 10"),
        ({"vocab_size": 11}, "tp = 4 does not divide vocab_size = 11; pad it to 12"),
        ({"num_layers": 1}, "pp = 2 stages, but num_layers = 1: .* take 2 layers or more"),
        ({"num_layers": 3, "stages_per_rank": 2}, "pp = 2 x 2 stages a rank = 4 stages, but num_layers = 3"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_both_numbers(model, said):
    dims = ParallelDims(tp=4, pp=2)
    with pytest.raises(UserError, match=said):
        dims.check_model(**model)
    dims.check_model(num_layers=4, num_heads=8, hidden=12, vocab_size=12, stages_per_rank=2)


@pytest.mark.parametrize(
    ("vocab", "multiple", "tp", "padded"),
    [
        (49159, 64, 1, 49216),
        (49216, 64, 1, 49216),
        (11, 1, 2, 12),
        (50257, 64, 48, 50304),
        (50257, 64, 5, 50560),
    ],
)
def test_one_function_gives_the_padded_vocabulary(vocab, multiple, tp, padded):
    assert padded_vocab_size(vocab, multiple, tp=tp) == padded
    ParallelDims(tp=tp).check_model(vocab_size=padded)


def test_a_vocabulary_without_tokens_is_refused():
    with pytest.raises(UserError, match="vocab_size = 0"):
        padded_vocab_size(0)


def test_the_grid_is_drawn_with_every_rank_and_told_in_words():
    dims = ParallelDims(dp_replicate=2, dp_shard=2, tp=2, pp=2)
    figure = rank_grid_figure(dims)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == [str(rank) for rank in range(16)]
    assert len(axes.patches) == 16
    assert "pp 1: [ 8  9] [10 11] [12 13] [14 15]" in alt_text(figure)
    assert png(figure)[:4] == b"\x89PNG"
