"""Values and decisions shared by ranks, each with the right answer, one launch per world size."""

import math

import numpy as np
import pytest
import torch

import dtlab


def on_two_ranks():
    seen = {}
    with dtlab.world() as w:
        r = w.rank
        # validation values 0.9 and 0.5 against 0.8, and 0.9 and 1.1 against a best of 1.0: decide on the mean
        seen["stop"] = w.mean([0.9, 0.5][r]) > 0.8
        seen["better"] = w.mean([0.9, 1.1][r]) < 1.0
        seen["weighted"] = w.mean([1.0, 4.0][r], weight=[3, 1][r])
        seen["no samples"] = w.mean([2.0, math.nan][r], weight=[5, 0][r])
        seen["nobody"] = math.isnan(w.mean(1.0, weight=0))
        seen["tensor"] = w.mean(torch.tensor([1.0, 2.0]) * (r + 1)).tolist()
        seen["weighted tensor"] = w.mean(torch.tensor([[8.0 * r]]), weight=[3, 1][r]).tolist()
        seen["bfloat16"] = w.mean(torch.ones(2, dtype=torch.bfloat16), weight=3001).tolist()
        losses = {"loss": [1.0, 3.0][r]} | ({"aux": 2.0} if r == 1 else {})
        seen["dict"] = w.mean(losses)
        seen["flags"] = (
            w.all_agree(r == 0),
            w.all_agree(r == 0, rule="any"),
            w.all_agree([True, r == 0, False]),
            w.all_agree({"nan": r == 1, "save": False}, rule="any"),
        )
        seen["tensors"] = [t.tolist() for t in w.gather(torch.arange(3 * r), dst=None)]
        seen["columns"] = [tuple(t.shape) for t in w.gather(torch.zeros(r, 4, dtype=torch.bool), dst=None)]
        seen["objects"] = w.gather({"rank": r}, dst=None)
        seen["on one"] = w.gather(r, dst=1)
        seen["broadcast"] = (
            w.broadcast({"lr": 0.1 * r}, src=1),
            w.broadcast(torch.arange(2) + r, src=1).tolist(),
        )
        seen["none"] = w.broadcast("config" if r == 0 else None)
        try:
            w.all_agree({"stop": True} if r == 0 else [True, False])
        except dtlab.UserError as error:
            seen["mismatch"] = "different things" in str(error)
        seen["who"] = (w.size, w.local_rank, w.local_size, w.launcher, w.backend, w.is_main, str(w.device))
        w.barrier()
        with dtlab.world() as inner:
            seen["nested"] = (inner.rank, inner.size, inner.mean(r))
        seen["after nested"] = dtlab.mean(r)
    seen["outside"] = (dtlab.world_size(), dtlab.mean(7), dtlab.all_agree(False), dtlab.gather("x"))
    return seen


def test_two_ranks_share_values_and_decisions():
    zero, one = dtlab.launch(on_two_ranks, 2, timeout=60)
    for seen in (zero, one):
        assert seen["stop"] is False
        assert seen["better"] is False
        assert seen["weighted"] == 1.75
        assert seen["no samples"] == 2.0
        assert seen["nobody"]
        assert seen["tensor"] == [1.5, 3.0]
        assert seen["weighted tensor"] == [[2.0]]
        assert seen["bfloat16"] == [1.0, 1.0]
        assert seen["dict"] == {"loss": 2.0, "aux": 2.0}
        assert seen["flags"] == (False, True, [True, False, False], {"nan": True, "save": False})
        assert seen["tensors"] == [[], [0, 1, 2]]
        assert seen["columns"] == [(0, 4), (1, 4)]
        assert seen["objects"] == [{"rank": 0}, {"rank": 1}]
        assert seen["broadcast"] == ({"lr": 0.1}, [1, 2])
        assert seen["none"] == "config"
        assert seen["mismatch"]
        assert seen["nested"][1:] == (2, 0.5)
        assert seen["after nested"] == 0.5
        assert seen["outside"] == (1, 7.0, False, ["x"])
    assert (zero["on one"], one["on one"]) == (None, [0, 1])
    assert zero["who"] == (2, 0, 2, "dtlab", "gloo", True, "cpu")
    assert one["who"] == (2, 1, 2, "dtlab", "gloo", False, "cpu")


def what_does_not_fit_together(w):
    """Calls of which the ranks make unlike ones, with words that the error must have."""
    r = w.rank
    yield lambda: w.mean(torch.ones(3 + r)), ["rank 0: mean of float32 [3]", "rank 1: mean of float32 [4]"]
    yield lambda: w.mean(torch.ones(500, 1 + r)), ["float32 [500, 1]", "float32 [500, 2]"]
    yield lambda: w.mean(torch.ones([4] * (1 + r))), ["float32 [4]", "float32 [4, 4]"]
    yield lambda: w.mean(torch.ones(3).to([torch.int64, torch.float64][r])), ["int64 [3]", "float64 [3]"]
    yield lambda: w.mean(torch.tensor(1.0) if r else 0.0), ["mean of a number", "mean of float32 []"]
    yield lambda: w.mean({"loss": 1.0} if r else 0.0), ["rank 1: mean of a dict"]
    yield lambda: w.mean(1.0, weight=3 if r else None), ["rank 1: mean of a number with a weight"]
    yield lambda: w.gather(torch.ones(2), dst=r), ["float32 [2] to rank 0", "float32 [2] to rank 1"]
    yield lambda: w.broadcast(1, src=r), ["rank 1: broadcast of rank 1's value"]
    yield lambda: w.all_agree({"stop": True} if r else [True, False]), ["flags ['stop']", "a list of 2 flags"]
    yield lambda: w.all_agree(True, rule=["all", "any"][r]), ["rule 'all'", "rule 'any'"]
    yield lambda: w.mean(1.0) if r else w.gather("x"), ["rank 0: gather of str", "rank 1: mean of a number"]
    yield (
        lambda: w.all_agree("no" if r else True),
        ["rank 0: all_agree of one flag", "rank 1", "a str, which"],
    )
    yield (
        lambda: w.all_agree([True, None if r else True]),
        ["a list of 2 flags", "a NoneType, which is no bool"],
    )
    yield lambda: w.mean("3" if r else 3), ["rank 0: mean of a number", "rank 1: mean of a str"]
    yield (
        lambda: w.mean({"loss": "3" if r else 3}),
        ["rank 0: mean of a dict", "rank 1: mean of a dict with a str"],
    )
    yield lambda: w.mean(1.0, weight="3" if r else 3), ["rank 0: mean of a number with a weight", "'3'"]


def told_of_what_does_not_fit():
    told = []
    with dtlab.world() as w:
        for call, words in what_does_not_fit_together(w):
            try:
                told.append(f"no error, but {call()}")
            except dtlab.UserError as error:
                told += [
                    str(error),
                    *(f"{word!r} is not in {error}" for word in words if word not in str(error)),
                ]
        many = [[True] * 2000 + [w.rank == 0], [False] * 2000 + [w.rank == 1]]
        fine = (
            w.mean(torch.full((1000, 3), float(w.rank))).unique().tolist(),
            w.mean(torch.tensor([1 + 2j, 3j]) * w.rank).tolist(),
            tuple(w.mean(torch.zeros(0, 4)).shape),
            [w.all_agree(flags, rule="any")[-2:] for flags in many],
        )
    return told, fine


def test_unlike_shapes_types_and_calls_are_one_error_on_every_rank_and_the_group_goes_on():
    zero, one = dtlab.launch(told_of_what_does_not_fit, 2, timeout=60)
    assert zero == one
    told, fine = zero
    assert len(told) == 17
    assert all("different things" in line and "is not in" not in line for line in told), told
    assert fine == ([0.5], [0.5 + 1j, 1.5j], (0, 4), [[True, True], [False, True]])


@pytest.mark.parametrize(
    "flag", ["no", b"", None, 2, 0.0, [True, "no"], {"stop": "no"}, {True}, torch.ones(2) > 0]
)
def test_a_flag_that_is_no_bool_is_not_taken_for_true(flag):
    with pytest.raises(dtlab.UserError, match=r"which is no bool; give a bool"):
        dtlab.all_agree(flag)


def test_bools_of_other_libraries_are_flags():
    assert dtlab.all_agree([np.bool_(True), torch.tensor(False), 1, 0]) == [True, False, True, False]
    assert dtlab.all_agree(torch.tensor(1.0).isfinite()) is True


@pytest.mark.parametrize(
    ("x", "weight"), [("3", None), (b"3", None), (np.str_("3"), None), ({"loss": "3"}, None), (1.0, "3")]
)
def test_text_that_reads_like_a_number_has_no_mean(x, weight):
    with pytest.raises(dtlab.UserError, match=r"str|bytes|weight='3'"):
        dtlab.mean(x, weight)


def text_on_every_rank():
    told = []
    with dtlab.world() as w:
        for call in (lambda: w.all_agree("no"), lambda: w.mean("3"), lambda: w.mean({"loss": "3"})):
            try:
                told.append(f"no error, but {call()}")
            except dtlab.UserError as error:
                told.append(str(error))
        return told, w.all_agree(True)


def test_text_on_every_rank_is_named_and_the_group_goes_on():
    for told, after in dtlab.launch(text_on_every_rank, 2, timeout=60):
        assert after is True
        assert "flag = 'no': a str" in told[0]
        assert "not str: '3'" in told[1]
        assert "'loss' is str" in told[2]


def log_three_steps():
    """Rank 1 logs one value more in step 2, and names it first."""
    logged = []
    with dtlab.world() as w:
        for step in (1, 2, 3):
            values = {"aux": 8.0} if w.rank == 1 and step == 2 else {}
            logged.append(w.mean({**values, "loss": float(w.rank + step)}))
            after = torch.tensor([10.0**w.rank])
            torch.distributed.all_reduce(after)
            logged[-1]["sum after it"] = after.item()
    return logged


def test_a_value_that_one_rank_logs_alone_mixes_with_no_other_and_no_rank_waits_for_it():
    same = [
        {"loss": 1.5, "sum after it": 11.0},
        {"loss": 2.5, "aux": 8.0, "sum after it": 11.0},
        {"loss": 3.5, "sum after it": 11.0},
    ]
    assert list(dtlab.launch(log_three_steps, 2, timeout=60)) == [same, same]


def gather_predictions(samples):
    """Each rank holds its stride of the samples, as an uneven sampler gives it."""
    with dtlab.world() as w:
        ids = torch.arange(samples)[w.rank :: w.size]
        parts = w.gather(torch.stack([ids, ids * 10], dim=1))
        if parts is None:
            return None
        joined = torch.cat(parts)
        return joined[joined[:, 0].argsort()].tolist()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_gathered_predictions_have_every_sample_once(ranks):
    for samples in (21, 3):  # 3 samples on 4 ranks: one rank has none
        results = dtlab.launch(gather_predictions, ranks, samples, timeout=60)
        assert results[0] == [[i, 10 * i] for i in range(samples)]
        assert list(results[1:]) == [None] * (ranks - 1)


def plain_torch_group():
    """The helpers work with a group that plain torch has made."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    values = dtlab.rank(), dtlab.world_size(), dtlab.mean(dtlab.rank()), dtlab.all_agree(True)
    half = dist.new_group([1])
    inside = dtlab.mean(5.0, group=half) if dtlab.rank() == 1 else None
    with dtlab.world() as w:
        values += (w.size, w.launcher)
    return (*values, inside, dist.is_initialized())


def test_helpers_use_a_group_made_by_plain_torch():
    results = dtlab.launch(plain_torch_group, 2, timeout=60)
    assert results[0] == (0, 2, 0.5, True, 2, "dtlab", None, True)
    assert results[1] == (1, 2, 0.5, True, 2, "dtlab", 5.0, True)


def draws(epochs):
    import numpy
    from torch.utils.data import DataLoader, Dataset

    from dtlab.ranks import seeds

    class Noise(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return int(numpy.random.randint(10**9)), float(torch.rand(1))

    own = torch.rand(1).item()
    loader = DataLoader(Noise(), batch_size=None, num_workers=2, worker_init_fn=seeds.worker_init)
    return own, [[number for number, _ in loader] for _ in range(epochs)]


def test_streams_differ_over_ranks_workers_and_epochs_and_repeat():
    first = dtlab.launch(draws, 2, 2, seed=5, timeout=60)
    assert first[0][0] != first[1][0]
    numbers = [number for _, epochs in first for epoch in epochs for number in epoch]
    assert len(set(numbers)) == 2 * 2 * 4
    again = dtlab.launch(draws, 2, 2, seed=5, timeout=60)
    assert list(again) == list(first)
    other = dtlab.launch(draws, 2, 1, seed=6, timeout=60)
    assert other[0][0] not in (first[0][0], first[1][0])


def write_log(path):
    with dtlab.world(log_file=path) as w:
        w.log.info("step %d", w.rank)


def test_log_lines_name_their_rank_on_screen_and_in_the_file(tmp_path):
    results = dtlab.launch(write_log, 2, str(tmp_path / "logs" / "rank{rank}.log"), echo=False, timeout=60)
    for rank in (0, 1):
        text = (tmp_path / "logs" / f"rank{rank}.log").read_text()
        assert f"[Rank {rank}] INFO step {rank}" in text
        assert f"step {rank}" in results.logs[rank]


def late(step_function, timeout):
    import time

    with dtlab.world(timeout=timeout, join_timeout=60) as w:
        step = step_function()
        for number in range(3):
            if w.rank == 1 and number == 2:
                time.sleep(120)  # stays alive
            step()


def all_reduce_step():
    ones = torch.ones(3)
    return lambda: torch.distributed.all_reduce(ones)


def backward_step():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    dtlab.barrier()
    return lambda: model(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize(
    ("step_function", "limits"),
    [(all_reduce_step, (8, None)), (backward_step, (100, 6))],
    ids=["time limit of the launch", "time limit of the collective, inside backward"],
)
def test_time_limits_name_the_late_rank_and_its_operation(step_function, limits):
    of_launch, of_collective = limits
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(late, 2, step_function, of_collective, timeout=of_launch)
    first = str(caught.value).splitlines()[0]
    assert "rank 1 of 2 is late: last operation all_reduce #" in first
    assert "time.sleep(120)" in first
    assert "rank 0 waits in all_reduce #" in first
