"""Hand a finished run's record to MLflow: settings, figures of every epoch, results, cost (lesson 15).

MLflow is optional. The record stays the source; what is sent can be sent again. By default it goes to the
data base ``mlflow.db`` in the working directory; a tracking server by its address; SageMaker's managed MLflow
by its ARN (``arn:aws:sagemaker:...``), for which the package ``sagemaker-mlflow`` must be there too. While a
run goes on, ``run.mlflow`` does the same (``dtlab.train.mlflow_live``).
"""

from __future__ import annotations

import os

from dtlab.errors import UserError, one_line
from dtlab.track.runs import Run
from dtlab.train.mlflow_live import LOCAL_STORE, Sender, require_mlflow, shown

__all__ = ["LOCAL_STORE", "log_run"]


def log_run(run: Run, store: str = LOCAL_STORE, experiment: str = "dtlab") -> str:
    """Write ``run`` into MLflow and return the id that it has there: of the last start, if it had several.

    Raises:
        UserError: mlflow (for an ARN: sagemaker-mlflow) is not installed, or the store does not answer.
    """
    require_mlflow(store)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        sender = Sender(store, experiment, run.folder.name)
        for attempt in run.record.attempts:
            for event in attempt:
                sender.send({"event": event.kind, **event.values})
    except Exception as error:  # MLflow raises what its store raises
        reason = shown(one_line(str(error), 200))
        raise UserError(f"mlflow = {shown(store)!r}: {reason}; check the address") from None
    assert sender.run_id is not None, "a record begins with a start"
    return sender.run_id
