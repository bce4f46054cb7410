"""Faults for your own tests, deterministic by rank, phase and step; and graded exercises.

    faults = Faults().kill(rank=1, step=40).stop(rank=0, step=10, phase="exchange")
    with faults:
        mh.fit(model, data, on_failure="restart", checkpoint_every="20steps")

The workers that are started inside carry the faults in their environment. Each fault strikes once,
so a run that is restarted is spared; where a worker passes a phase only now and then, it strikes
the first time at or after the given step. Phases are those a worker notes on its board: start,
load, tune, gradient, exchange, update, checkpoint, evaluate, record.
"""

from __future__ import annotations

from manyhands.experiments.check.course.grade_student_file import Grade, Mark, grade
from manyhands.experiments.check.course.points_per_test import Grading, graded
from manyhands.launch.fault_injection import VARIABLE, Fault, Faults

__all__ = ["VARIABLE", "Fault", "Faults", "Grade", "Grading", "Mark", "grade", "graded"]
