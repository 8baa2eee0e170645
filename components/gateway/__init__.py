"""The recorder between agents and a sampler, whose source of truth is token ids (design section 4)."""

from components.gateway.app import Routes, serving
from components.gateway.gateway import Gateway
from components.gateway.message import Message, ToolCall, read_answer, user
from components.gateway.policy import SamplerPolicy
from components.gateway.request import Refusal
from components.gateway.template import ChatTemplate, ChatTokenizer, chatml
from components.gateway.trajectory import Answer, Policy, Prompt, Trajectory

__all__ = [
    "Answer",
    "ChatTemplate",
    "ChatTokenizer",
    "Gateway",
    "Message",
    "Policy",
    "Prompt",
    "Refusal",
    "Routes",
    "SamplerPolicy",
    "ToolCall",
    "Trajectory",
    "chatml",
    "read_answer",
    "serving",
    "user",
]
