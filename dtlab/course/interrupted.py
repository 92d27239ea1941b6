"""A small run that can be killed, told to stop and continued (lesson 13).

- ``Run``: one rank's part of a training run, with a state in five places: model, optimizer, schedule,
  sampler, and the generator that dropout draws from.
- ``Strike``: what happens to one rank after a step, in the first attempt only.
- ``Host``: the address at which a spot host says that it will be taken away.
- ``agreed_stop``: the loop with checkpoints and a stop of all ranks together.
- ``without_each``: the same run continued from a checkpoint, with one part of the state left out.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dtlab.data.batch import Batch
from dtlab.data.config import DataConfig
from dtlab.data.datasets import load_dataset
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.models.deepfm import DeepFM
from dtlab.parallel.ddp import data_parallel
from dtlab.ranks.seeds import seed_everything
from dtlab.train.checkpoint import Checkpointer
from dtlab.train.config_schedule import ScheduleConfig
from dtlab.train.generators import Generators
from dtlab.train.schedule import Schedule

if TYPE_CHECKING:
    from dtlab.ranks.worlds import World

TOTAL, ROWS, GLOBAL_BATCH = 60, 640, 32  # three epochs of 20 steps
WORK = "work.log"
PARTS = ("model", "optimizer", "schedule", "sampler", "generators")


class Rows(NamedTuple):
    """The training rows, and the sizes of a model for them."""

    table: Batch
    cardinalities: tuple[int, ...]
    num_dense: int


@lru_cache(maxsize=1)
def rows() -> Rows:
    """640 made-up clicks. Read once and hand them to the ranks: reading takes a rank longer than training."""
    data = load_dataset(DataConfig(name="clicks", rows=1_000))
    return Rows(data.train.take(torch.arange(ROWS)), tuple(data.cardinalities), data.num_dense)


class Strike(NamedTuple):
    """Send a signal to a rank when it has made `step` steps, unless its job was started again."""

    step: int
    rank: int
    number: signal.Signals = signal.SIGKILL


class Run:
    """One rank's part: `model`, `optimizer`, `schedule` and `sampler` have state_dict and load_state_dict.

    `steps` counts optimizer steps, `seen` lists the ids of this rank's rows in each of its own steps, `rates`
    their learning rates. With a `folder` the last rank keeps a log of its steps there.
    """

    def __init__(
        self,
        w: World,
        data: Rows,
        folder: str | Path | None = None,
        *,
        seed: int = 0,
        strike: Strike | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self.table = data.table
        self.w, self._strike = w, strike if _is_first_attempt() else None
        self._log = None if folder is None or w.rank < w.size - 1 else Path(folder) / WORK
        seed_everything(seed)  # the same weights on every rank
        self.model = DeepFM(data.cardinalities, data.num_dense, dim=4, hidden=(16,), dropout=0.2)
        self.replica = data_parallel(self.model, w)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1.0)
        self.schedule = Schedule(ScheduleConfig(kind="cosine", warmup=10), 5e-3, TOTAL)
        self.sampler = GlobalBatchSampler(ROWS, GLOBAL_BATCH, rank=w.rank, world_size=w.size, seed=seed)
        seed_everything(seed, w.rank)  # dropout differs from rank to rank
        self.steps = 0
        self.seen: list[list[int]] = []
        self.rates: list[float] = []

    def step(self) -> None:
        """One optimizer step (collective)."""
        if not self.seen:
            self.note("start")
        whole = next(self.sampler.global_batches())
        batch = self.table.take(torch.from_numpy(self.sampler.local(whole)))
        logits = self.replica(batch.categorical, batch.dense)
        loss = _loss_sum(logits, batch)
        self.optimizer.zero_grad()
        (loss * self.w.size / len(whole)).backward()
        self.schedule.apply(self.optimizer)
        self.optimizer.step()
        self.schedule.advance()
        self._move_on(len(whole))
        self.steps += 1
        self.seen.append(batch.ids.tolist())
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.note("step")
        if self._strike is not None and (self.steps, self.w.rank) == self._strike[:2]:
            os.kill(os.getpid(), self._strike.number)

    def _move_on(self, samples: int) -> None:
        """Move the sampler without its usual comparison over the ranks: a step shall be one collective."""
        state = self.sampler.state_dict()
        self.sampler.load_state_dict({**state, "position": state["position"] + samples})

    def note(self, word: str) -> None:
        """Write a line with the number of steps into the log."""
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{word} {self.steps}\n")

    def weights(self) -> Tensor:
        """All parameters in one vector, a copy."""
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])

    def loss(self) -> float:
        """The mean loss over all rows, without dropout."""
        self.model.eval()
        with torch.no_grad():
            logits = self.model(self.table.categorical, self.table.dense)
        self.model.train()
        return float(_loss_sum(logits, self.table)) / ROWS

    def parts(self) -> dict[str, Any]:
        """The parts of the state by name, as dtlab's Checkpointer takes them."""
        own = {name: getattr(self, name) for name in PARTS if name != "generators"}
        return {**own, "generators": Generators()}


def _loss_sum(logits: Tensor, batch: Batch) -> Tensor:
    assert batch.labels is not None
    return binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")


def _is_first_attempt() -> bool:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def without_each(w: World, data: Rows, folder: str | Path, at: int = 45) -> dict[str, Run]:
    """Runs that go on to TOTAL from a checkpoint of step `at`, each without one part of its state.

    By the name of the part that was not put back; "nothing" is the run that got all of them.
    """
    runs = {}
    with Checkpointer(folder, asynchronous=False) as checkpoints:
        first = Run(w, data)
        for _ in range(at):
            first.step()
        checkpoints.save(first.parts(), at, samples=at * GLOBAL_BATCH)
        for missing in ("nothing", *PARTS):
            run = runs[missing] = Run(w, data)
            checkpoints.load({name: part for name, part in run.parts().items() if name != missing})
            run.steps = at
            while run.steps < TOTAL:
                run.step()
    return runs


def agreed_stop(
    w: World,
    run: Run,
    told: Callable[[], bool],
    save: Callable[[Run], None],
    *,
    every: int = 10,
    ask: int = 4,
) -> str:
    """Train to TOTAL, or until any rank was told to stop: "finished" or "stopped" on all of them.

    The loop of exercise 13-stop. :class:`dtlab.train.watch.Watch` does the same between the steps of a real
    run, with questions about once a second.
    """
    while run.steps < TOTAL:
        run.step()
        stop = run.steps % ask == 0 and w.all_agree(told(), rule="any")
        if stop or run.steps % every == 0:
            save(run)
        if stop:
            return "stopped"
    return "finished"


class Host:
    """What EC2 does on a spot host: answers 404 at a local address, and 200 from `give_notice()` on.

    >>> with Host() as host:
    ...     host.asked
    0
    """

    def __init__(self) -> None:
        self.asked, self._noticed = 0, False
        host = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host.asked += 1
                self.send_response(200 if host._noticed else 404)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self._server.server_port}/latest/meta-data/spot/instance-action"

    def give_notice(self) -> None:
        """From now on the answer is yes: this host will be taken away."""
        self._noticed = True

    def __enter__(self) -> Host:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
