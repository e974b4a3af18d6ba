"""Directories that are delegated to the data plane, which fetches their small files by itself (native/plane/fetch.h).

A directory is delegated when a small file in it was opened, and again before its time is over, as long as it is used.
Only where a file's own attributes say all that is needed: on the file system of the source's root, and for users whom
the kernel's own check is enough for. Event loop only.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import trio
from numpy.typing import NDArray

from hfs.mountd.cache import Completions
from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.errors import HfsError
from hfs.mountd.kernel import SmallFetches
from hfs.mountd.namespace import Namespace, Node, Permissions
from hfs.mountd.peers import OwnerTable
from hfs.mountd.source import DelegatedDirectory, Source

_YOUNG_S = 0.1

_HEARD_S = 1.0

_REST_S = 30.0
"""After a hang."""

_MOST_NODES = 100_000
"""Names in one directory that are nodes here (links, folders, files that were read without the data plane), of each of
which it is told when the directory is delegated: 20 ms. One with more is not delegated."""


@dataclass(frozen=True, slots=True)
class DelegationTerms:
    """What does not change while a mount lives, or can be asked."""

    is_wanted: Callable[[], bool]
    """Opens may be answered without us, as the mount is now."""
    passes: Callable[[], bool]
    """Staged files are for the kernel to read by itself, small ones too."""
    pushes: bool
    """Opens have bytes put into the page cache."""
    stores: Callable[[], bool]
    """Bytes are stored as they are."""
    owners: OwnerTable | None
    """Of the nodes of the job."""
    limit_bytes: int
    """The largest small file."""
    ttl_s: float
    under_way: Callable[[Node], Sequence[bytes]]
    """Names of a directory whose files are fetched the usual way just now, or will be by whoever looks them up."""


class _Delegated(NamedTuple):
    directory: Node
    renew_s: float
    """When it is to be delegated anew."""
    generation: int


class DirectoryDelegations:
    """`len()`: how many are delegated."""

    def __init__(
        self,
        fetches: SmallFetches,
        namespace: Namespace,
        permissions: Permissions,
        source: Source,
        terms: DelegationTerms,
        completions: Completions,
        nursery: trio.Nursery,
    ) -> None:
        self._fetches = fetches
        self._namespace = namespace
        self._permissions = permissions
        self._source = source
        self.terms = terms
        self._nursery = nursery
        self._completions = completions
        self._delegated: OrderedDict[int, _Delegated] = OrderedDict()
        """By node id. The one delegated last at the end."""
        self._recalls = 1
        """And the generation of what is delegated now."""
        self._coming: dict[Node, trio.Event] = {}
        """Those that are being delegated, and the end of that."""
        self._young: OrderedDict[Node, float] = OrderedDict()
        """Directories that were changed of late, and when it is looked again whether that is long enough ago."""
        self._looked = trio.Event()
        """The next look at what has become of files."""
        self._one_more = trio.Event()
        self._used: set[int] = set()
        """Since they were delegated."""
        self._placed: NDArray[np.int32] | None = None
        """Whom the data plane knows to be asked before the source."""
        self._at_most = source.threads.open_files.shares.delegated
        """Each holds a descriptor."""

    def __len__(self) -> int:
        return len(self._delegated)

    def directory(self, directory_id: int) -> Node | None:
        """The one with this node id, if it is delegated."""
        delegated = self._delegated.get(directory_id)
        return delegated.directory if delegated is not None else None

    def generation(self, directory_id: int) -> int:
        """What was begun in a loan of another one may be older than a recall of this directory."""
        delegated = self._delegated.get(directory_id)
        return delegated.generation if delegated is not None else self._recalls

    def is_used(self, directory_id: int) -> None:
        """Files of it were opened or fetched without us."""
        self._used.add(directory_id)

    def delegate_soon(self, directory: Node) -> None:
        """Its small files are being read, or will be. Does not wait until it is delegated."""
        if self._begin(directory):
            start_guarded(self._nursery, "loan of a directory", self._delegate, directory)

    async def delegate(self, directory: Node) -> bool:
        """Delegate it, if that may be. False: it is not delegated."""
        if self._begin(directory):
            await self._delegate(directory)
        elif not directory.delegated and directory in self._coming:
            await self._coming[directory].wait()
        return directory.delegated

    async def wait_fetched(self, directory: Node, name: bytes) -> None:
        """For who has to do with this name of a delegated directory: until what the data plane does with it was heard
        of.

        Its look-up was on its way to us when the directory was delegated; its bytes would be read twice.
        """
        if not directory.delegated or not self._namespace.slots.try_reserve(directory, [name]):
            return  # or nothing is begun there just now
        is_busy = True
        while is_busy:
            is_busy = self._fetches.is_busy(directory.id, name)
            with trio.move_on_after(_HEARD_S):
                await self._looked.wait()

    async def wait_delegated(self) -> None:
        """Until one more is delegated."""
        await self._one_more.wait()

    def _begin(self, directory: Node) -> bool:
        """Whether it is to be delegated now; then it is `_coming`."""
        if directory.delegated or directory in self._coming or not self._may_delegate(directory):
            return False
        if trio.current_time() < self._young.get(directory, 0.0):
            return False
        self._young.pop(directory, None)
        self._coming[directory] = trio.Event()
        return True

    def _may_delegate(self, directory: Node) -> bool:
        if not self._fetches.runs or not self._at_most or self.terms.ttl_s <= 0 or not self._completions.on:
            return False
        if directory.children is None or len(directory.children) > _MOST_NODES:
            return False
        return self.terms.is_wanted() and not self._namespace.lookups.may_be_kept(directory)

    async def _delegate(self, directory: Node) -> None:
        recalls = self._recalls
        try:
            await self._permissions.learn(directory)
            loan = await self._source.delegate(directory.path)
            if recalls == self._recalls:  # else it may be what is no more at this path
                self._delegate_now(directory, loan)
        except HfsError:
            pass  # who looks names up there hears why
        finally:
            self._coming.pop(directory).set()

    def _delegate_now(self, directory: Node, loan: DelegatedDirectory | None) -> None:
        if loan is not None and not loan.settled.has(directory.attributes.ctime_ns):
            self._young[directory] = trio.current_time() + _YOUNG_S  # and so will be its files, most likely
            if len(self._young) > self._at_most:
                self._young.popitem(last=False)
            return
        if loan is None or not self._may_delegate(directory) or not self._permissions.all_may_open(directory):
            return
        self._set_terms()
        self._completions.grant_nowait()
        if not directory.id:
            self._namespace.nodes.identify(directory)  # the kernel has not asked for it yet
        now_ns = time.monotonic_ns()
        self._namespace.slots.delegate(directory)
        for name in self.terms.under_way(directory):
            self._namespace.slots.reserve(directory, name)
        generation = self.generation(directory.id)
        is_delegated = self._fetches.delegate(
            directory.id,
            loan.directory.fd,
            loan.directory.device,
            generation=generation,
            largest_bytes=self.terms.limit_bytes,
            settled_ns=loan.settled,
            until_ns=now_ns + int(min(self.terms.ttl_s, 1e9) * 1e9),
            valid_s=self.terms.ttl_s,
            careful=loan.is_careful,
            prefix=directory.path + b"/" if directory.path else b"",
        )
        if not is_delegated:
            self._namespace.slots.recall_directory(directory)
            return
        self._used.discard(directory.id)
        self._delegated[directory.id] = _Delegated(directory, trio.current_time() + self.terms.ttl_s / 2, generation)
        self._delegated.move_to_end(directory.id)
        self._one_more.set()
        self._one_more = trio.Event()
        if len(self._delegated) > self._at_most:
            self._recall(next(iter(self._delegated)))

    def rest(self, directory_id: int) -> None:
        """The source hangs below this directory."""
        directory = self.directory(directory_id)
        if directory is not None:
            self._recall(directory_id)
            self._young[directory] = trio.current_time() + _REST_S

    def _recall(self, directory_id: int) -> None:
        self._namespace.slots.recall_directory(self._delegated.pop(directory_id).directory)

    def recall(self, directories: Collection[Node]) -> None:
        """In these no file is looked at or fetched without us any more, until they are delegated anew; what is under
        way is entered nowhere."""
        self._recalls += 1
        for directory in directories:
            if directory.id in self._delegated:
                self._recall(directory.id)

    def recall_all(self) -> None:
        """No file is fetched without us any more."""
        for directory_id in list(self._delegated):
            self._recall(directory_id)

    def heard(self) -> None:
        """It was heard what has become of files."""
        self._looked.set()
        self._looked = trio.Event()

    def look_after(self) -> None:
        """Some times a second."""
        self._set_terms()
        if self._delegated and not self.terms.is_wanted():
            self.recall_all()
        # Those that are used are delegated anew before their time is over; the others end by themselves.
        now_s = trio.current_time()
        for directory_id, (directory, renew_s, _) in list(self._delegated.items()):
            if now_s < renew_s:
                break
            if directory_id in self._used and directory not in self._coming and self.terms.ttl_s < math.inf:
                self._coming[directory] = trio.Event()
                start_guarded(self._nursery, "loan of a directory", self._delegate, directory)
            elif now_s >= renew_s + self.terms.ttl_s / 2:
                self._recall(directory_id)

    def _set_terms(self) -> None:
        """Have the data plane know how things are now."""
        terms = self.terms
        self._fetches.set_terms(pushes=terms.pushes, passes=terms.passes(), stores=terms.stores())
        if terms.owners is not None and terms.owners.asked is not self._placed:
            self._placed = terms.owners.asked
            self._fetches.place(self._placed.tobytes(), terms.owners.number)
