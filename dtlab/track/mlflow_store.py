"""Hand a run's record to MLflow: settings, figures of every epoch, results, cost (lesson 15).

MLflow is optional. The record stays the source; what is sent can be sent again. By default it goes to the
data base ``mlflow.db`` in the working directory; a tracking server by its address; SageMaker's managed MLflow
by its ARN (``arn:aws:sagemaker:...``), for which the package ``sagemaker-mlflow`` must be there too.
"""

from __future__ import annotations

import importlib
from typing import Any

from dtlab.errors import UserError, one_line
from dtlab.track.runs import Run

__all__ = ["LOCAL_STORE", "log_run"]

LOCAL_STORE = "sqlite:///mlflow.db"
_PER_EPOCH = ("auc", "log_loss", "loss", "samples_per_second", "communication_share")
_MOST_TEXT = 500


def log_run(run: Run, store: str = LOCAL_STORE, experiment: str = "dtlab") -> str:
    """Write ``run`` into MLflow and return the id that it has there.

    Raises:
        UserError: mlflow (for an ARN: sagemaker-mlflow) is not installed, or the store does not answer.
    """
    mlflow = _imported("mlflow", "mlflow", "track")
    if store.startswith("arn:"):
        _imported("sagemaker_mlflow", "sagemaker-mlflow", None)
    try:
        mlflow.set_tracking_uri(store)
        mlflow.set_experiment(experiment)
        with mlflow.start_run(run_name=run.folder.name) as active:
            mlflow.log_params({name: str(value)[:_MOST_TEXT] for name, value in run.settings.items()})
            mlflow.set_tags({"dtlab.status": run.status, "dtlab.run": str(run.folder)})
            for event in run.record.of("epoch", "validation"):
                figures = {f"{event.kind}.{name}": event.number(name) for name in _PER_EPOCH}
                known = {name: value for name, value in figures.items() if value is not None}
                mlflow.log_metrics(known, step=int(event.number("epoch") or 0))
            mlflow.log_metrics(
                {name: float(value) for name, value in run.results.items() if _is_number(value)}
            )
            return str(active.info.run_id)
    except Exception as error:  # MLflow raises what its store raises
        raise UserError(f"mlflow = {store!r}: {one_line(str(error), 200)}; check the address") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _imported(module: str, package: str, extra: str | None) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        fix = f"pip install 'dtlab[{extra}]'" if extra else f"pip install {package}"
        raise UserError(f"mlflow: {package} is not installed; {fix}") from None
