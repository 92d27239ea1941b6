"""The entry script is looked for where the container will look, and what travels is known."""

import tarfile

import pytest

from dtlab.errors import UserError
from dtlab.sagemaker.source import check_source, pack


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "src"
    (folder / "sub").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    for name in ("train.py", "sub/other.py", "helper.py", "requirements.txt", "__pycache__/x.pyc"):
        (folder / name).write_text(f"# {name}\n")
    return folder


@pytest.mark.parametrize("entry", ["train.py", "sub/other.py"])
def test_script_inside_the_folder_passes(folder, entry):
    assert check_source(folder, entry).is_file()


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("src/train.py", "write 'train.py'"),
        ("sub/train.py", "did you mean 'train.py'"),
        ("other.py", "did you mean 'sub/other.py'"),
        ("/abs/train.py", "looked for /abs/train.py"),
        ("../src/train.py", "inside source.folder"),
        ("s3://bucket/train.py", "inside source.folder"),
        ("missing.py", "there is no"),
        ("it's.py", "apostrophe"),
        ("requirements.txt", "ends in .py"),
    ],
)
def test_script_elsewhere_is_refused_with_the_full_path(folder, entry, named):
    with pytest.raises(UserError) as caught:
        check_source(folder, entry)
    assert named in str(caught.value)
    assert str(folder) in str(caught.value) or entry in str(caught.value)


def test_folder_that_is_not_there_or_on_s3_is_refused(tmp_path):
    for folder in (tmp_path / "none", "s3://bucket/src"):
        with pytest.raises(UserError, match=r"source\.folder"):
            check_source(type(tmp_path)(folder), "train.py")


def test_folder_that_is_not_there_is_not_packed_as_nothing(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        pack(tmp_path / "none", tmp_path / "code.tar.gz")
    assert not (tmp_path / "code.tar.gz").exists()


def test_helper_modules_requirements_and_dtlab_travel_and_caches_do_not(folder, tmp_path):
    names = pack(folder, tmp_path / "source.tar.gz")
    with tarfile.open(tmp_path / "source.tar.gz") as archive:
        assert sorted(archive.getnames()) == names
    assert {"train.py", "helper.py", "sub/other.py", "requirements.txt"} <= set(names)
    assert {"dtlab/__init__.py", "dtlab/cost/data/instances.csv"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_same_content_gives_the_same_bytes(folder, tmp_path):
    pack(folder, tmp_path / "one.tar.gz", package=folder)
    (folder / "train.py").touch()
    pack(folder, tmp_path / "two.tar.gz", package=folder)
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
