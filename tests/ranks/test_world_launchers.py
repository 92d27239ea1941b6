"""One function, every launcher: torchrun, MPI and Slurm variables, two hosts simulated by dtlab.launch."""

from world_scripts import free_port, run_ranks, torchrun, write

import dtlab

TRAIN = """
    import dtlab, torch
    def train():
        with dtlab.world(seed=3) as w:
            draws = w.gather(torch.rand(1).item(), dst=None)
            w.log.info("epoch 1")
            with dtlab.world() as inner:
                total = inner.mean(w.rank + 1.0)
            same = dtlab.mean(1.0)
            if w.is_main:
                print("RESULT", w.launcher, w.size, len(set(draws)), total, same)
    train()
    train()  # join, leave, and join again
    print("AFTER", dtlab.world_size(), torch.distributed.is_initialized())
"""


def check(out, launcher):
    assert out.count(f"RESULT {launcher} 2 2 1.5 1.0") == 2, out
    assert "AFTER 1 False" in out


def test_function_runs_unchanged_under_torchrun(tmp_path):
    done = torchrun(write(tmp_path, TRAIN))
    assert done.code == 0, done.err
    check(done.out, "torchrun")
    assert done.err.count("[Rank 1] epoch 1") == 2


def test_function_runs_unchanged_under_mpi_and_slurm(tmp_path):
    script = write(tmp_path, TRAIN)
    port = str(free_port())
    mpi = [
        {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "MASTER_PORT": port,
        }
        for rank in "01"
    ]
    port = str(free_port())
    slurm = [
        {
            "SLURM_PROCID": rank,
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_LOCALID": rank,
            "SLURM_NODEID": "0",
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "MASTER_PORT": port,
        }
        for rank in "01"
    ]
    for launcher, environs in (("mpi", mpi), ("slurm", slurm)):
        zero, one = run_ranks(script, environs)
        assert (zero.code, one.code) == (0, 0), zero.err + one.err
        check(zero.out, launcher)
        assert one.err.count("[Rank 1] epoch 1") == 2


def where():
    with dtlab.world() as w:
        return w.rank, w.local_rank, w.local_size, w.node_rank, w.num_nodes


def test_two_simulated_hosts():
    results = dtlab.launch(where, 2, nnodes=2, timeout=60)
    assert list(results) == [(0, 0, 2, 0, 2), (1, 1, 2, 0, 2), (2, 0, 2, 1, 2), (3, 1, 2, 1, 2)]
