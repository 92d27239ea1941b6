"""``dtlab plan``: presets, shapes and run files are planned; what is wrong is one line; torch stays out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.commands import plan_config

SMALL = ["--instances", "g5", "g6e.12xlarge", "p4d", "--max-gpus", "16"]
BERT = ["plan", "BERT-large", "--samples", "1e6", "--global-batch", "256"]


def printed(capsys, *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *words: str) -> str:
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.strip()
    assert "\n" not in line
    assert "Traceback" not in line
    return line


def test_table_says_what_is_best_why_the_next_lost_and_what_to_change(capsys):
    assert main([*BERT, *SMALL, "--deadline-hours", "24"]) == 0
    out = capsys.readouterr().out
    assert "the cheapest within 24 h" in out
    assert out.count("\nbest") == 1
    assert "\n2nd: the next best, on another type of machine" in out
    assert " lost: " in out
    assert "Largest: " in out
    assert "Trust in the time: " in out
    assert "Price: $" in out
    assert "configurations in" in out


def test_json_accounts_for_every_configuration_and_carries_the_price(capsys):
    body = printed(capsys, *BERT, *SMALL)
    parts = ("refused", "no_room", "too_slow", "set_aside", "predicted")
    assert body["covered"] == sum(body[part] for part in parts)
    best = body["best"]
    assert best["price"]["region"] == "us-east-1"
    assert best["price"]["source"]
    assert sum(best["step_parts"].values()) == pytest.approx(best["step_seconds"])
    assert sum(best["memory_items"].values()) == pytest.approx(best["memory_bytes"], rel=1e-6)
    assert best["within_limits"] is True
    assert body["steps"] == 3907


def test_budget_alone_asks_for_the_fastest_and_deadline_for_the_cheapest(capsys):
    assert printed(capsys, *BERT, *SMALL, "--budget", "1000")["goal"] == "fastest"
    assert printed(capsys, *BERT, *SMALL, "--budget", "1000", "--deadline-hours", "99")["goal"] == "cheapest"
    assert printed(capsys, *BERT, *SMALL, "--budget", "1000", "--goal", "cheapest")["goal"] == "cheapest"


def test_frontier_is_listed_alone_fastest_first(capsys):
    assert main([*BERT, *SMALL, "--goal", "frontier"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = lines[3 : lines.index("", 3)]
    assert all(row.startswith(("best", "front", "2nd")) for row in rows)
    body = printed(capsys, *BERT, *SMALL, "--goal", "frontier")
    assert len(rows) in (len(body["frontier"]), len(body["frontier"]) + 1)
    seconds = [one["seconds"] for one in body["frontier"]]
    assert seconds == sorted(seconds)


def test_tokens_are_sequences_of_the_models_length(capsys):
    words = ["plan", "GPT 320M", "--global-batch", "64", *SMALL]
    assert printed(capsys, *words, "--tokens", "1024e6")["samples"] == pytest.approx(1e6)
    assert printed(capsys, *words, "--tokens", "1024e6", "--seq-len", "512")["samples"] == pytest.approx(2e6)


def test_shape_from_a_file(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[transformer]\nlayers = 4\nhidden = 512\nvocab = 1000\nseq_len = 128\nheads = 8\n")
    body = printed(capsys, "plan", str(path), "--samples", "1e5", "--global-batch", "64", *SMALL)
    assert body["model"] == "mine"
    assert body["parameters"] > 10_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write one table"),
        ("layers = 4\n", "write one table"),
        ("[transformr]\nlayers = 4\n", "write one table"),
        ("[transformer]\nlayers = 4\n", "needs hidden, vocab, seq_len, heads"),
        ("[transformer]\nlayer = 4\n", "did you mean layers?"),
        ("[recommender]\nrows = 10\nfields = 0\ndim = 4\n", "fields = 0"),
        ("[recommender]\nrows = 'ten'\nfields = 1\ndim = 4\n", "rows = 'ten'"),
        ("[recommender\n", "mine.toml"),
    ],
)
def test_shape_that_is_wrong_is_named(capsys, tmp_path, text, said):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert said in refused(capsys, "plan", str(path), "--samples", "1e5", "--global-batch", "64")


def test_figure_is_written_whole(capsys, tmp_path):
    path = tmp_path / "plan.png"
    assert main([*BERT, *SMALL, "--figure", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]


def test_prices_of_the_users_own_decide(capsys, tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("name,service,region,usd\nml.g6e.12xlarge,sagemaker,us-east-1,0.01\n")
    best = printed(capsys, *BERT, *SMALL, "--prices", str(path))["best"]
    assert best["instance"] == "g6e.12xlarge"
    assert best["price"]["source"] == "your price file"


def test_spot_is_planned_with_its_interruptions(capsys):
    calm = printed(capsys, *BERT, *SMALL, "--kind", "spot", "--interruptions", "0")["best"]
    rough = printed(capsys, *BERT, *SMALL, "--kind", "spot", "--interruptions", "0.5")["best"]
    assert calm["price"]["kind"] == "spot estimate"
    assert rough["usd"] > calm["usd"]


def test_spot_says_how_often_to_save_and_when_it_loses(capsys):
    assert main([*BERT, *SMALL, "--kind", "spot", "--interruptions", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "saving every" in out
    assert "on demand (" in out
    assert "Spot loses above" in out


def test_reader_that_is_too_slow_is_named_as_the_largest_part(capsys):
    assert main([*BERT, *SMALL, "--reader", "10"]) == 0
    assert "Largest: input. More loader workers" in capsys.readouterr().out


def test_run_file_of_flights_counts_epochs_and_the_refit(capsys):
    body = printed(capsys, "plan", "--config", "examples/flights.toml", *SMALL)
    train, validation = plan_config.FLIGHTS[:2]
    assert body["samples"] == 4 * (train + train + validation)
    assert body["global_batch"] == 4096
    assert body["best"]["strategy"]["zero"] == 0, "what dtlab train does with this file is DDP"


def test_run_file_of_text_is_a_gpt_and_its_steps_are_known(capsys):
    body = printed(capsys, "plan", "--config", "examples/gpt.toml", *SMALL)
    assert (body["steps"], body["global_batch"]) == (60, 32)
    assert body["parameters"] == 119_104


def test_limits_of_a_run_file_are_those_of_the_plan_unless_flags_say_otherwise(capsys, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[stopping]\nmax_seconds = 7200.0\nmax_usd = 40.0\n[precision]\nname = 'fp32'\n")
    body = printed(capsys, "plan", "--config", str(path), *SMALL)
    assert (body["deadline_seconds"], body["budget_usd"]) == (7200.0, 40.0)
    assert body["best"]["strategy"]["precision"] == "fp32"
    assert printed(capsys, "plan", "--config", str(path), *SMALL, "--budget", "30")["budget_usd"] == 30.0


def test_own_parquet_needs_the_rows_of_its_tables_and_counts_its_own(capsys, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    pq.write_table(pa.table({"a": list(range(1000)), "y": [0] * 1000}), tmp_path / "one.parquet")
    path = tmp_path / "run.toml"
    text = f'[data]\nname = "parquet"\npath = "{tmp_path / "one.parquet"}"\nlabel = "y"\n'
    path.write_text(text + 'categorical = ["a"]\n[optim]\nmax_epochs = 2\n[run]\nrefit = false\n')
    assert "--table-rows" in refused(capsys, "plan", "--config", str(path), *SMALL)
    body = printed(capsys, "plan", "--config", str(path), *SMALL, "--table-rows", "5000")
    assert body["samples"] == pytest.approx(2 * 800)
    assert body["parameters"] > 8 * 5000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "model: give a preset"),
        (["BERT-large", "--config", "examples/flights.toml"], "and not both"),
        (["Llama 8B", "--samples", "1", "--global-batch", "1"], "did you mean 'Llama 7B'?"),
        (["missing.toml", "--samples", "1", "--global-batch", "1"], "missing.toml"),
        (["BERT-large", "--global-batch", "1"], "samples is needed"),
        (["BERT-large", "--samples", "1"], "global_batch is needed"),
        (["BERT-large", "--samples", "0", "--global-batch", "1"], "samples = 0"),
        (["BERT-large", "--samples", "nan", "--global-batch", "1"], "samples = nan"),
        (["BERT-large", "--samples", "1", "--tokens", "1", "--global-batch", "1"], "give one of them"),
        (["ResNet-50", "--tokens", "1", "--global-batch", "1"], "has no sequence"),
        (["ResNet-50", "--samples", "1", "--global-batch", "1", "--seq-len", "8"], "has no sequence"),
        ([*BERT[1:], "--deadline-hours", "-1"], "deadline_hours = -1"),
        ([*BERT[1:], "--budget", "0"], "budget = 0"),
        ([*BERT[1:], "--max-gpus", "99999"], "max_gpus = 99999"),
        ([*BERT[1:], "--tp", "16"], "tp = 16"),
        ([*BERT[1:], "--zero", "7"], "zero = 7"),
        ([*BERT[1:], "--precision", "fp8"], "fp8"),
        ([*BERT[1:], "--instances", "g5.12xlage"], "g5.12xlarge"),
        ([*BERT[1:], "--instances", "p5e.48xlarge"], "no SageMaker price"),
        ([*BERT[1:], "--region", "us-esat-1"], "did you mean us-east-1"),
        ([*BERT[1:], "--kind", "spot"], "interruptions_per_hour is needed"),
        ([*BERT[1:], "--interruptions", "0.1"], "goes with kind = 'spot'"),
        ([*BERT[1:], "--spot-fraction", "0.3"], "spot_fraction = 0.3"),
        ([*BERT[1:], "--start-minutes", "-1"], "start_minutes = -1"),
        ([*BERT[1:], "--reader", "0"], "reader = 0"),
        ([*BERT[1:], "--table-rows", "10"], "table_rows = 10"),
        ([*BERT[1:], "--top", "0"], "top = 0"),
        ([*BERT[1:], "--figure", "plan.gif"], "must end in .png"),
        ([*BERT[1:], "--figure", "no/such/plan.png"], "there is no folder"),
        ([*BERT[1:], "--prices", "none.csv"], "none.csv"),
        ([*BERT[1:], *SMALL, "--deadline-hours", "0.01"], "the fastest is"),
        (["--config", "missing.toml"], "missing.toml"),
        (["S3 multimodal 320M", *BERT[2:]], "take 'GPT 320M'"),
        (["S3 multimodal 320M", *BERT[2:], "--max-gpus", "4"], "its shape is not known"),
        (["DeepFM S4", *BERT[2:]], "did you mean 'S4 DeepFM 1M x 1024'?"),
        (["BERT-large", "--samples", "1e300", "--global-batch", "64"], "samples = 1e+300"),
        (["BERT-large", "--samples", "1e6", "--global-batch", "100000000000"], "at most 1e9"),
        ([*BERT[1:], "--seq-len", "999999999"], "seq_len = 999999999"),
        ([*BERT[1:], "--tp", "3"], "tp must divide BERT-large's 16 heads"),
        (["ResNet-50", *BERT[2:], "--tp", "2"], "ResNet-50 has no equal layers to cut; take tp = 1"),
        ([*BERT[1:], "--idle-hours", "1e9"], "idle_hours = 1000000000.0"),
        ([*BERT[1:], "--micro-batch", "3"], "micro_batches = 3"),
        ([*BERT[1:], "--counts", "10000"], "10,000 machines of the types here have"),
        ([*BERT[1:], "--instances", "p4d", "--max-gpus", "2"], "max_gpus = 2: one machine"),
        ([*BERT[1:], "--kind", "spot", "--interruptions", "1e9"], "no run would ever end"),
    ],
)
def test_bad_words_are_named(capsys, words, said):
    assert said in refused(capsys, "plan", *words)


def test_longer_sequences_bring_their_positions_along(capsys):
    short, long = (printed(capsys, *BERT, *SMALL, "--seq-len", size) for size in ("512", "1024"))
    assert long["parameters"] - short["parameters"] == 512 * 1024


def test_plan_imports_no_torch_and_no_numpy(tmp_path):
    words = [*BERT, *SMALL, "--json"]
    code = (
        f"import sys; from dtlab.cli import main; code = main({words!r})\n"
        "print([name for name in ('torch', 'numpy', 'pyarrow', 'matplotlib') if name in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_rows_of_flights_are_those_of_the_data():
    manifests = sorted(Path("data/flights").glob("*/manifest.json"))
    if not manifests:
        pytest.skip("flights are not prepared here")
    rows = json.loads(manifests[-1].read_text())["rows"]
    assert (rows["train"], rows["validation"]) == plan_config.FLIGHTS[:2]
