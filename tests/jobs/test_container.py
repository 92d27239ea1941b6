"""Inside the container: who am I, how many ranks, what is left as the job set it, and why a rank failed."""

import json
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from dtlab.errors import UserError
from dtlab.sagemaker.container import cluster_of, network_variables, variables
from dtlab.sagemaker.failure import reason
from dtlab.sagemaker.first_process import torchrun
from dtlab.sagemaker.hosts import make_container, variables_of_host
from dtlab.sagemaker.rehearsal import free_port
from dtlab.sagemaker.source import pack

HOSTS = ["algo-1", "algo-2"]


@pytest.fixture
def base(tmp_path) -> Path:
    container = make_container(
        tmp_path / "algo-2",
        "algo-2",
        ["algo-2", "algo-1"],
        instance_type="ml.g5.12xlarge",
        hyperparameters={"lr": "0.1", "note": "some text", "batch-size": "8"},
        channels={},
    )
    return container.base


def test_variables_are_made_of_the_files_that_the_platform_writes(base):
    found = variables(base, {}, cards=4)
    assert json.loads(found["SM_HOSTS"]) == HOSTS
    assert (found["SM_CURRENT_HOST"], found["SM_CURRENT_HOST_RANK"]) == ("algo-2", "1")
    assert json.loads(found["SM_HPS"]) == {"lr": 0.1, "note": "some text", "batch-size": 8}
    assert found["SM_HP_BATCH_SIZE"] == "8"
    assert found["SM_MODEL_DIR"] == str(base / "model")
    cluster = cluster_of(found)
    assert (cluster.num_nodes, cluster.node_rank, cluster.world_size) == (2, 1, 8)
    assert (cluster.master_addr, cluster.backend) == ("algo-1", "nccl")


def test_host_without_cards_has_one_rank_and_gloo(base):
    cluster = cluster_of(variables(base, {}, cards=0))
    assert (cluster.world_size, cluster.backend) == (2, "gloo")


def test_number_of_gpus_that_the_job_sets_is_honoured(base):
    found = variables(base, {"SM_NUM_GPUS": "2"}, cards=4)
    assert cluster_of(found).world_size == 4
    with pytest.raises(UserError, match="SM_NUM_GPUS=8: this host has 4 cards"):
        variables(base, {"SM_NUM_GPUS": "8"}, cards=4)


def test_ranks_of_the_distribution_win_but_not_over_the_cards(base):
    found = variables(base, {}, cards=4)
    assert cluster_of({**found, "DTLAB_RANKS_PER_HOST": "2"}).world_size == 4
    for asked in ("8", "0", "many"):
        with pytest.raises(UserError, match=f"DTLAB_RANKS_PER_HOST='?{asked}"):
            cluster_of({**found, "DTLAB_RANKS_PER_HOST": asked})


def test_missing_file_of_the_platform_is_named(tmp_path):
    with pytest.raises(UserError, match=r"resourceconfig\.json: missing"):
        variables(tmp_path, {}, cards=0)


@pytest.mark.parametrize("hosts", ["algo-1", {"algo-1": 1}, ["algo-1", 2]])
def test_hosts_that_are_no_list_of_names_are_refused(base, hosts):
    """A name alone would be read as the list of its letters."""
    place = base / "input/config/resourceconfig.json"
    place.write_text(json.dumps({"hosts": hosts, "current_host": "algo-1"}))
    with pytest.raises(UserError, match="hosts is a list of names"):
        variables(base, {}, cards=0)


def test_network_variables_of_the_job_stay_as_they_are(base):
    cluster = cluster_of(variables(base, {}, cards=4))
    assert network_variables(cluster, {}, has_efa=True) == {
        "NCCL_SOCKET_IFNAME": cluster.interface,
        "GLOO_SOCKET_IFNAME": cluster.interface,
        "NCCL_DEBUG": "WARN",
        "FI_PROVIDER": "efa",
    }
    own = {"NCCL_SOCKET_IFNAME": "eth9", "NCCL_DEBUG": "INFO", "FI_PROVIDER": "tcp"}
    assert not set(network_variables(cluster, own, has_efa=True)) & set(own)


def test_hyperparameters_follow_the_script_as_the_platform_hands_them_over(base):
    found = {**variables(base, {}, cards=0), "TRAINING_JOB_NAME": "demo"}
    command = torchrun(cluster_of(found), "train.py", found)
    after = command[command.index("train.py") + 1 :]
    assert after == ["--lr", "0.1", "--note", "some text", "--batch-size", "8"]
    assert "--shutdown-timeout=100" in command  # torchrun's own 30 s are too short for a large model
    assert "--rdzv-id=demo" in command


def test_reason_is_the_error_of_the_rank(tmp_path):
    file = tmp_path / "error.json"
    stack = "Traceback\n" + "x" * 3000 + "\nValueError: bad lr"
    message = {"message": "ValueError: bad lr", "extraInfo": {"py_callstack": stack, "timestamp": "1"}}
    file.write_text(json.dumps({"message": message}))
    text = reason(file, ["noise"], 1)
    assert text.startswith("ValueError: bad lr\n")
    assert len(text) < 1100


def test_reason_of_a_rank_that_was_killed_is_in_the_agents_report(tmp_path):
    report = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : now",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -9 (pid: 7)",
        "  traceback : Signal 9 (SIGKILL) received by PID 7",
    ]
    text = reason(tmp_path / "none", deque(report, maxlen=50), 1)
    assert "rank      : 1" in text
    assert "SIGKILL" in text
    assert reason(tmp_path / "none", ["last words", ""], 3) == "torchrun ended with exit code 3: last words"


def test_signal_is_passed_to_the_process_that_runs(tmp_path):
    child = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', file=sys.stderr, flush=True)\ntime.sleep(60)\n"
    )
    first = (
        "import os, sys\nfrom collections import deque\n"
        "from dtlab.sagemaker.first_process import Signals\nsignals, tail = Signals(), deque(maxlen=9)\n"
        f"code = signals.run([sys.executable, '-c', {child!r}], os.environ, tail)\n"
        "print(code, signals.received, list(tail), signals.run(['never'], os.environ, tail))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", first], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert out.strip() == "7 15 ['ready'] 143"  # and what is to be started after the signal is not


def test_failing_rank_is_told_in_the_failure_file_and_its_variables_are_put_back(tmp_path):
    source = tmp_path / "src"
    source.mkdir()
    (source / "train.py").write_text(
        "import os, sys, time\n"
        "assert os.environ['NCCL_PROTO'] == 'LL', os.environ['NCCL_PROTO']\n"
        "assert sys.argv[1:] == ['--lr', '0.1'], sys.argv\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise ValueError('bad lr')\n"
        "time.sleep(1000)\n"
    )
    code = tmp_path / "code"
    code.mkdir()
    pack(source, code / "source.tar.gz")
    import dtlab.sagemaker.bootstrap as bootstrap

    (code / "bootstrap.py").write_text(Path(bootstrap.__file__).read_text())
    container = make_container(
        tmp_path / "algo-1",
        "algo-1",
        ["algo-1"],
        instance_type="ml.m5.xlarge",
        hyperparameters={"lr": "0.1"},
        channels={"code": code},
    )
    given = {"DTLAB_RANKS_PER_HOST": "2", "NCCL_PROTO": "Simple", "DTLAB_SET_NCCL_PROTO": "LL"}
    environ = variables_of_host(container, given, job="demo", port=free_port())
    container.start(
        [sys.executable, str(container.base / "input/data/code/bootstrap.py"), "train.py"], environ
    )
    try:
        assert container.process is not None
        # The other rank sleeps far longer.
        assert container.process.wait(timeout=200) == 1, container.last_lines(40)
    finally:
        container.kill()
    told = (container.base / "output/failure").read_text()
    assert told.startswith("host algo-1: ValueError: bad lr\n"), container.last_lines(40)
    assert "train.py" in told
