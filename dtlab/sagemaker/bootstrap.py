"""The file that the container starts: unpack the archive beside it and hand over to dtlab's first process.

It stands alone, since nothing is installed yet: the standard library only. ``exec`` keeps process 1, the one
that is told when the job is to stop.
"""

import os
import shutil
import sys
import tarfile
from pathlib import Path


def main() -> None:
    """Unpack to ``<base>/code`` and become ``python -m dtlab.sagemaker.first_process ENTRY_SCRIPT``.

    In a processing container of a pipeline DTLAB_MAIN names the module of its steps instead.
    """
    code = Path(os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml") / "code"
    shutil.rmtree(code, ignore_errors=True)  # a retry in the same container begins afresh
    code.mkdir(parents=True)
    with tarfile.open(Path(__file__).resolve().parent / "source.tar.gz") as archive:
        archive.extractall(code, filter="data")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.chdir(code)
    module = os.environ.get("DTLAB_MAIN") or "dtlab.sagemaker.first_process"
    os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


if __name__ == "__main__":
    main()
