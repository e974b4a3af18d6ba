"""What counts as ahead for whom, against a model of dicts; also in the middle of what goes in steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.policies.schedule import unit_table
from hfs.policies.schedule.unit_table import Accounts

UNITS, LEARNERS = 12, 3

ops = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["charge", "uncharge"]), st.integers(0, UNITS - 1), st.integers(0, LEARNERS - 1)),
        st.tuples(st.just("release"), st.sets(st.integers(0, UNITS - 1)), st.integers(0, LEARNERS - 1)),
        st.tuples(st.just("all"), st.none(), st.integers(0, LEARNERS - 1)),
        st.tuples(st.just("but"), st.sets(st.integers(0, UNITS - 1)), st.integers(0, LEARNERS - 1)),
        st.tuples(st.just("step"), st.none(), st.just(0)),
    ),
    max_size=40,
)


@given(ops)
@settings(deadline=None)
def test_each_unit_counts_for_one_learner_and_steps_end_where_one_would(said: list[tuple[str, object, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit_table, "STEP_UNITS", 4)
        sizes = np.arange(1, UNITS + 1) * 10
        real = Accounts(sizes)
        owner: dict[int, int] = {}
        going: tuple[Iterator[None], int, set[int], set[int]] | None = None

        def end() -> None:
            """What is left of those steps; then what was not to be kept has gone, unless it was charged since."""
            nonlocal going
            if going is None:
                return
            steps, learner, kept, before = going
            for _ in steps:
                pass
            for unit in before - kept:
                if owner.get(unit) == learner:
                    del owner[unit]
            going = None

        for what, which, learner in said:
            if what == "charge":
                if which not in owner:
                    real.charge(which, learner)  # type: ignore[arg-type]  # a unit
                    owner[which] = learner  # type: ignore[index]  # a unit
                    if going is not None:
                        going[3].discard(which)  # type: ignore[arg-type]  # a unit
            elif what == "uncharge":
                real.uncharge(which)  # type: ignore[arg-type]  # a unit
                owner.pop(which, None)  # type: ignore[call-overload]  # a unit
            elif what == "release":
                end()
                real.release(learner, np.array(sorted(which), np.int64))  # type: ignore[call-overload]  # units
                owner = {unit: of for unit, of in owner.items() if of != learner or unit not in which}  # type: ignore[operator]  # units
            elif what == "all":
                end()
                real.release_all(learner)
                owner = {unit: of for unit, of in owner.items() if of != learner}
            elif what == "but":
                end()
                kept = set(which)  # type: ignore[call-overload]  # units
                steps = real.release_all_but(learner, lambda units, kept=kept: np.isin(units, list(kept)))
                going = steps, learner, kept, {unit for unit, of in owner.items() if of == learner}
                next(steps, None)
            elif going is not None:
                next(going[0], None)
        end()
        assert {unit: of for unit in range(UNITS) if (of := real.owner(unit)) is not None} == owner
        for learner in range(LEARNERS):
            assert real.bytes_of(learner) == sum(int(sizes[unit]) for unit, of in owner.items() if of == learner)
        assert real.bytes == sum(int(sizes[unit]) for unit in owner)


def test_who_has_gone_leaves_nothing_of_what_goes_in_steps() -> None:
    real = Accounts(np.full(8, 5, np.int64))
    for unit in range(8):
        real.charge(unit, 1)
    steps = real.release_all_but(1, lambda units: units < 2)
    next(steps)
    real.release_all(1)
    assert list(steps) == []
    assert real.bytes == 0
    assert all(real.owner(unit) is None for unit in range(8))
