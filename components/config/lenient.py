"""What can be read of a document that has mistakes, so that they do not hide others.

Invariants: a section is read when each of its keys is right by itself, whether or not they go together; nothing of it
is made up. What is read here is looked at for further problems and never run: `load` refuses the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from components.config.campaign import CampaignConfig
from components.config.section import Section


@dataclass(frozen=True, slots=True)
class Readable:
    """A configuration without the sections that could not be read, and their names."""

    config: CampaignConfig
    unreadable: frozenset[str]


class _UnreadableError(Exception):
    """A key is wrong or missing."""


def readable(document: Mapping[str, Any]) -> Readable:
    """Everything of `document` that can be read. Unknown keys are passed over."""
    values, unreadable = {}, set()
    for name, field in CampaignConfig.model_fields.items():
        try:
            values[name] = _field(field, name, document)
        except _UnreadableError:
            unreadable.add(name)
    return Readable(CampaignConfig.model_construct(**values), frozenset(unreadable))


def _field(field: FieldInfo, name: str, document: Mapping[str, Any]) -> Any:
    if name not in document:
        if field.is_required():
            raise _UnreadableError
        return field.get_default(call_default_factory=True)
    value, section = document[name], _section(field.annotation)
    if section is not None and isinstance(value, Mapping):
        return _read(section, value)
    kind: Any = field.annotation
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise _UnreadableError from error


def _read(section: type[Section], document: Mapping[str, Any]) -> Section:
    values = {name: _field(field, name, document) for name, field in section.model_fields.items()}
    return section.model_construct(**values)


def _section(annotation: Any) -> type[Section] | None:
    """The one kind of section that a key holds, perhaps beside None."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
    return sections[0] if len(sections) == 1 else None
