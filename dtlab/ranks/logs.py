"""Log lines that say which rank wrote them: ``[Rank 1] ...`` on the screen and in a file."""

from __future__ import annotations

import logging
import sys
from pathlib import Path


class _CurrentStderr(logging.StreamHandler):
    """Writes to whatever ``sys.stderr`` is now: notebooks and test runners replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self):  # type: ignore[override]
        return sys.stderr


def get_logger(
    rank: int = 0,
    size: int = 1,
    *,
    log_file: str | Path | None = None,
    name: str = "dtlab.rank",
    level: int = logging.INFO,
    prefix: bool | None = None,
) -> logging.Logger:
    """The logger of this rank.

    Args:
        rank: this process's rank.
        size: world size; in a world of one the screen shows no prefix.
        log_file: a file to append to as well. ``{rank}`` in its name is replaced, so that each rank can have
            its own; without it all ranks append whole lines to one file. Folders are made.
        name: logger name; calling again with the same name replaces its handlers.
        level: lowest level that is shown.
        prefix: put ``[Rank r]`` before each line on the screen; default: when there are several ranks and the
            launcher does not already do it. The file always has the prefix.

    Example:
        >>> log = get_logger(1, 4)
        >>> log.info("epoch %d done", 3)
    """
    import os

    logger = logging.getLogger(name)
    close(logger)
    logger.setLevel(level)
    logger.propagate = False
    if prefix is None:
        prefix = size > 1 and "DTLAB_LAUNCH" not in os.environ
    screen = _CurrentStderr()
    screen.setFormatter(logging.Formatter(f"[Rank {rank}] %(message)s" if prefix else "%(message)s"))
    logger.addHandler(screen)
    if log_file is not None:
        path = Path(str(log_file).replace("{rank}", str(rank)))
        path.parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(path)  # opened for append: lines of several ranks do not overwrite
        file.setFormatter(logging.Formatter(f"%(asctime)s [Rank {rank}] %(levelname)s %(message)s"))
        logger.addHandler(file)
    return logger


def close(logger: logging.Logger) -> None:
    """Close and remove the handlers of a logger made by ``get_logger``."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
