"""A v2 ``distribution={...}`` becomes torchrun, and every change has its line."""

import pytest

from dtlab.errors import UserError
from dtlab.sagemaker.distribution import translate

PRINTED_S3 = {
    "smdistributed": {
        "modelparallel": {"enabled": True, "parameters": {"partitions": 2, "pipeline": "interleaved"}}
    }
}


def refused(distribution) -> str:
    with pytest.raises(UserError) as caught:
        translate(distribution)
    return str(caught.value)


def test_mpi_becomes_torchrun_with_as_many_ranks_and_its_variables():
    layout = translate(
        {
            "mpi": {
                "enabled": True,
                "processes_per_host": 4,
                "custom_mpi_options": "-x NCCL_DEBUG=WARN -verbose",
            }
        }
    )
    assert (layout.launcher, layout.ranks_per_host) == ("torchrun", 4)
    assert layout.environment == {"NCCL_DEBUG": "WARN"}
    assert any("-verbose is dropped" in line for line in layout.changes)


def test_mpi_stays_where_it_is_asked_for():
    options = {"enabled": True, "processes_per_host": 4, "custom_mpi_options": "-x NCCL_DEBUG=WARN"}
    layout = translate({"launcher": "mpi", "mpi": options})
    assert (layout.launcher, layout.mpi_options) == ("mpi", "-x NCCL_DEBUG=WARN")


def test_model_parallel_becomes_a_pipeline_whose_schedule_alternates():
    layout = translate(PRINTED_S3)
    assert (layout.launcher, layout.stages, layout.schedule) == ("torchrun", 2, "1f1b")
    assert layout.micro_batches == 8
    assert any("50% of the ranks' time would be idle" in line for line in layout.changes)
    assert any("not what papers call interleaved" in line for line in layout.changes)


def test_micro_batches_that_are_given_are_kept():
    given = {"partitions": 4, "pipeline": "simple", "microbatches": 16, "placement_strategy": "spread"}
    layout = translate(
        {
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": given}},
            "mpi": {"enabled": True, "processes_per_host": 8},
        }
    )
    assert (layout.stages, layout.schedule, layout.micro_batches) == (4, "gpipe", 16)
    assert layout.ranks_per_host == 8
    assert any("placement_strategy is dropped" in line for line in layout.changes)


@pytest.mark.parametrize(
    "distribution",
    [
        {"torch_distributed": {"enabled": True}},
        {"pytorchddp": {"enabled": True}},
        {"smdistributed": {"dataparallel": {"enabled": True}}},
    ],
)
def test_data_parallel_of_v2_becomes_torchrun_with_a_line(distribution):
    layout = translate(distribution)
    assert layout.launcher == "torchrun"
    assert layout.ranks_per_host is None
    assert layout.changes


def test_nothing_enabled_says_that_cards_would_have_idled():
    layout = translate({"mpi": {"enabled": False}})
    assert "leaves the other cards idle" in layout.changes[0]
    assert translate({}).changes == ()


@pytest.mark.parametrize(
    ("distribution", "named"),
    [
        ({"torch_distribute": {}}, "did you mean torch_distributed"),
        ({"parameter_server": {"enabled": True}}, "TensorFlow"),
        ({"mpi": True}, "give a table"),
        ({"mpi": {"enabled": "true"}}, "mpi.enabled"),
        ({"mpi": {"enabled": True, "processes_per_hosts": 4}}, "did you mean processes_per_host"),
        ({"mpi": {"enabled": True, "processes_per_host": 0}}, "processes_per_host = 0"),
        ({"mpi": {"enabled": True}, "torch_distributed": {"enabled": True}}, "both enabled"),
        ({"smdistributed": {"modelparallel": {"enabled": True}}}, "partitions: missing"),
        ({"smdistributed": {"model": {"enabled": True}}}, "smdistributed.model"),
        ({"launcher": "horovod"}, "launcher = 'horovod'"),
        ({"mpi_options": "-x A=1"}, "goes with launcher = 'mpi'"),
        ({"micro_batches": 4}, "goes with stages"),
        ({"stages": 2, "schedule": "interleaved"}, "schedule = 'interleaved'"),
    ],
)
def test_distribution_that_is_wrong_is_named(distribution, named):
    assert named in refused(distribution)
