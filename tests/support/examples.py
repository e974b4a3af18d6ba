"""How many examples a test of Hypothesis draws that needs more or fewer of them than others."""

import hypothesis

USUAL, FEWEST = 100, 5


def examples(count: int) -> int:
    """`count` in the profile `check`; in the others as many times more or fewer as all tests draw there."""
    return max(FEWEST, count * hypothesis.settings().max_examples // USUAL)
