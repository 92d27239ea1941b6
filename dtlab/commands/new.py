"""``dtlab new``: a project of one's own, which runs at once."""

from __future__ import annotations


def new(name: str, /) -> None:
    """Make a folder with a training script, a model, a configuration, a SageMaker job, a test and small data.

    Parameters
    ----------
    name
        Of the folder, made in the working directory.
    """
    from dtlab.scaffold.create import create

    folder = create(name)
    print(f"made {folder}; next: cd {folder} && torchrun --nproc-per-node 2 code/train.py")
