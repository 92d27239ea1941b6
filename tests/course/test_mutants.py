"""Every check of the course refuses its wrong answers and accepts the solution of its source."""

import importlib.util
from pathlib import Path

import pytest

from dtlab.course.checks import _EXERCISES, Checks, exercise
from dtlab.course.mutants import MIN_MUTANTS, answer_of, check_calls, edit, exercise_problems, problems
from dtlab.course.source import lessons, notebooks_root, read_lesson

HERE = Path(__file__).parent
SAMPLE = read_lesson(HERE / "sample" / "src" / "98_sample.py")
LESSONS = {lesson.number: lesson for lesson in lessons(root=notebooks_root())}
EXERCISES = [(number, name) for number, lesson in LESSONS.items() for name in check_calls(lesson)]


def mutants_of(number):
    path = HERE / "mutants" / f"l{number}.py"
    assert path.is_file(), f"lesson {number} has checks but no tests/course/mutants/l{number}.py"
    spec = importlib.util.spec_from_file_location(f"mutants_l{number}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


@pytest.mark.parametrize(("number", "name"), EXERCISES, ids=[name for _, name in EXERCISES])
def test_the_check_refuses_every_wrong_answer_and_accepts_the_solution(number, name):
    wrong = mutants_of(number).get(name, {})
    assert len(wrong) >= MIN_MUTANTS, f"{name} has {len(wrong)} wrong answers"
    assert exercise_problems(LESSONS[number], name, wrong) == []


@pytest.mark.parametrize("number", [number for number, lesson in LESSONS.items() if check_calls(lesson)])
def test_no_wrong_answer_belongs_to_an_exercise_that_is_gone(number):
    assert set(mutants_of(number)) == set(check_calls(LESSONS[number]))


@pytest.fixture
def sample_check():
    exec(compile(SAMPLE.cells[1].text, "<sample>", "exec"), {})
    yield
    _EXERCISES.pop("98-messages", None)


WRONG = {
    "counts itself": edit("n - 1", "n"),
    "half": edit("n * (n - 1)", "n * (n - 1) // 2"),
    "ring": lambda n: n,
}


@pytest.mark.usefixtures("sample_check")
def test_the_sample_lesson_has_sound_checks():
    assert problems(SAMPLE, {"98-messages": WRONG}) == []


@pytest.mark.usefixtures("sample_check")
def test_too_few_wrong_answers_an_accepted_one_and_a_stale_name_are_found():
    found = problems(SAMPLE, {"98-messages": {"right after all": lambda n: n * n - n}, "98-gone": {}})
    assert "98-gone: has mutants but no check in 98_sample" in found
    assert "98-messages: 1 wrong answers, at least 3 are needed" in found
    assert "98-messages: wrong answer 'right after all' gives 'passed', not a refusal" in found


def test_a_check_that_accepts_anything_is_found():
    @exercise("98-messages", todo="x", hints=("a", "b"))
    def lax(checks: Checks, answer, sizes) -> None:
        checks.true("it is there", answer is not None)

    try:
        found = exercise_problems(SAMPLE, "98-messages", WRONG)
    finally:
        _EXERCISES.pop("98-messages", None)
    assert any("wrong answer 'half' gives 'passed'" in line for line in found)
    assert any("accepts an answer without thought: returns 0" in line for line in found)


@pytest.mark.usefixtures("sample_check")
def test_a_check_that_refuses_the_solution_is_found():
    _EXERCISES.pop("98-messages")

    @exercise("98-messages", todo="x", hints=("a", "b"))
    def strict(checks: Checks, answer, sizes) -> None:
        checks.integer("messages", answer(2), 3)

    (line,) = exercise_problems(SAMPLE, "98-messages", WRONG)
    assert "the solution in 98_sample is not accepted: refused: messages: got 2, expected 3" in line


def test_an_edit_that_fits_nowhere_is_an_error():
    with pytest.raises(ValueError, match="occurs nowhere"):
        answer_of(SAMPLE, "98-messages", edit("no such text", ""))
