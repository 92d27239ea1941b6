"""The lessons that exist, with title and minutes: one list for the start page and the progress table."""

from typing import NamedTuple


class LessonInfo(NamedTuple):
    title: str
    minutes: int


LESSONS: dict[str, LessonInfo] = {
    "01": LessonInfo("Why distribute?", 40),
    "02": LessonInfo("Ranks, collectives, parameter server or ring", 50),
    "03": LessonInfo("Data parallel from scratch", 55),
    "04": LessonInfo("Samplers", 45),
    "05": LessonInfo("Big batch: lr scaling, warm-up, cosine", 50),
    "06": LessonInfo("Memory diet: mixed precision, accumulation, checkpointing", 55),
    "07": LessonInfo("Tensor parallel, and the embedding trap", 55),
    "08": LessonInfo("Pipeline parallel", 55),
    "09": LessonInfo("FSDP, ZeRO and hybrid meshes", 60),
    "10": LessonInfo("Where did the time go?", 55),
    "11": LessonInfo("Feeding the ranks", 50),
    "12": LessonInfo("Debugging clinic", 55),
    "13": LessonInfo("Surviving failure", 55),
    "14": LessonInfo("Cost and budgets", 50),
    "15": LessonInfo("Launch, track, tune", 55),
    "16": LessonInfo("Capstone: a recommender, end to end", 60),
}
