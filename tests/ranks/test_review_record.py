"""The record of a real run on two ranks is reviewed, and so is what can become of one."""

import json

import pytest

from dtlab.cli import main
from dtlab.diagnose.checks import FAIL, OK, WARN
from dtlab.diagnose.record_file import read_record
from dtlab.diagnose.record_review import review_record
from dtlab.errors import UserError
from dtlab.train.record import Record


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that ``dtlab train`` made."""
    root = tmp_path_factory.mktemp("run")
    words = (
        f"train --nproc 2 --data.name clicks --data.rows 3000 --data.root {root / 'data'} --model.hidden 8 "
        f"--optim.global-batch 256 --optim.max-epochs 3 --run.log-every 5 --run.folder {root / 'run'}"
    )
    assert main(words.split()) == 0
    return root / "run"


@pytest.fixture
def events(run):
    return [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]


@pytest.fixture
def reviewed(tmp_path):
    """Review these events: the lines by name."""

    def review(events):
        file = tmp_path / "record.jsonl"
        file.write_text("".join(json.dumps(event) + "\n" for event in events))
        return {line.name: line for line in review_record(file).lines}

    return review


def of(events, kind):
    return [event for event in events if event["event"] == kind]


def test_record_of_a_real_run_is_sound(run, capsys):
    report = review_record(run)
    lines = {line.name: line for line in report.lines}
    assert report.ok
    assert lines["end"].status == OK
    assert lines["attempts"].value == "1, on 2 rank(s)"
    assert lines["samples"].value.endswith("each once in each epoch")
    assert lines["loss"].status == OK
    assert lines["data"].status == OK
    assert "GB of the host, which 2 rank(s) share" in lines["memory"].value
    assert "any kernel" in lines["NVML utilisation"].value
    assert "added up" in lines["CloudWatch"].value
    assert {"commit", "epochs", "input", "communication", "bound", "busy share", "would cost"} <= set(lines)
    assert "note" not in lines
    assert all(line.fix for line in report.lines if line.status != OK)
    assert str(report).splitlines()[-1].startswith("the run is sound")

    assert main(["doctor", "--run", str(run / "record.jsonl"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert [line["name"] for line in found["lines"]] == [line.name for line in report.lines]


def test_run_that_did_not_end_is_told_from_one_that_was_stopped_or_failed(events, reviewed, capsys, tmp_path):
    end = of(events, "end")[0]
    killed = reviewed([event for event in events if event is not end])["end"]
    assert killed.status == FAIL
    assert "killed, or still running" in killed.value
    assert "--resume" in killed.fix
    stopped = reviewed([*events[:-1], {**end, "stopped_by": "SIGTERM", "checkpoint": 12}])["end"]
    assert (stopped.status, "complete checkpoint at step 12" in stopped.value) == (WARN, True)
    assert stopped.fix == "go on with the same command and --resume"
    spent = {**end, "stopped_by": "budget: 31 s of stopping.max_seconds = 30 used", "checkpoint": 12}
    assert (
        reviewed([*events[:-1], spent])["end"].fix == "go on with a larger stopping.max_seconds and --resume"
    )
    lost = reviewed([*events[:-1], {**end, "stopped_by": "SIGTERM", "checkpoint": None}])["end"]
    assert "nothing was saved" in lost.fix
    failed = {"event": "failed", "seconds": 1.0, "error": "DesyncError: step 5: the replicas differ"}
    line = reviewed([*events[:-1], failed])["end"]
    assert (line.status, line.value) == (FAIL, "failed: DesyncError: step 5: the replicas differ")
    assert main(["doctor", "--run", str(tmp_path / "record.jsonl")]) == 1
    assert "the run is not sound: 1 of" in capsys.readouterr().out


def test_rows_seen_twice_or_never_fail(events, reviewed):
    end = of(events, "end")[0]
    line = reviewed([*events[:-1], {**end, "duplicate_rows": 7, "missed_rows": 3}])["samples"]
    assert line.status == FAIL
    assert "7 of them again, 3 never" in line.value
    assert "GlobalBatchSampler" in line.fix


def test_loss_that_is_no_number_fails_and_one_that_rises_warns(events, reviewed):
    first, last = of(events, "epoch")[0], [e for e in of(events, "epoch") if e["phase"] == "choose"][-1]
    line = reviewed([{**e, "loss": None} if e is last else e for e in events])["loss"]
    assert (line.status, line.value) == (FAIL, f"not a number: epoch at epoch {last['epoch']}")
    line = reviewed([{**e, "loss": first["loss"] + 1} if e is last else e for e in events])["loss"]
    assert (line.status, "it rose" in line.value) == (WARN, True)


def test_skipped_steps_count_by_their_share(events, reviewed):
    end = of(events, "end")[0]
    few = reviewed([*events[:-1], {**end, "skipped_steps": 2, "optimizer_steps": 998}])["skipped steps"]
    many = reviewed([*events[:-1], {**end, "skipped_steps": 20, "optimizer_steps": 80}])["skipped steps"]
    assert (few.status, few.value) == (OK, "2, 0.2%")
    assert (many.status, many.value) == (WARN, "20, 20.0%")


def test_epochs_after_the_best_one_cost_their_seconds(events, reviewed):
    start = events[0]
    wasted = [start]
    for epoch in range(1, 6):
        wasted.append(
            {"event": "epoch", "phase": "choose", "epoch": epoch, "seconds": 3600.0, "loss": 1 / epoch}
        )
        wasted.append({"event": "validation", "seconds": 1.0, "epoch": epoch, "auc": 0.7, "best_epoch": 2})
    line = reviewed(wasted)["epochs"]
    assert line.status == WARN
    # Three hours at the catalogue's $4.89 of ml.g4dn.12xlarge.
    assert line.value == (
        "best 2 of 5 (auc 0.7000); 3 after it took 10800.0 s of training, $14.6700 on ml.g4dn.12xlarge"
    )
    assert "patience" in line.fix
    still_better = [{**e, "best_epoch": e["epoch"]} if e["event"] == "validation" else e for e in wasted]
    start["config"]["optim"]["max_epochs"] = 5
    assert "raise optim.max_epochs" in reviewed(still_better)["epochs"].fix


def test_waiting_and_talking_runs_get_their_bound(events, reviewed):
    def with_shares(wait, communication):
        changed = {"wait_share": wait, "communication_share": communication}
        return reviewed([{**e, **changed} if e["event"] == "epoch" else e for e in events])

    reads, talks, works = with_shares(0.6, 0.1), with_shares(0.02, 0.7), with_shares(0.01, 0.05)
    assert reads["bound"].value.startswith("input-bound")
    assert (reads["input"].status, reads["communication"].status) == (WARN, OK)
    assert talks["bound"].value.startswith("communication-bound")
    assert (talks["input"].status, talks["communication"].status) == (OK, WARN)
    assert "twice the ranks" not in talks["bound"].fix
    assert works["bound"].value.startswith("compute-bound")
    assert [works[name].status for name in ("input", "communication", "bound", "busy share")] == [OK] * 4
    assert "twice the ranks" in works["bound"].value


def test_a_page_gives_one_order_of_remedies(events, reviewed):
    def page(wait, communication, **start):
        changed = {"wait_share": wait, "communication_share": communication}
        begun = {**events[0], **start}
        return reviewed([begun, *({**e, **changed} if e["event"] == "epoch" else e for e in events[1:])])

    lines = page(0.02, 0.25)
    assert [lines[name].status for name in ("communication", "bound", "busy share")] == [WARN, OK, OK]
    assert not any("twice the ranks" in line.value + line.fix for line in lines.values())
    assert "one sync for twice the samples" in lines["communication"].fix
    assert lines["communication"].fix in lines["bound"].value
    assert [page(0.2, 0.25)[name].status for name in ("bound", "busy share")] == [OK, WARN]
    waits = page(0.6, 0.1)
    assert waits["input"].fix in waits["bound"].fix
    card = page(0.02, 0.3, environment={"card": "T4"})
    assert card["communication"].fix.startswith("see with")
    assert not any("twice the ranks" in line.value + line.fix for line in card.values())


def test_a_layout_gets_remedies_of_its_own(events, reviewed):
    def line(layout, share=0.5, name="communication"):
        changed = {"wait_share": 0.0, "communication_share": share}
        begun = {**events[0], "layout": layout}
        epochs = ({**e, **changed} if e["event"] == "epoch" else e for e in events[1:])
        return reviewed([begun, *epochs])[name]

    both = line("pp 2 x tp 2, 1f1b with 4 micro-batches")
    assert "sampled step" in both.value
    assert "parallel.micro_batches" in both.fix
    assert "smaller tp" in both.fix
    assert "larger batch" not in both.fix
    assert "larger batch per rank" in line("dp_replicate 2 x dp_shard 2").fix
    assert line("pp 2", share=0.1).fix == ""
    assert "one sync" in line("dp_replicate 2").fix
    bound = line("pp 2 x tp 2", share=0.7, name="bound").fix
    assert "more parallel.micro_batches or a smaller tp" in bound
    assert "no_sync" not in bound


def test_a_share_just_over_its_limit_does_not_read_like_the_limit(events, reviewed):
    changed = {"wait_share": 0.0, "communication_share": 0.2001}
    line = reviewed([{**e, **changed} if e["event"] == "epoch" else e for e in events])["communication"]
    assert (line.status, line.value.split(" %")[0]) == (WARN, "20.01")


def test_full_memory_and_uncommitted_code_warn(events, reviewed):
    start = events[0]
    full = {**start, "environment": {"memory_bytes": 1e9, "card": "T4"}, "commit": "a" * 40, "dirty": True}
    lines = reviewed([full, {"event": "reading", "seconds": 1.0, "step": 5, "memory_bytes": 0.95e9}])
    assert (lines["memory"].status, "95% of the 1.0 GB of its card" in lines["memory"].value) == (WARN, True)
    assert lines["commit"].value == "aaaaaaaaaaaa with uncommitted changes"
    assert reviewed([{**start, "commit": None, "dirty": None}])["commit"].status == WARN
    assert reviewed([{**start, "commit": "a" * 40, "dirty": False}])["commit"].status == OK
    moved = reviewed([{**start, "commit": "a" * 40}, {**start, "event": "resume", "commit": "b" * 40}])[
        "commit"
    ]
    assert "aaaaaaaaaaaa -> bbbbbbbbbbbb" in moved.value


def test_attempts_and_what_was_done_twice_are_counted(events, reviewed):
    start = events[0]
    first = [
        start,
        {"event": "checkpoint", "seconds": 60.0, "step": 10, "reason": "interval"},
        {"event": "reading", "seconds": 90.0, "step": 15, "loss": 0.5},
    ]
    resumed = [*first, {**start, "event": "resume", "world_size": 4}, *events[1:]]
    line = reviewed(resumed)["attempts"]
    assert line.value == "2: 1 resumed, 0 started anew, on 2 -> 4 ranks; at least 30 s done twice"
    assert line.status == WARN  # a third of the time
    anew = reviewed([*first, *events])["attempts"]
    assert "0 resumed, 1 started anew" in anew.value
    assert anew.status == WARN


def test_what_the_run_warned_of_is_repeated_once(events, reviewed):
    warning = {"event": "line", "seconds": 1.0, "text": "step 3: the gradient is not finite; skipped"}
    line = reviewed([*events, warning, warning])["note"]
    assert (line.status, line.value) == (WARN, "step 3: the gradient is not finite; skipped (2 times)")
    text = "checkpoint.every_steps = 500, but the run makes at most 94 steps; choose a smaller interval"
    line = reviewed([*events, {"event": "line", "seconds": 1.0, "text": text}])["note"]
    assert line.fix == "choose a smaller interval"
    text = "the run goes on with optim.lr 0.1 -> 0.2"
    assert "not one experiment" in reviewed([*events, {"event": "line", "text": text}])["note"].fix


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ('{"event": "sta', "line 1 is no JSON"),
        ('{"event": "start", "config": {}}\nhello\n{"event": "end"}\n', "line 2 is no JSON"),
        ('{"auc": 0.7, "world_size": 2}\n', "line 1 is JSON, but no event"),
        ('{"event": "push", "repository": {}}\n', "line 1 is not the start of a run"),
        ("[1, 2]\n", "line 1 is JSON, but no event"),
        ("[" * 100_000 + "\n", "line 1 is no JSON"),
        ("PAR1", "line 1 is no JSON"),
        (b"\xff\xfe\x00", "not text"),
    ],
)
def test_file_that_is_no_record_is_refused_in_one_line(content, words, tmp_path, capsys):
    file = tmp_path / "some.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["doctor", "--run", str(file)]) == 2
    out = capsys.readouterr()
    assert (out.out, len(out.err.splitlines())) == ("", 1)
    assert words in out.err


def test_a_line_torn_by_a_kill_hides_nothing_and_spoils_no_later_line(tmp_path):
    file = tmp_path / "record.jsonl"
    file.write_text('{"event": "start", "config": {}}\n{"event": "step", "step": 7}\n{"event": "epo')
    (line,) = [line for line in review_record(file).lines if line.name == "end"]
    assert line.status == FAIL
    assert line.value == "none after 'step', step 7, the next line is torn: killed, or still running"
    record = Record(tmp_path)
    record.write("resume", config={})
    record.close()
    assert [event.kind for event in read_record(file).events] == ["start", "step", "resume"]


def test_text_of_a_record_does_not_steer_the_terminal(events, reviewed):
    failed = {"event": "failed", "seconds": 1.0, "error": "bad \x1b[2J\x1b]0;title\x07 error\nsecond"}
    line = reviewed([*events[:-1], failed])["end"]
    assert line.value == "failed: bad ?[2J?]0;title? error second"


def test_place_without_a_record_is_refused_with_the_way_out(run, tmp_path):
    with pytest.raises(UserError, match=r"No such file or directory; give a run's folder or its record"):
        review_record(tmp_path / "none")
    with pytest.raises(UserError, match="neither a file nor a folder"):
        review_record("/dev/zero")
    with pytest.raises(UserError, match=r"no record.jsonl in it"):
        review_record(tmp_path)
    with pytest.raises(UserError, match=r"holds 1 run\(s\) and is none itself; give one, the newest is"):
        review_record(run.parent)


def test_values_of_another_kind_are_left_out(reviewed):
    odd = {"event": "start", "config": {"run": [], "optim": {"max_epochs": "many"}}, "world_size": "two"}
    lines = reviewed(
        [
            odd,
            {"event": "epoch", "seconds": "long", "loss": 0.5, "wait_share": {}, "epoch": None},
            {"event": "reading", "memory_bytes": [1]},
            {"event": "validation", "epoch": 1, "best_epoch": "first", "auc": True},
            {
                "event": "end",
                "seconds": True,
                "rows_train": "all",
                "unique_rows_seen": 5,
                "skipped_steps": [],
            },
        ]
    )
    assert set(lines) == {"end", "commit", "data", "attempts", "loss", "epochs"}
    assert lines["epochs"].status == WARN
