"""How much of a second core does data-parallel training use?

DeepFM on flights, global batch 8192, one thread per rank, batches cut before the clock starts. In every
round, in one launch, the same two processes run in turn:

- one rank: rank 0 alone on the whole global batch;
- two ranks: ``data_parallel`` (the default), 4096 rows each;
- two ranks with torch's DDP as it comes;
- the limit: both processes at once, 4096 rows each, sharing nothing. What this loses against twice one rank
  is the machine's (memory bandwidth, clock), not communication's;
- in step: the limit's two processes with an all-reduce of one number after every backward. What this loses
  against the limit is waiting for the rank that is slower in that step, which no all-reduce can avoid.

``speedup_2_ranks`` = samples/s of two ranks / twice those of one rank; ``share_of_limit`` = samples/s of two
ranks / those of the limit. Both are medians over the rounds of ratios inside a round.
"""

import copy
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import dtlab
from benchmarks.common import report, say
from dtlab.data.batch import Batch
from dtlab.data.config import DataConfig
from dtlab.models.deepfm import DeepFM
from dtlab.parallel import HandDDP, data_parallel, no_sync

GLOBAL_BATCH, NUM_BATCHES = 8192, 6
ROUNDS, STEPS = 21, 6


class Job:
    """A model, its optimizer, and the batches it goes round on."""

    def __init__(self, model: nn.Module, batches: list[Batch]) -> None:
        self.model, self.batches = model, batches
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def backward(self, step: int) -> None:
        batch = self.batches[step % len(self.batches)]
        assert batch.labels is not None
        logits = self.model(batch.categorical, batch.dense)
        F.binary_cross_entropy_with_logits(logits, batch.labels).backward()

    def seconds(self, steps: int = STEPS) -> float:
        start = time.perf_counter()
        for step in range(steps):
            self.optimizer.zero_grad()
            self.backward(step)
            self.optimizer.step()
        return time.perf_counter() - start


class InStep(Job):
    """Shares nothing but the moment: no rank starts its optimizer before the other's backward has ended."""

    def backward(self, step: int) -> None:
        super().backward(step)
        dist.all_reduce(torch.zeros(1))


def run_rounds(rounds: int, steps: int) -> dict[str, list[Any]]:
    """On both ranks: samples/s of each way in each round, and the parts of a data-parallel step."""
    with dtlab.world() as w:
        torch.set_num_threads(1)
        data = dtlab.load_dataset(DataConfig(name="flights"))
        rows = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
        whole = [data.train.take(rows[i * GLOBAL_BATCH : (i + 1) * GLOBAL_BATCH]) for i in range(NUM_BATCHES)]
        part = [batch.take(torch.arange(w.rank, GLOBAL_BATCH, w.size)) for batch in whole]
        torch.manual_seed(0)
        model = DeepFM(data.cardinalities, data.num_dense)
        del data
        jobs = {
            "one rank": Job(copy.deepcopy(model), whole),
            "limit": Job(copy.deepcopy(model), part),
            "in step": InStep(copy.deepcopy(model), part),
            "two ranks": Job(data_parallel(copy.deepcopy(model), w), part),
            "plain DDP": Job(nn.parallel.DistributedDataParallel(copy.deepcopy(model)), part),
            "by hand": Job(HandDDP(copy.deepcopy(model)), part),
        }
        speed: dict[str, list[Any]] = {name: [] for name in [*jobs, "parts"]}
        for turn in range(rounds + 1):
            names = list(jobs) if turn % 2 else list(reversed(jobs))
            for name in names:
                dist.barrier()
                alone = name == "one rank"
                seconds = jobs[name].seconds(steps) if w.is_main or not alone else float("inf")
                # Own samples per own second, summed over the ranks. Coupled ranks end together.
                own = steps * (GLOBAL_BATCH if alone else GLOBAL_BATCH / w.size) / seconds
                rates = [torch.zeros((), dtype=torch.float64) for _ in range(w.size)]
                dist.all_gather(rates, torch.tensor(own, dtype=torch.float64))
                if turn:  # the first round warms up
                    speed[name].append(float(sum(rates)))
            if turn:
                speed["parts"].append(parts_of_a_step(jobs["two ranks"], turn))
        return speed


def parts_of_a_step(job: Job, step: int) -> dict[str, float]:
    """Seconds of one step taken apart: what runs as one in ``two ranks`` runs here one after another."""
    dist.barrier()
    clock = [time.perf_counter()]
    job.optimizer.zero_grad()
    with no_sync(job.model):
        job.backward(step)
    clock.append(time.perf_counter())
    gradients = [p.grad.flatten() for p in job.model.parameters() if p.grad is not None]
    flat = torch.cat(gradients).div_(dist.get_world_size())
    clock.append(time.perf_counter())
    dist.barrier()
    clock.append(time.perf_counter())
    dist.all_reduce(flat)
    clock.append(time.perf_counter())
    names = ("compute", "copy", "wait", "all_reduce")
    return {name: end - start for name, start, end in zip(names, clock[:-1], clock[1:], strict=True)}


def main() -> None:
    say("preparing flights")
    dtlab.load_dataset(DataConfig(name="flights"))
    say(f"{ROUNDS} rounds of {STEPS} steps, each way in turn")
    ranks = dtlab.launch(run_rounds, 2, ROUNDS, STEPS, timeout=500, echo=False)
    speed = ranks[0]

    def ratio(name: str, base: str, factor: float = 1.0) -> float:
        pairs = zip(speed[name], speed[base], strict=True)
        return statistics.median(a / (factor * b) for a, b in pairs)

    def milliseconds(part: str) -> float:
        # The rank that comes first waits; the other one does not. Everything else is the mean of the two.
        per_round = zip(*(rank["parts"] for rank in ranks), strict=True)
        choose = max if part == "wait" else statistics.fmean
        return 1e3 * statistics.median(choose(parts[part] for parts in both) for both in per_round)

    share, in_step = ratio("two ranks", "limit"), ratio("in step", "limit")
    report(
        "Two ranks against one, and against what the machine can do",
        {
            "speedup_2_ranks": ratio("two ranks", "one rank", 2),
            "share_of_limit": share,
            "by_hand_share_of_limit": ratio("by hand", "limit"),
            "plain_ddp_share_of_limit": ratio("plain DDP", "limit"),
            "in_step_share_of_limit": in_step,
            "limit_over_two": ratio("limit", "one rank", 2),
            "samples_per_second": statistics.median(speed["two ranks"]),
            "compute_ms": milliseconds("compute"),
            "wait_ms": milliseconds("wait"),
            "copy_ms": milliseconds("copy"),
            "all_reduce_ms": milliseconds("all_reduce"),
        },
        [
            "speedup_2_ranks: samples/s of two ranks / twice one rank; share_of_limit is held against 0.90.",
            "limit_over_two: two processes that share nothing / twice one rank: the machine's own loss.",
            f"What holds the other {1 - share:.0%}: {1 - in_step:.0%} is waiting for the rank that is slower",
            "in a step (in_step: one number is reduced, no gradient). One step taken apart: wait (for the",
            "slower rank, with a barrier) and all_reduce; copy would be one more, but gradients are views.",
        ],
    )


if __name__ == "__main__":
    main()
