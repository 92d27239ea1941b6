"""Buckets on a link: packing as DDP does it, one all-reduce at a time, and what is left after backward."""

import pytest

from dtlab.cost.bucket_time import best_bucket_bytes, buckets_in_time
from dtlab.errors import UserError

GRADIENTS = [(10, 4), (20, 4), (30, 4), (40, 12)]


@pytest.mark.parametrize(
    ("size", "all_reduces", "exposed"),
    [
        (1, 4, 13),  # each alone: the last takes 1 + 12
        (8, 3, 13),
        (12, 2, 16),  # 4 + 4 + 4 is exactly full; 30 + 13 = 43, then 13 more
        (10**6, 1, 25),
    ],
)
def test_buckets_and_what_nothing_hides(size, all_reduces, exposed):
    found = buckets_in_time(GRADIENTS, size, lambda nbytes: 1 + nbytes)
    assert (found.all_reduces, found.exposed) == (all_reduces, exposed)


def test_a_bucket_waits_until_the_link_is_free():
    found = buckets_in_time([(1, 4), (2, 4), (3, 4)], 4, lambda _: 10)
    assert (found.all_reduces, found.last_gradient, found.end) == (3, 3, 31)


def test_the_best_size_depends_on_the_latency():
    sizes = (1, 8, 12, 10**6)
    assert best_bucket_bytes(GRADIENTS, sizes, lambda nbytes: nbytes) == 1
    assert best_bucket_bytes(GRADIENTS, sizes, lambda nbytes: 100 + nbytes) == 10**6


@pytest.mark.parametrize(
    ("gradients", "size", "message"),
    [
        ([], 8, "one or more"),
        ([(2, 4), (1, 4)], 8, "in order of arrival"),
        ([(1, 4)], 0, "bucket_bytes = 0"),
    ],
)
def test_input_that_cannot_be_is_refused(gradients, size, message):
    with pytest.raises(UserError, match=message):
        buckets_in_time(gradients, size, float)


def test_a_choice_from_nothing_is_refused():
    with pytest.raises(UserError, match="sizes is empty"):
        best_bucket_bytes(GRADIENTS, [], float)
