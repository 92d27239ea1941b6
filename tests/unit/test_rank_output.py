"""A harmless warning of torch is kept from the screen and the log of a rank; every other line stays."""

import pytest

from dtlab.ranks.output import RankOutput

WARNING = b"[W1130 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"


@pytest.mark.parametrize("cut", [len(WARNING), 20, 70])
def test_only_the_warning_is_left_out_however_it_is_cut(tmp_path, capsys, cut):
    output = RankOutput(1, tmp_path / "rank1.log", echo=True)
    for piece in (b"before\n", WARNING[:cut], WARNING[cut:], b"after\n"):
        output.feed(piece)
    output.close()
    assert capsys.readouterr().out.splitlines() == ["[Rank 1] before", "[Rank 1] after"]
    assert (tmp_path / "rank1.log").read_bytes() == b"before\nafter\n"


def test_other_lines_stay_also_unfinished_ones_and_the_users_own_words(tmp_path):
    output = RankOutput(0, tmp_path / "rank0.log", echo=False)
    lines = b"I read: The hostname of the client socket cannot be retrieved\n[W x.cpp] slow\n[W unfinished"
    output.feed(lines)
    output.close()
    assert (tmp_path / "rank0.log").read_bytes() == lines
