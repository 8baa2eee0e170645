"""Any interleaving of arrivals, later turns, forks, aborts and steps: one whole, right answer a request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.sampler.engine import Answer, Engine, Request, open_engine
from tests.sampler.conftest import Oracle
from tests.sampler.test_engine import agrees, prompt, whole

CONTEXT = 160
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("new"), st.integers(1, 60), st.integers(1, 12)),
        st.tuples(st.just("turn"), st.integers(0, 9), st.integers(1, 12)),
        st.tuples(st.just("fork"), st.integers(0, 9), st.integers(1, 40)),
        st.tuples(st.just("abort"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0)),
    ),
    min_size=4,
    max_size=25,
)


@pytest.fixture(scope="module")
def served(model_folder: Path) -> Engine:
    return open_engine(model_folder, slots=3, context=CONTEXT, prefill_tokens=24)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_every_request_has_one_answer_and_it_is_what_transformers_computes(
    served: Engine, oracle: Oracle, actions: list[tuple[str, int, int]]
) -> None:
    asked: list[str] = []
    answers: list[Answer] = []

    def ask(ids: np.ndarray, new: int) -> None:
        if len(ids) + new <= CONTEXT:
            asked.append(str(len(asked)))
            served.add(Request(asked[-1], ids.astype(np.int32), new))

    for serial, (action, first, second) in enumerate(actions):
        done = [answer for answer in answers if len(answer.output_ids)]
        if action == "new":
            ask(prompt(serial, first), second)
        elif action == "turn" and done:
            ask(np.array([*whole(done[first % len(done)]), *prompt(serial, 5)]), second)
        elif action == "fork" and done:
            ask(np.array([*whole(done[first % len(done)])[:second], *prompt(serial, 5)]), 4)
        elif action == "abort" and asked:
            answers += served.abort(asked[first % len(asked)])
        elif action == "step":
            for _ in range(first):
                answers += served.step()
    while served.busy:
        answers += served.step()
    assert sorted(answer.request.rid for answer in answers) == sorted(asked)
    for answer in answers:
        if len(answer.output_ids):
            agrees(answer, oracle)
        else:
            assert answer.finish["type"] == "abort"
