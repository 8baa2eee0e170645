"""What tasks are worth: the audit by a judge, and the repair of instructions."""

from components.curation.quality.asking import Conversation, Purse, Question
from components.curation.quality.audit import Subject, assess, counts, each
from components.curation.quality.repairing import Repair, repair, write_repaired
from components.curation.quality.verdict import Assessment, Verdict, decide, repairable, weighted

__all__ = [
    "Assessment",
    "Conversation",
    "Purse",
    "Question",
    "Repair",
    "Subject",
    "Verdict",
    "assess",
    "counts",
    "decide",
    "each",
    "repair",
    "repairable",
    "weighted",
    "write_repaired",
]
