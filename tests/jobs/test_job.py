"""A training job refuses what SageMaker would refuse later, or take and bill for nothing."""

from datetime import date
from pathlib import Path

import pytest

from dtlab.errors import UserError
from dtlab.sagemaker.job import TrainingJob, modern
from dtlab.sagemaker.job_file import read_job
from dtlab.sagemaker.tables import Alarm, Checkpoint, Compute, Mlflow, Network, Output, Rehearsal, Source

S3 = Checkpoint(s3_uri="s3://bucket/checkpoints/")


def refused(**fields) -> str:
    with pytest.raises(UserError) as caught:
        TrainingJob(**fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def table_refused(table, **fields) -> str:
    with pytest.raises(UserError) as caught:
        table(**fields)
    return str(caught.value)


def test_max_wait_without_spot_names_both():
    line = table_refused(Compute, max_wait_seconds=3600)
    assert "max_wait_seconds = 3600" in line
    assert "spot = false" in line


def test_max_wait_shorter_than_the_run_names_both_numbers():
    line = table_refused(Compute, spot=True, max_run_seconds=3600, max_wait_seconds=1800)
    assert "1800" in line
    assert "3600" in line


def test_spot_without_max_wait_gets_one_that_is_long_enough():
    assert Compute(spot=True, max_run_seconds=3600).wait_seconds == 7200
    assert Compute(max_run_seconds=3600).wait_seconds is None


def test_spot_without_checkpoints_is_refused_with_what_interruptions_would_cost():
    line = refused(compute=Compute(spot=True, max_run_seconds=round(48.5 * 3600)))
    assert "checkpoint.s3_uri" in line
    assert "9,618 h" in line  # (exp(rT) - 1) / r at 0.15 an hour
    assert "1.0 h of work take 1.1 h" in refused(compute=Compute(spot=True, max_run_seconds=3600))
    assert TrainingJob(compute=Compute(spot=True), checkpoint=S3).compute.spot


def test_spot_hosts_are_not_kept_for_the_next_job():
    assert "keep_alive_seconds = 600" in table_refused(Compute, spot=True, keep_alive_seconds=600)


def test_local_mode_has_one_host():
    line = table_refused(Compute, instance_type="local_gpu", instance_count=2)
    assert "local mode" in line
    assert "instance_count = 2" in line
    assert TrainingJob(compute=Compute(instance_type="local")).world_size == 1


def test_retired_instance_is_refused_with_its_successors_or_replaced_with_a_line():
    line = refused(compute=Compute(instance_type="ml.p3.8xlarge"))
    assert "ml.g5.12xlarge or ml.g6e.12xlarge" in line
    old = TrainingJob(compute=Compute(instance_type="ml.p3.16xlarge", when_retired="replace"))
    new, lines = modern(old)
    assert new.compute.instance_type == "ml.g5.48xlarge"
    assert new.world_size == old.world_size == 8
    assert "8 V100" in lines[0]
    assert "8 A10G" in lines[0]


def test_unknown_instance_offers_a_near_name():
    assert "did you mean" in refused(compute=Compute(instance_type="ml.g5.13xlarge"))
    assert "write 'ml.g5.12xlarge'" in refused(compute=Compute(instance_type="g5.12xlarge"))


def test_more_ranks_than_cards_are_refused():
    line = refused(distribution={"ranks_per_host": 8})
    assert "has 4 cards" in line


def test_number_of_gpus_of_the_environment_is_honoured_and_held_against_the_cards():
    assert TrainingJob(environment={"SM_NUM_GPUS": "2"}).world_size == 2
    assert TrainingJob(environment={"SM_NUM_GPUS": "0"}).world_size == 1
    assert "0 to 4" in refused(environment={"SM_NUM_GPUS": "8"})
    assert "0 to 4" in refused(environment={"SM_NUM_GPUS": "all"})
    line = refused(environment={"SM_NUM_GPUS": "2"}, distribution={"ranks_per_host": 4})
    assert "SM_NUM_GPUS = 2" in line


def test_stages_that_do_not_divide_the_ranks_are_refused():
    assert "stages = 3: does not divide the 4 ranks" in refused(distribution={"stages": 3})


def test_quota_of_the_account_is_held_against_the_hosts():
    line = refused(compute=Compute(instance_count=4), quotas={"ml.g5.12xlarge": 2})
    assert "quota for ml.g5.12xlarge is 2" in line


@pytest.mark.parametrize("name", ["", "-a", "a_b", "a" * 43, "a-", "é", "a\n"])
def test_name_that_the_service_refuses(name):
    assert "name = " in refused(name=name)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hyperparameters": {"note": "it's"}}, "hyperparameters.note"),
        ({"hyperparameters": {"sagemaker_program": "x"}}, "sagemaker_"),
        ({"hyperparameters": {"long": "x" * 2501}}, "hyperparameters.long"),
        ({"hyperparameters": {f"h{i}": i for i in range(101)}}, "101"),
        ({"hyperparameters": {"lr": float("nan")}}, "hyperparameters.lr"),
        ({"environment": {"A-B": "x"}}, "environment.A-B"),
        ({"environment": {"N": "x" * 513}}, "environment.N"),
        ({"environment": {"WANDB_API_KEY": "x"}}, "Secrets Manager"),
        ({"environment": {f"N{i}": "" for i in range(101)}}, "environment: 101"),
        ({"channels": {"train": "bucket/data"}}, "channels.train"),
        ({"channels": {"code": "s3://bucket/data"}}, "channels.code"),
        ({"channels": {"it's": "s3://bucket/data"}}, "channels.it's"),
        ({"hyperparameters": {"day": date(1979, 5, 27)}}, "hyperparameters.day"),
        ({"tags": {"team": ["a"]}}, "tags.team"),
        ({"quotas": {"ml.g5.12xlarge": "two"}}, "quotas.ml.g5.12xlarge"),
        ({"metrics": {"loss": "loss="}}, "one group"),
        ({"metrics": {"loss": "("}}, "metrics.loss"),
        ({"role": "my-role"}, "arn:aws:iam"),
        ({"budget_usd": 0}, "budget_usd"),
    ],
)
def test_field_that_is_wrong_is_named(fields, named):
    assert named in refused(**fields)


@pytest.mark.parametrize(
    ("table", "fields", "named"),
    [
        (Compute, {"keep_alive_seconds": 21_601}, "21600"),
        (Compute, {"retries": 31}, "30"),
        (Compute, {"instance_count": 0}, "instance_count"),
        (Compute, {"instance_count": 2**62}, "at most 1000"),
        (Checkpoint, {"s3_uri": "/local"}, "checkpoint.s3_uri"),
        (Checkpoint, {"every_seconds": 0}, "every_seconds"),
        (Network, {"subnets": ("subnet-1",)}, "security_groups"),
        (Output, {"s3_uri": "s3://"}, "output.s3_uri"),
        (Mlflow, {"experiment": "x"}, "mlflow.arn"),
        (Alarm, {"percent_per_card": 0}, "percent_per_card"),
    ],
)
def test_table_that_is_wrong_is_named(table, fields, named):
    assert named in table_refused(table, **fields)


def job_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return path


def test_source_folder_is_looked_for_beside_the_job_file(tmp_path):
    job = read_job(job_file(tmp_path, '[source]\nfolder = "code"\n'))
    assert job.source.folder == tmp_path / "code"


def test_small_data_of_the_rehearsal_is_looked_for_beside_the_job_file(tmp_path):
    job = read_job(job_file(tmp_path, '[rehearsal.channels]\ntrain = "small"\n'))
    assert job.rehearsal.channels == {"train": tmp_path / "small"}


def test_dotted_names_of_hyperparameters_need_no_quotes(tmp_path):
    job = read_job(job_file(tmp_path, "[hyperparameters]\noptim.lr = 1e-3\nepochs = 3\n"))
    assert job.hyperparameters == {"optim.lr": 1e-3, "epochs": 3}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('instance_type = "x"', "instance_type: no such key"),
        ("[compute]\ninstance_typ = 1", "did you mean instance_type"),
        ('[compute]\nspot = "yes"', "compute.spot"),
        ('[compute]\ninstance_count = "2"', "compute.instance_count"),
        ("[compute]\nmax_run_seconds = 1.5", "compute.max_run_seconds"),
        ("role = 5", "role = 5"),
        ("compute = 5", "[compute]"),
        ("[network]\nsubnets = 'a'", "network.subnets"),
        ("channels = 3", "channels"),
        ("[compute]\nmax_wait_seconds = 60", "max_wait_seconds = 60"),
    ],
)
def test_job_file_that_is_wrong_names_file_and_field(tmp_path, text, named):
    with pytest.raises(UserError) as caught:
        read_job(job_file(tmp_path, text))
    assert "job.toml" in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"image": ""},
        {"image": "my image"},
        {"region": ""},
        {"region": "us-east-1 "},
        {"tags": {"aws:owner": "x"}},
        {"tags": {"": "x"}},
        {"tags": {"owner": "<x>"}},
        {"environment": {"A": "x\0y"}},
        {"channels": {"train": "s3://a bucket/x"}},
        {"channels": {"train": "s3://bucket/a\nb"}},
        {"hyperparameters": {"": 1}},
        {"hyperparameters": {"note": "two\nlines"}},
    ],
)
def test_text_that_the_service_would_refuse_after_the_upload_is_refused_by_name(fields):
    assert refused(**fields).startswith(next(iter(fields)))


@pytest.mark.parametrize(
    ("table", "fields"),
    [
        (Compute, {"max_run_seconds": 2**62}),
        (Compute, {"max_run_seconds": 10**400}),
        (Compute, {"volume_gb": 2**62}),
        (Alarm, {"topic": "me@example.com"}),
    ],
)
def test_number_or_address_that_no_job_can_have_is_refused_by_name(table, fields):
    line = table_refused(table, **fields)
    assert f".{next(iter(fields))} = " in line
    assert len(line) < 200


@pytest.mark.parametrize(
    ("table", "fields"),
    [
        (Compute, {"spot": "False"}),  # any text counts as true elsewhere in Python
        (Compute, {"instance_type": None}),
        (Network, {"encrypt_between_hosts": "no"}),
        (Network, {"subnets": "subnet-1", "security_groups": ("sg-1",)}),
        (Source, {"folder": 3}),
        (Mlflow, {"arn": 5}),
        (Alarm, {"topic": 4}),
        (TrainingJob, {"name": None}),
        (TrainingJob, {"budget_usd": "100"}),
        (TrainingJob, {"compute": {"spot": True}}),
        (TrainingJob, {"hyperparameters": None}),
        (TrainingJob, {"tags": [{"Key": "a", "Value": "b"}]}),
        (TrainingJob, {"distribution": "torchrun"}),
    ],
)
def test_value_of_another_kind_is_refused_in_a_script_as_in_a_file(table, fields):
    line = table_refused(table, **fields)
    name, value = next(iter(fields.items()))
    assert f"{name} = {value!r}: give " in line


def test_folders_may_be_given_as_text():
    job = TrainingJob(source=Source(folder="src"), rehearsal=Rehearsal(channels={"train": "small"}))
    assert (job.source.folder, job.rehearsal.channels) == (Path("src"), {"train": Path("small")})


@pytest.mark.parametrize("name", ["g5.12xlarge", "ML.G5.12XLARGE", " ml.g5.12xlarge"])
def test_type_that_is_spelt_otherwise_is_told_its_name(name):
    assert "write 'ml.g5.12xlarge'" in refused(compute=Compute(instance_type=name))
