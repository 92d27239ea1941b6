"""Storage, egress and idle hours in the price of a plan: by hand, to the cent, and against the budget."""

import json

import pytest

from dtlab.cli import main
from dtlab.cost.beside import Beside, Rates
from dtlab.errors import UserError

BERT = ["plan", "BERT-large", "--samples", "1e6", "--global-batch", "256", "--instances", "g5.12xlarge"]
ITEMS = ["--data-gib", "500", "--storage", "io1", "--iops", "3000", "--checkpoint-gib", "200",
         "--stored-hours", "73", "--egress-gib", "50", "--idle-hours", "10"]  # fmt: skip


def printed(capsys, *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_items_are_those_of_hand_arithmetic_and_add_up_to_the_cent(capsys):
    alone = printed(capsys, *BERT, "--counts", "2")["best"]
    best = printed(capsys, *BERT, "--counts", "2", *ITEMS)["best"]
    assert best["usd_items"] == {
        "compute": round(alone["usd"], 2),
        "storage": 2 * round((500 * 0.125 + 3000 * 0.065) / 10, 2),  # a volume on each machine, 73 of 730 h
        "checkpoints": 0.46,  # 200 x 0.023 / 10
        "egress": 4.5,
        "idle": 2 * 70.9,
    }
    assert best["usd"] == round(sum(best["usd_items"].values()), 2)


def test_every_candidate_of_a_plan_adds_up(capsys):
    found = printed(capsys, *BERT, *ITEMS, "--max-gpus", "64")
    for one in [found["best"], found["runner_up"], *found["frontier"]]:
        assert one["usd"] == round(sum(one["usd_items"].values()), 2)


def test_table_has_a_column_for_each_item(capsys):
    assert main([*BERT, *ITEMS]) == 0
    out = capsys.readouterr().out
    head = next(line for line in out.splitlines() if "= compute" in line)
    assert [word for word in head.split() if word in ("storage", "checkpoints", "egress", "idle")] == [
        "storage", "checkpoints", "egress", "idle",
    ]  # fmt: skip
    assert "storage $25.75 (500 GiB in io1 with 3,000 IOPS for 73 h)" in out


def test_items_count_for_the_budget(capsys):
    alone = printed(capsys, *BERT)["best"]["usd"]
    budget = ["--budget", f"{alone + 5:.2f}", "--goal", "cheapest"]
    assert printed(capsys, *BERT, *budget)["best"]["within_limits"]
    assert main([*BERT, *budget, "--egress-gib", "100"]) == 2  # $9
    assert "nothing keeps it" in capsys.readouterr().err


def test_idle_hours_make_the_dearer_machine_lose(capsys):
    recommender = ["plan", "examples/plans/s4-deepfm.toml", "--samples", "1e9", "--global-batch", "16384"]
    recommender += ["--instances", "g5.xlarge", "g6e.xlarge"]
    assert printed(capsys, *recommender)["best"]["instance"] == "g6e.xlarge"
    assert printed(capsys, *recommender, "--idle-hours", "10")["best"]["instance"] == "g5.xlarge"
    assert main([*recommender, "--idle-hours", "10"]) == 0
    assert "Most of the difference is idle" in capsys.readouterr().out


def test_without_hours_things_are_kept_while_the_run_lasts():
    rates = Rates(Beside(data_gib=7300), "us-east-1")
    assert rates.items(10.0, 5.0, 1, hours=2.0)["storage"] == round(7300 * 0.023 * 2 / 730, 2)
    shared = Rates(Beside(data_gib=7300, storage="fsx-scratch"), "us-east-1")
    assert shared.items(1.0, 1.0, 1, 10.0)["storage"] == shared.items(1.0, 1.0, 8, 10.0)["storage"]


def test_nothing_beside_leaves_the_price_as_it_was():
    rates = Rates(Beside(), "us-east-1")
    assert rates.usd(0.00123, 5.0, 1, 0.1) == 0.00123
    assert rates.items(0.00123, 5.0, 1, 0.1) == {"compute": 0.00123}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data_gib": -1.0}, "data_gib = -1.0"),
        ({"egress_gib": float("nan")}, "egress_gib = nan"),
        ({"idle_hours": float("inf")}, "idle_hours = inf"),
        ({"checkpoint_gib": 1e30}, r"checkpoint_gib = 1e\+30"),
        ({"stored_hours": 5.0}, "stored_hours = 5"),
        ({"storage": "gp3"}, "storage = 'gp3': goes with data_gib"),
        ({"storage": "tape", "data_gib": 5.0}, "storage = 'tape'"),
        ({"storage": "io1", "data_gib": 5.0}, "iops is needed"),
        ({"iops": 3000, "data_gib": 5.0}, "iops = 3000: goes with"),
        ({"storage": "fsx-125", "data_gib": 1000.0}, "the smallest file system has 1200 GiB"),
        ({"storage": "gp3", "data_gib": 0.5}, "whole GiB"),
        ({"egress_to": "moon", "egress_gib": 1.0}, "egress_to = 'moon'"),
    ],
)
def test_bad_amounts_are_named(given, said):
    with pytest.raises(UserError, match=said):
        Beside(**given)


def test_region_without_a_storage_price_is_named(capsys, tmp_path):
    own = tmp_path / "prices.csv"
    own.write_text("name,service,region,usd\nml.g5.12xlarge,sagemaker,eu-west-3,8.0\n")
    words = [*BERT, "--region", "eu-west-3", "--prices", str(own), "--data-gib", "5", "--storage", "gp3"]
    assert main(words) == 2
    assert "region='eu-west-3' has no price for EBS gp3 storage" in capsys.readouterr().err
