"""The agent loop: Terminus-2's contract on token ids."""

from components.harness.cleanup import dismiss
from components.harness.ending import AgentEnded
from components.harness.environment import TrialTask
from components.harness.loop import AgentLoop, Clock, Progress
from components.harness.observation import limit_output
from components.harness.parse import Command, ParsedTurn, parse_response
from components.harness.policy import SCRIPTED_VERSION, Script, ScriptedPolicy, Written
from components.harness.prompt import Wording
from components.harness.running_time import RunningTime
from components.harness.trial import run_trial, template_for, wording_for
from components.harness.verification import verify_result

__all__ = [
    "SCRIPTED_VERSION",
    "AgentEnded",
    "AgentLoop",
    "Clock",
    "Command",
    "ParsedTurn",
    "Progress",
    "RunningTime",
    "Script",
    "ScriptedPolicy",
    "TrialTask",
    "Wording",
    "Written",
    "dismiss",
    "limit_output",
    "parse_response",
    "run_trial",
    "template_for",
    "verify_result",
    "wording_for",
]
