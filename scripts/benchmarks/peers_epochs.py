"""Rows of epochs: what p daemons read from the source together, and what they read from each other afterwards."""

from statistics import mean

from scripts.benchmarks.common import SlowFs, Work, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.peers_data import PICTURES, PICTURES_QUICK, TINY, TINY_QUICK, large, pictures, tiny
from scripts.benchmarks.peers_nodes import NONE, Data, Learners, Nodes, learners, nodes
from scripts.benchmarks.peers_simulation import HALF_A_POINT, PAPER_PERCENT, STEPS, simulated_percent
from scripts.benchmarks.table import Row, at_least, at_most

COUNTS = (2, 4, 8)
PLACEMENTS = ("replicate", "partition")

SHARED_BPS = 4_000_000
"""Slow enough that eight nodes on two cores wait for it and not for each other."""

EPOCHS = {2: 6, 4: 4, 8: 4}
"""By nodes, with the locality-aware sampler, each in an order of its own. An epoch has few steps, 48 for two nodes and
local batches of 128 and 12 for eight; the share that moves in it is off its mean by 0.35 points (standard deviation of
40 epochs of two nodes)."""

READ_ONCE = at_most(1.02)
REGULAR_BATCH = 256


def _all(running: Nodes, data: Data, seed: int) -> tuple[float, float]:
    """Every node reads everything: seconds, and the source's bytes in data sets."""
    before = running.source_bytes()
    with learners(running.paths, data) as group:
        epoch_s, answers = group.epoch(how="all", seed=seed, batch=16 * len(running.paths))
    assert all(answer["bytes"] == data.bytes for answer in answers)
    return epoch_s, (running.source_bytes() - before) / data.bytes


def source(work: Work, options: Options, command: str) -> list[Row]:
    """Epoch 1, in which every node reads everything."""
    got = Results(command)
    kinds = {"files of 100 to 200 KB": pictures(work, options), "files of 8 chunks": large(work, options)}
    rows = []
    for kind, data in kinds.items():
        for count in COUNTS:
            for placement in (*PLACEMENTS, NONE):
                key = f"{kind} {count} {placement}"
                for seed in range(options.runs):
                    with (
                        got.attempt(key),
                        slowfs(work, data.folder, "none") as slow,
                        nodes(work, slow, count, placement) as running,
                    ):
                        got.add(key, _all(running, data, seed)[1])
                bar = None if placement == NONE else READ_ONCE
                words = "without peers" if placement == NONE else f"peers, {placement}"
                name = f"{count} nodes read all {kind}{options.scale(PICTURES, PICTURES_QUICK)}, {words}"
                rows.append(got.row(f"{name}: source bytes / data set", key, bar))
    return rows


def first(work: Work, options: Options, command: str) -> list[Row]:
    """Epoch 1 of eight nodes that read everything from a source whose bandwidth they share."""
    got, data, count = Results(command), pictures(work, options), COUNTS[-1]
    rows = []
    for seed in range(options.runs):
        for placement in (NONE, *PLACEMENTS):
            keys = [placement, f"{placement} faster"][: 1 if placement == NONE else 2]
            with got.attempt(*keys), slowfs(work, data.folder, "none") as slow:
                slow.tell(f"set shared_bps {SHARED_BPS}")
                with nodes(work, slow, count, placement) as running:
                    epoch_s, _ = _all(running, data, seed)
                got.add(placement, epoch_s)
                if placement != NONE:
                    got.add(f"{placement} faster", got.last(NONE) / epoch_s)
    what = f"epoch 1, {count} nodes read all of {data.bytes / 1e6:.0f} MB at {SHARED_BPS / 1e6:g} MB/s together"
    for placement in PLACEMENTS:
        rows.append(got.row(f"{what}, peers, {placement}: times faster", f"{placement} faster", at_least(4)))
        rows.append(got.row("  with peers", placement, unit="s"))
    return [*rows, got.row("  without peers", NONE, unit="s")]


def fill(running: Nodes, group: Learners, data: Data, seed: int) -> None:
    """Epoch 1, after which every sample is staged at its owner."""
    group.epoch(how="regular", seed=seed, batch=REGULAR_BATCH)
    running.until_staged(data.bytes)


def epoch_shares(running: Nodes, group: Learners, how: str, seed: int, batch: int) -> tuple[float, float, float | None]:
    """Shares of the bytes read that came from peers and from the source in an epoch; and what was planned to move."""
    peers, slow = running.total("peer_read_bytes"), running.source_bytes()
    _, answers = group.epoch(how=how, seed=seed, batch=batch)
    read = sum(answer["bytes"] for answer in answers)
    peers, slow = running.total("peer_read_bytes") - peers, running.source_bytes() - slow
    return peers / read, slow / read, answers[0]["planned"]


def _warm_epochs(work: Work, data: Data, slow: SlowFs, count: int, got: Results, seed: int) -> None:
    with (
        nodes(work, slow, count, "partition", chunk="256K", memory="2M") as running,
        learners(running.paths, data) as group,
    ):
        fill(running, group, data, 1000 + seed)
        share, from_source, _ = epoch_shares(running, group, "regular", seed, REGULAR_BATCH)
        got.add(f"{count} regular", share)
        got.add(f"{count} off", abs(share - (count - 1) / count) * 100)
        got.add(f"{count} source", from_source)
        for local_batch in PAPER_PERCENT:
            epochs = [
                epoch_shares(running, group, "local", 10_000 * seed + local_batch + number, local_batch * count)
                for number in range(EPOCHS[count])
            ]
            key, found = f"{count} {local_batch}", 100 * mean(moved for moved, _, _ in epochs)
            got.add(f"{key} moved", found)
            got.add(f"{key} planned", 100 * mean(planned or 0 for _, _, planned in epochs))
            got.add(f"{key} off", abs(found - simulated_percent(count, local_batch, STEPS, seed)))
            got.add(f"{key} source", sum(from_source for _, from_source, _ in epochs))
        got.add(f"{count} faults", running.total("peer_faults"))


def shares(work: Work, options: Options, command: str) -> list[Row]:
    """Epochs after the first, partition: what comes from where."""
    got, data = Results(command), tiny(work, options)
    rows = []
    scale = options.scale(TINY, TINY_QUICK)
    for count in COUNTS:
        keys = [f"{count} {local} {what}" for local in PAPER_PERCENT for what in ("moved", "planned", "off", "source")]
        for seed in range(options.runs):
            with (
                got.attempt(*(f"{count} {what}" for what in ("regular", "off", "source", "faults")), *keys),
                slowfs(work, data.folder, "none") as slow,
            ):
                _warm_epochs(work, data, slow, count, got, seed)
        what = f"epoch 2, partition, {count} nodes{scale}"
        wanted = f"{100 * (count - 1) / count:.4g} %"
        rows += [
            got.row(
                f"{what}, regular sampler: share read from peers, off {wanted}", f"{count} off", at_most(2), "points"
            ),
            got.row("  from peers", f"{count} regular", unit=""),
            got.row("  from the source", f"{count} source", at_most(0), unit=""),
        ]
        for local in PAPER_PERCENT:
            key = f"{count} {local}"
            name = f"{what}, LocalityAwareSampler, local batch {local}: share read from peers, off the simulation"
            rows += [
                got.row(name, f"{key} off", at_most(HALF_A_POINT), "points"),
                got.row("  from peers", f"{key} moved", unit="%"),
                got.row("  as the sampler has planned it", f"{key} planned", unit="%"),
                got.row("  from the source", f"{key} source", at_most(0), unit=""),
            ]
        # Nodes of an overloaded machine may be silent for longer than a peer endures; then the source is read.
        rows.append(got.row(f"{what}: answers of peers that did not come or were wrong", f"{count} faults", unit=""))
    return rows
