"""Each rung fails for its own reason, the climb stops there, and a figure that is missing is not a pass."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.diagnose.figures_file import read_figures
from dtlab.diagnose.ladder import RUNGS, Broken, Figures, Limits, judge, rung
from dtlab.errors import UserError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "ladder"
FINE = Figures(
    ranks=4, ranks_answered=4, data_share=0.01, loss_difference=1e-6, communication_share=0.19, batch=1024,
    largest_batch=2048, memory_share=0.89, busy_share=0.71,
)  # fmt: skip


def test_a_job_that_passes_every_rung_is_ready() -> None:
    ladder = judge(FINE)
    assert ladder.ready
    assert ladder.stopped_at is None
    assert [one.verdict for one in ladder.rungs] == ["passed"] * 6
    assert ladder.verdict().endswith("ready for more hosts")


@pytest.mark.parametrize(
    ("fault", "name", "said"),
    [
        ({"ranks_answered": 3}, "ranks talk", "3 of 4 ranks"),
        ({"data_share": 0.009}, "1 % end to end", "0.9 %"),
        ({"loss_difference": 0.01}, "ranks agree", "0.01"),
        ({"loss_difference": float("inf")}, "ranks agree", "inf"),
        ({"communication_share": 0.20}, "communication", "20.0 %"),
        ({"memory_share": 0.90}, "memory", "90.0 %"),
        ({"batch": 4096}, "memory", "2,048 rows per rank fit, the job has 4,096"),
        ({"busy_share": 0.70}, "utilisation", "70.0 %"),
    ],
)
def test_a_figure_at_or_beyond_its_limit_stops_the_climb_at_its_rung(fault, name, said) -> None:
    ladder = judge(replace(FINE, **fault))
    stopped = ladder.stopped_at
    assert stopped.name == name
    assert said in stopped.value
    assert stopped.fix
    place = RUNGS.index(name)
    assert [one.verdict for one in ladder.rungs[:place]] == ["passed"] * place
    assert {one.verdict for one in ladder.rungs[place + 1 :]} <= {"not reached"}
    assert said in ladder.verdict()
    assert f"rung {place + 1} of 6" in ladder.verdict()
    assert not ladder.ready


def test_every_rung_has_a_fix_of_its_own() -> None:
    broken = [rung(name, replace(FINE, broken={name: Broken("it broke")})) for name in RUNGS]
    assert [one.verdict for one in broken] == ["failed"] * 6
    assert len({one.fix for one in broken}) == 6
    assert {one.value for one in broken} == {"it broke"}


def test_what_broke_counts_more_than_a_good_figure_and_brings_its_own_fix() -> None:
    one = rung("ranks agree", replace(FINE, broken={"ranks agree": Broken("replicas differ", "wrap it")}))
    assert (one.verdict, one.value, one.fix) == ("failed", "replicas differ", "wrap it")


def test_missing_figures_are_named_and_the_job_is_not_ready() -> None:
    ladder = judge(replace(FINE, loss_difference=None, busy_share=None))
    assert not ladder.ready
    assert ladder.stopped_at is None
    assert ladder.verdict() == "not ready: no figure for ranks agree, utilisation"


def test_nothing_known_is_not_ready() -> None:
    assert not judge(Figures()).ready


def test_the_published_eight_card_job_stops_at_22_percent_communication() -> None:
    ladder = judge(read_figures(EXAMPLES / "s0_8_cards.toml"))
    assert ladder.stopped_at.name == "communication"
    assert ladder.stopped_at.value == "22.0 % of the step"


@pytest.mark.parametrize(
    ("file", "stopped", "figure"),
    [
        ("s0_1_card.toml", "memory", "98.0 %"),
        ("s0_4_cards.toml", None, "no figure for ranks agree, utilisation"),
        ("s4_first_job.toml", "utilisation", "40.0 %"),
    ],
)
def test_the_other_published_jobs_stop_where_their_figures_say(file, stopped, figure) -> None:
    ladder = judge(read_figures(EXAMPLES / file))
    assert (None if ladder.stopped_at is None else ladder.stopped_at.name) == stopped
    assert figure in ladder.verdict()


def test_every_example_names_its_source_and_is_tested_above() -> None:
    files = sorted(path.name for path in EXAMPLES.iterdir())
    assert files == ["s0_1_card.toml", "s0_4_cards.toml", "s0_8_cards.toml", "s4_first_job.toml"]
    assert all(read_figures(EXAMPLES / name).source for name in files)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"communication_share": 22}, "communication_share = 22"),
        ({"communication_share": -0.1}, "communication_share = -0.1"),
        ({"memory_share": float("nan")}, "memory_share = nan"),
        ({"busy_share": True}, "busy_share = True"),
        ({"busy_share": "high"}, "busy_share = 'high'"),
        ({"ranks": 0}, "ranks = 0"),
        ({"ranks": 1.5}, "ranks = 1.5"),
        ({"ranks": 10**400}, "ranks = far too large"),
        ({"loss_difference": 10**5001}, "loss_difference = far too large"),
        ({"ranks": 8, "ranks_answered": 9}, "ranks_answered = 9: more than ranks = 8"),
        ({"source": 5}, "source = 5: give a text"),
        ({"loss_difference": -1.0}, "loss_difference = -1.0"),
    ],
)
def test_figures_out_of_range_are_refused_by_name(values, named) -> None:
    with pytest.raises(UserError, match=named):
        Figures(**values)


@pytest.mark.parametrize(
    ("figures", "shown", "limit"),
    [
        ({"data_share": 0.0099999}, "0.99999 % of the rows", "at least 1 %"),
        ({"communication_share": 0.2}, "20.0 % of the step", "under 20 %"),
        ({"communication_share": 0.19999}, "19.999 % of the step", "under 20 %"),
        ({"memory_share": 0.899999}, "89.9999 % of the memory", "under 90 %"),
        ({"busy_share": 0.70001}, "70.001 % of the time", "over 70 %"),
        ({"loss_difference": 0.00010001}, "differ by 0.00010001", "at most 0.0001"),
    ],
)
def test_a_figure_beside_its_limit_is_not_rounded_over_to_the_other_side(figures, shown, limit) -> None:
    ladder = judge(replace(FINE, **figures, largest_batch=None))
    lines = [line for line in str(ladder).splitlines() if shown in line]
    assert lines, str(ladder)
    assert limit in lines[0]


def test_a_limit_of_ones_own_is_not_rounded() -> None:
    assert judge(FINE, Limits(data_share=0.015)).stopped_at.limit == "at least 1.5 %"


# -- the command ---------------------------------------------------------------------------------------


def told(capsys, *words: str) -> tuple[int, str, str]:
    code = main(["ladder", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_command_judges_a_file_of_figures_and_says_so_by_its_exit_code(capsys, tmp_path) -> None:
    code, out, _ = told(capsys, "--figures", str(EXAMPLES / "s0_8_cards.toml"))
    assert code == 1
    assert out.startswith("S0, cost table: 8 cards")
    assert "22.0 % of the step" in out.splitlines()[-1]
    names = (
        "ranks",
        "ranks_answered",
        "data_share",
        "loss_difference",
        "communication_share",
        "memory_share",
    )
    good = {name: getattr(FINE, name) for name in (*names, "busy_share")}
    (tmp_path / "good.json").write_text(json.dumps(good))
    code, out, _ = told(capsys, "--figures", str(tmp_path / "good.json"))
    assert code == 0
    assert "ready for more hosts" in out


def test_json_holds_every_rung_and_where_the_climb_stopped(capsys) -> None:
    code, out, _ = told(capsys, "--json", "--figures", str(EXAMPLES / "s0_8_cards.toml"))
    body = json.loads(out)
    assert code == 1
    assert (body["ready"], body["stopped_at"]) == (False, "communication")
    assert [one["name"] for one in body["rungs"]] == list(RUNGS)
    assert body["rungs"][3]["value"] == "22.0 % of the step"


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("figures.toml", "communication = 0.2", ["communication", "communication_share"]),
        ("figures.toml", "broken = {}", ["broken"]),
        ("figures.toml", "communication_share = 22.0", ["communication_share = 22.0", "0.22"]),
        ("figures.toml", "communication_share = ", ["not valid TOML"]),
        ("figures.json", "[1, 2]", ["list"]),
        ("figures.json", "{", ["not valid JSON"]),
        ("figures.toml", "source = 5", ["source = 5", "give a text"]),
        ("figures.json", '{"source": ["S0"]}', ["source = ['S0']"]),
        ("figures.toml", "source = 2026-11-30", ["source = datetime.date"]),
        ("figures.toml", "ranks = " + "9" * 5001, ["ranks is a whole number of more than 64 bits"]),
        ("figures.json", '{"ranks": ' + "9" * 5001 + "}", ["ranks is a whole number of more than 64 bits"]),
        ("figures.toml", "ranks = 0x" + "f" * 5001, ["ranks is a whole number of more than 64 bits"]),
        ("figures.json", '{"ranks": 8, "ranks_answered": 9}', ["ranks_answered = 9", "ranks = 8"]),
        ("figures.json", '{"ranks": 8, "ranks": 2}', ["'ranks'", "twice"]),
        ("figures.toml", "ranks = 8\nranks = 2", ["not valid TOML"]),
        ("figures.toml", "ranks = " + "[" * 3000 + "]" * 3000, ["nested too deep"]),
        ("figures.json", "[" * 100_000, ["nested too deep"]),
        ("figures.json", "[]" + " " * 2**20, ["more than 1 MiB"]),
        ("missing.toml", None, ["No such file", "examples/ladder"]),
    ],
)
def test_a_wrong_file_of_figures_is_one_line(capsys, tmp_path, name, text, named) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    refused(capsys, ["--figures", str(path)], [name, *named])


@pytest.mark.parametrize(
    ("written", "printed"),
    [("\\ud800", "?"), ("a\\nall 6 rungs passed", "a all 6 rungs passed"), ("\\u001b[2Jnone", "?[2Jnone")],
)
def test_the_source_of_figures_neither_steers_the_terminal_nor_adds_lines(
    capfd, tmp_path, written, printed
) -> None:
    path = tmp_path / "figures.json"
    path.write_text(f'{{"source": "{written}"}}')
    code, out, err = told(capfd, "--figures", str(path))
    assert (code, err) == (1, "")
    assert out.splitlines()[0] == printed


def test_a_named_pipe_of_figures_is_not_waited_for(capsys, tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    refused(capsys, ["--figures", str(tmp_path / "pipe.toml")], ["pipe.toml", "no regular file"])


def test_a_misspelt_file_of_figures_offers_the_near_one(capsys, tmp_path) -> None:
    (tmp_path / "my_job.json").write_text("{}")
    refused(capsys, ["--figures", str(tmp_path / "my_jop.json")], ["did you mean", "my_job.json"])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--nproc", "1"], ["nproc = 1", "2 or more"]),
        (["--start", "0"], ["start = 0"]),
        (["--most", "0"], ["most = 0"]),
        (["--most", "1"], ["most = 1", "start = 256"]),
        (["--steps", "0"], ["steps = 0"]),
        (["--timeout", "0"], ["timeout = 0"]),
        (["--memory-gb", "0"], ["memory_gb = 0"]),
        (["--memory-gb", "nan"], ["memory_gb = nan"]),
        (["--start", "1.5"], ["start", "1.5", "whole"]),
        (["--optim.lrr", "1"], ["lrr"]),
        (["missing.toml"], ["missing.toml"]),
        (["--nproc", "2", "later.toml"], ["later.toml", "right after 'ladder'"]),
        (["--figures", "a.toml", "--optim.lr", "1e-3"], ["a.toml", "leave the configuration out"]),
        (["--data.name", "parquet", "--data.path", "nowhere.parquet", "--data.label", "y"], ["nowhere"]),
    ],
)
def test_bad_input_is_one_line_before_any_rank_starts(capsys, words, named) -> None:
    refused(capsys, words, named)


def refused(capsys, words: list[str], named: list[str]) -> None:
    code, out, err = told(capsys, *words)
    assert code == 2, err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    for piece in named:
        assert piece in err
