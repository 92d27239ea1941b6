"""The text of the standard library: the same bytes every time, and windows that lose nothing."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from dtlab.data.loader import Loader
from dtlab.data.prepare import read_manifest
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.text import (
    BYTES,
    SPLITS,
    TextWindows,
    load_text,
    read_documents,
    source_files,
    split_of,
    text_version,
)
from dtlab.errors import UserError


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    load_text(64, root=place)
    return place


def library(folder: Path) -> Path:
    """A small library with what must be left out in it."""
    files = {
        "ast.py": b"import re\n", "copy_of_ast.py": b"import re\n", "empty.py": b"", "nul.py": b"x = '\0'\n",
        "json/__init__.py": b"# json\n", "json/notes.txt": b"no source", "test/test_ast.py": b"# a test\n",
        "unittest/test/a.py": b"# a test\n", "site-packages/torch.py": b"# not the library\n",
        "encodings/cp1250.py": b"# a table\n", "_sysconfigdata__linux.py": b"build_time_vars = {}\n",
        "config-3.11-x86_64/config.py": b"# build settings\n", "json/__pycache__/x.py": b"# cached\n",
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "sitecustomize.py").symlink_to(folder / "ast.py")
    return folder


def test_only_the_librarys_own_sources_are_taken_and_each_content_once(tmp_path):
    files = source_files(library(tmp_path))
    assert [path.relative_to(tmp_path).as_posix() for path in files] == [
        "ast.py", "copy_of_ast.py", "empty.py", "json/__init__.py", "nul.py",
    ]  # fmt: skip
    assert read_documents(files) == [b"import re\n", b"# json\n"]


def test_a_python_without_sources_is_a_clear_error(tmp_path):
    with pytest.raises(UserError, match=r"text: no Python source below"):
        source_files(tmp_path)


def test_the_version_changes_with_any_byte_and_with_the_order():
    documents = [b"one", b"two"]
    versions = {text_version(d) for d in (documents, [b"one", b"twp"], [b"two", b"one"], [b"onetwo"])}
    assert len(versions) == 4


def test_it_is_the_source_of_this_python_and_the_same_on_every_call(root):
    text, again = load_text(64, root=root), load_text(64, root=root)
    assert text.version == again.version
    assert len(list((root / "text").iterdir())) == 2  # the folder and its lock
    for split in SPLITS:
        assert torch.equal(getattr(text, split).data, getattr(again, split).data)
    whole = (
        bytes(text.train.data.numpy()) + bytes(text.validation.data.numpy()) + bytes(text.test.data.numpy())
    )
    assert (Path(sysconfig.get_paths()["stdlib"]) / "dataclasses.py").read_bytes() + b"\0" in whole
    assert len(whole) > 4_000_000


def test_every_document_lies_in_exactly_one_split_and_all_three_have_a_fair_share(root):
    text = load_text(64, root=root)
    documents = read_documents(source_files())
    parts = {split: bytes(getattr(text, split).data.numpy()).split(b"\0")[:-1] for split in SPLITS}
    assert sorted(document for part in parts.values() for document in part) == sorted(documents)
    assert all(split_of(document) == split for split, part in parts.items() for document in part)
    for split, share in {"train": 0.8, "validation": 0.1, "test": 0.1}.items():
        assert len(parts[split]) / len(documents) == pytest.approx(share, abs=0.05)


def test_one_file_of_bytes_is_prepared_once_and_a_torn_one_is_made_again(root):
    text = load_text(64, root=root)
    folder = root / "text" / text.version
    manifest = read_manifest(folder)
    assert set(manifest["files"]) == {BYTES}
    made = (folder / BYTES).stat().st_mtime_ns
    load_text(64, root=root)
    assert (folder / BYTES).stat().st_mtime_ns == made
    whole = (folder / BYTES).read_bytes()
    (folder / BYTES).write_bytes(whole[: len(whole) // 2])
    assert len(load_text(64, root=root).train) == len(text.train)
    # A file of the right size that is not what it says.
    np.save(folder / BYTES, np.zeros((len(whole) - 128) // 2, dtype=np.uint16))
    assert len(load_text(64, root=root).train) == len(text.train)
    assert (folder / BYTES).read_bytes() == whole
    (folder / BYTES).write_bytes(b"garbage" + whole[7:])
    assert len(load_text(64, root=root).train) == len(text.train)
    assert (folder / BYTES).read_bytes() == whole


def test_writing_to_a_batch_or_to_the_mapped_bytes_never_reaches_the_file(root):
    text = load_text(64, root=root)
    first = text.train.take(torch.tensor([0])).tokens.clone()
    text.train.take(torch.tensor([0])).tokens.zero_()
    text.train.data[:64] = 0
    assert torch.equal(load_text(64, root=root).train.take(torch.tensor([0])).tokens, first)


@pytest.mark.parametrize("length", [9, 10, 11, 12, 13])
def test_windows_predict_every_byte_but_the_first_exactly_once(length):
    windows = TextWindows(torch.arange(length, dtype=torch.uint8), sequence=4, first_id=100)
    batch = windows.take(np.arange(len(windows)))
    assert len(windows) == (length - 1) // 4
    assert batch.targets.flatten().tolist() == list(range(1, 4 * len(windows) + 1))
    assert torch.equal(batch.tokens + 1, batch.targets)
    assert batch.ids.tolist() == [100 + window for window in range(len(windows))]
    assert (batch.tokens.dtype, batch.targets.dtype) == (torch.int64, torch.int64)


def test_a_sequence_that_does_not_fit_the_text_is_refused():
    with pytest.raises(UserError, match=r"sequence = 4: a window needs 5 bytes, the split has 4"):
        TextWindows(torch.zeros(4, dtype=torch.uint8), sequence=4)
    with pytest.raises(UserError, match=r"sequence = 0"):
        TextWindows(torch.zeros(4, dtype=torch.uint8), sequence=0)


def test_ids_are_unique_over_the_splits(root):
    text = load_text(64, root=root)
    ids = torch.cat([getattr(text, split).ids for split in SPLITS])
    assert torch.equal(ids, torch.arange(len(ids)))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_loader_hands_out_every_window_once_uneven_tail_included(root, prefetch):
    windows = load_text(512, root=root).test
    seen = []
    for rank in range(3):
        sampler = GlobalBatchSampler(len(windows), 100, rank=rank, world_size=3)
        for batch in Loader(windows, sampler, prefetch=prefetch, chunk_rows=64):
            assert batch.tokens.shape == (len(batch), 512)
            seen.append(batch.ids)
    assert sorted(torch.cat(seen).tolist()) == windows.ids.tolist()
