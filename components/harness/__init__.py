"""The agent loop: Terminus-2's contract on token ids."""

from components.harness.chat import Chat, TextCodec, disarm
from components.harness.policy import SCRIPTED_VERSION, Answer, Policy, Script, ScriptedPolicy

__all__ = ["SCRIPTED_VERSION", "Answer", "Chat", "Policy", "Script", "ScriptedPolicy", "TextCodec", "disarm"]
