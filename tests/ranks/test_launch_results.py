"""What comes back from launched functions, and what the ranks find in their environment."""

import contextlib
import os
import random
import subprocess
import sys
import textwrap
import threading

import numpy
import psutil
import pytest
import torch
import torch.distributed as dist

import dtlab


def plain_torch(x, *, y=0):
    """No dtlab inside: what also runs under torchrun."""
    dist.init_process_group("gloo")
    value = torch.tensor([float(dist.get_rank() + x + y)])
    dist.all_reduce(value)
    return value.item(), dist.get_rank()


def test_results_come_in_rank_order_with_seconds_and_logs(tmp_path):
    results = dtlab.launch(plain_torch, 3, 10, y=5, log_dir=tmp_path / "logs", echo=False)
    assert results == [(48.0, 0), (48.0, 1), (48.0, 2)]
    assert len(results.seconds) == 3
    assert all(0 < s < 60 for s in results.seconds)
    assert results.log_files == [str(tmp_path / "logs" / f"rank{r}.log") for r in range(3)]
    assert results.restarts == 0


def describe_rank():
    with dtlab.world() as w:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        return {
            "variables": {name: int(os.environ[name]) for name in names},
            "world": (w.rank, w.size, w.local_rank, w.local_size, w.node_rank, w.num_nodes, w.launcher),
            "debug": dist.get_debug_level().name,
            "threads": torch.get_num_threads(),
            "mine": os.environ.get("DTLAB_TEST_MINE"),
            "later": os.environ.get("DTLAB_TEST_LATER"),
            "slurm": os.environ.get("SLURM_PROCID"),
            "cwd": os.getcwd(),
            "draws": (random.random(), float(numpy.random.rand()), float(torch.rand(()))),
        }


def test_two_hosts_are_simulated_and_the_current_environment_reaches_the_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("DTLAB_TEST_LATER", "set after the server started")
    monkeypatch.setenv("SLURM_PROCID", "7")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.chdir(tmp_path)
    told = dtlab.launch(
        describe_rank,
        2,
        nnodes=2,
        env={"DTLAB_TEST_MINE": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        echo=False,
    )
    assert [t["variables"]["GROUP_RANK"] for t in told] == [0, 0, 1, 1]
    assert [t["variables"]["LOCAL_RANK"] for t in told] == [0, 1, 0, 1]
    assert [t["world"] for t in told] == [(r, 4, r % 2, 2, r // 2, 2, "dtlab") for r in range(4)]
    for t in told:
        assert t["variables"]["LOCAL_WORLD_SIZE"] == 2
        assert t["variables"]["GROUP_WORLD_SIZE"] == 2
        assert t["debug"] == "DETAIL"
        assert t["mine"] == "1"
        assert t["later"] == "set after the server started"
        assert t["slurm"] is None
        assert t["cwd"] == str(tmp_path)
        assert t["threads"] == max(1, len(os.sched_getaffinity(0)) // 4)
    # every source of random numbers differs between ranks and repeats in a second launch
    for source in range(3):
        assert len({t["draws"][source] for t in told}) == 4
    again = dtlab.launch(describe_rank, 2, nnodes=2, echo=False)
    assert [t["draws"] for t in again] == [t["draws"] for t in told]
    other = dtlab.launch(describe_rank, 2, seed=1, echo=False)
    assert other[0]["draws"] != told[0]["draws"]


def threads_at_import():
    return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.getppid()


def test_a_variable_read_at_import_starts_another_server_and_the_first_is_kept():
    first = dtlab.launch(os.getppid, 1)
    other = dtlab.launch(threads_at_import, 1, env={"OMP_NUM_THREADS": "3"})
    assert other[0][:2] == (3, "3")
    assert other[0][2] != first[0]
    assert dtlab.launch(os.getppid, 1) == first


def make_tensors():
    grown = (torch.ones(3, requires_grad=True) * 2).view(1, 3)
    model = torch.nn.Linear(2, 1)
    return {
        "grown": grown,
        "parameter": torch.nn.Parameter(torch.arange(4.0)),
        "half": torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
        "flag": torch.tensor(True),
        "empty": torch.empty(0, 5, dtype=torch.int64),
        "strided": torch.arange(6).reshape(2, 3).t(),
        "sparse": torch.eye(2).to_sparse(),
        "complex": torch.tensor([1 + 2j]).conj(),
        "same": [grown, grown],
        "model": model,
        "expected": model.weight.detach().clone(),
    }


def test_tensors_come_back_as_plain_values_and_modules_with_their_parameters():
    got = dtlab.launch(make_tensors, 1)[0]
    assert type(got["parameter"]) is torch.Tensor
    assert got["parameter"].tolist() == [0, 1, 2, 3]
    assert not got["grown"].requires_grad
    assert got["grown"].tolist() == [[2, 2, 2]]
    assert got["half"].dtype == torch.bfloat16
    assert got["half"].tolist() == [1.5, 2.5]
    assert got["flag"].item() is True
    assert got["empty"].shape == (0, 5)
    assert got["strided"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert got["sparse"].to_dense().tolist() == [[1, 0], [0, 1]]
    assert got["complex"].tolist() == [1 - 2j]
    assert got["same"][0] is got["same"][1]
    assert isinstance(got["model"].weight, torch.nn.Parameter)
    assert torch.equal(got["model"].weight, got["expected"])
    got["grown"] += 1  # its memory is ours


def test_closures_lambdas_and_large_arguments_travel():
    offset = torch.arange(1_000_000)
    assert dtlab.launch(lambda k: int(offset[-1]) + k, 2, 1) == [1_000_000, 1_000_000]


def test_two_launches_at_once_do_not_meet():
    found = {}

    def one(name, x):
        found[name] = dtlab.launch(plain_torch, 2, x, echo=False)

    threads = [threading.Thread(target=one, args=(n, n * 100)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: [(1.0, 0), (1.0, 1)], 1: [(201.0, 0), (201.0, 1)]}


def listeners():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    mine = psutil.Process().net_connections("inet")
    dist.barrier()
    return [c.laddr.ip for c in mine if c.status == psutil.CONN_LISTEN], os.getppid()


def test_nothing_listens_beyond_loopback_while_ranks_run():
    before = {c.laddr for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
    seen = []

    def watch():
        us = psutil.Process()
        while not done.is_set():
            for process in (us, *us.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    seen.extend(c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN)

    done = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        told = dtlab.launch(listeners, 2, echo=False)
    finally:
        done.set()
        thread.join()
    ours = {c.laddr for c in seen} - before
    assert ours, "the store's socket was not seen"
    assert {address.ip for address in ours} == {"127.0.0.1"}
    for inside, _ in told:
        assert inside, "gloo's socket was not seen"
        assert set(inside) == {"127.0.0.1"}


@pytest.mark.parametrize("how", ["file", "stdin"])
def test_functions_of_main_work_and_main_is_not_run_again(tmp_path, how):
    code = textwrap.dedent(
        """
        import dataclasses, dtlab, torch
        from torch.utils.data import DataLoader
        print("main runs")

        @dataclasses.dataclass
        class Item:
            value: int

        class Items(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return Item(i)

        def first(items): return items[0]

        def work(k):
            # loader workers send back what main defined, by its name
            seen = [i.value for i in DataLoader(Items(), num_workers=1, batch_size=None)]
            return Item(sum(seen) + k)

        results = dtlab.launch(work, 2, 1)
        assert [isinstance(r, Item) for r in results] == [True, True]
        print("got", [r.value for r in results])
        """
    )
    (tmp_path / "script.py").write_text(code)
    command, stdin = ([sys.executable, "script.py"], None) if how == "file" else ([sys.executable, "-"], code)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["main runs", "got [7, 7]"]
    # What torch says once in a process where no name service answers is not about main.
    said = [line for line in done.stderr.splitlines() if "hostname of the client socket" not in line]
    assert said == []


def speak():
    os.write(1, b"from the descriptor\n")
    os.write(2, b"an error line\n")
    print("printed by", os.environ["RANK"])
    print("10%\r20%\r30%", flush=True)
    print("[Rank 9] has a prefix")
    print("no newline", end="")


def test_output_of_every_kind_is_carried_to_the_callers_stdout(capsys):
    results = dtlab.launch(speak, 2)
    lines = capsys.readouterr().out.splitlines()
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[Rank {rank}] ")]
        assert own == [
            f"[Rank {rank}] from the descriptor",
            f"[Rank {rank}] an error line",
            f"[Rank {rank}] printed by {rank}",
            f"[Rank {rank}] 30%",
            f"[Rank {rank}] no newline",
        ]
        assert f"printed by {rank}\n" in results.logs[rank]
        with open(results.log_files[rank], newline="") as file:
            assert file.read() == results.logs[rank]
    assert lines.count("[Rank 9] has a prefix") == 2
    dtlab.launch(speak, 1, echo=False)
    assert capsys.readouterr().out == ""


def flood():
    for number in range(100_000):
        print("line", number)


def test_a_rank_that_floods_keeps_the_start_and_the_end_of_its_output(monkeypatch):
    monkeypatch.setattr("dtlab.ranks.output.FILE_LIMIT", 100_000)
    results = dtlab.launch(flood, 1, echo=False)
    text = results.logs[0]
    assert len(text) < 300_000
    assert text.startswith("line 0\n")
    assert "bytes left out]" in text
    assert text.endswith("line 99999\n")
