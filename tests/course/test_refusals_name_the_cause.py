"""The refusal of a common wrong answer says what is wrong with it, not only what came out of it."""

import importlib.util
import os
from pathlib import Path

import pytest

from dtlab.course.mutants import Edit, answer_of, verdict
from dtlab.course.source import lessons, notebooks_root

HERE = Path(__file__).parent
LESSONS = {lesson.number: lesson for lesson in lessons(root=notebooks_root())}


def mutant(name: str, label: str):
    """Arguments for the check, with a wrong answer of ``mutants/lNN.py`` in the solution's place."""
    path = HERE / "mutants" / f"l{name[:2]}.py"
    spec = importlib.util.spec_from_file_location(f"causes_l{name[:2]}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wrong = module.MUTANTS[name][label]
    if isinstance(wrong, Edit):
        return answer_of(LESSONS[name[:2]], name, wrong)
    arguments, named = answer_of(LESSONS[name[:2]], name)
    return [wrong, *arguments[1:]], named


@pytest.mark.parametrize(
    ("name", "label", "words"),
    [
        ("06-recompute", "runs without recording", "with torch.enable_grad()"),
        ("06-recompute", "x goes on in its graph", "x must be a fresh leaf"),
        ("06-recompute", "the gradient of x alone", "output.backward(gradient) fills those of the block"),
        ("06-recompute", "one gradient for two inputs", "so backward returns two: x.grad, None"),
        ("10-exposed", "overlapping spans count twice", "a microsecond counts once"),
        ("10-overlap", "waits in the hook", "call it in finish() only"),
        ("10-overlap", "calls finish itself", "`return finish`"),
        ("10-fit", "every point alike", "by its relative error"),
        ("10-bucket", "buckets overlap on the link", "one all-reduce at a time"),
        ("10-two-level", "groups exchanged", "scatter and gather in `local`"),
        ("11-groups", "dealt to all workers of all ranks at once", "Deal them to the ranks first"),
        ("11-prepare", "the lock itself for its context", "lock is a function"),
        ("11-cache", "a key of hash()", "hash() of a text is another number in each process"),
        ("11-cache", "the names in the key", "no name and no folder of a file belongs in the key"),
        ("11-cache", "contents joined", "hash each file for itself"),
        ("11-cache", "columns joined", "repr(list(columns)) keeps them apart"),
        ("11-cache", "a failed write leaves its file", "beside.unlink(missing_ok=True)"),
        ("11-cache", "the old entry goes first", "no unlink before make()"),
        ("13-state", "the old generators for the first ranks", "nobody's own generator"),
        ("13-state", "gathered on rank 0 alone", "with dst=None every rank has it"),
        ("13-save", "the one written last", "the number in the name decides, not st_mtime"),
        ("13-save", "max of nothing", "look first whether there is a checkpoint"),
        ("13-stop", "everybody must be told", "is true when *every* rank was told"),
        ("13-stop", "asks before the step", "run.step() first, then ask"),
        ("13-interval", "rounded down", "int(...) cuts off"),
        ("13-interval", "no bound", "max(1, round(...))"),
    ],
)
def test_refusal_leads_to_the_cause(name, label, words):
    said = verdict(name, *mutant(name, label))
    assert said.startswith("refused: ")
    assert words in " ".join(said.split())


def save_as_it_is(folder, step, data):
    (folder / ".beside").write_bytes(data)
    os.replace(folder / ".beside", folder / f"step-{step}")


def last_name(folder):
    names = sorted(path.name for path in folder.glob("step-*"))
    return (int(names[-1][5:]), (folder / names[-1]).read_bytes()) if names else None


def test_names_of_steps_compared_as_text_are_told_with_the_two_names():
    said = verdict("13-save", [save_as_it_is, last_name], {})
    assert "'step-5' sorts after 'step-10' as text, since '5' comes after '1'" in said
