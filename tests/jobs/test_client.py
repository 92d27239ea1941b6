"""Sending a job: what reaches AWS, against moto; what moto lacks, against botocore's Stubber."""

import io
import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.cost import aws
from dtlab.errors import UserError
from dtlab.sagemaker.batch_queue import service_job
from dtlab.sagemaker.client import JobStatus, logs, status, stop, submit
from dtlab.sagemaker.job_file import read_job
from dtlab.sagemaker.plan import Plan, make_plan

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto")
from botocore.exceptions import EndpointConnectionError, NoCredentialsError  # noqa: E402
from botocore.stub import Stubber  # noqa: E402

JOBS = Path(__file__).parents[2] / "examples" / "jobs"
REGION = "us-east-1"


@pytest.fixture
def plan() -> Plan:
    return make_plan(read_job(JOBS / "s0.toml"), name="s0-demo")


def test_request_that_reaches_the_service_is_the_one_that_was_planned(session, plan):
    sent = []
    session.events.register(
        "before-parameter-build.sagemaker.CreateTrainingJob", lambda params, **_: sent.append(dict(params))
    )
    assert submit(plan, session=session).endswith("training-job/s0-demo")
    (request,) = sent
    assert request == plan.request
    assert request["Environment"]["DTLAB_RANKS_PER_HOST"] == "4"  # moto's describe drops these three
    assert request["RetryStrategy"] == {"MaximumRetryAttempts": 3}
    assert {"Key": "project", "Value": "dtlab"} in request["Tags"]


def test_code_lies_where_the_request_says(session, plan):
    submit(plan, session=session)
    (code,) = [c for c in plan.request["InputDataConfig"] if c["ChannelName"] == "code"]
    prefix = code["DataSource"]["S3DataSource"]["S3Uri"].removeprefix("s3://example-bucket/")
    s3 = session.client("s3")
    names = [
        entry["Key"].removeprefix(prefix) for entry in s3.list_objects_v2(Bucket="example-bucket")["Contents"]
    ]
    assert names == ["bootstrap.py", "source.tar.gz"]
    body = s3.get_object(Bucket="example-bucket", Key=prefix + "source.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert {"train.py", "recommender.toml", "dtlab/sagemaker/first_process.py"} <= set(archive.getnames())


def test_alarms_are_created_with_the_job(session, plan):
    submit(plan, session=session, alarms=True)
    alarms = session.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert [alarm["Threshold"] for alarm in alarms] == [120.0, 120.0]


def test_job_with_a_budget_and_no_known_price_is_not_sent_unasked(tmp_path, capsys):
    text = (JOBS / "s4.toml").read_text().replace('"code"', f'"{JOBS / "code"}"')
    job = tmp_path / "job.toml"
    job.write_text('region = "eu-none-9"\nimage = "registry.example/image:1"\n' + text)
    assert main(["sagemaker", "submit", str(job), "--send", "--yes"]) == 2
    assert "budget_usd = 50: no price is known" in capsys.readouterr().err


def test_job_whose_alarm_is_refused_is_not_sent(session, plan):
    def refuse(**_):
        raise NoCredentialsError

    session.events.register("before-call.cloudwatch.PutMetricAlarm", refuse)
    with pytest.raises(UserError, match="put_metric_alarm"):
        submit(plan, session=session, alarms=True)
    assert session.client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []


def test_call_that_reaches_nobody_names_the_network():
    class Unreachable:
        def list_pipelines(self):
            raise EndpointConnectionError(endpoint_url="https://example.invalid")

    with pytest.raises(UserError, match="see the network"):
        aws.call(Unreachable(), "list_pipelines")


def put(session, key: str) -> None:
    session.client("s3").put_object(
        Bucket="example-bucket", Key=f"s0/checkpoints/run/checkpoints/{key}", Body=b""
    )


def test_status_names_the_newest_whole_checkpoint_on_s3_and_its_age(session, plan):
    submit(plan, session=session)
    assert status("s0-demo", region=REGION, session=session).uploaded_step is None
    for key in ("save-000001-step-0000000040/state.json", "save-000002-step-0000000080/state.json"):
        put(session, key)
    put(session, "save-000003-step-0000000120/tensors.safetensors")  # its upload is not over
    put(session, ".save-000004-step-0000000160.writing/state.json")
    found = status("s0-demo", region=REGION, session=session, now=datetime.now(UTC) + timedelta(hours=2))
    assert found.state == "Completed"
    assert found.hosts == "2 x ml.g5.12xlarge"
    assert found.uploaded_step == 80
    assert 7000 < (found.upload_age_seconds or 0) < 7400


def state(**changes) -> JobStatus:
    fields = dict.fromkeys(JobStatus.__dataclass_fields__)
    return JobStatus(**{**fields, "state": "InProgress", "upload_age_seconds": 4000.0, **changes})


def test_uploads_that_stopped_are_seen_while_the_job_runs():
    assert state().uploads_are_late()
    assert not state(upload_age_seconds=3000.0).uploads_are_late()
    assert not state(state="Completed").uploads_are_late()


def stubbed(session, operation: str, answer: dict, expected: dict):
    """A session whose SageMaker client answers as AWS would."""
    client = session.client("sagemaker", region_name=REGION)
    stub = Stubber(client)
    stub.add_response(operation, answer, expected)
    stub.activate()

    class Session:
        def client(self, service, **_):
            return client if service == "sagemaker" else session.client(service, region_name=REGION)

    return Session(), stub


def test_job_for_a_queue_goes_to_batch_and_not_to_sagemaker(session, plan):
    client = session.client("batch", region_name=REGION)
    stub = Stubber(client)
    request = service_job(plan, "my-queue")
    stub.add_response("submit_service_job", {"jobName": "s0-demo", "jobId": "1", "jobArn": "arn:b"}, request)
    stub.activate()

    class Session:
        def client(self, service, **_):
            return client if service == "batch" else session.client(service, region_name=REGION)

    assert submit(plan, session=Session(), queue=request) == "arn:b"
    stub.assert_no_pending_responses()
    assert session.client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []


def test_stop_asks_sagemaker_for_the_job(session):
    made, stub = stubbed(session, "stop_training_job", {}, {"TrainingJobName": "s0-demo"})
    stop("s0-demo", region=REGION, session=made)
    stub.assert_no_pending_responses()


def test_moto_still_lacks_stop_so_the_stubber_is_needed(session, plan):
    """When this fails, moto has learned to stop jobs: test stop() against it and drop the Stubber above."""
    submit(plan, session=session)
    with pytest.raises(NotImplementedError):
        session.client("sagemaker").stop_training_job(TrainingJobName="s0-demo")


def test_spot_saving_and_dollars_are_those_of_the_billable_seconds(session):
    answer = {
        "TrainingJobName": "s0-demo",
        "TrainingJobArn": "arn:aws:sagemaker:us-east-1:111122223333:training-job/s0-demo",
        "ModelArtifacts": {"S3ModelArtifacts": "s3://b/m"},
        "TrainingJobStatus": "Failed",
        "SecondaryStatus": "Failed",
        "FailureReason": "AlgorithmError: host algo-1: ValueError: bad lr",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1},
        "StoppingCondition": {},
        "CreationTime": datetime.now(UTC),
        "TrainingTimeInSeconds": 3600,
        "BillableTimeInSeconds": 1260,
        "EnableManagedSpotTraining": True,
    }
    made, _ = stubbed(session, "describe_training_job", answer, {"TrainingJobName": "s0-demo"})
    found = status("s0-demo", region=REGION, session=made)
    assert found.saving == pytest.approx(0.65)
    assert found.usd == pytest.approx(2 * 7.09 * 1260 / 3600)
    assert found.failure is not None
    assert "bad lr" in found.failure


def test_logs_come_host_by_host(session):
    client, group = session.client("logs"), "/aws/sagemaker/TrainingJobs"
    client.create_log_group(logGroupName=group)
    for host in ("algo-2", "algo-1"):
        stream = f"s0-demo/{host}-1700000000"
        client.create_log_stream(logGroupName=group, logStreamName=stream)
        now = round(datetime.now(UTC).timestamp() * 1000)
        events = [{"timestamp": now + i, "message": f"line {i}"} for i in range(3)]
        client.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)
    told = list(logs("s0-demo", region=REGION, session=session, most=2))
    assert told == [("algo-1", "line 1"), ("algo-1", "line 2"), ("algo-2", "line 1"), ("algo-2", "line 2")]


def test_job_that_is_not_there_is_one_line(session, capsys):
    for words in (["status"], ["logs"]):
        assert main(["sagemaker", *words, "nobody"]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
    with pytest.raises(UserError, match="no output yet"):
        list(logs("nobody", region=REGION, session=session))


def test_submit_is_a_dry_run_unless_send_is_given(session, capsys):
    assert main(["sagemaker", "submit", str(JOBS / "s0.toml")]) == 0
    out = capsys.readouterr().out
    assert "at most $56.72" in out
    assert "budget: $100.00" in out
    assert "Dry run: nothing was sent" in out
    assert session.client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []


def test_submit_asks_and_sends_nothing_where_nobody_can_answer(session, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["sagemaker", "submit", str(JOBS / "s0.toml"), "--send"]) == 2
    assert "add --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "no" if "$56.72" in question else "yes")
    assert main(["sagemaker", "submit", str(JOBS / "s0.toml"), "--send"]) == 1
    assert session.client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []


def test_submit_with_send_and_yes_creates_the_job(session, capsys):
    assert main(["sagemaker", "submit", str(JOBS / "s0.toml"), "--send", "--yes", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["sent"]
    (job,) = session.client("sagemaker").list_training_jobs()["TrainingJobSummaries"]
    assert job["TrainingJobName"] == body["name"]


def test_batch_queue_gets_the_same_request_without_its_tags(plan):
    request = service_job(plan, "my-queue", priority=10, share="team-a", attempts=2)
    payload = json.loads(request["serviceRequestPayload"])
    assert payload == {name: value for name, value in plan.request.items() if name != "Tags"}
    assert request["tags"]["project"] == "dtlab"
    assert request["timeoutConfig"] == {"attemptDurationSeconds": 28800}
    for wrong in ({"attempts": 11}, {"priority": 5}, {"priority": -1, "share": "a"}):
        with pytest.raises(UserError):
            service_job(plan, "my-queue", **wrong)
