"""Step times: published runs within the stated error, items that add up, and what is refused."""

import pytest

from benchmarks.accuracy_collectives import DATA, collective_scores, read_rows
from benchmarks.accuracy_time import nanotron_runs, run_errors
from benchmarks.shapes import shape_of
from dtlab.cost.builders import recommender, transformer
from dtlab.cost.calibration import calibration, gpu
from dtlab.cost.catalogue import instances
from dtlab.cost.machines import machine
from dtlab.cost.presets import LLAMA_7B
from dtlab.cost.step_scaling import step_scaling
from dtlab.cost.step_time import StepModel, step_time
from dtlab.cost.strategy import Strategy
from dtlab.cost.work import flops_per_sample, work_of
from dtlab.errors import UserError

NANOTRON_1B = shape_of({"model": "1B"}, "nanotron")
CLUSTER = machine("HF H100 cluster")


def test_published_runs_without_a_pipeline_are_met_within_10_percent_on_average() -> None:
    errors = run_errors(nanotron_runs(read_rows(DATA / "h100-nanotron-runs.csv")))
    assert len(errors) == 128
    assert sum(map(abs, errors)) / len(errors) <= 0.10


def test_the_error_that_predictions_print_is_the_one_that_was_measured() -> None:
    errors = run_errors(nanotron_runs(read_rows(DATA / "h100-nanotron-runs.csv")))
    stated = step_time(NANOTRON_1B, Strategy(dp_replicate=16), CLUSTER).error
    assert stated.startswith(f"{sum(map(abs, errors)) / len(errors):.0%}".replace("%", " %"))
    assert "128 runs" in stated


def test_collectives_held_out_are_met_within_8_percent() -> None:
    figures, rows = collective_scores(read_rows(DATA / "published-collectives.csv"))
    assert float(figures["collectives_mape"] or 1) <= 0.08
    assert len(rows) == figures["collectives_held_out"] == 13


# Tokens a second for each GPU of nanotron 1B at a global batch of 256 sequences, by number of GPUs, with the
# micro-batch of those runs. The constants were fitted on the first four among others; 256 lies outside.
STRONG_SCALING = {16: (37610, 1), 32: (35368, 1), 64: (31112, 1), 128: (26446, 2), 256: (15700, 1)}


@pytest.mark.parametrize("ranks", STRONG_SCALING)
def test_one_billion_parameters_from_16_to_256_cards_at_a_fixed_batch(ranks: int) -> None:
    measured, micro_batch = STRONG_SCALING[ranks]
    strategy = Strategy(
        dp_replicate=ranks, micro_batch=micro_batch, num_micro_batches=256 // ranks // micro_batch,
        fp32_gradients=True,
    )  # fmt: skip
    found = step_time(NANOTRON_1B, strategy, CLUSTER)
    assert found.samples == 256
    assert found.samples_per_second * 4096 / ranks == pytest.approx(measured, rel=0.11)


def test_parts_are_the_items_and_add_up() -> None:
    strategy = Strategy(dp_replicate=4, tp=2, pp=2, micro_batch=2, num_micro_batches=8, zero=1)
    found = step_time("Llama 7B", strategy, "ml.p5.48xlarge")
    model = StepModel("Llama 7B", machine("ml.p5.48xlarge"))
    assert tuple(found.items().values()) == model.parts(strategy)
    assert (
        found.seconds == pytest.approx(model.seconds(strategy)) == pytest.approx(sum(found.items().values()))
    )
    assert found.samples_per_second == pytest.approx(4 * 2 * 8 / found.seconds)
    assert all(value >= 0 for value in found.items().values())


def test_one_card_sends_nothing() -> None:
    found = step_time("GPT 320M", Strategy(micro_batch=8), "ml.g5.xlarge")
    assert found.tensor_parallel == found.bubble == found.data_parallel == 0.0


def test_tensor_parallelism_beyond_a_machine_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"tp = 16 on ml.p5.48xlarge: .* 8 cards at most"):
        step_time("GPT-3 175B", Strategy(tp=16), "ml.p5.48xlarge")
    model = StepModel("GPT-3 175B", machine("ml.p5.48xlarge"))
    with pytest.raises(UserError, match="tp = 16"):
        model.parts(Strategy(tp=16))


def test_a_strategy_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(UserError, match="tp = 2"):
        step_time("ResNet-50", Strategy(tp=2), "ml.p5.48xlarge")


def test_a_model_of_unknown_shape_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match="dtlab cost fit"):
        step_time("S3 multimodal 320M", Strategy(), "ml.p5.48xlarge")


def test_a_pipeline_is_a_bound_and_its_bubble_the_textbooks() -> None:
    one = step_time("Llama 7B", Strategy(pp=1, num_micro_batches=8), "ml.p5.48xlarge")
    four = step_time("Llama 7B", Strategy(pp=4, num_micro_batches=8), "ml.p5.48xlarge")
    assert four.error.startswith("bound only")
    assert not one.error.startswith("bound only")
    micro = (four.compute + four.launch) / 8
    assert four.bubble == pytest.approx(3 * micro, rel=0.02)  # and the messages that fill the pipeline
    interleaved = step_time(
        "Llama 7B",
        Strategy(pp=4, num_micro_batches=8, schedule="interleaved", stages_per_rank=2),
        "ml.p5.48xlarge",
    )
    assert interleaved.bubble == pytest.approx(four.bubble / 2, rel=0.02)


def test_full_recomputation_adds_a_third_of_the_compute() -> None:
    big = Strategy(micro_batch=8)
    plain = step_time("Llama 7B", big, "ml.p4de.24xlarge")
    full = step_time("Llama 7B", Strategy(micro_batch=8, recompute="full"), "ml.p4de.24xlarge")
    assert full.recompute == pytest.approx(plain.compute / 3)
    assert plain.recompute == 0.0


def test_small_shards_wait_for_their_kernels() -> None:
    small = step_time(NANOTRON_1B, Strategy(tp=8, micro_batch=1), CLUSTER)
    large = step_time(NANOTRON_1B, Strategy(tp=8, micro_batch=16), CLUSTER)
    assert small.launch > small.compute
    assert large.launch == 0.0
    assert small.compute + small.launch == pytest.approx(16 * 4.1e-3)  # layers x launch time of one


def test_a_slow_network_shows_where_gradients_are_large() -> None:
    model = transformer(24, 1024, 16384, 1024, heads=16, name="320M")
    fast = step_time(model, Strategy(dp_replicate=16, precision="amp"), "ml.p4d.24xlarge")
    slow = step_time(model, Strategy(dp_replicate=16, precision="amp"), "ml.g5.48xlarge")
    assert slow.data_parallel > 5 * fast.data_parallel
    accumulated = step_time(
        model, Strategy(dp_replicate=16, precision="amp", num_micro_batches=8), "ml.g5.48xlarge"
    )
    assert accumulated.data_parallel < slow.data_parallel  # more backward to hide it behind


def test_fsdp_sends_half_as_much_again_as_ddp_and_hides_it_behind_compute() -> None:
    model = StepModel(LLAMA_7B, machine("ml.g5.48xlarge"))
    syncs = model._syncs
    ddp = syncs.of(Strategy(dp_replicate=8, precision="bf16"))
    fsdp = syncs.of(Strategy(dp_shard=8, zero=3, precision="bf16", fp32_reduce=False))
    assert (fsdp.gather + fsdp.scatter) / ddp.gradients == pytest.approx(1.5, rel=0.03)
    exposed = [
        step_time(
            LLAMA_7B, Strategy(dp_shard=8, zero=3, micro_batch=rows), "ml.g5.48xlarge", seq_len=512
        ).data_parallel
        for rows in (1, 2, 32)
    ]
    assert exposed == sorted(exposed, reverse=True)
    assert exposed[2] < exposed[0] / 10


def test_a_large_table_is_bytes_and_sparse_gradients_make_it_small() -> None:
    model = recommender(1_000_000, fields=26, dim=256, num_dense=13)
    strategy = Strategy(dp_replicate=8, micro_batch=1024, precision="fp32")
    dense = step_time(model, strategy, "ml.g4dn.12xlarge")
    sparse = step_time(model, strategy, "ml.g4dn.12xlarge", sparse_table=True)
    assert dense.table > 0.9 * dense.seconds
    assert sparse.table < dense.table / 3
    assert dense.compute == sparse.compute < 0.01


def test_every_gpu_of_the_catalogue_has_peaks_and_says_what_its_share_rests_on() -> None:
    names = {each.gpu for each in instances() if each.gpu and "rainium" not in each.gpu}
    assert {"T4", "V100", "A100", "H100", "A10G"} <= names
    for name in names:
        assert gpu(name).half >= gpu(name).fp32 > 1e12
        for form in ("fp32", "tf32", "half"):
            for kind in ("transformer", "cnn", "recommender"):
                row = calibration(name, form, kind)
                assert 0 < row.eta < 1
                assert row.source
    assert calibration("T4").kind == calibration("L4", "half", "cnn").kind == "estimate"
    assert calibration("V100", "half", "cnn").kind == "measured"
    assert calibration("A100", "fp32", "cnn").eta > calibration("A100", "tf32", "cnn").eta
    assert "estimate" in step_time("BERT-large", Strategy(), "ml.g4dn.xlarge").error


def test_flops_are_those_of_the_literature() -> None:
    assert flops_per_sample("ResNet-50") / 6 == pytest.approx(4.09e9, rel=0.01)  # multiply-adds of a forward
    assert flops_per_sample("GPT-3 175B") / 2048 == pytest.approx(6 * 175e9, rel=0.05)
    bert = work_of("BERT-large")
    assert bert.product_flops / 512 / 6 == pytest.approx(303e6, rel=0.01)
    assert work_of("Llama 7B", 8192).attention_flops == 4 * work_of("Llama 7B", 4096).attention_flops


def test_published_resnet_and_bert_on_one_card_are_met() -> None:
    resnet = step_time("ResNet-50", Strategy(micro_batch=256, precision="amp"), "p3.2xlarge")
    assert resnet.samples_per_second == pytest.approx(1200, rel=0.05)
    bert = step_time(
        "BERT-large", Strategy(micro_batch=8, precision="amp", num_micro_batches=32), "p3.2xlarge"
    )
    assert bert.samples_per_second == pytest.approx(75, rel=0.05)


def test_efficiency_falls_with_ranks_at_a_fixed_batch_and_less_when_the_batch_grows() -> None:
    strategy = Strategy(micro_batch=4, num_micro_batches=16, fp32_gradients=True)
    strong = step_scaling(NANOTRON_1B, strategy, CLUSTER, (8, 16, 32, 64))
    weak = step_scaling(NANOTRON_1B, strategy, CLUSTER, (8, 16, 32, 64), keeps="batch of a rank")
    for points in (strong, weak):
        efficiencies = [point.efficiency for point in points]
        assert efficiencies[0] == 1.0
        assert efficiencies == sorted(efficiencies, reverse=True)
    assert [point.step.samples for point in strong] == [64] * 4
    assert [point.step.samples for point in weak] == [512, 1024, 2048, 4096]
    assert weak[-1].efficiency > strong[-1].efficiency


def test_ranks_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(UserError, match="do not divide the global batch of 64"):
        step_scaling(NANOTRON_1B, Strategy(micro_batch=64), CLUSTER, (8, 24))
    with pytest.raises(UserError, match=r"multiple of tp \* pp = 4"):
        step_scaling(NANOTRON_1B, Strategy(tp=4), CLUSTER, (6,))
