"""A run's record in MLflow while it goes on: a thread of rank 0 sends, training never waits (lesson 15).

The record stays the source. A store that is slow, full or gone costs a warning; what it did not take can be
sent afterwards with ``dtlab runs mlflow``. MLflow is optional and imported by the thread alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import queue
import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dtlab.errors import DtlabWarning, UserError, one_line
from dtlab.train.config import TrainConfig
from dtlab.train.record_settings import settings_of

__all__ = [
    "LOCAL_STORE",
    "Live",
    "Sender",
    "address_of",
    "check_store",
    "live_store",
    "require_mlflow",
    "shown",
]

LOCAL_STORE = "sqlite:///mlflow.db"
PER_EPOCH = ("auc", "log_loss", "loss", "samples_per_second", "communication_share")
_MOST_TEXT, _MOST_AT_ONCE = 500, 100  # MLflow takes 100 parameters and tags in one call
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*@")
_ENDS = {"failed": "FAILED", "end": "FINISHED"}


def address_of(store: str, environ: Mapping[str, str] = os.environ) -> str:
    """The store's address: ``store``, or what MLFLOW_TRACKING_URI says for "env".

    Raises:
        UserError: it holds a password, which the run's record would show; the variable is not set.

    >>> address_of("env", {"MLFLOW_TRACKING_URI": "https://me:secret@host"})
    'https://me:secret@host'
    """
    if store == "env":
        if not environ.get("MLFLOW_TRACKING_URI"):
            raise UserError("run.mlflow = 'env': MLFLOW_TRACKING_URI is not set; set it, or give the address")
        return environ["MLFLOW_TRACKING_URI"]
    if _PASSWORD.search(store):
        raise UserError(
            f"run.mlflow = {shown(store)!r}: the record would show its password; put the address into "
            "MLFLOW_TRACKING_URI and give run.mlflow = 'env'"
        )
    return store


def check_store(config: TrainConfig, environ: Mapping[str, str]) -> None:
    """Refuse, on all ranks alike and before data are read, a store that no run could use.

    Raises:
        UserError: see :func:`address_of` and :func:`require_mlflow`; the run keeps no record.
    """
    run = config.run
    if run.mlflow is None:
        return
    require_mlflow(address_of(run.mlflow, environ))
    if run.output is None and run.folder is None:
        raise UserError("run.mlflow: what is sent is the run's record; give run.output or run.folder")


def live_store(config: TrainConfig, folder: Path | None, environ: Mapping[str, str]) -> Live | None:
    """What rank 0 hands the events of the run in ``folder`` to; None where nothing is to be sent."""
    if config.run.mlflow is None or folder is None:
        return None
    name = environ.get("TRAINING_JOB_NAME") or folder.name
    return Live(
        address_of(config.run.mlflow, environ), environ.get("MLFLOW_EXPERIMENT_NAME") or "dtlab", name
    )


def shown(text: str) -> str:
    """``text`` without the user and password of an address.

    >>> shown("no answer of postgresql://me:secret@host/db")
    'no answer of postgresql://...@host/db'
    """
    return _PASSWORD.sub("...@", text)


def require_mlflow(store: str) -> None:
    """Refuse before a run what cannot be imported.

    Raises:
        UserError: mlflow, or for an ARN sagemaker-mlflow, is not installed.
    """
    needs = [("mlflow", "pip install 'dtlab[track]'")]
    if store.startswith("arn:"):
        needs.append(("sagemaker_mlflow", "pip install sagemaker-mlflow"))
    for module, fix in needs:
        if not is_installed(module):
            raise UserError(f"mlflow: {module.replace('_', '-')} is not installed; {fix}")


def is_installed(module: str) -> bool:
    """Whether ``module`` can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # it was put into sys.modules as something else
        return False


class Sender:
    """Hands the events of one record to MLflow, in their order.

    Args:
        store: address, see :func:`address_of`.
        experiment: name of the experiment there.
        name: of the run.
    """

    def __init__(self, store: str, experiment: str, name: str) -> None:
        mlflow = importlib.import_module("mlflow")
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        self._entities = importlib.import_module("mlflow.entities")
        self._client, self._name = mlflow.MlflowClient(tracking_uri=store), name
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = found.experiment_id if found else self._client.create_experiment(experiment)
        self.run_id: str | None = None

    def send(self, event: Mapping[str, Any]) -> None:
        """Take one line of the record: a start makes the run there, an end closes it."""
        kind = event.get("event")
        if kind in ("start", "resume"):
            self._begin(event)
        if self.run_id is None:
            return
        if kind in ("epoch", "validation"):
            values = {f"{kind}.{name}": event[name] for name in PER_EPOCH if is_number(event.get(name))}
            self._measured(values, int(event.get("epoch") or 0))
        elif kind in _ENDS:
            results = {name: value for name, value in event.items() if is_number(value) and name != "seconds"}
            self._measured(results, 0)
            is_stopped = kind == "end" and event.get("stopped_by")
            if is_stopped or kind == "failed":
                why = one_line(str(event.get("stopped_by") or event.get("error")), _MOST_TEXT)
                self._client.set_tag(self.run_id, "dtlab.ended_by", why)
            self._client.set_terminated(self.run_id, "KILLED" if is_stopped else _ENDS[str(kind)])

    def _begin(self, event: Mapping[str, Any]) -> None:
        settings = settings_of(event)
        tags = {"mlflow.source.git.commit": settings.get("commit"), "dtlab.run": self._name}
        tags |= {"dtlab.resumed_from": event.get("checkpoint")}
        run = self._client.create_run(
            self._experiment,
            run_name=self._name,
            tags={name: str(value) for name, value in tags.items() if value is not None},
        )
        self.run_id = str(run.info.run_id)
        told = [self._entities.Param(name, str(value)[:_MOST_TEXT]) for name, value in settings.items()]
        for first in range(0, len(told), _MOST_AT_ONCE):
            self._client.log_batch(self.run_id, params=told[first : first + _MOST_AT_ONCE])

    def _measured(self, values: Mapping[str, Any], step: int) -> None:
        now = int(time.time() * 1000)
        told = [self._entities.Metric(name, float(value), now, step) for name, value in values.items()]
        if told:
            self._client.log_batch(self.run_id, metrics=told)


class Live:
    """Takes events at once and sends them in the background; made on rank 0 alone."""

    def __init__(self, store: str, experiment: str, name: str) -> None:
        self._where = shown(store)
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._failed: str | None = None
        self._thread = threading.Thread(target=self._run, args=(store, experiment, name), daemon=True)
        self._thread.start()

    def __call__(self, event: dict[str, Any]) -> None:
        self._events.put(event)

    def close(self, seconds: float = 20.0) -> None:
        """Wait for what is on its way, at most ``seconds``; a warning says what did not arrive."""
        self._events.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._failed = f"no answer in {seconds:g} s"
        if self._failed is not None:
            warnings.warn(
                f"mlflow = {self._where!r}: {self._failed}; the run's record is whole: send it with "
                "dtlab runs mlflow RUN",
                DtlabWarning,
                stacklevel=2,
            )

    def _run(self, store: str, experiment: str, name: str) -> None:
        # MLflow's own defaults try a server that is gone for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        try:
            sender = Sender(store, experiment, name)
            for event in self._until_closed():
                sender.send(event)
        except BaseException as error:  # whatever MLflow or its store raises, training goes on
            self._failed = shown(one_line(f"{type(error).__name__}: {error}", 200))

    def _until_closed(self) -> Iterator[dict[str, Any]]:
        while (event := self._events.get()) is not None:
            yield event


def is_number(value: Any) -> bool:
    """Whether MLflow takes ``value`` as a metric."""
    return isinstance(value, int | float) and not isinstance(value, bool)
