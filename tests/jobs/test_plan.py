"""A job's request is one that the service takes, by botocore's own model; the plan says what it costs."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.cost.aws_model import problems
from dtlab.errors import UserError
from dtlab.sagemaker.account import idle_alarms, quotas, role_policy
from dtlab.sagemaker.job import TrainingJob
from dtlab.sagemaker.plan import make_plan
from dtlab.sagemaker.request import create_training_job, unique_name
from dtlab.sagemaker.tables import Checkpoint, Compute, Mlflow, Network, Output, Source

JOBS = Path(__file__).parents[2] / "examples" / "jobs"
ROLE = "arn:aws:iam::111122223333:role/r"


@pytest.fixture
def job(tmp_path) -> TrainingJob:
    (tmp_path / "train.py").write_text("")
    return TrainingJob(role=ROLE, source=Source(folder=tmp_path), output=Output(s3_uri="s3://bucket/out/"))


@pytest.mark.parametrize(("name", "world_size"), [("s0", 8), ("s3", 16), ("s4", 8)])
def test_printed_jobs_become_requests_that_the_service_takes(name, world_size, capsys):
    assert main(["sagemaker", "plan", str(JOBS / f"{name}.toml"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["world_size"] == world_size
    assert problems(plan["request"]) == []
    assert plan["changes"]
    assert plan["usd_at_most"] > 0
    for alarm in plan["alarms"]:
        assert problems(alarm, "PutMetricAlarm", "cloudwatch") == []


def test_everything_a_job_can_say_is_in_the_request(job):
    full = replace(
        job,
        compute=Compute(instance_count=2, spot=True, max_run_seconds=3600, retries=3, volume_kms_key="key-1"),
        checkpoint=Checkpoint(s3_uri="s3://bucket/ckpt/"),
        network=Network(subnets=("subnet-1",), security_groups=("sg-1",), encrypt_between_hosts=True),
        output=Output(s3_uri="s3://bucket/out/", kms_key="key-2"),
        mlflow=Mlflow(
            arn="arn:aws:sagemaker:us-east-1:111122223333:mlflow-tracking-server/m", experiment="e"
        ),
        channels={"train": "s3://bucket/train/"},
        metrics={"loss": "loss=([0-9.]+)"},
        environment={"NCCL_DEBUG": "INFO"},
        hyperparameters={"lr": 0.1},
        tags={"team": "a"},
    )
    request = create_training_job(full, "demo-1")
    assert problems(request) == []
    assert request["EnableManagedSpotTraining"] is True
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}
    assert request["CheckpointConfig"] == {"S3Uri": "s3://bucket/ckpt/", "LocalPath": "/opt/ml/checkpoints"}
    assert request["RetryStrategy"] == {"MaximumRetryAttempts": 3}
    assert request["VpcConfig"] == {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
    assert request["EnableInterContainerTrafficEncryption"] is True
    assert request["OutputDataConfig"]["KmsKeyId"] == "key-2"
    assert request["ResourceConfig"]["VolumeKmsKeyId"] == "key-1"
    assert request["MlflowConfig"]["MlflowExperimentName"] == "e"
    assert request["Environment"]["DTLAB_CHECKPOINT_SECONDS"] == "1800"
    assert request["Environment"]["NCCL_DEBUG"] == "INFO"
    assert [channel["ChannelName"] for channel in request["InputDataConfig"]] == ["train", "code"]
    assert {"Key": "team", "Value": "a"} in request["Tags"]
    warm = create_training_job(replace(job, compute=Compute(keep_alive_seconds=600)), "demo-1")
    assert warm["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 600
    assert problems(warm) == []


def test_mpi_form_lets_the_image_start_the_ranks(job):
    mpi = replace(
        job,
        compute=Compute(instance_count=2),
        distribution={"launcher": "mpi", "mpi_options": "-x NCCL_DEBUG=WARN"},
        environment={"NCCL_DEBUG": "INFO"},
    )
    request = create_training_job(mpi, "demo-1")
    assert problems(request) == []
    assert "ContainerEntrypoint" not in request["AlgorithmSpecification"]
    parameters = request["HyperParameters"]
    assert parameters["sagemaker_mpi_enabled"] == "true"
    assert parameters["sagemaker_mpi_num_of_processes_per_host"] == "4"
    assert json.loads(parameters["sagemaker_program"]) == "train.py"
    assert request["Environment"]["DTLAB_SET_NCCL_DEBUG"] == "INFO"  # the toolkit overwrites NCCL_DEBUG


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("ResourceConfig", "InstanceType"), "ml.g5.13xlarge", "did you mean"),
        (("AlgorithmSpecification", "TrainingInputMode"), "Files", "did you mean 'File'"),
        (("TrainingJobName",), "a_b", "TrainingJobName"),
        (("TrainingJobName",), "a" * 64, "takes 63"),
        (("ResourceConfig", "KeepAlivePeriodInSeconds"), 21_601, "21,600"),
        (("HyperParameters",), {"a": "x" * 2501}, "2,500"),
        (("ResourceConfig", "InstanceCount"), "2", "InstanceCount"),
        (("Unknown",), 1, "Unknown"),
    ],
)
def test_offline_check_finds_what_the_service_would_refuse(job, path, value, named):
    request = create_training_job(job, "demo-1")
    assert problems(request) == []
    place = request
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert any(named in line for line in problems(request)), problems(request)


def test_job_that_may_cost_more_than_its_budget_is_refused_with_the_seconds_that_fit(job):
    with pytest.raises(UserError) as caught:
        make_plan(replace(job, budget_usd=50, compute=Compute(max_run_seconds=36_000)))
    assert "$70.90" in str(caught.value)
    assert "lower compute.max_run_seconds to 25387" in str(caught.value)
    assert make_plan(replace(job, budget_usd=50, compute=Compute(max_run_seconds=25_387))).usd_at_most <= 50


def test_region_without_a_price_says_so_and_never_zero(job):
    plan = make_plan(replace(job, region="eu-west-1", image="account/image:tag"))
    assert plan.usd_at_most is None
    assert "no price" in plan.price_lines()[0]
    with pytest.raises(UserError, match="image: missing"):
        make_plan(replace(job, region="eu-west-1"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"role": None}, "role: missing"),
        ({"output": Output()}, "output.s3_uri: missing"),
        ({"compute": Compute(instance_type="local")}, "dtlab sagemaker rehearse"),
    ],
)
def test_plan_of_a_job_that_cannot_be_sent_names_what_is_missing(job, change, named):
    with pytest.raises(UserError, match=named):
        make_plan(replace(job, **change))


def test_cards_that_would_idle_are_counted(job):
    plan = make_plan(replace(job, compute=Compute(instance_count=2), distribution={"ranks_per_host": 1}))
    assert any("6 of 8 cards idle and are billed" in note for note in plan.notes)


def test_mlflow_without_its_plugin_and_torch_in_the_requirements_are_noted(job, tmp_path):
    (tmp_path / "requirements.txt").write_text("mlflow\ntorch==2.13.0  # newest\n")
    arn = "arn:aws:sagemaker:us-east-1:111122223333:mlflow-app/a"
    notes = make_plan(replace(job, mlflow=Mlflow(arn=arn))).notes
    assert any("sagemaker-mlflow" in note for note in notes)
    assert any("'torch==2.13.0'" in note for note in notes)


def test_alarm_threshold_is_that_of_a_card_times_the_cards(job):
    alarms = idle_alarms(replace(job, compute=Compute(instance_count=2)), "demo-1")
    assert [alarm["Dimensions"][0]["Value"] for alarm in alarms] == ["demo-1/algo-1", "demo-1/algo-2"]
    assert {alarm["Threshold"] for alarm in alarms} == {120.0}
    assert idle_alarms(replace(job, compute=Compute(instance_type="ml.m5.xlarge")), "x") == []


def test_quotas_name_the_line_of_the_kind_of_host(job):
    spot = replace(job, compute=Compute(spot=True), checkpoint=Checkpoint(s3_uri="s3://b/c"))
    assert quotas(spot)[0].name == "ml.g5.12xlarge for spot training job usage"
    warm = replace(job, compute=Compute(keep_alive_seconds=60))
    assert [quota.name.rsplit(" for ")[1] for quota in quotas(warm)] == [
        "training job usage",
        "training warm pool usage",
    ]


def test_role_may_write_only_where_the_job_writes(job):
    policy = role_policy(replace(job, channels={"train": "s3://data/train/"}))
    (writes,) = [s for s in policy["Statement"] if "s3:PutObject" in s["Action"]]
    assert writes["Resource"] == ["arn:aws:s3:::bucket/out/*"]
    (reads,) = [s for s in policy["Statement"] if s["Action"] == ["s3:GetObject"]]
    assert "arn:aws:s3:::data/train/*" in reads["Resource"]


def test_rights_are_printed_for_the_role_and_for_its_submitter(capsys):
    assert main(["sagemaker", "plan", str(JOBS / "s0.toml"), "--rights"]) == 0
    rights = json.loads(capsys.readouterr().out)
    assert rights["role"]["trust"]["Statement"][0]["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    actions = [action for s in rights["submitter"]["Statement"] for action in s["Action"]]
    assert {"sagemaker:CreateTrainingJob", "iam:PassRole", "s3:PutObject"} <= set(actions)


def test_two_submissions_in_one_second_have_two_names(job):
    assert len({unique_name(job, now=0) for _ in range(20)}) > 1
    assert len(unique_name(replace(job, name="a" * 42))) <= 63


def test_importing_the_package_loads_neither_boto3_nor_the_sdk():
    code = (
        "import sys, dtlab.sagemaker, dtlab.sagemaker.job_file, dtlab.sagemaker.first_process;"
        "print([m for m in ('boto3', 'botocore', 'sagemaker', 'torch', 'numpy', 'psutil') if m in "
        "sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_bad_job_file_at_the_command_line_is_one_line_and_exit_code_2(capsys, tmp_path):
    (tmp_path / "job.toml").write_text("[compute]\nspot = true\n")
    assert main(["sagemaker", "plan", str(tmp_path / "job.toml")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "checkpoint.s3_uri" in captured.err
