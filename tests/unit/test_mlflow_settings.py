"""run.mlflow: what is refused before a run, and that no store can end one."""

import sys
import threading

import pytest

from dtlab.cli import main
from dtlab.errors import DtlabWarning, UserError
from dtlab.sagemaker.script import train_config
from dtlab.train.mlflow_live import Live, address_of, shown


def test_address_with_a_password_is_refused_without_showing_it():
    for store in ("https://me:hunter2@host", "postgresql+x://me:hunter2@host/db", "http://hunter2@host"):
        with pytest.raises(UserError, match="MLFLOW_TRACKING_URI") as refused:
            address_of(store, {})
        assert "hunter2" not in str(refused.value)
        assert address_of("env", {"MLFLOW_TRACKING_URI": store}) == store
        assert "hunter2" not in shown(f"no answer of {store}")
    with pytest.raises(UserError, match="is not set"):
        address_of("env", {})


def test_missing_mlflow_is_refused_before_anything_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.chdir(tmp_path)
    environ = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    for name, value in environ.items():  # in this process, where mlflow is hidden
        monkeypatch.setenv(name, value)
    assert main(["train", "--data.name", "clicks", "--run.mlflow", "sqlite:///mlflow.db"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'dtlab[track]'" in line
    assert list(tmp_path.iterdir()) == []


def test_store_that_fails_is_a_warning_at_the_end():
    live = Live("nowhere://x", "dtlab", "1")
    live({"event": "start", "config": {}})
    with pytest.warns(DtlabWarning, match="send it with dtlab runs mlflow RUN"):
        live.close()


def test_store_that_never_answers_is_left_after_its_time():
    answers = threading.Event()

    class Silent(Live):
        def _run(self, *about):
            answers.wait(60)

    live = Silent("nowhere://x", "dtlab", "1")
    with pytest.warns(DtlabWarning, match="no answer in 0.1 s"):
        live.close(0.1)
    answers.set()


def test_job_with_a_tracking_server_sends_its_record_there(monkeypatch, capsys):
    environ = {"SM_HPS": "{}", "MLFLOW_TRACKING_URI": "arn:aws:sagemaker:x:1:mlflow-app/a"}
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert train_config(environ).run.mlflow is None
    assert "mlflow is not in requirements.txt" in capsys.readouterr().out
