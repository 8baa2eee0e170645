"""What a campaign would do, told before anything is started: its refusals, its jobs, its places and its bytes.

Invariant: a plan writes nothing, starts nothing, and computes no id, command or key itself: they come from the code
that the flow uses.
"""

from tasks.plan.course import Foreseen, course
from tasks.plan.refusals import refusals, require_ready, require_sound
from tasks.plan.text import tell_plan

__all__ = ["Foreseen", "course", "refusals", "require_ready", "require_sound", "tell_plan"]
