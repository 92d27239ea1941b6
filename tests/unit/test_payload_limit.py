"""What goes to the ranks lies in a file in memory, which a limit of file sizes may refuse."""

import resource

import pytest

from dtlab.errors import UserError
from dtlab.ranks import payload


def test_a_call_beyond_the_limit_of_file_sizes_is_said_with_the_way_out():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(UserError, match=r"cannot be handed to the ranks: File too large.*ulimit -f"):
            payload.write({}, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
