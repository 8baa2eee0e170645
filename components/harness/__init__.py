"""The agent loop: Terminus-2's contract on token ids."""

from components.harness.chat import Chat, TextCodec, disarm
from components.harness.environment import TrialTask
from components.harness.loop import AgentLoop, Clock, Progress
from components.harness.observation import limit_output
from components.harness.parse import Command, ParsedTurn, parse_response
from components.harness.policy import SCRIPTED_VERSION, Answer, Policy, SamplerPolicy, Script, ScriptedPolicy
from components.harness.prompt import Prompt
from components.harness.trial import chat_for, run_trial
from components.harness.verification import verify_result

__all__ = [
    "SCRIPTED_VERSION",
    "AgentLoop",
    "Answer",
    "Chat",
    "Clock",
    "Command",
    "ParsedTurn",
    "Policy",
    "Progress",
    "Prompt",
    "SamplerPolicy",
    "Script",
    "ScriptedPolicy",
    "TextCodec",
    "TrialTask",
    "chat_for",
    "disarm",
    "limit_output",
    "parse_response",
    "run_trial",
    "verify_result",
]
