"""A JupyterLab that listens on loopback and a headless Chromium that opens it."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_SECONDS = 120


@pytest.fixture(scope="module")  # JupyterLab and the browser end with their tests
def browser():
    """Chromium of this system. Without one the tests are skipped, unless DTLAB_BROWSER_TESTS=required."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        reason = f"no browser: none of {', '.join(BROWSERS)} is installed (Debian: apt install chromium)"
        if os.environ.get("DTLAB_BROWSER_TESTS") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    # Chromium refuses its sandbox to root.
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=arguments)
        yield started
        started.close()


class Lab:
    """A JupyterLab over an empty folder."""

    def __init__(self, folder: Path, url: str, token: str) -> None:
        self.folder, self.url, self.token = folder, url, token

    def address(self, cells: list[str], name: str) -> str:
        """Write a notebook of these cells; where JupyterLab shows it, and nothing else."""
        import nbformat

        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(notebook, self.folder / name)
        return f"{self.url}doc/workspaces/{name.removesuffix('.ipynb')}/tree/{name}?token={self.token}"


@pytest.fixture(scope="module")  # JupyterLab and the browser end with their tests
def lab(tmp_path_factory):
    place = tmp_path_factory.mktemp("lab")
    folders = {f"JUPYTER_{name.upper()}_DIR": str(place / name) for name in ("runtime", "config", "data")}
    environment = {**os.environ, **folders, "PYTHONPATH": str(Path(__file__).parents[2])}
    # Both tell a kernel that nobody is there to move a slider.
    for name in ("DTLAB_STATIC", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    work = place / "work"
    work.mkdir()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0"]
    root = ["--allow-root"] if os.getuid() == 0 else []
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, *root, f"--ServerApp.root_dir={work}"], env=environment, stdout=log, stderr=log
        )
    try:
        info = _server_info(place / "runtime", server, place / "log")
        yield Lab(work, info["url"], info["token"])
    finally:
        server.terminate()
        server.wait(30)


def _server_info(runtime: Path, server: subprocess.Popen, log: Path) -> dict:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            return json.loads(path.read_text())
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
