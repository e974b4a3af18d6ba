"""Samplers of all kinds that jobs have, to be hinted: what comes out must be what the bare one gives out.

Each entry makes one sampler, and what the training does to it after each item. Not a test module.
"""

import itertools
import queue
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hfs.samplers import GroupShuffleSampler, LocalityAwareSampler
from tests.support.late_module import LateModule

torch = LateModule("torch")
data = LateModule("torch.utils.data")
stateful = LateModule("torchdata.stateful_dataloader.sampler")

COUNT = 53
MOST_ITEMS = 120
"""Of an epoch; some never end."""


class Files:
    """A data set, whose samples nobody asks for ahead of the job."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> Any:
        self.asked += 1
        return index


class Own:
    """A sampler of one's own around a function that makes its iterator; `told`: what the training says after each."""

    def __init__(self, begin: Callable[["Own"], Iterator[Any]]) -> None:
        self.begin = begin
        self.steps = 0
        self.given = 0
        self.losses = dict.fromkeys(range(COUNT), 0.0)

    def told(self, item: Any) -> None:
        self.steps += 1
        if isinstance(item, int):
            self.losses[item] -= 1
            self.losses[item * 7 % COUNT] += 0.5

    def __iter__(self) -> Iterator[Any]:
        for item in self.begin(self):
            self.given += 1
            yield item


class Sized(Own):
    fault: Exception | None = None

    def __len__(self) -> int:
        if self.fault is not None:
            raise self.fault
        return 20


class Stateful(Own):
    """Counts what it has given out, and goes on there after `load_state_dict`."""

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]

    def __iter__(self) -> Iterator[Any]:
        items = self.begin(self)
        for item in itertools.islice(items, self.given, None):
            self.given += 1
            yield item
        self.given = 0


class ItsOwnIterator:
    """`iter` gives the sampler itself, which has a state."""

    def __init__(self) -> None:
        self.at, self.random = 0, random.Random(5)

    def __iter__(self) -> "ItsOwnIterator":
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at >= 30:
            raise StopIteration
        self.at += 1
        return self.random.randrange(COUNT)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "random": self.random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]
        self.random.setstate(state["random"])


class Slotted:
    """Has no `__dict__`."""

    __slots__ = ("order",)

    def __init__(self) -> None:
        self.order = [5, 3, 1]

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


class NoAttributes:
    """Every attribute that it has not raises something odd."""

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2, 3])

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no attribute {name}")


class NotBegun:
    """Its properties raise before the training has begun."""

    @property
    def epoch(self) -> int:
        raise RuntimeError("not begun")

    rank = sampler = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2, 3])


class OldProtocol:
    """Has `__getitem__` and no `__iter__`."""

    def __getitem__(self, index: int) -> int:
        if index > 20:
            raise IndexError
        return index * 2 % COUNT


def lists(buffer: Any, put: Callable[[Any, list[int]], None]) -> Iterator[Any]:
    """One buffer, filled anew for each batch."""
    for start in range(0, 48, 8):
        put(buffer, list(range(start, start + 8)))
        yield buffer


def clear_and_fill(buffer: list[int], items: list[int]) -> None:
    buffer.clear()
    buffer.extend(items)


def overwrite(buffer: Any, items: list[int]) -> None:
    buffer[:] = items


def fill_tensor(buffer: Any, items: list[int]) -> None:
    buffer.copy_(torch.tensor(items))


def hardest(own: Own) -> Iterator[int]:
    return (max(own.losses, key=lambda i: (own.losses[i], i)) for _ in range(30))


def waits(own: Own) -> Iterator[int]:
    """Waits until the training has told of the one before."""
    done: queue.Queue[int] = queue.Queue()
    done.put(0)
    tell = own.told

    def told(item: Any) -> None:
        tell(item)
        done.put(item)

    own.told = told  # type: ignore[method-assign]  # of this one
    for _ in range(30):
        yield (done.get(timeout=0.5) * 7 + 1) % COUNT


def reshuffled() -> Own:
    generator = torch.Generator().manual_seed(3)
    order = [torch.randperm(COUNT, generator=generator).tolist()]

    def begin(_own: Own) -> Iterator[int]:
        yield from order[0]
        order[0] = torch.randperm(COUNT, generator=generator).tolist()

    return Own(begin)


class Reshuffles:
    """Draws the order of the next epoch when this one has ended."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.order = torch.randperm(COUNT, generator=self.generator).tolist()

    def __iter__(self) -> Iterator[int]:
        yield from self.order
        self.order = torch.randperm(COUNT, generator=self.generator).tolist()


EVENT = queue.SimpleQueue[int]()


def takes_turns(own: Own) -> Iterator[int]:
    """Takes from a queue that all copies of it share."""
    while not EVENT.empty():
        EVENT.get()
    EVENT.put(1)
    for _ in range(20):
        turn = EVENT.get()
        EVENT.put(turn + 1)
        yield turn


def fails(own: Own) -> Iterator[int]:
    yield from (1, 2, 3, 4)
    raise KeyError("mine")


class FailsToBegin:
    def __iter__(self) -> Iterator[int]:
        raise OSError("cannot begin")


class TwoOrders:
    """Gives something else each time that it is drawn, whatever the random states are."""

    calls = itertools.count()

    def __init__(self) -> None:
        self.mine = itertools.count()

    def __iter__(self) -> Iterator[int]:
        turn = next(self.mine)
        return iter([(i * (turn + 2)) % COUNT for i in range(30)])


def shuffled_own(own: Own) -> Iterator[int]:
    order = list(range(COUNT))
    random.Random(own.steps).shuffle(order)
    return iter(order)


def shuffled_globally(_own: Own) -> Iterator[int]:
    order = list(range(COUNT))
    random.shuffle(order)
    np.random.shuffle(order)
    order = [order[i] for i in torch.randperm(COUNT).tolist()]
    yield from order


def lazily(_own: Own) -> Iterator[int]:
    for _ in range(30):
        yield random.randrange(COUNT)


def categories(_own: Own) -> Iterator[Any]:
    for _ in range(10):
        yield torch.randperm(COUNT)[:4]


def numpy_lazily(_own: Own) -> Iterator[Any]:
    for _ in range(10):
        yield np.random.choice(COUNT, 4)


def by_step(own: Own) -> Iterator[int]:
    for _ in range(30):
        yield min(COUNT - 1, own.steps * 3)


def endless(_own: Own) -> Iterator[int]:
    return (i % 7 for i in itertools.count())


def repeated(_own: Own) -> Iterator[Any]:
    batches = data.BatchSampler(data.RandomSampler(range(COUNT), generator=seeded()), 6, drop_last=False)
    while True:
        yield from batches


def tuples(_own: Own) -> Iterator[Any]:
    return ((224, i) for i in range(20))


def batches_of_tuples(_own: Own) -> Iterator[Any]:
    return ([((640, 640), i, True) for i in range(start, start + 4)] for start in range(0, 20, 4))


def sized_that_raises(fault: Exception) -> Sized:
    made = Sized(shuffled_own)
    made.fault = fault
    return made


def seeded() -> Any:
    return torch.Generator().manual_seed(7)


def resumed(make: Callable[[], Any]) -> Any:
    """As after a restart in mid-epoch."""
    sampler = make()
    sampler.load_state_dict({"given": 9})
    return sampler


def _torch_kinds() -> dict[str, Callable[[], Any]]:
    numbers = range(COUNT)
    random_of, batches_of = data.RandomSampler, data.BatchSampler

    class Noisy(data.RandomSampler):  # type: ignore[misc,name-defined]  # torch may be missing
        def __iter__(self) -> Iterator[int]:
            return (int(torch.randint(COUNT, ())) for _ in range(20))

    return {
        "sequential": lambda: data.SequentialSampler(numbers),
        "random": lambda: random_of(numbers),
        "random with a generator": lambda: random_of(numbers, generator=seeded()),
        "random more than there are": lambda: random_of(numbers, num_samples=117, generator=seeded()),
        "replaced": lambda: random_of(numbers, replacement=True, num_samples=70),
        "replaced with a generator": lambda: random_of(numbers, replacement=True, num_samples=70, generator=seeded()),
        "replaced, as good as endless": lambda: random_of(numbers, replacement=True, num_samples=10**9),
        "subset": lambda: data.SubsetRandomSampler([5, 3, 9, 50, 7]),
        "subset with a generator": lambda: data.SubsetRandomSampler(np.arange(40), generator=seeded()),
        "weighted": lambda: data.WeightedRandomSampler([1.0, 2.0] * 20, 60),
        "weighted with a generator": lambda: data.WeightedRandomSampler([1.0] * 40, 30, False, generator=seeded()),
        "distributed": lambda: data.distributed.DistributedSampler(numbers, 3, 1, seed=5),
        "distributed, dropped": lambda: data.distributed.DistributedSampler(
            numbers, 4, 3, shuffle=False, drop_last=True
        ),
        "distributed, few": lambda: data.distributed.DistributedSampler(range(3), 8, 7),
        "batches of random": lambda: batches_of(random_of(numbers), 8, drop_last=False),
        "batches with a generator": lambda: batches_of(random_of(numbers, generator=seeded()), 8, drop_last=False),
        "batches, dropped": lambda: batches_of(random_of(numbers, generator=seeded()), 8, drop_last=True),
        "batches of distributed": lambda: batches_of(
            data.distributed.DistributedSampler(numbers, 2, 1), 5, drop_last=True
        ),
        "batches of a list": lambda: batches_of([4, 2, 7, 1], 3, drop_last=False),
        "batches of batches": lambda: batches_of(batches_of(range(20), 3, drop_last=False), 2, drop_last=False),
        "batches of a sampler that follows": lambda: batches_of(Own(by_step), 4, drop_last=False),
        "batches of one that draws lazily": lambda: batches_of(Own(lazily), 4, drop_last=False),
        "a subclass that draws otherwise": lambda: Noisy(numbers),
        "a tensor": lambda: torch.arange(30).flip(0),
        "rows of a tensor": lambda: torch.arange(30).reshape(-1, 5),
        "few-shot categories": lambda: Own(categories),
        "a tensor filled anew": lambda: Own(lambda _: lists(torch.zeros(8, dtype=torch.long), fill_tensor)),
        "reshuffles at its end": Reshuffles,
        "reshuffles beside it": reshuffled,
        "endless batches": lambda: Own(repeated),
    }


def _own_kinds() -> dict[str, Callable[[], Any]]:
    return {
        "groups": lambda: GroupShuffleSampler(COUNT, 8, rank=1, world=2),
        "local batches": lambda: LocalityAwareSampler(COUNT, 12, 0, 1, 3),
        "a list": lambda: [3, 1, 2] * 9,
        "a tuple": lambda: (3, 1, 2),
        "a range": lambda: range(50, 0, -3),
        "an array": lambda: np.arange(40)[::-1],
        "an array of bytes": lambda: np.arange(40, dtype=np.uint8),
        "rows of an array": lambda: np.arange(40).reshape(-1, 4),
        "lists in a list": lambda: [[1, 2], [3], [], [4, 5, 6]],
        "a generator": lambda: (i * 3 % COUNT for i in range(40)),
        "an iterator": lambda: iter([3, 1, 2]),
        "draws lazily": lambda: Own(lazily),
        "draws lazily by NumPy": lambda: Own(numpy_lazily),
        "a list cleared and filled": lambda: Own(lambda _: lists([], clear_and_fill)),
        "an array overwritten": lambda: Own(lambda _: lists(np.zeros(8, int), overwrite)),
        "follows the losses": lambda: Own(hardest),
        "waits for the training": lambda: Own(waits),
        "follows the steps": lambda: Own(by_step),
        "endless": lambda: Own(endless),
        "shuffled by itself": lambda: Own(shuffled_own),
        "shuffled by global states": lambda: Own(shuffled_globally),
        "raises": lambda: Own(fails),
        "raises when it begins": FailsToBegin,
        "other each time": TwoOrders,
        "its length raises ValueError": lambda: sized_that_raises(ValueError("ambiguous")),
        "its length raises OverflowError": lambda: sized_that_raises(OverflowError("long")),
        "its length raises AttributeError": lambda: sized_that_raises(AttributeError("odd")),
        "its attributes raise": NoAttributes,
        "its properties raise": NotBegun,
        "no attributes of its own": Slotted,
        "the old protocol": OldProtocol,
        "tuples": lambda: Own(tuples),
        "batches of tuples": lambda: Own(batches_of_tuples),
        "dictionaries": lambda: Own(lambda _: ({"index": i} for i in range(9))),
        "has a state": lambda: Stateful(shuffled_own),
        "has a state and is resumed": lambda: resumed(lambda: Stateful(shuffled_own)),
        "has a state and draws lazily": lambda: Stateful(lazily),
        "has a state and follows the losses": lambda: Stateful(hardest),
        "has a state and a buffer": lambda: Stateful(lambda _: lists([], clear_and_fill)),
        "has a state and raises": lambda: Stateful(fails),
        "has a state and waits": lambda: Stateful(waits),
        "has a state and takes turns": lambda: Stateful(takes_turns),
        "has a state and is its own iterator": ItsOwnIterator,
    }


def _torchdata_kinds() -> dict[str, Callable[[], Any]]:
    return {
        "torchdata's random": lambda: stateful.RandomSampler(Files(), generator=seeded()),
        "torchdata's distributed": lambda: stateful.StatefulDistributedSampler(Files(), 2, 1),
        "torchdata's batches": lambda: stateful.BatchSampler(
            stateful.RandomSampler(Files(), generator=seeded()), 6, False
        ),
    }


def kinds() -> dict[str, Callable[[], Any]]:
    """All of them, by a name."""
    return {**_own_kinds(), **_torch_kinds(), **_torchdata_kinds()}
