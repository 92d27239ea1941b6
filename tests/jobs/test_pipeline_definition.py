"""The SageMaker pipeline of a job: accepted as a definition, by botocore's model of each step and by moto."""

import copy
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.errors import UserError
from dtlab.sagemaker.job_file import read_job
from dtlab.sagemaker.pipeline import make_pipeline_plan
from dtlab.sagemaker.pipeline_check import definition_problems, order
from dtlab.sagemaker.pipeline_client import put_pipeline, start_pipeline
from dtlab.sagemaker.pipeline_table import Steps

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto")

JOBS = Path(__file__).parents[2] / "examples" / "jobs"
REGION = "us-east-1"
NAMES = ["Prepare", "Features", "Train", "Evaluate", "GoodEnough", "Package", "Register", "TooLow"]


@pytest.fixture(scope="module")
def plan():
    return make_pipeline_plan(read_job(JOBS / "s4.toml"))


@pytest.fixture
def definition(plan):
    return copy.deepcopy(plan.definition)


def step(definition, name):
    flat = [*definition["Steps"]]
    for each in definition["Steps"]:
        flat += each["Arguments"].get("IfSteps", []) + each["Arguments"].get("ElseSteps", [])
    return next(each for each in flat if each["Name"] == name)


def names_in(value):
    text = json.dumps(value)
    return {name for name in NAMES if f"Steps.{name}." in text}


def test_steps_come_after_those_whose_outputs_they_read(definition):
    assert [each["Type"] for each in definition["Steps"]] == [
        "Processing", "Processing", "Training", "Processing", "Condition",
    ]  # fmt: skip
    assert order(definition).index("Package") < order(definition).index("Register")
    assert sorted(order(definition)) == sorted(NAMES)
    assert names_in(step(definition, "Features")["Arguments"]) == {"Prepare"}
    assert names_in(step(definition, "Train")["Arguments"]) == {"Features"}
    assert names_in(step(definition, "Evaluate")["Arguments"]) == {"Prepare", "Features", "Train"}
    assert names_in(step(definition, "Package")["Arguments"]) == {"Prepare", "Train", "Evaluate"}
    assert names_in(step(definition, "Register")["Arguments"]) == {"Package", "Evaluate"}


def test_cache_keys_hold_no_execution_but_what_decides_the_outputs(definition):
    """SageMaker compares these arguments; outputs have the execution's number, so a new one is handed on."""
    keys = {
        "Prepare": ("AppSpecification", "Environment", "ProcessingInputs"),
        "Train": (
            "AlgorithmSpecification",
            "CheckpointConfig",
            "Environment",
            "HyperParameters",
            "InputDataConfig",
        ),
    }
    for name, arguments in keys.items():
        each = step(definition, name)
        assert each["CacheConfig"] == {"Enabled": True, "ExpireAfter": "30d"}
        assert "Execution." not in json.dumps({key: each["Arguments"][key] for key in arguments})
    outputs = step(definition, "Prepare")["Arguments"]["ProcessingOutputConfig"]
    assert {"Get": "Execution.PipelineExecutionId"} in outputs["Outputs"][0]["S3Output"]["S3Uri"]["Std:Join"][
        "Values"
    ]
    assert step(definition, "Prepare")["Arguments"]["Environment"]["DTLAB_DATA_VERSION"] == {
        "Get": "Parameters.DataVersion"
    }


def test_checkpoints_of_other_settings_and_data_lie_elsewhere(definition):
    where = step(definition, "Train")["Arguments"]["CheckpointConfig"]["S3Uri"]["Std:Join"]["Values"]
    assert where[1] == {"Get": "Parameters.DataVersion"}
    job = read_job(JOBS / "s4.toml")
    other = make_pipeline_plan(replace(job, hyperparameters={**job.hyperparameters, "optim.lr": 5e-4}))
    assert (
        step(other.definition, "Train")["Arguments"]["CheckpointConfig"]["S3Uri"]["Std:Join"]["Values"]
        != where
    )


def test_step_is_told_only_what_decides_its_output(definition):
    told = {name: step(definition, name)["Arguments"]["AppSpecification"]["ContainerArguments"]
            for name in ("Prepare", "Features", "Evaluate", "Package")}  # fmt: skip
    assert told["Prepare"] == ["prepare", "config=recommender.toml"]
    assert told["Features"] == ["features", "config=recommender.toml"]
    assert "optim.lr=0.001" in told["Evaluate"]
    assert "pipeline.requests=200" in told["Evaluate"]


def test_code_lies_under_its_own_hash(plan, tmp_path):
    same = make_pipeline_plan(read_job(JOBS / "s4.toml"))
    assert (same.code, same.request) == (plan.code, plan.request)
    for file in (JOBS / "code").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    job = read_job(JOBS / "s4.toml")
    copied = replace(job, source=replace(job.source, folder=tmp_path))
    assert make_pipeline_plan(copied).code == plan.code
    (tmp_path / "train.py").write_text("print()\n")
    assert make_pipeline_plan(copied).code != plan.code


def broken(definition, where, value):
    """``definition`` with ``value`` at ``where``: a path of keys; the first is a step's name, or a key."""
    first, *rest = where
    place = step(definition, first) if first in NAMES else definition
    keys = rest if first in NAMES else where
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return definition


URI = ["Arguments", "ProcessingInputs", 0, "S3Input", "S3Uri"]


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (["Version"], "2021-01-01", "Version = '2021-01-01'"),
        (["Extra"], 1, "Extra: unknown key"),
        (["Parameters", 0, "Type"], "Text", "Type = 'Text'"),
        (["Parameters", 3, "DefaultValue"], "2", "is no Integer"),
        (["Parameters", 3, "DefaultValue"], True, "is no Integer"),
        (["Parameters", 0, "Name"], "DataVersion", "DataVersion: is there twice"),
        (["Parameters", 0, "Name"], "a b", "give a name"),
        (["Features", "Name"], "Prepare", "'Prepare' is there twice"),
        (["Prepare", "Extra"], 1, "Extra: unknown key"),
        (["Prepare", "Type"], "Process", "Type = 'Process'"),
        (["Prepare", "DependsOn"], ["Nobody"], "there is no step 'Nobody'"),
        (["Prepare", "DependsOn"], ["Package"], "wait for each other"),
        (["Prepare", "CacheConfig"], {"Enabled": True, "ExpireAfter": "a month"}, "ExpireAfter such as"),
        (["Prepare", *URI], {"Get": "Parameters.Nothing"}, "there is no such parameter"),
        (["Prepare", *URI], {"Get": "Execution.Nothing"}, "an execution has"),
        (["Prepare", *URI], {"Get": "Steps.Nobody.X"}, "there is no step 'Nobody'"),
        (["Prepare", *URI], {"Get": "Prepare.X"}, "begin with Parameters."),
        (["Prepare", *URI], {"Get": "Steps.Train.ModelArtifacts.Nothing"}, "returns no 'Nothing' there"),
        (["Prepare", *URI], {"Get": "Steps.Train.ModelArtifacts"}, "is no plain value"),
        (["Evaluate", *URI],
         {"Get": "Steps.Prepare.ProcessingOutputConfig.Outputs['x'].S3Output.S3Uri"}, "no output 'x'"),
        (["Evaluate", "PropertyFiles", 0, "OutputName"], "x", "does not name a file of an output"),
        (["GoodEnough", "Arguments", "Conditions", 0, "Type"], "Above", "of a comparison"),
        (["GoodEnough", "Arguments", "Conditions", 0, "LeftValue"],
         {"Get": "Steps.Evaluate.PropertyFiles.Nothing"}, "no such property file"),
        (["Train", "Arguments", "TrainingJobName"], "x", "SageMaker gives the name"),
        (["Train", "Arguments", "ResourceConfig", "VolumeSizeInGB"], "many", "VolumeSizeInGB"),
        (["Parameters", 2, "DefaultValue"], "ml.g4dn.99xlarge", "unknown to the service"),
        (["Prepare", "Arguments", "AppSpecification", "ContainerArguments"], ["x" * 300], "300 characters"),
        (["Register", "Arguments", "ModelApprovalStatus"], "Perhaps", "unknown to the service"),
        (["TooLow", "Arguments"], {}, "give ErrorMessage"),
    ],
)  # fmt: skip
def test_every_fault_of_a_definition_is_found(definition, where, value, words):
    assert definition_problems(definition) == []
    found = definition_problems(broken(definition, where, value))
    assert any(words in line for line in found), found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"channels": {}}, "channels.train: missing"),
        ({"output": None}, "output.s3_uri: missing"),
        ({"role": None}, "role: missing"),
        ({"hyperparameters": {"data.name": "flights"}}, "data.name = 'flights'"),
        ({"hyperparameters": {"optim.lrr": 1}}, "did you mean optim.lr"),
        ({"budget_usd": 1.0}, "one execution may cost"),
        ({"distribution": {"launcher": "mpi"}}, "leave it out"),
        ({"region": "eu-west-1", "image": "x/y:1"}, "pipeline.inference_image: missing"),
        ({"pipeline": Steps(instance_type="ml.nothing.xlarge")}, "unknown to the service"),
    ],
)
def test_job_that_makes_no_pipeline_is_one_line(changes, words):
    job = read_job(JOBS / "s4.toml")
    if "output" in changes:
        changes = {"output": type(job.output)()}
    with pytest.raises(UserError, match=words.replace("(", r"\(")) as error:
        make_pipeline_plan(replace(job, **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('cache = "a month"', "pipeline.cache = 'a month'"),
        ('instance_type = "m5.xlarge"', "begin with ml."),
        ("max_run_seconds = 1", "pipeline.max_run_seconds = 1"),
        ("least_auc = 7.0", "pipeline.least_auc = 7.0"),
        ("leest_auc = 0.7", "did you mean least_auc?"),
    ],
)
def test_table_that_is_wrong_is_one_line(line, words, tmp_path, capsys):
    text = (JOBS / "s4.toml").read_text().replace('folder = "code"', f'folder = "{JOBS / "code"}"')
    (tmp_path / "job.toml").write_text(f"{text}\n[pipeline]\n{line}\n")
    assert main(["sagemaker", "pipeline", str(tmp_path / "job.toml")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_pipeline_is_created_once_and_changed_after_that(session, plan):
    sent = []
    for name in ("CreatePipeline", "UpdatePipeline"):
        session.events.register(
            f"before-parameter-build.sagemaker.{name}",
            lambda params, model, **_: sent.append((model.name, dict(params))),
        )
    arn, is_new = put_pipeline(plan, session=session)
    assert (is_new, sent[0]) == (True, ("CreatePipeline", plan.request))
    told = session.client("sagemaker").describe_pipeline(PipelineName=plan.name)
    assert json.loads(told["PipelineDefinition"]) == plan.definition
    prefix = plan.code.removeprefix("s3://example-bucket/")
    found = session.client("s3").list_objects_v2(Bucket="example-bucket", Prefix=prefix)["Contents"]
    assert [each["Key"].removeprefix(prefix) for each in found] == ["bootstrap.py", "source.tar.gz"]
    assert put_pipeline(plan, session=session) == (arn, False)
    assert sent[1][0] == "UpdatePipeline"
    assert sent[1][1]["PipelineDefinition"] == plan.request["PipelineDefinition"]


def test_execution_starts_with_the_parameters_that_were_given(session, plan):
    sent = []
    session.events.register(
        "before-parameter-build.sagemaker.StartPipelineExecution",
        lambda params, **_: sent.append(dict(params)),
    )
    put_pipeline(plan, session=session)
    assert f"pipeline/{plan.name}/execution/" in start_pipeline(plan, {"DataVersion": "2"}, session=session)
    assert sent[0]["PipelineParameters"] == [{"Name": "DataVersion", "Value": "2"}]
    with pytest.raises(UserError, match="the pipeline has TrainData, DataVersion"):
        start_pipeline(plan, {"Data": "2"}, session=session)


def test_parameter_that_the_pipeline_lacks_is_refused_before_anything_is_sent(capsys):
    words = ["sagemaker", "pipeline", str(JOBS / "s4.toml"), "--start", "--yes", "--parameter", "Data=2"]
    assert main(words) == 2
    assert "parameter = 'Data': the pipeline has" in capsys.readouterr().err
    assert main([word for word in words if word not in ("--start", "--yes")]) == 2
    assert "only with --start" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--folder", "kept"], "folder = 'kept': only with --rehearse"),
        (["--rehearse", "--send"], "--rehearse and --send: each does something of its own"),
        (["--rights", "--start"], "--rights and --start: each does something of its own"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags, words, capsys):
    assert main(["sagemaker", "pipeline", str(JOBS / "s4.toml"), *flags]) == 2
    assert words in capsys.readouterr().err


def test_role_may_start_the_steps_and_pass_itself_on_and_its_submitter_only_the_pipeline(capsys):
    assert main(["sagemaker", "pipeline", str(JOBS / "s4.toml"), "--rights"]) == 0
    body = json.loads(capsys.readouterr().out)

    def allowed(policy, action):
        return [one for each in policy["Statement"] if action in each["Action"] for one in each["Resource"]]

    role, submitter = body["role"]["policy"], body["submitter"]
    for kind in ("Processing", "Training"):
        where = allowed(role, f"sagemaker:Create{kind}Job")
        assert f"arn:aws:sagemaker:us-east-1:*:{kind.lower()}-job/pipelines-*" in where
        assert "*" not in where
    assert (
        allowed(role, "iam:PassRole")
        == allowed(submitter, "iam:PassRole")
        == ["arn:aws:iam::111122223333:role/dtlab-training"]
    )
    assert "arn:aws:s3:::example-bucket/s4/models/pipelines/s4-first-job/*" in allowed(role, "s3:PutObject")
    assert allowed(submitter, "sagemaker:CreatePipeline")[0].endswith(":pipeline/s4-first-job")
    assert allowed(submitter, "sagemaker:CreateTrainingJob") == []


def pipelines(session):
    return session.client("sagemaker").list_pipelines()["PipelineSummaries"]


def test_command_is_a_dry_run_asks_with_the_price_and_then_sends(session, plan, capsys, monkeypatch):
    words = ["sagemaker", "pipeline", str(JOBS / "s4.toml")]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == plan.definition
    assert main(words) == 0
    assert "Dry run: nothing was sent" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main([*words, "--start"]) == 2
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "no")
    assert main([*words, "--start"]) == 1
    assert f"up to ${plan.usd_at_most:,.2f}" in asked[0]
    assert pipelines(session) == []
    capsys.readouterr()
    assert main([*words, "--start", "--yes", "--json", "--parameter", "LeastAuc=0.7"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [each["PipelineArn"] for each in pipelines(session)] == [body["arn"]]
    assert body["execution"].startswith(body["arn"])
    assert main([*words, "--start", "--yes", "--parameter", "LeastAuc"]) == 2
