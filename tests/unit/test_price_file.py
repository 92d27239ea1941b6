"""A price file of the user goes before the package's figures, and a wrong row is named."""

import json
import os
import re
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.cost.billing import cost
from dtlab.cost.catalogue import instance, instances, storage, storage_items
from dtlab.cost.price_file import (
    PriceRow,
    active_path,
    default_path,
    merged,
    prices_from,
    read_price_file,
    write_price_file,
)
from dtlab.cost.prices import Price
from dtlab.errors import UserError

HEAD = "name,service,region,usd,unit,date,source,kind\n"


def written(folder: Path, text: str, name: str = "prices.csv") -> Path:
    path = folder / name
    path.write_text(HEAD + text)
    return path


def test_own_price_is_taken_and_says_where_it_is_from(tmp_path):
    path = written(tmp_path, "ml.g5.12xlarge,sagemaker,us-east-1,6.5,,2026-11-30,our contract,\n")
    with prices_from(path):
        bill = cost("ml.g5.12xlarge", 3600)
        assert bill.usd == pytest.approx(6.5)
        assert (bill.price.source, bill.price.date) == ("our contract", "2026-11-30")
        assert cost("ml.g5.12xlarge", 3600, kind="ec2").usd == pytest.approx(5.672), "the rest stays"
    assert cost("ml.g5.12xlarge", 3600).usd == pytest.approx(7.09), "and goes with the block"


def test_own_price_of_another_region_adds_to_those_known(tmp_path):
    path = written(tmp_path, "g5.12xlarge,sagemaker,eu-west-1,7.9,,2026-11,list,\n")
    with prices_from(path):
        assert cost("ml.g5.12xlarge", 3600, region="eu-west-1").usd == pytest.approx(7.9)
        assert cost("ml.g5.12xlarge", 3600).usd == pytest.approx(7.09)
    with pytest.raises(UserError, match="eu-west-1"):
        cost("ml.g5.12xlarge", 3600, region="eu-west-1")


def test_storage_of_another_region_comes_from_the_file(tmp_path):
    rows = (
        "EBS gp3 storage,storage,eu-west-1,0.088,USD/GB-month,2026,list,\n"
        "our NAS,storage,home,0.01,USD/GB-month,2026,us,estimate\n"
    )
    with prices_from(written(tmp_path, rows)):
        assert storage("ebs gp3 storage", "eu-west-1").usd == 0.088
        assert storage("EBS gp3 storage").usd == 0.08
        assert "our NAS" in storage_items()
        with pytest.raises(UserError, match="known in home"):
            storage("our NAS")


def test_type_that_is_new_brings_its_hardware(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(
        "name,service,region,usd,gpus,gpu,gpu_memory_gib,network_gbps\n"
        "ml.g9.48xlarge,sagemaker,us-east-1,20,8,X1,48,400\n"
    )
    with prices_from(path):
        found = instance("ml.g9.48xlarge")
        assert (found.gpus, found.gpu_memory_gib, found.network_gbps) == (8, 48, 400)
        assert cost("ml.g9.48xlarge", 3600).usd == 20
    bare = written(tmp_path, "g9.48xlarge,ec2,us-east-1,20,,,,\n", "bare.csv")
    with prices_from(bare), pytest.raises(UserError, match="gpus, gpu, gpu_memory_gib"):
        instances()


def test_file_named_by_the_variable_and_the_one_at_home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.delenv("DTLAB_PRICES")
    assert active_path() is None
    row = PriceRow("g5.xlarge", "ec2", Price(1.5, "USD/h", "us-east-1", "2026", "x", "on-demand"))
    write_price_file(default_path(), [row])
    assert active_path() == home / "dtlab" / "prices.csv"
    assert cost("g5.xlarge", 3600, kind="ec2").usd == 1.5
    monkeypatch.setenv("DTLAB_PRICES", str(written(tmp_path, "g5.xlarge,ec2,us-east-1,2.5,,,,\n")))
    assert cost("g5.xlarge", 3600, kind="ec2").usd == 2.5
    monkeypatch.setenv("DTLAB_PRICES", "")
    assert cost("g5.xlarge", 3600, kind="ec2").usd == 1.006
    monkeypatch.setenv("DTLAB_PRICES", str(tmp_path / "missing.csv"))
    with pytest.raises(UserError, match="no such file"):
        cost("g5.xlarge", 3600, kind="ec2")


def test_file_that_changes_is_read_again(tmp_path, monkeypatch):
    path = written(tmp_path, "g5.xlarge,ec2,us-east-1,2.5,,,,\n")
    monkeypatch.setenv("DTLAB_PRICES", str(path))
    assert cost("g5.xlarge", 3600, kind="ec2").usd == 2.5
    written(tmp_path, "g5.xlarge,ec2,us-east-1,3.25,,,,\n")
    assert cost("g5.xlarge", 3600, kind="ec2").usd == 3.25


def test_what_is_written_is_read_back_and_new_rows_replace_old_ones(tmp_path):
    def row(usd: float, region: str = "us-east-1") -> PriceRow:
        return PriceRow(
            "g5.xlarge", "ec2", Price(usd, "USD/h", region, "2026", "list, with comma", "on-demand")
        )

    rows = merged([row(1.0), row(2.0, "eu-west-1")], [row(1.5)])
    path = tmp_path / "new" / "prices.csv"
    write_price_file(path, rows)
    assert sorted(read.price.usd for read in read_price_file(path)) == [1.5, 2.0]
    assert list(path.parent.iterdir()) == [path], "nothing is left beside it"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("g5.xlarge,sagemakr,us-east-1,1,,,,", "service = 'sagemakr'"),
        ("g5.xlarge,ec2,,1,,,,", "region is empty"),
        (",ec2,us-east-1,1,,,,", "name is empty"),
        ("g5.xlarge,ec2,us-east-1,0,,,,", "usd = '0'"),
        ("g5.xlarge,ec2,us-east-1,-1,,,,", "usd = '-1'"),
        ("g5.xlarge,ec2,us-east-1,nan,,,,", "usd = 'nan'"),
        ("g5.xlarge,ec2,us-east-1,cheap,,,,", "usd = 'cheap'"),
        ("g5.xlarge,ec2,us-east-1", "usd = ''"),
        ("g5.xlarge,ec2,us-east-1,1,USD/month,,,", "unit = 'USD/month'"),
        ("g5.xlarge,ec2,us-east-1,1,,,,spot", "kind = 'spot'"),
        ("EBS gp3 storage,storage,us-east-1,1,,,,", "unit is empty"),
        ("g5.xlarge,ec2,us-east-1,1e300", "at most 1e6"),
        ("g5.xlarge,spot,us-east-1,0", "usd = '0'"),
        ("g5.xlarge,spot,us-east-1,1,,,,on-demand", "kind = 'on-demand' of spot"),
    ],
)
def test_wrong_row_is_named_with_its_line(tmp_path, capsys, row, said):
    path = written(tmp_path, row + "\n")
    assert main(["cost", "g5.xlarge", "--prices", str(path)]) == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    assert said in line
    assert "line 2" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,service,region,usd\na,ec2,us-east-1,1,234.50\n", "line 2: has more cells than the first line"),
        ("name,service,region,usd\na,ec2,x-1,7\na,ec2,X-1,8\n", "costs 8 here and 7 in line 2; keep one"),
        ("name,service,region,usd,usd\na.b,ec2,us-east-1,7,9\n", "two columns are named usd"),
        ("name,service,region,usd\na.b,ec2,us east 1,7\n", "region = 'us east 1': give its short name"),
    ],
)  # fmt: skip
def test_a_price_that_may_mean_two_things_is_none(tmp_path, text, said):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(said)):
        read_price_file(path)


def test_a_region_is_found_however_it_is_written_and_the_same_price_may_stand_twice(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("name,service,region,usd\nG5.12xlarge,EC2,EU-West-1,7\ng5.12xlarge,ec2,eu-west-1,7.0\n")
    with prices_from(path):
        assert cost("g5.12xlarge", 3600, kind="ec2", region="eu-west-1").usd == 7.0


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no column name"), ("name,usd\n", "no column service, region"), ("\x00\xff", "CSV")],
)
def test_file_that_is_none(tmp_path, text, said):
    path = tmp_path / "prices.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=said):
        read_price_file(path)
    with pytest.raises(UserError, match="No such file"), prices_from(tmp_path / "none.csv"):
        pass


def test_unknown_region_of_a_list_is_an_error_with_what_is_known(capsys):
    assert main(["instances", "--region", "us-esat-1"]) == 2
    line = capsys.readouterr().err
    assert "did you mean us-east-1" in line
    assert main(["instances", "--region", "us-west-2", "--json"]) == 0
    priced = {row["instance"]: row["price"] for row in json.loads(capsys.readouterr().out)}
    assert priced["ml.p4d.24xlarge"].startswith("$25.2513/h")
    assert priced["ml.g5.12xlarge"] == "no SageMaker price known"


def test_show_says_which_file_is_in_use(tmp_path, capsys, monkeypatch):
    assert main(["prices", "show"]) == 0
    assert "prices of the package" in capsys.readouterr().out
    monkeypatch.setenv("DTLAB_PRICES", str(written(tmp_path, "g5.xlarge,ec2,us-east-1,2.5,,2026-11,us,\n")))
    assert main(["prices", "show"]) == 0
    assert "$2.5/h, on-demand, us-east-1, 2026-11" in capsys.readouterr().out
    assert os.environ["DTLAB_PRICES"]


ZONES = """g5.12xlarge,spot,eu-west-1,2.31,,2026-11-30,eu-west-1a,
g5.12xlarge,spot,eu-west-1,2.91,,2026-11-29,eu-west-1b,spot estimate
ml.g5.12xlarge,spot,eu-west-1,2.51,,2026-11-30,eu-west-1c,
g5.12xlarge,ec2,eu-west-1,6.3,,2026-11-30,list,
"""


def test_spot_rows_are_zones_whose_median_counts(tmp_path):
    with prices_from(written(tmp_path, ZONES)):
        found = instance("g5.12xlarge").spot_in("eu-west-1")
        assert (found.minimum, found.median, found.maximum) == (2.31, 2.51, 2.91)
        bill = cost("g5.12xlarge", 7200, kind="spot", region="eu-west-1")
        assert bill.usd == pytest.approx(5.02)
        assert bill.price.kind == "spot estimate"
        assert "median of zones 2.31 to 2.91" in bill.line()
        assert cost("g5.12xlarge", 3600, kind="spot", region="eu-west-1", spot_fraction=0.5).usd == 3.15
        assert instance("g5.12xlarge").spot_in("us-west-2") is None


def test_spot_rows_are_written_back_each_with_its_zone(tmp_path):
    rows = read_price_file(written(tmp_path, ZONES))
    write_price_file(tmp_path / "again.csv", merged(rows, rows[-1:]))
    again = read_price_file(tmp_path / "again.csv")
    assert sorted(row.price.source for row in again) == ["eu-west-1a", "eu-west-1b", "eu-west-1c", "list"]


def test_plan_and_list_use_the_spot_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DTLAB_PRICES", str(written(tmp_path, ZONES)))
    words = "BERT-large --samples 1e6 --global-batch 256 --kind spot --interruptions 0.05 --region eu-west-1"
    assert main(["plan", *words.split()]) == 0
    out = capsys.readouterr().out
    assert "Price: $2.51/h, spot estimate, eu-west-1" in out
    assert "take spot" in out
    assert main(["prices", "show"]) == 0
    assert capsys.readouterr().out.count("spot estimate") == 3


def test_spot_row_that_is_dearer_is_not_taken_for_a_saving(tmp_path, capsys):
    own = written(tmp_path, "g6e.xlarge,spot,us-east-1,3.0,,2026-11-30,us-east-1a,\n")
    words = (
        "BERT-large --samples 1e6 --global-batch 256 --kind spot --interruptions 0.05 --instances g6e.xlarge"
    )
    assert main(["plan", *words.split(), "--prices", str(own)]) == 0
    assert (
        "take on-demand, the spot price is not below it. Spot loses at any rate." in capsys.readouterr().out
    )


def test_type_with_a_spot_price_alone_says_what_it_lacks(tmp_path, capsys):
    own = tmp_path / "own.csv"
    own.write_text(
        "name,service,region,usd,gpus,gpu,gpu_memory_gib,network_gbps\nnew.1,spot,eu-west-9,1.5,1,A10G,24,10\n"
    )
    words = "BERT-large --samples 1e6 --global-batch 256 --kind spot --interruptions 0.05 --region eu-west-9"
    assert main(["plan", *words.split(), "--prices", str(own)]) == 0
    assert "Spot beside on demand cannot be told" in capsys.readouterr().out
