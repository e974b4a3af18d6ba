"""A mount on one screen, for people: what is local, where bytes came from, who waits for what, what is wrong.

Plain lines from the status of a daemon, never more than `MOST_LINES`; what an older daemon does not say is left out.
`hfs status`, its live form and the end of `hfs run` share them. All figures are in `hfs status --all`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hfs.cli.figures import count, duration, size
from hfs.cli.situation import in_memory, is_covered, of_learner, situation_of
from hfs.mountd.core.errors import printable
from hfs.policies.diagnosis.causes import found, nothing, waits_for

MOST_LINES = 40
_LEARNERS = 8
_READERS = 4
_LABEL = 14
_NO_LIMIT_BYTES = 1 << 60
_ADVICE = {"workers"}
"""Causes where nothing is wrong, and the job could be faster still."""


def screen(status: Mapping[str, Any]) -> list[str]:
    """At most MOST_LINES lines."""
    lines = [
        *_head(status),
        *_local(status),
        *_traffic(status),
        *_learners(status.get("hints") or {}, status),
        *_readers(status),
        *_wrong(status),
    ]
    return [printable(line) for line in lines[:MOST_LINES]]


def run_lines(status: Mapping[str, Any], *, is_joined: bool = False) -> list[str]:
    """What `hfs run` says at its end: at most five lines. `is_joined`: the mount is others' too, and the status says
    what has changed since the command began."""
    traffic = status.get("traffic") or {}
    staged = status.get("staged") or {}
    lines = []
    if traffic:
        gave = f"the source gave {size(traffic['source_bytes'])} of {_read(traffic)} read{_spared(traffic)}"
        lines.append((f"meanwhile, to all who read the mount: {gave}" if is_joined else gave) + _besides(status))
    grown = " more" if is_joined else ""
    lines.append(f"staged: {count(staged.get('files', 0), 'file')}{grown}, {size(staged.get('bytes', 0))}{grown}")
    waits = _waited(_epochs(status.get("hints") or {}))
    if waits is not None:
        lines.append(f"learners waited {waits:.1%} of the time{_for(status)}")
    if faults := _faults(status):
        lines.append("faults: " + ", ".join(faults))
    if waits is None and is_joined:
        return [printable(line) for line in lines]  # nobody knows whether it was this command that has waited
    findings = found(situation_of(status))
    why = f"{findings[0].what}; {findings[0].remedy}" if findings else nothing(situation_of(status))
    lines.append(f"why: {why}" if why else "nothing is wrong")
    return [printable(line) for line in lines]


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _head(status: Mapping[str, Any]) -> Iterator[str]:
    source = (status.get("source") or {}).get("path") or ""
    mode = (status.get("io_mode") or {}).get("mode", "") + (", overlay" if is_covered(status) else "")
    since = duration(status.get("uptime_s") or 0)
    what = f"{status.get('mountpoint', '')}  of {source}" if source else str(status.get("mountpoint", ""))
    yield f"{what}  (process {status.get('pid', '?')}, up {since}, I/O mode {mode or '?'})"


def _local(status: Mapping[str, Any]) -> Iterator[str]:
    staged = status.get("staged") or {}
    capacity = staged.get("capacity_bytes") or 0
    text = f"{size(staged.get('bytes', 0))} in {count(staged.get('files', 0), 'file')}"
    if 0 < capacity < _NO_LIMIT_BYTES:
        full = ": full" if staged.get("state") == "full" else ""
        text += f"; {size(staged.get('room_bytes', staged.get('bytes', 0)))} of {size(capacity)} used{full}"
    learners = (status.get("hints") or {}).get("learners") or []
    shares = [learner["staged_share"] for learner in learners if learner.get("staged_share") is not None]
    if shares:
        etas = [learner["eta_s"] for learner in learners if learner.get("eta_s") is not None]
        soon = "" if min(shares) >= 1 else f", all in {duration(max(etas))}" if etas else ""
        text += f"; {sum(shares) / len(shares):.0%} of what orders name{soon}"
    yield _line("local", text)


def _traffic(status: Mapping[str, Any]) -> Iterator[str]:
    traffic = status.get("traffic") or {}
    if not traffic:
        return
    minute = traffic.get("minute") or {}
    seconds = minute.get("seconds") or 0
    if seconds:
        span = "last minute" if seconds > 50 else f"last {seconds:.0f} s"
        least = "at least " if traffic.get("is_at_least") else ""
        yield _line(span, f"jobs read {least}{size(minute['read_bytes'])}; {_gave(minute)}")
        yield from _ways(minute)
    yield _line("since start", f"jobs read {_read(traffic)}; {_gave(traffic)}{_spared(traffic)}")
    yield from _ways(traffic)
    if besides := _besides(status):
        share = in_memory(status)
        held = "" if share is None else f"; of a sample of what is staged {share:.0%} is in memory"
        yield _line("", besides.removeprefix("; ") + held)


def _besides(status: Mapping[str, Any]) -> str:
    """What the kernel has opened by itself, as far as that is known."""
    by_kernel = status.get("by_kernel") or {}
    if not by_kernel.get("look_ups"):
        return "; besides, what is staged is read by the kernel itself" if by_kernel.get("overlays") else ""
    files = f"{count(by_kernel['look_ups'], 'file')} of {size(by_kernel.get('bytes', 0))} looked up for it"
    return f"; besides, by the kernel itself: {files}, how often they were read nobody counts"


def _read(traffic: Mapping[str, Any]) -> str:
    return f"{'at least' if traffic.get('is_at_least') else 'about'} {size(traffic['read_bytes'])}"


def _ways(traffic: Mapping[str, Any]) -> Iterator[str]:
    """How jobs were given what they have read, where some of it did not come from the daemon."""
    passed_bytes, memory_bytes = traffic.get("passed_bytes", 0), traffic.get("memory_bytes", 0)
    ways = {
        "passed through": passed_bytes,
        "from memory": memory_bytes,
        "by the daemon": traffic["read_bytes"] - passed_bytes - memory_bytes,
    }
    if passed_bytes or memory_bytes:
        yield _line("", "of that " + ", ".join(f"{size(amount)} {way}" for way, amount in ways.items() if amount > 0))


def _gave(traffic: Mapping[str, Any]) -> str:
    peers = f", other nodes {size(traffic['peer_bytes'])}" if traffic.get("peer_bytes") else ""
    return f"the source gave {size(traffic['source_bytes'])}{peers}"


def _spared(traffic: Mapping[str, Any]) -> str:
    spared = traffic["read_bytes"] - traffic["source_bytes"]
    if spared <= 0 or not traffic["read_bytes"]:
        return "; what the kernel has read by itself is not counted" if traffic.get("is_at_least") else ""
    least = "at least " if traffic.get("is_at_least") else ""
    return f": spared {least}{size(spared)} ({spared / traffic['read_bytes']:.0%})"


# -- learners ---------------------------------------------------------------------------------------------------------


def _epochs(hints: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    learners = [*(hints.get("past") or []), *(hints.get("learners") or [])]
    return [epoch for learner in learners for epoch in learner.get("epochs") or [] if epoch.get("batches")]


def _waited(epochs: list[Mapping[str, Any]]) -> float | None:
    """The share of the time that was spent waiting for data; None: nobody has told."""
    total = sum(epoch.get(name) or 0.0 for epoch in epochs for name in ("exposed_s", "compute_s", "other_s"))
    return sum(epoch.get("exposed_s") or 0.0 for epoch in epochs) / total if total > 0 else None


def _for(status: Mapping[str, Any]) -> str:
    what = waits_for(situation_of(status))
    return f", mostly for {what}" if what else ""


def _learners(hints: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    learners = hints.get("learners") or []
    waits = _waited(_epochs(hints))
    if not learners and waits is None:
        return
    told = "" if waits is None else f"; learners waited {waits:.1%} of the time{_for(status)}"
    yield _line("learners", f"{len(learners)} {'follows' if len(learners) == 1 else 'follow'} an order{told}")
    worst = sorted(learners, key=lambda learner: -(_waited(_own(learner)) or 0.0))
    situation = situation_of(status)
    for learner in worst[:_LEARNERS]:
        what = waits_for(of_learner(situation, learner))
        yield _line("", _learner(learner) + (f" for {what}" if what else ""))
    if len(worst) > _LEARNERS:
        yield _line("", f"and {len(worst) - _LEARNERS} that waited less: hfs-hint show")


def _own(learner: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [epoch for epoch in learner.get("epochs") or [] if epoch.get("batches")]


def _learner(learner: Mapping[str, Any]) -> str:
    name = f"{learner.get('name') or 'learner'}, rank {learner.get('rank', 0)} of {learner.get('world', 1)}"
    parts = [name]
    if learner.get("epoch") is not None:
        parts.append(f"epoch {learner['epoch']}")
    if learner.get("total"):
        parts.append(f"{learner.get('position', 0) / learner['total']:.0%}")
    if learner.get("staged_share") is not None:
        parts.append(f"{learner['staged_share']:.0%} local")
    if (waits := _waited(_own(learner))) is not None:
        parts.append(f"waited {waits:.1%}")
    return "  ".join(parts)


def _readers(status: Mapping[str, Any]) -> Iterator[str]:
    readers = [reader for reader in status.get("readers") or [] if reader["bytes"]]
    if not readers:
        return
    names = [f"{reader['command'] or 'process'} ({reader['pid']})" for reader in readers]
    shown = [f"{name} {size(reader['bytes'])}" for name, reader in zip(names[:_READERS], readers, strict=False)]
    more = f", and {len(readers) - _READERS} more" if len(readers) > _READERS else ""
    yield _line("readers", "; ".join(shown) + more + " by the daemon")


# -- what is wrong ----------------------------------------------------------------------------------------------------


def _faults(status: Mapping[str, Any]) -> list[str]:
    faults = {name: n for name, n in (status.get("faults") or {}).items() if n and name != "staging_dropped"}
    if errors := (status.get("source") or {}).get("errors"):
        faults["source_errors"] = errors
    faults |= {f"in the background ({name})": n for name, n in (status.get("background_faults") or {}).items()}
    if status.get("stale_served"):
        faults["stale_served"] = status["stale_served"]
    return [f"{name.replace('_', ' ')} ({number:,})" for name, number in faults.items()]


def _wrong(status: Mapping[str, Any]) -> Iterator[str]:
    keeper = status.get("keeper") or {}
    if keeper.get("restarts"):
        times = count(keeper["restarts"], "time")
        yield _line("restarted", f"{times}, last because it {keeper.get('last_end') or 'ended'}")
    if faults := _faults(status):
        yield _line("faults", ", ".join(faults) + "; the log says more")
    yield from _metrics(status.get("monitoring") or {})
    findings, said = found(situation_of(status)), nothing(situation_of(status))
    advice = [finding for finding in findings if finding.name in _ADVICE]
    causes = [finding for finding in findings if finding not in advice]
    if not causes:
        yield _line("wrong", f"nothing: {said}" if said and not advice else "nothing")
    for label, listed in (("wrong", causes), ("advice", advice)):
        for finding in listed[:1]:
            yield _line(label, finding.what)
            yield _line("", f"seen: {finding.evidence}")
            yield _line("", f"change: {finding.remedy}")


def _metrics(monitoring: Mapping[str, Any]) -> Iterator[str]:
    """Where they are; where they are not though they were asked for, why."""
    address = monitoring.get("address")
    told = (
        monitoring.get("error") or (f"http://{address}/metrics" if address else ""),
        monitoring.get("file_error") or monitoring.get("file") or "",
    )
    if any(told):
        yield _line("metrics", "; ".join(filter(None, told)))
