"""Sending a tuning job: what reaches AWS, against moto; what moto lacks, against botocore's Stubber."""

import io
import json
import tarfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.errors import UserError
from dtlab.sagemaker.job_file import read_job
from dtlab.sagemaker.tuning import make_tuning_plan
from dtlab.sagemaker.tuning_client import stop_tuning, submit_tuning, tuning_status
from dtlab.tune.space import Range

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto")
from botocore.stub import Stubber  # noqa: E402

S0 = Path(__file__).parents[2] / "examples" / "jobs" / "s0.toml"
REGION = "us-east-1"


@pytest.fixture
def plan():
    job = read_job(S0)
    fixed = {name: value for name, value in job.hyperparameters.items() if name != "optim.lr"}
    job = replace(job, hyperparameters=fixed, budget_usd=None)
    return make_tuning_plan(
        job, {"optim.lr": Range(1e-4, 1e-2, log=True)}, objective="test:auc", name="s0-tune"
    )


@pytest.fixture
def files(tmp_path):
    text = S0.read_text().replace('"optim.lr" = 2e-3\n', "").replace("budget_usd = 100\n", "")
    (tmp_path / "job.toml").write_text(text.replace('folder = "code"', f'folder = "{S0.parent / "code"}"'))
    (tmp_path / "space.toml").write_text('[tune.space]\n"optim.lr" = {low = 1e-4, high = 1e-2, log = true}\n')
    return [str(tmp_path / "job.toml"), str(tmp_path / "space.toml"), "--objective", "test:auc"]


def sent_jobs(session):
    return session.client("sagemaker").list_hyper_parameter_tuning_jobs()["HyperParameterTuningJobSummaries"]


def test_request_that_reaches_the_service_is_the_planned_one_and_its_code_lies_where_it_says(session, plan):
    sent = []
    session.events.register(
        "before-parameter-build.sagemaker.CreateHyperParameterTuningJob",
        lambda params, **_: sent.append(dict(params)),
    )
    assert submit_tuning(plan, session=session).endswith("s0-tune")
    assert sent == [plan.request]
    static = sent[0]["TrainingJobDefinition"]["StaticHyperParameters"]
    where = json.loads(static["sagemaker_submit_directory"]).removeprefix("s3://example-bucket/")
    body = session.client("s3").get_object(Bucket="example-bucket", Key=where)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        names = set(archive.getnames())
    assert json.loads(static["sagemaker_program"]) in names
    assert "dtlab/sagemaker/script.py" in names


def test_tune_is_a_dry_run_unless_send_is_given(session, files, capsys):
    assert main(["sagemaker", "tune", *files]) == 0
    out = capsys.readouterr().out
    assert "price: at most" in out
    assert "Dry run: nothing was sent" in out
    assert sent_jobs(session) == []
    assert "Contents" not in session.client("s3").list_objects_v2(Bucket="example-bucket")


def test_tune_asks_with_the_price_and_sends_nothing_on_another_word(session, files, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["sagemaker", "tune", *files, "--send"]) == 2
    assert "add --yes" in capsys.readouterr().err
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "no")
    assert main(["sagemaker", "tune", *files, "--send", "--jobs", "2"]) == 1
    assert "up to $113.44" in asked[0]  # 2 jobs x 2 hosts x 4 h x $7.09
    assert sent_jobs(session) == []


def test_tune_with_send_and_yes_creates_the_job_and_status_finds_it(session, files, capsys, monkeypatch):
    assert main(["sagemaker", "tune", *files, "--send", "--yes", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["sent"]
    (job,) = sent_jobs(session)
    assert job["HyperParameterTuningJobName"] == body["name"]
    # moto cannot list the training jobs of a tuning job (see the last tests); all else is its answer.
    monkeypatch.setattr("dtlab.sagemaker.tuning_client._jobs", lambda sagemaker, name: iter(()))
    assert main(["sagemaker", "status", body["name"], "--tuning", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs_at_most"] == 12


def test_tuning_job_that_is_not_there_is_one_line(session, capsys):
    assert main(["sagemaker", "status", "nobody", "--tuning"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


class Stubbed:
    """A session whose SageMaker client answers as AWS would."""

    def __init__(self, session):
        self.made = session.client("sagemaker", region_name=REGION)
        self.stub = Stubber(self.made)
        self.stub.activate()

    def client(self, service, **_):
        assert service == "sagemaker"
        return self.made


def test_status_counts_jobs_adds_their_seconds_up_and_names_the_best(session, plan):
    now = datetime.now(UTC)
    named = {"HyperParameterTuningJobName": "s0-tune"}
    counters = {"Completed": 1, "InProgress": 1, "RetryableError": 0, "NonRetryableError": 0, "Stopped": 0}
    best = {
        "TrainingJobName": "s0-tune-001",
        "TrainingJobArn": "arn:aws:sagemaker:us-east-1:111122223333:training-job/s0-tune-001",
        "CreationTime": now,
        "TrainingJobStatus": "Completed",
        "TunedHyperParameters": {"optim.lr": "0.002"},
        "FinalHyperParameterTuningJobObjectiveMetric": {"MetricName": "test:auc", "Value": 0.75},
    }
    answer = {
        **named,
        "HyperParameterTuningJobArn": "arn:aws:sagemaker:us-east-1:111122223333:hyper-parameter-tuning-job/x",
        "HyperParameterTuningJobConfig": plan.request["HyperParameterTuningJobConfig"],
        "TrainingJobDefinition": plan.request["TrainingJobDefinition"],
        "HyperParameterTuningJobStatus": "InProgress",
        "CreationTime": now,
        "TrainingJobStatusCounters": counters,
        "ObjectiveStatusCounters": {"Succeeded": 1, "Pending": 1, "Failed": 0},
        "BestTrainingJob": best,
    }
    running = {**best, "TrainingJobName": "s0-tune-002", "TrainingJobStatus": "InProgress"}
    ended = {
        **best,
        "TrainingStartTime": now - timedelta(hours=2),
        "TrainingEndTime": now - timedelta(hours=1),
    }
    ended.pop("FinalHyperParameterTuningJobObjectiveMetric")
    running.pop("FinalHyperParameterTuningJobObjectiveMetric")
    made, listing = Stubbed(session), "list_training_jobs_for_hyper_parameter_tuning_job"
    made.stub.add_response("describe_hyper_parameter_tuning_job", answer, named)
    made.stub.add_response(listing, {"TrainingJobSummaries": [ended], "NextToken": "more"}, named)
    half = {**running, "TrainingStartTime": now - timedelta(minutes=30)}
    made.stub.add_response(listing, {"TrainingJobSummaries": [half]}, {**named, "NextToken": "more"})
    found = tuning_status("s0-tune", region=REGION, session=made, now=now)
    assert found.counts["Completed"] == 1
    assert (found.best, found.best_metric, found.best_values) == ("s0-tune-001", 0.75, {"optim.lr": "0.002"})
    assert found.seconds == pytest.approx(5400)
    assert found.usd == pytest.approx(1.5 * 2 * 7.09)
    assert "1 Completed, 1 InProgress of at most 12" in found.lines()[2]


def test_stop_asks_sagemaker_for_the_tuning_job(session):
    made = Stubbed(session)
    made.stub.add_response("stop_hyper_parameter_tuning_job", {}, {"HyperParameterTuningJobName": "s0-tune"})
    stop_tuning("s0-tune", region=REGION, session=made)
    made.stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    "operation", ["stop_hyper_parameter_tuning_job", "list_training_jobs_for_hyper_parameter_tuning_job"]
)
def test_moto_still_lacks_it_so_the_stubber_is_needed(session, plan, operation):
    """When this fails, moto has learned the operation: test against it and drop its Stubber above."""
    submit_tuning(plan, session=session)
    with pytest.raises(NotImplementedError):
        getattr(session.client("sagemaker"), operation)(HyperParameterTuningJobName="s0-tune")


def test_entry_script_is_looked_for_before_anything_is_planned(plan, tmp_path):
    job = replace(plan.job, source=replace(plan.job.source, folder=tmp_path))
    with pytest.raises(UserError, match=r"entry_script = 'train\.py'"):
        make_tuning_plan(job, {"optim.lr": Range(1e-4, 1e-2)}, objective="test:auc")
