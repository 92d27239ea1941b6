"""A tuning job: accepted by the service's model and by moto, and its training jobs start torchrun."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.errors import UserError
from dtlab.sagemaker.job_file import read_job
from dtlab.sagemaker.tuning import make_tuning_plan
from dtlab.tune.space import Choice, Range

S0 = Path(__file__).parents[2] / "examples" / "jobs" / "s0.toml"
SPACE = {
    "optim.lr": Range(1e-4, 1e-2, log=True),
    "model.dim": Range(4, 32),
    "optim.global_batch": Choice((2048, 4096)),
}


@pytest.fixture
def job():
    found = read_job(S0)
    fixed = {name: value for name, value in found.hyperparameters.items() if name not in SPACE}
    return replace(found, hyperparameters=fixed, budget_usd=None)


def test_toolkit_of_a_tuned_job_is_told_to_start_torchrun_with_all_ranks(job):
    definition = make_tuning_plan(job, SPACE, objective="test:auc").request["TrainingJobDefinition"]
    static = definition["StaticHyperParameters"]
    assert json.loads(static["sagemaker_torch_distributed_enabled"]) is True
    assert json.loads(static["sagemaker_mpi_num_of_processes_per_host"]) == 4
    assert json.loads(static["sagemaker_program"]) == "train.py"
    assert json.loads(static["sagemaker_submit_directory"]).endswith("/code/source.tar.gz")
    assert "ContainerEntrypoint" not in definition["AlgorithmSpecification"]  # the API has no such field
    assert not set(SPACE) & set(static)
    assert definition["Environment"]["DTLAB_SET_NCCL_DEBUG"] == "WARN"


def test_ranges_are_of_their_kind_and_scale(job):
    config = make_tuning_plan(job, SPACE, objective="test:auc").request["HyperParameterTuningJobConfig"]
    assert config["ParameterRanges"] == {
        "ContinuousParameterRanges": [
            {"Name": "optim.lr", "MinValue": "0.0001", "MaxValue": "0.01", "ScalingType": "Logarithmic"}
        ],
        "IntegerParameterRanges": [
            {"Name": "model.dim", "MinValue": "4", "MaxValue": "32", "ScalingType": "Linear"}
        ],
        "CategoricalParameterRanges": [{"Name": "optim.global_batch", "Values": ["2048", "4096"]}],
    }


def test_hyperband_has_its_resources_and_no_other_early_stop(job):
    plan = make_tuning_plan(job, SPACE, objective="test:auc", strategy="Hyperband", resource=(1, 27))
    config = plan.request["HyperParameterTuningJobConfig"]
    assert config["StrategyConfig"] == {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 27}}
    assert config["TrainingJobEarlyStoppingType"] == "Off"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"objective": "auc"}, "add it to"),
        ({"parallel": 20}, "parallel = 20"),
        ({"resource": (3, 3)}, "resource = "),
        ({"name": "-"}, "HyperParameterTuningJobName"),
    ],
)
def test_tuning_job_that_cannot_work_is_refused(job, changes, word):
    with pytest.raises(UserError, match=word):
        make_tuning_plan(job, SPACE, **{"objective": "test:auc", **changes})


def test_setting_that_is_fixed_and_searched_is_refused(job):
    with pytest.raises(UserError, match="is searched as well"):
        make_tuning_plan(replace(job, hyperparameters={"optim.lr": 1.0}), SPACE, objective="test:auc")


def test_budget_counts_every_job(job):
    bill = make_tuning_plan(job, SPACE, objective="test:auc", jobs=10).bill
    assert bill.usd == pytest.approx(bill.price.usd_per_hour * 4 * 2 * 10)  # 4 h on 2 hosts
    with pytest.raises(UserError, match="take 9 jobs"):
        make_tuning_plan(replace(job, budget_usd=bill.usd * 0.95), SPACE, objective="test:auc", jobs=10)


def test_name_is_unique_and_fits(job):
    names = {make_tuning_plan(job, SPACE, objective="test:auc").name for _ in range(5)}
    assert len(names) == 5
    assert all(len(name) <= 32 for name in names)


def test_moto_takes_the_request(job, monkeypatch):
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    plan = make_tuning_plan(job, SPACE, objective="test:auc", strategy="Hyperband")
    with moto.mock_aws():
        client = boto3.client("sagemaker", region_name="us-east-1")
        client.create_hyper_parameter_tuning_job(**plan.request)
        told = client.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=plan.name)
    assert told["HyperParameterTuningJobConfig"]["Strategy"] == "Hyperband"


def test_command_prints_the_request(tmp_path, capsys):
    text = S0.read_text().replace('"optim.lr" = 2e-3\n', "").replace("budget_usd = 100\n", "")
    (tmp_path / "job.toml").write_text(text.replace('folder = "code"', f'folder = "{S0.parent / "code"}"'))
    (tmp_path / "space.toml").write_text('[tune.space]\n"optim.lr" = {low = 1e-4, high = 1e-2, log = true}\n')
    words = ["sagemaker", "tune", str(tmp_path / "job.toml"), str(tmp_path / "space.toml")]
    assert main([*words, "--objective", "test:auc", "--json"]) == 0
    request = json.loads(capsys.readouterr().out)
    assert request["HyperParameterTuningJobConfig"]["Strategy"] == "Bayesian"
