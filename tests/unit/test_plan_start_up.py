"""A plan says which part of a short run is start-up, and by what rule the best was chosen."""

from dtlab.cli import main


def test_a_plan_says_its_start_up_and_the_rule_among_equals(capsys):
    assert main(["plan", "--config", "examples/flights.toml", "--top", "1"]) == 0
    told = capsys.readouterr().out
    assert "; the cheapest (of those within 1 %, the fastest)" in told
    assert "Of 0.08 h, 5 min are start-up (--start-minutes)." in told


def test_start_up_that_was_given_is_the_one_that_is_told(capsys):
    words = ["--config", "examples/flights.toml", "--start-minutes", "2", "--goal", "fastest"]
    assert main(["plan", *words, "--top", "1"]) == 0
    told = capsys.readouterr().out
    assert "; the fastest (of those within 1 %, the cheapest)" in told
    assert "2 min are start-up" in told
