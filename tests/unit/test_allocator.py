"""A rank on a CPU does not pay for page faults in every step."""

import resource
import sys

import pytest

from dtlab.ranks import allocator


def _faults_of_steps(kept):
    """Page faults of 20 steps that hold 16 tensors of 2 MiB at once and free them, after the first step."""
    import torch

    if kept:
        assert allocator.keep_freed_memory()

    def step():
        held = [torch.ones(2**19) for _ in range(16)]
        return len(held)

    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_memory_that_a_step_frees_is_taken_again_without_page_faults(monkeypatch):
    from dtlab.ranks.launcher import launch

    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    (kept,) = launch(_faults_of_steps, 1, True, echo=False, timeout=60)
    (given_back,) = launch(_faults_of_steps, 1, False, echo=False, timeout=60)
    assert given_back >= 20 * 16  # 32 MiB in every step, were they even huge pages
    assert kept < min(20 * 100, given_back / 4)


def test_the_users_own_thresholds_are_left_alone(monkeypatch):
    allocator.keep_freed_memory.cache_clear()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not allocator.keep_freed_memory()
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_")
    allocator.keep_freed_memory.cache_clear()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072")
    assert not allocator.keep_freed_memory()
    allocator.keep_freed_memory.cache_clear()
