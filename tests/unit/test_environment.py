"""Variables of every launcher, read as a whole and without a process."""

import pytest

from dtlab.errors import UserError
from dtlab.ranks.clusters import sagemaker_cluster, slurm_first_host, slurm_tasks_per_node
from dtlab.ranks.environment import detect, loopback_interface

HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
OMPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "4"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "4711",
}


def complaint(environ, **options):
    with pytest.raises(UserError) as caught:
        detect(environ, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


BY_HAND = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}


def test_all_missing_variables_come_in_one_error():
    message = complaint({}, distributed=True)
    assert "missing: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT" in message
    message = complaint({"RANK": "0", "WORLD_SIZE": "2"})
    assert "missing: MASTER_ADDR, MASTER_PORT" in message
    assert "RANK," not in message


def test_every_contradiction_comes_in_one_error():
    message = complaint({**HAND, "RANK": "x", "MASTER_PORT": "70000", "LOCAL_RANK": "-1"})
    for part in ("RANK='x'", "MASTER_PORT=70000", "LOCAL_RANK=-1"):
        assert part in message


@pytest.mark.parametrize("rank", ["2", "7"])
def test_rank_beyond_world_size(rank):
    assert f"rank {rank} is not < world size 2" in complaint({**HAND, "RANK": rank})


def test_nothing_set_is_a_world_of_one():
    m = detect({"PATH": "/bin"})
    assert (m.rank, m.size, m.local_rank, m.launcher) == (0, 1, 0, "none")
    assert detect({"RANK": "0", "WORLD_SIZE": "1"}).size == 1


def test_variables_set_by_hand_on_one_host():
    m = detect(HAND)
    assert (m.rank, m.size, m.local_rank, m.local_size, m.num_nodes, m.launcher) == (1, 2, 1, 2, 1, "env")
    assert m.one_host
    assert not m.agent_store


def test_torchrun_on_two_hosts():
    m = detect(
        {
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": "host-a",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_RESTART_COUNT": "2",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    )
    assert (m.rank, m.local_rank, m.local_size, m.node_rank, m.num_nodes) == (5, 1, 4, 1, 2)
    assert (m.launcher, m.agent_store, m.one_host, m.job) == ("torchrun", True, False, "job")
    assert m.counts_apart


def test_inner_torchrun_wins_over_the_slurm_task_that_started_it():
    inner = {**HAND, "RANK": "0", "TORCHELASTIC_RUN_ID": "x"}
    m = detect({**SLURM, **OMPI, **inner})
    assert (m.rank, m.size, m.launcher) == (0, 2, "torchrun")


def test_mpi_variables_alone():
    m = detect(OMPI)
    assert (m.rank, m.size, m.local_rank, m.launcher) == (3, 4, 1, "mpi")


def test_mpi_on_one_host_needs_no_master():
    m = detect({**OMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert m.master_addr == "127.0.0.1"
    assert m.one_host
    assert 10000 <= m.master_port < 30000


def test_conflicting_values_name_both_variables():
    message = complaint({**OMPI, "RANK": "0"})
    assert "RANK=0 contradicts OMPI_COMM_WORLD_RANK=3" in message
    message = complaint({**OMPI, **HAND})
    assert "RANK=1 contradicts OMPI_COMM_WORLD_RANK=3" in message
    assert "WORLD_SIZE=2 contradicts OMPI_COMM_WORLD_SIZE=4" in message
    assert detect({**OMPI, "RANK": "3"}).rank == 3


def test_slurm_task():
    m = detect(SLURM)
    assert (m.rank, m.size, m.local_rank, m.local_size) == (5, 8, 1, 4)
    assert (m.node_rank, m.num_nodes, m.master_addr, m.launcher) == (1, 2, "gpu07", "slurm")
    other = detect({**SLURM, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert (other.master_addr, other.master_port) == (m.master_addr, m.master_port)


def test_shell_in_a_slurm_allocation_is_no_task():
    assert detect({**SLURM, "SLURM_JOB_NAME": "interactive"}).launcher == "none"


def test_slurm_lists():
    assert slurm_first_host("node[01-04,7],x") == "node01"
    assert slurm_first_host("a,b") == "a"
    assert slurm_tasks_per_node("2(x3),1") == [2, 2, 2, 1]


def test_sagemaker_cluster_of_two_hosts_with_four_gpus():
    c = sagemaker_cluster(SAGEMAKER)
    assert (c.num_nodes, c.node_rank, c.world_size, c.master_addr, c.backend) == (2, 1, 8, "algo-1", "nccl")
    message = complaint(SAGEMAKER)
    assert "8 ranks" in message
    assert "1 process" in message
    assert "--nproc-per-node=4" in message


def test_sagemaker_without_gpus_is_one_process_per_host():
    c = sagemaker_cluster({**SAGEMAKER, "SM_NUM_GPUS": "0"})
    assert (c.ranks_per_host, c.world_size, c.backend) == (1, 2, "gloo")
    m = detect({**SAGEMAKER, "SM_NUM_GPUS": "0"})
    assert (m.rank, m.size, m.master_addr, m.master_port, m.launcher) == (1, 2, "algo-1", 7777, "sagemaker")
    single = detect({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_NUM_GPUS": "1"})
    assert (single.rank, single.size) == (0, 1)


def test_sagemaker_contradictions_come_in_one_error():
    message = complaint({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-9", "SM_NUM_GPUS": "many"})
    assert "SM_CURRENT_HOST=algo-9 is not in SM_HOSTS=algo-1" in message
    assert "SM_NUM_GPUS='many'" in message
    assert "SM_HOSTS" in complaint({"SM_HOSTS": "algo-1", "SM_CURRENT_HOST": "algo-1"})
    assert "names a host twice" in complaint({**SAGEMAKER, "SM_HOSTS": '["algo-2", "algo-2"]'})
    assert "SM_NUM_GPUS=-1 is below 0" in complaint({**SAGEMAKER, "SM_NUM_GPUS": "-1"})


@pytest.mark.parametrize("port", ["0", "-5", "70000"])
def test_a_sagemaker_port_that_is_none_is_refused(port):
    assert f"SM_MASTER_PORT={port} is not a port (1 to 65535)" in complaint(
        {**SAGEMAKER, "SM_MASTER_PORT": port}
    )


def test_fewer_ranks_than_sagemaker_gpus_is_noted():
    m = detect({**SAGEMAKER, **OMPI})
    assert (m.rank, m.master_addr, m.master_port) == (3, "algo-1", 7777)
    (note,) = m.notes
    assert "8 GPUs" in note
    assert "4 ranks" in note


def test_loopback_interface_is_found_by_address():
    import socket

    import psutil

    name = loopback_interface()
    assert "127.0.0.1" in [a.address for a in psutil.net_if_addrs()[name] if a.family == socket.AF_INET]


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "RANK": "0"}, "RANK=0 contradicts PMI_RANK=3"),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "WORLD_SIZE": "8"}, "WORLD_SIZE=8 contradicts PMI_SIZE=4"),
        (
            {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "LOCAL_RANK": "0"},
            "LOCAL_RANK=0 contradicts MPI_LOCALRANKID=1",
        ),
        ({**BY_HAND, "PMI_RANK": "3", "PMI_SIZE": "4"}, "RANK=0 contradicts PMI_RANK=3"),
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "LOCAL_RANK": "0"},
            "LOCAL_RANK=0 contradicts SLURM_LOCALID=1",
        ),
    ],
)
def test_every_launcher_is_held_against_ranks_set_by_hand(environ, told):
    with pytest.raises(UserError, match=told):
        detect(environ)


def test_ranks_that_a_task_of_mpi_started_itself_need_not_be_its_own():
    assert detect({**BY_HAND, "PMI_RANK": "1", "PMI_SIZE": "2"}).rank == 0


def test_hosts_that_are_nested_too_deep_are_no_list():
    message = complaint({**SAGEMAKER, "SM_HOSTS": "[" * 100_000})
    assert "is not a JSON list of host names" in message
    assert len(message) < 500


def test_a_world_size_below_one_is_told_once():
    with pytest.raises(UserError) as caught:
        detect({"RANK": "0", "WORLD_SIZE": "-1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    assert str(caught.value).count("WORLD_SIZE") == 1
    assert "WORLD_SIZE=-1 is less than 1" in str(caught.value)
