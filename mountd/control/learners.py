"""A learner's connection: frames in, short answers out, for as long as the job runs.

`control` hands a connection over once it has asked to join. A frame that has begun must arrive within the time of a
request; between frames a learner may be silent for days. The end of the connection is the end of the learner, whatever
the reason was; nothing it sends can end anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from hfs.mountd.control.requester import Requester
from hfs.mountd.hints import Learners
from hfs.mountd.wire.hints import decode_learner
from hfs.mountd.wire.protocol import Failure, Join, ProtocolError, Reply

log = logging.getLogger(__name__)


async def serve_learner(
    learners: Learners,
    join: Join,
    requester: Requester,
    *,
    next_frame: Callable[[Callable[[int], Failure | None]], Awaitable[bytes | Failure | None]],
    send: Callable[[Reply], Awaitable[None]],
) -> None:
    """Follow a learner until its connection ends. `next_frame` gives the body of a frame, None at the end; its
    argument says of the length of each whether it is refused, and how."""
    pid = requester.pid
    session, answer = learners.join(join, pid, requester.reader)
    if session is None:
        await send(answer)
        return
    is_gone = False
    try:
        await send(answer)
        while (said := await next_frame(session.refusal)) is not None:
            message = said if isinstance(said, Failure) else decode_learner(said)
            try:
                reply = message if isinstance(message, Failure) else await session.receive(message)
            except Exception as error:  # a defect, or no memory: the mount goes on
                log.exception("control: the learner of process %d was let go", pid)
                reply = Failure(f"the daemon failed: {error!r}; its log says more", 1)
                await send(reply)
                return
            if reply is not None and not is_gone:
                try:
                    await send(reply)
                except trio.BrokenResourceError:
                    is_gone = True  # it may have said more before: where the time of its last epoch went
            del said, message  # tens of megabytes, and the next may come in hours
    except ProtocolError as error:
        log.warning("control: the learner of process %d was let go: %s", pid, error)
        await send(Failure(str(error), 2))
    finally:
        session.leave()
