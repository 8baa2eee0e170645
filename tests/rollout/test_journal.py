"""Journals: what is read back is what was kept, up to some event."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.errors import FaultCause, InfraFault
from components.rollout import Journals
from components.rollout.journal import Event

EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from(["start", "send", "answer"]),
        st.floats(0, 1e6).map(lambda seconds: round(seconds, 3)),
        st.one_of(st.none(), st.text(max_size=20), st.lists(st.integers(), max_size=3)),
        st.binary(max_size=40),
    ),
    max_size=6,
)


def written(folder, events):
    journal = Journals(folder).open("t", {"attempt": 1})
    for event in events:
        journal.note(event)
    journal.close()
    return folder / "t"


def read(folder):
    journal = Journals(folder).open("t", {"attempt": 9})
    found = []
    while journal.next_kind is not None:
        found.append(journal.recall(journal._past[0].kind))
    return journal, found


@settings(max_examples=30, deadline=None)
@given(events=EVENTS, data=st.data())
def test_a_journal_that_was_cut_or_changed_anywhere_tells_its_beginning_and_is_written_on(events, data):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = written(folder, events)
        whole = path.read_bytes()
        place = data.draw(st.integers(0, len(whole)), label="place")
        change = data.draw(st.integers(0, 255), label="change: 0 cuts")
        changed = whole[:place]
        if change and place < len(whole):
            changed += bytes([whole[place] ^ change]) + whole[place + 1 :]
        path.write_bytes(changed)
        headed = bool(Journals(folder).found())
        journal, found = read(folder)
        assert found == events[: len(found)]
        assert headed or found == []
        if place == len(whole):
            assert found == events
        more = Event("send", 1.0, "more")
        journal.note(more)
        journal.close()
        assert read(folder)[1] == [*found, more]


def test_a_trial_that_does_something_else_than_before_is_told(tmp_path):
    written(tmp_path, [Event("send", 0.0, None)])
    journal = Journals(tmp_path).open("t", {})
    with pytest.raises(InfraFault, match="has send where it does screen") as raised:
        journal.recall("screen")
    assert raised.value.cause is FaultCause.STORE


def test_found_journals_tell_whose_they_are_and_what_names_no_trial_is_removed(tmp_path):
    written(tmp_path, [Event("answer", 0.0, {"ids": 1}, b"1234")])
    (tmp_path / "empty").touch()
    (kept,) = Journals(tmp_path).found().values()
    assert (kept.header, kept.events) == ({"attempt": 1}, (Event("answer", 0.0, {"ids": 1}),))
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
