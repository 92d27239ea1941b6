"""Host memory of a whole state: on rank 0 alone, or on every rank of the host."""

import warnings

import pytest

from dtlab.cost.host_memory import full_state_host_bytes
from dtlab.errors import DtlabWarning, UserError


def test_30e9_parameters_in_bf16_take_480_gb_on_8_ranks_and_60_on_one():
    assert full_state_host_bytes(30e9, 2, 8, everywhere=True) == 480e9
    assert full_state_host_bytes(30e9, 2, 8) == 60e9


def test_more_than_the_host_has_is_warned_of_with_the_way_out():
    with pytest.warns(DtlabWarning, match="480 GB of the host's 256 GB: gather on rank 0 alone"):
        full_state_host_bytes(30e9, 2, 8, everywhere=True, host_bytes=256e9)
    with pytest.warns(DtlabWarning, match="sharded checkpoint"):
        full_state_host_bytes(300e9, 2, 8, host_bytes=256e9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        full_state_host_bytes(30e9, 2, 8, host_bytes=256e9)


def test_a_number_that_is_not_positive_is_refused_by_name():
    with pytest.raises(UserError, match="ranks_per_host = 0"):
        full_state_host_bytes(30e9, 2, 0)
    with pytest.raises(UserError, match=r"ranks_per_host = 1\.5"):
        full_state_host_bytes(30e9, 2, 1.5)
    with pytest.raises(UserError, match="parameters = '30e9'"):
        full_state_host_bytes("30e9", 2, 8)
    with pytest.raises(UserError, match="host_bytes = 0"):
        full_state_host_bytes(30e9, 2, 8, host_bytes=0)
