"""What a step left behind: a folder for each set of inputs, with ``step.json`` written last.

A step is done when its ``step.json`` is there, as it was written, and every file that it lists still has the
listed content. A killed step leaves a folder without it. Folders of earlier inputs stay: going back to an
earlier setting finds its outputs again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dtlab.files import alone_in, require_folder
from dtlab.train.record import write_json

__all__ = ["MARK", "Done", "Store", "content", "digest_of"]

MARK = "step.json"
FORMAT = 2


def content(path: Path) -> str:
    """SHA-256 of a file, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(values: Any) -> str:
    """32 hexadecimal digits that stand for plain values.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Done:
    """A finished step.

    Attributes:
        step: its name.
        inputs: everything that its outputs depend on.
        outputs: file inside the step's folder -> SHA-256.
        elsewhere: folders outside, complete by their manifests, that belong to it.
        facts: what the step says about its outputs, as plain values.
        seconds: that it took.
        finished: when, in seconds since 1970.
    """

    step: str
    inputs: dict[str, Any]
    outputs: dict[str, str]
    elsewhere: tuple[str, ...]
    facts: dict[str, Any]
    seconds: float
    finished: float

    @property
    def digest(self) -> str:
        """Stands for the content of the outputs: what the next steps depend on."""
        return digest_of(self.outputs)


class Store:
    """The folder of a pipeline."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, step: str, inputs: Mapping[str, Any]) -> Path:
        """The folder of a step with these inputs."""
        return self.folder / step / digest_of(inputs)[:12]

    def find(self, step: str, inputs: Mapping[str, Any]) -> tuple[Done | None, str | None]:
        """The finished step with these inputs; or None and what is wrong with what is there, if anything."""
        from dtlab.data.prepare import read_manifest

        place = self.place(step, inputs)
        if not place.is_dir():
            return None, None
        done = _read(place)
        if done is None or done.inputs != dict(inputs):
            return None, "was not finished"
        for name, wanted in done.outputs.items():
            try:
                found = content(place / name)
            except OSError:
                return None, f"output {name} is missing"
            if found != wanted:
                return None, f"output {name} is not what the step wrote"
        for other in done.elsewhere:
            if read_manifest(Path(other)) is None:
                return None, f"{other} is missing or torn"
        return done, None

    def newest(self, step: str) -> Done | None:
        """The step's last finished run, whatever its inputs were."""
        found = [done for place in self.places(step) if (done := _read(place)) is not None]
        return max(found, key=lambda done: done.finished, default=None)

    def places(self, step: str) -> list[Path]:
        """The folders of a step."""
        try:
            return sorted(path for path in (self.folder / step).iterdir() if path.is_dir())
        except OSError:
            return []

    def forget(self, step: str, inputs: Mapping[str, Any]) -> None:
        """Make the step with these inputs unfinished."""
        require_folder(self.folder / step, "pipeline.folder")
        (self.place(step, inputs) / MARK).unlink(missing_ok=True)

    def finish(
        self,
        step: str,
        inputs: Mapping[str, Any],
        outputs: tuple[str, ...],
        facts: Mapping[str, Any],
        *,
        elsewhere: tuple[Path, ...] = (),
        seconds: float,
    ) -> Done:
        """Write down that a step is done; what it wrote is there already."""
        place = self.place(step, inputs)
        found = {name: content(place / name) for name in sorted(outputs)}
        also = tuple(str(path.absolute()) for path in elsewhere)
        body = asdict(Done(step, dict(inputs), found, also, dict(facts), round(seconds, 3), time.time()))
        write_json(place / MARK, body, "pipeline.folder")
        # As read back: what JSON cannot hold is the same now and later.
        body = json.loads((place / MARK).read_text(encoding="utf-8"))
        write_json(place / MARK, {"format": FORMAT, "digest": digest_of(body), **body}, "pipeline.folder")
        done = _read(place)
        assert done is not None
        return done

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder for one pipeline; the kernel frees it when the process ends.

        Raises:
            UserError: another one holds it, or the folder cannot be written.
        """
        with alone_in(self.folder, "pipeline.folder", "dtlab pipeline run"):
            yield


def _read(place: Path) -> Done | None:
    """What ``step.json`` says; None where it is missing, torn, edited or from somebody else."""
    try:
        values = json.loads((place / MARK).read_text(encoding="utf-8"))
        if values.pop("format") != FORMAT or values.pop("digest") != digest_of(values):
            return None
        return Done(**{**values, "elsewhere": tuple(values["elsewhere"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
