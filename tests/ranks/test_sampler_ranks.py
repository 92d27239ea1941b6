"""Samplers on real ranks: true-length evaluation, ranks that disagree, ranks that run out early."""

import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dtlab
from dtlab.data.batch import Batch
from dtlab.data.coverage import Coverage, seen
from dtlab.data.evaluate import gather_by_id
from dtlab.data.foreign import in_step
from dtlab.data.loader import Loader
from dtlab.data.sampler import GlobalBatchSampler
from dtlab.data.stream import StreamSampler
from dtlab.errors import DtlabWarning, UserError


def launch(fn, nproc, *args, **options):
    return dtlab.launch(fn, nproc, *args, **{"timeout": 60, "echo": False, **options})


def refusal(call):
    """The message of the UserError that ``call`` raises; empty when it raises none."""
    try:
        call()
    except UserError as error:
        return str(error)
    return ""


def table_of(rows):
    ids = torch.arange(rows)
    return Batch(ids, ids.reshape(-1, 1), ids.reshape(-1, 1).float(), ids.float())


def evaluate_on_ranks():
    with dtlab.world():
        # Wrong for the samples 0 and 1 only.
        right = torch.ones(10)
        right[:2] = 0
        ids = [torch.from_numpy(b) for b in GlobalBatchSampler(10, 4, shuffle=False)]
        mine = torch.cat(ids)
        accuracy = gather_by_id(mine, dst=None, num_samples=10, right=right[mine])
        result = {"n": len(accuracy), "accuracy": round(float(accuracy["right"].mean()), 6)}
        for samples in (21, 3):
            parts = list(Loader(table_of(samples), GlobalBatchSampler(samples, 4, seed=1)))
            rows = Batch.concat(parts)
            got = gather_by_id(rows.ids, num_samples=samples, prediction=rows.dense[:, 0] * 2)
            result[samples] = got and list(zip(got.ids.tolist(), got["prediction"].tolist(), strict=True))
        return result


@pytest.mark.parametrize("nproc", [1, 2, 3, 4])
def test_evaluation_counts_every_sample_once_and_in_order_on_any_number_of_ranks(nproc):
    results = launch(evaluate_on_ranks, nproc)
    for result in results:
        assert (result["accuracy"], result["n"]) == (0.8, 10)
    for samples in (21, 3):
        assert results[0][samples] == [(i, 2.0 * i) for i in range(samples)]
        assert all(result[samples] is None for result in results[1:])


def evaluate_with_padding():
    with dtlab.world():
        sampler = torch.utils.data.DistributedSampler(range(10), shuffle=False)
        return refusal(lambda: gather_by_id(torch.tensor(list(sampler)), dst=None))


def test_a_padded_sampler_is_caught_when_its_results_are_gathered():
    for message in launch(evaluate_with_padding, 3):
        assert message.startswith("2 of 10 samples were evaluated more than once, first id 0")


def gather_what_does_not_fit():
    with dtlab.world() as w:
        ids, one = torch.tensor([w.rank]), torch.zeros(1)
        found = {
            "names": refusal(lambda: gather_by_id(ids, **{"ab"[w.rank]: one})),
            "shape": refusal(lambda: gather_by_id(ids, score=torch.zeros(1, 2 + w.rank))),
            "length": refusal(lambda: gather_by_id(ids, score=torch.zeros(1 + w.rank))),
            "ids": refusal(lambda: gather_by_id(ids.double())),
        }
        # A rank without samples may bring empty tensors of any kind.
        mine = ids if w.rank else torch.zeros(0)
        got = gather_by_id(mine, dst=None, score=torch.ones(1, 2) if w.rank else torch.zeros(0, 2))
        return found, got.ids.dtype, got["score"].tolist()


def test_results_that_cannot_be_put_together_are_refused_on_every_rank_by_name():
    for found, dtype, score in launch(gather_what_does_not_fit, 2):
        assert found == {
            "names": "the ranks gather different columns: {0: ['a'], 1: ['b']}; give the same, in one order",
            "shape": "the rows of score have different shapes on the ranks: {0: [2], 1: [3]}; give one shape",
            "length": "rank 1: score has 2 rows for 1 ids; give one row per id",
            "ids": "rank 0: ids are [1] torch.float64; give one whole number per sample",
        }
        assert (dtype, score) == (torch.int64, [[1.0, 1.0]])


def disagree():
    too_early = GlobalBatchSampler(8, 4)
    with dtlab.world() as w:
        found = {"built before the group": refusal(lambda: iter(too_early))}

        def sampler(**arguments):
            return GlobalBatchSampler(**{"num_samples": 8, "global_batch": 4, **arguments})

        epochs = sampler()
        epochs.set_epoch(w.rank + 1)
        found["epoch"] = refusal(lambda: iter(epochs))
        position = sampler()
        position.load_state_dict({"seed": 0, "epoch": 0, "position": 4 * w.rank})
        found["position"] = refusal(lambda: list(Loader(table_of(8), position)))
        found["seed"] = refusal(lambda: iter(sampler(seed=5 + w.rank)))
        found["rows"] = refusal(lambda: iter(sampler(num_samples=8 + w.rank)))
        found["weights"] = refusal(lambda: iter(sampler(weights=np.arange(8) + w.rank)))
        found["shuffle"] = refusal(lambda: iter(sampler(shuffle=w.rank == 0)))
        found["tail"] = refusal(lambda: iter(sampler(tail=("keep", "drop")[w.rank])))
        found["rank"] = refusal(lambda: iter(sampler(rank=0, world_size=2)))

        # Ranks that agree go on in the same group, and see all samples once.
        epochs.set_epoch(1)
        ids = [np.concatenate(list(epochs)).tolist() for _ in range(2)]
        # A sampler for this rank alone is compared with nobody.
        alone = len(list(sampler(rank=0, world_size=1))) if w.rank == 0 else 2
        return found, ids, alone


def test_ranks_that_disagree_are_told_the_value_of_each_rank():
    (found, ids, alone), (found_1, ids_1, _) = launch(disagree, 2)
    assert found == found_1
    assert found["epoch"].startswith("ranks disagree on the sampler's epoch: {0: 1, 1: 2}")
    assert found["position"].startswith("ranks disagree on the sampler's position: {0: 0, 1: 4}")
    assert found["seed"].startswith("ranks disagree on the sampler's seed: {0: 5, 1: 6}")
    assert "num_samples: {0: 8, 1: 9}" in found["rows"]
    assert "weights" in found["weights"]
    assert "shuffle: {0: 1, 1: 0}" in found["shuffle"]
    assert "tail (0: keep, 1: drop): {0: 0, 1: 1}" in found["tail"]
    assert "the sampler's rank is {0: 0, 1: 0}" in found["rank"]
    assert "built for a world of 1, but the group has 2 ranks" in found["built before the group"]
    assert alone == 2
    for epoch in range(2):
        assert seen([ids[epoch], ids_1[epoch]], range(8)).once
    assert ids[0] + ids_1[0] != ids[1] + ids_1[1]


def shuffle_a_stream():
    with dtlab.world() as w:
        own = StreamSampler([4, 4, 4], 6, seed=w.rank)
        common = StreamSampler([4, 4, 4], 6, seed=3)
        return refusal(lambda: iter(own)), [np.concatenate(list(common)).tolist() for _ in range(2)]


def test_ranks_that_shuffle_a_stream_with_their_own_seeds_are_refused():
    results = launch(shuffle_a_stream, 3)
    for message, _ in results:
        assert message.startswith("ranks disagree on the sampler's seed: {0: 0, 1: 1, 2: 2}")
    epochs = [[ids[epoch] for _, ids in results] for epoch in range(2)]
    assert all(seen(epoch, range(12)).once for epoch in epochs)
    assert epochs[0] != epochs[1]


def count_coverage():
    with dtlab.world() as w:
        table = table_of(11)
        coverage = Coverage(table.ids)
        loader = Loader(table, GlobalBatchSampler(11, 4, seed=2))
        for _ in range(2):
            for batch in loader:
                coverage.add(batch.ids)
            coverage.end_epoch()
        first = coverage.duplicates, coverage.unique, coverage.rows, list(coverage.missed)
        coverage.add(table.ids[:3])  # all ranks the same three, as without a sampler
        again = coverage.end_epoch()
        if w.rank == 1:
            coverage.add(torch.tensor([99]))
        return first, again, refusal(coverage.end_epoch)


def test_coverage_adds_up_over_ranks():
    for first, again, message in launch(count_coverage, 3):
        assert first == (0, 11, 22, [0, 0])
        assert again == 6
        assert message.startswith("1 rows reached the model")


def resume_on(world_before_rank_state):
    with dtlab.world():
        sampler = GlobalBatchSampler(103, 8)
        loader = Loader(table_of(103), sampler)
        loader.load_state_dict(world_before_rank_state)
        return [[batch.ids.tolist() for batch in loader] for _ in range(2)]


def stop_in_mid_epoch(steps):
    with dtlab.world():
        loader = Loader(table_of(103), GlobalBatchSampler(103, 8, seed=6))
        seen_ids = [batch.ids.tolist() for _, batch in zip(range(steps), loader, strict=False)]
        return loader.state_dict(), seen_ids


def test_a_run_stopped_on_two_ranks_goes_on_exactly_on_three():
    whole = [batch.tolist() for batch in GlobalBatchSampler(103, 8, seed=6).global_batches()]
    before = launch(stop_in_mid_epoch, 2, 5)
    assert before[0][0] == before[1][0]
    after = launch(resume_on, 3, before[0][0])

    def interleaved(ranks):
        joined = []
        for parts in zip(*ranks, strict=True):
            batch = np.empty(sum(map(len, parts)), dtype=np.int64)
            for rank, part in enumerate(parts):
                batch[rank :: len(parts)] = part
            joined.append(batch.tolist())
        return joined

    first_epoch = interleaved([ids for _, ids in before]) + interleaved([epochs[0] for epochs in after])
    assert first_epoch == whole
    second = GlobalBatchSampler(103, 8, seed=6)
    second.set_epoch(1)
    assert interleaved([epochs[1] for epochs in after]) == [b.tolist() for b in second.global_batches()]


def train_uneven(how, *, stay_alive=0.0):
    """Rank 2 has one batch fewer; rank 0 prints its end message only after the group has agreed."""
    with dtlab.world() as w:
        batches = range(4 if w.rank == 2 else 5)
        total, steps = torch.zeros(1), 0
        for _ in batches if how == "naive" else in_step(batches, uneven=how):
            value = torch.ones(1)
            dist.all_reduce(value)
            total += value
            steps += 1
        if w.rank == 2 and stay_alive:
            time.sleep(stay_alive)
        w.barrier()
        if w.is_main:
            print("completed")
        return steps, total.item()


def test_a_rank_that_ran_out_and_stays_alive_ends_the_launch_without_completed(tmp_path):
    started = time.monotonic()
    with pytest.raises(dtlab.RankError) as caught:
        launch(train_uneven, 3, "naive", stay_alive=300, timeout=8, log_dir=tmp_path)
    assert time.monotonic() - started < 60
    assert caught.value.late == (2,) or caught.value.rank == 2
    logs = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert logs
    assert not any("completed" in log for log in logs)


def test_ranks_in_step_stop_together_or_name_the_rank_that_ran_out():
    with pytest.raises(
        dtlab.RankError, match=r"rank 2 ran out of batches after 4 steps, ranks \[0, 1\] have more"
    ):
        launch(train_uneven, 3, "error")
    results = launch(train_uneven, 3, "stop")
    assert list(results) == [(4, 12.0)] * 3
    assert "completed" in results.logs[0]
    assert all(DtlabWarning.__name__ in log and "all ranks stop here" in log for log in results.logs)
