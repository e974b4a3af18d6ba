"""What `hfs run` says at its end: where the time went, and what was read from where."""

from __future__ import annotations

from typing import Any


def summarize(seconds: dict[str, float], status: dict[str, Any] | None) -> None:
    """A table on stderr. `seconds`: how long each part took; `status`: the object of `hfs status --json`."""
    from rich import box
    from rich.table import Table

    from hfs.cli.learners import epochs_table
    from hfs.cli.render import duration, size, stderr

    table = Table(title="hfs", box=box.SIMPLE, show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    table.add_row("time", ", ".join(f"{name} {duration(value)}" for name, value in seconds.items()))
    if status is not None:
        source = status.get("source", {})
        operations = ", ".join(
            f"{source[name]:,} {name}" for name in ("reads", "opens", "stats", "listings") if source.get(name)
        )
        table.add_row("source", f"{size(source.get('bytes', 0))}, {operations or 'nothing asked'}")
        reads, read_bytes = status.get("reads", {}), status.get("read_bytes", {})
        if not any(reads.values()):
            table.add_row("served", "nothing: no read reached the daemon")
        for tier, count in reads.items():
            if count:
                table.add_row(f"served: {tier}", f"{count:,} reads, {size(read_bytes.get(tier, 0))}")
        total = sum(read_bytes.values())
        if total:
            share = f"{read_bytes.get('staged', 0) / total:.1%} of the bytes that the daemon served"
            table.add_row("staged share", share)
        staged = status.get("staged", {})
        table.add_row("staged", f"{staged.get('files', 0):,} files, {size(staged.get('bytes', 0))}")
        faults = {name: count for name, count in status.get("faults", {}).items() if count}
        faults |= {f"in the background ({name})": count for name, count in status.get("background_faults", {}).items()}
        if status.get("stale_served"):
            faults["stale_served"] = status["stale_served"]
        if faults:
            table.add_row("faults", ", ".join(f"{count:,} {name}" for name, count in faults.items()))
        table.add_row("not counted", "what the kernel answered from its page cache or by passthrough")
    console = stderr()
    console.print(table)
    epochs = epochs_table((status or {}).get("hints") or {})
    if epochs is not None:
        console.print(epochs)
