"""GroupShuffleSampler: what is drawn, in which pieces, how random it is, and that a model trains with it as well."""

import copy
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hfs.samplers import GroupShuffleSampler

pytestmark = pytest.mark.filterwarnings("ignore:GroupShuffleSampler")


def learners(n: int, group: int, world: int, seed: int = 0, epoch: int = 0) -> list[GroupShuffleSampler]:
    return [GroupShuffleSampler(n, group, seed, rank, world, epoch) for rank in range(world)]


sizes = st.tuples(
    st.integers(1, 300), st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**40), st.integers(0, 99)
)


@given(sizes)
def test_every_sample_once_and_all_learners_alike_in_length(size: tuple[int, int, int, int, int]) -> None:
    n, group, world, seed, epoch = size
    samplers = learners(n, group, world, seed, epoch)
    orders = [list(sampler) for sampler in samplers]
    share = -(-n // world)
    assert [len(order) for order in orders] == [len(sampler) for sampler in samplers] == [share] * world
    drawn = Counter(index for order in orders for index in order)
    assert set(drawn) == set(range(n))
    for order in orders:
        assert len(set(order)) == share, "a learner draws no sample twice"
    # Who has one sample less of its own repeats the first of its right neighbour: nothing else is drawn twice.
    repeated = [rank for rank in range(world) if (rank + 1) * n // world - rank * n // world < share]
    assert sum(count - 1 for count in drawn.values()) == len(repeated)
    if n >= world:
        assert max(drawn.values()) <= 2
        for rank in range(world - 1):
            assert len(set(orders[rank]) & set(orders[rank + 1])) == (rank in repeated)


@given(sizes)
def test_groups_are_read_one_after_the_other_and_whole(size: tuple[int, int, int, int, int]) -> None:
    n, group, world, seed, epoch = size
    pieces = []
    for sampler in learners(n, group, world, seed, epoch):
        extents = sampler.extents()
        assert extents.dtype == np.int64
        order, at = sampler.order(), 0
        assert order.dtype == np.int64
        for start, end in extents.tolist():
            assert start < end
            assert start // group == (end - 1) // group, "a piece lies in one group"
            assert sorted(order[at : at + end - start].tolist()) == list(range(start, end))
            at += end - start
        assert at == len(sampler)
        inner = extents[1:-1]
        assert np.all(inner[:, 0] % group == 0), "only the first and the last group of a learner may be cut"
        assert np.all((inner[:, 1] % group == 0) | (inner[:, 1] == n))
        pieces.extend(extents.tolist())
    if n % (group * world) == 0:
        assert sorted(pieces) == [[start, start + group] for start in range(0, n, group)], "the paper's case"
    assert len(pieces) <= -(-n // group) + 2 * (world - 1)


def test_the_order_is_that_of_seed_and_epoch() -> None:
    sampler = GroupShuffleSampler(1000, 16, 7, 1, 3, epoch=4)
    first = list(sampler)
    assert list(sampler) == first, "iterating changes nothing"
    assert all(type(index) is int for index in first)
    again = GroupShuffleSampler(1000, 16, seed=7, rank=1, world=3)
    again.set_epoch(4)
    assert list(again) == first
    assert list(pickle.loads(pickle.dumps(sampler))) == first
    others = [(8, 1, 4), (7, 0, 4), (7, 1, 5), (7, 1, 3)]
    assert all(list(GroupShuffleSampler(1000, 16, s, r, 3, e)) != first for s, r, e in others)


def test_no_two_of_seed_epoch_and_rank_shuffle_alike() -> None:
    """The streams are independent: not the same for (seed, epoch) and (epoch, seed), or one rank and the next."""
    inside = {
        tuple(np.argsort(GroupShuffleSampler(64 * 32, 32, seed, rank, 8, epoch).order()[:32]).tolist())
        for seed in (0, 1, 2, 2**32, 2**32 + 1)
        for epoch in (0, 1, 2)
        for rank in range(8)
    }
    assert len(inside) == 5 * 3 * 8
    between = {
        tuple(GroupShuffleSampler(64 * 32, 32, seed, 0, 1, epoch).extents()[:, 0].tolist())
        for seed in (0, 1, 2, 2**32, 2**32 + 1)
        for epoch in (0, 1, 2)
    }
    assert len(between) == 5 * 3
    one = GroupShuffleSampler(32 * 32, 32)
    assert not np.array_equal(one.extents()[:, 0] // 32, one.order()[:32] % 32), "groups, and samples inside a group"


def chi_square(counts: NDArray[np.int64]) -> float:
    """Standardised: about normal(0, 1) for uniform counts with many degrees of freedom."""
    expected = counts.sum() / counts.size
    free = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - free) / np.sqrt(2 * free))


@pytest.mark.slow
def test_groups_are_at_every_place_equally_often() -> None:
    """Over 4000 epochs, each of 20 groups at each of 20 places, the short one too (n is no multiple of group)."""
    counts = np.zeros((20, 20), np.int64)
    for epoch in range(4000):
        starts = GroupShuffleSampler(20 * 5 - 3, 5, seed=1, epoch=epoch).extents()[:, 0]
        counts[np.arange(20), starts // 5] += 1
    # A permutation leaves (20 - 1)^2 of the 20^2 - 1 degrees free, so the value lies a little lower.
    assert abs(chi_square(counts)) < 4


def test_samples_are_at_every_place_of_their_group_equally_often() -> None:
    counts = np.zeros((16, 16), np.int64)
    for epoch in range(1000):
        order = GroupShuffleSampler(16 * 4, 16, seed=2, epoch=epoch).order().reshape(4, 16)
        for row in order:
            counts[np.arange(16), row % 16] += 1
    assert abs(chi_square(counts)) < 4


@pytest.mark.slow
def test_every_learner_gets_every_group_equally_often() -> None:
    counts = np.zeros((4, 40), np.int64)
    for epoch in range(1000):
        for rank, sampler in enumerate(learners(40 * 8, 8, 4, seed=3, epoch=epoch)):
            counts[rank, sampler.extents()[:, 0] // 8] += 1
    assert abs(chi_square(counts)) < 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n is 0: it must be at least 1"),
        ({"group": 0}, "group is 0: it must be at least 1"),
        ({"group": -5}, "group is -5"),
        ({"seed": -1}, "seed is -1: it must be at least 0"),
        ({"world": 0}, "world is 0: it must be at least 1"),
        ({"rank": -1}, "rank is -1: it must be at least 0"),
        ({"rank": 4, "world": 4}, r"rank is 4: it must be in \[0, 4\)"),
        ({"epoch": -1}, "epoch is -1: it must be at least 0"),
    ],
)
def test_a_number_out_of_range_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupShuffleSampler(**{"n": 100, "group": 10, **arguments})


def test_what_is_no_integer_is_refused() -> None:
    with pytest.raises(TypeError):
        GroupShuffleSampler(100, 2.5)  # type: ignore[arg-type]  # what people pass all the same
    sampler = GroupShuffleSampler(np.int64(100), np.int32(10))  # type: ignore[arg-type]  # what people pass all the same
    with pytest.raises(TypeError):
        sampler.set_epoch("1")  # type: ignore[arg-type]  # what people pass all the same
    assert type(sampler.n) is type(sampler.group) is int


@pytest.mark.filterwarnings("error:GroupShuffleSampler")
def test_it_warns_once_when_the_epochs_reach_the_papers_bound() -> None:
    """N = 8192, G = 64: sound for fewer than 128 epochs, and epoch 127 is the 128th."""
    sampler = GroupShuffleSampler(8192, 128, world=64)
    for epoch in range(127):
        sampler.set_epoch(epoch)
    ahead = copy.copy(sampler)
    ahead.set_epoch(127)  # who looks ahead is not warned
    assert (ahead.epoch, sampler.epoch) == (127, 126)
    with pytest.warns(UserWarning, match=r"epoch 127 is number 128; shuffling 64 groups .* fewer than 128 epochs"):
        sampler.set_epoch(127)
    assert sampler.epoch == 127
    sampler.set_epoch(128)  # no second warning, which would be an error here
    with pytest.warns(UserWarning, match="epoch 500"):
        GroupShuffleSampler(8192, 128, epoch=500)
    GroupShuffleSampler(8192, 1, epoch=500)  # the global shuffle


def test_it_is_a_sampler_for_torch() -> None:
    torch_data = pytest.importorskip("torch.utils.data", reason="needs torch", exc_type=ImportError)
    n, world = 203, 2
    seen: list[int] = []
    for rank in range(world):
        sampler = GroupShuffleSampler(n, 10, seed=5, rank=rank, world=world)
        loader = torch_data.DataLoader(range(n), batch_size=8, sampler=sampler, num_workers=rank)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            indices = [int(index) for batch in loader for index in batch]
            assert indices == list(sampler)
        assert len(loader) == -(-102 // 8)
        assert (sampler.rank, sampler.num_replicas, sampler.epoch) == (rank, world, 1)
        seen.extend(indices)
    assert set(seen) == set(range(n))


# Training: a regression, as both applications of the paper are. The file is sorted by what is to be predicted, so its
# order matters as much as it can: neighbours are alike, a mini-batch of them is all one answer.
SAMPLES, FEATURES, HIDDEN = 4096, 16, 24
LEARNERS, LOCAL_BATCH, GROUP, EPOCHS = 2, 32, 16, 12  # EPOCHS < N/G, which is GROUP


def sorted_file() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Inputs (SAMPLES, FEATURES) and answers (SAMPLES,) of a noisy random network, by rising answer."""
    random = np.random.default_rng(7)
    inner = random.normal(size=(FEATURES, HIDDEN)) / np.sqrt(FEATURES)
    outer = random.normal(size=HIDDEN) / np.sqrt(HIDDEN)
    inputs = random.normal(size=(SAMPLES, FEATURES))
    answers = np.tanh(inputs @ inner) @ outer + 0.1 * random.normal(size=SAMPLES)
    by_answer = np.argsort(answers)
    return inputs[by_answer], answers[by_answer]


def final_loss(epochs: list[NDArray[np.int64]], seed: int) -> float:
    """Mean squared error after training a network of one hidden layer, begun by `seed`, with data-parallel SGD.

    epochs: per epoch, what each learner draws, shape (LEARNERS, SAMPLES / LEARNERS). The learning rate falls to a tenth
    after half of the epochs and again after three quarters, as in the paper's training of CosmoFlow.
    """
    inputs, answers = sorted_file()
    random = np.random.default_rng(seed)
    inner, inner_bias = random.normal(size=(FEATURES, HIDDEN)) / np.sqrt(FEATURES), np.zeros(HIDDEN)
    outer, outer_bias = random.normal(size=HIDDEN) / np.sqrt(HIDDEN), 0.0
    for epoch, orders in enumerate(epochs):
        rate = 0.25 * 0.1 ** ((epoch >= EPOCHS // 2) + (epoch >= EPOCHS * 3 // 4))
        for at in range(0, orders.shape[1], LOCAL_BATCH):
            batch = orders[:, at : at + LOCAL_BATCH].ravel()
            hidden = np.tanh(inputs[batch] @ inner + inner_bias)
            error = (hidden @ outer + outer_bias - answers[batch]) * (2 / batch.size)
            back = np.outer(error, outer) * (1 - hidden * hidden)
            outer, outer_bias = outer - rate * (hidden.T @ error), outer_bias - rate * float(error.sum())
            inner, inner_bias = inner - rate * (inputs[batch].T @ back), inner_bias - rate * back.sum(axis=0)
    return float(np.mean((np.tanh(inputs @ inner + inner_bias) @ outer + outer_bias - answers) ** 2))


@pytest.mark.slow
def test_a_model_trains_as_well_with_group_shuffle_as_with_global_shuffle() -> None:
    """Equal final losses within one standard deviation over five seeds; the file's own order is clearly worse."""
    in_order = np.arange(SAMPLES).reshape(LEARNERS, -1)  # each learner reads its part of the file as it lies
    losses: dict[str, list[float]] = {"group": [], "global": [], "in order": []}
    for seed in range(5):
        for name, group in (("group", GROUP), ("global", 1)):
            epochs = [
                np.stack([sampler.order() for sampler in learners(SAMPLES, group, LEARNERS, seed, epoch)])
                for epoch in range(EPOCHS)
            ]
            losses[name].append(final_loss(epochs, seed))
        losses["in order"].append(final_loss([in_order] * EPOCHS, seed))
    deviation = float(np.std(losses["global"], ddof=1))
    assert abs(np.mean(losses["group"]) - np.mean(losses["global"])) < deviation, losses
    assert np.mean(losses["in order"]) > np.mean(losses["global"]) + 3 * deviation, losses
