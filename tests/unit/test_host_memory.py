"""In a container its limit counts, not the host's memory; cached files give way."""

from pathlib import Path

import psutil
import pytest

from dtlab.ranks import host_memory


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files as the kernel shows them to a container of 1 MB that uses 700 kB, 200 kB of it cached files."""
    (tmp_path / "max").write_text("1000000\n")
    (tmp_path / "current").write_text("700000\n")
    (tmp_path / "stat").write_text("anon 500000\ninactive_file 200000\n")
    monkeypatch.setattr(host_memory, "_LIMITS", (str(tmp_path / "absent"), str(tmp_path / "max")))
    monkeypatch.setattr(host_memory, "_USED", (str(tmp_path / "current"),))
    monkeypatch.setattr(host_memory, "_STATS", (str(tmp_path / "stat"),))
    return tmp_path


def test_a_containers_limit_less_what_it_uses_is_available(container: Path) -> None:
    assert host_memory.container_limit() == 1_000_000
    assert host_memory.available_bytes() == 500_000


def test_without_a_limit_the_hosts_memory_counts(container: Path) -> None:
    (container / "max").write_text("max\n")
    assert host_memory.container_limit() is None
    assert host_memory.available_bytes() > 1_000_000


def test_a_number_that_stands_for_no_limit_is_none(container: Path) -> None:
    (container / "max").write_text("9223372036854771712\n")  # what version 1 shows
    assert host_memory.container_limit() is None


def test_a_container_above_its_limit_has_nothing_left(container: Path) -> None:
    (container / "current").write_text("5000000\n")
    assert host_memory.available_bytes() == 0


def test_a_container_never_gets_more_than_the_host_has(container: Path) -> None:
    (container / "max").write_text(f"{2**59}\n")
    assert host_memory.available_bytes() <= psutil.virtual_memory().total
