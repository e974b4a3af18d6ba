"""Which hosts a job has, as launchers say it: Slurm's node lists, torchrun's rendezvous, lists of people.

Pure text; training jobs import it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_PORT = 24370
DEFAULT_LISTEN = f"0.0.0.0:{_PORT}"

_HOST = r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(?::[0-9]{1,5})?"
_WORDS = ("none", "mpi", "auto", "slurm", "torchrun")
_SLURM = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_TORCHRUN = ("MASTER_ADDR", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR")


def parse_peers(value: object) -> str:
    """A word, dns:NAME or a list of hosts, as it was given. Raises ValueError."""
    text = str(value).strip()
    if text not in _WORDS and not re.fullmatch(rf"dns:{_HOST}|{_HOST}(?:,{_HOST})*", text):
        raise ValueError(value)
    return text


def peers_of(wanted: str, environ: Mapping[str, str]) -> str:
    """`wanted` of `parse_peers` with what the launcher says: "none", "mpi", dns:NAME or a list of hosts.

    Raises ValueError, which says what is missing.
    """
    slurm = next((environ[name] for name in _SLURM if environ.get(name)), "")
    if wanted == "slurm" or (wanted == "auto" and slurm):
        if not slurm:
            raise ValueError("SLURM_JOB_NODELIST, which Slurm sets in a job, is not set")
        return ",".join(slurm_hosts(slurm))
    if wanted in ("torchrun", "auto"):
        first = next((environ[name] for name in _TORCHRUN if environ.get(name)), "")
        if not first:
            raise ValueError(
                f"neither {' nor '.join((*_SLURM[:2], *_TORCHRUN[:2]))} is set; give the hosts, or dns:NAME"
            )
        return parse_peers(first if first.startswith("[") else first.rsplit(":", 1)[0])
    return wanted


def host_and_port(entry: str) -> tuple[str, int]:
    """Of one entry of `peers_of`: HOST or HOST:PORT, after dns: or not."""
    host, colon, port = entry.removeprefix("dns:").rpartition(":")
    if not colon or port.endswith("]"):
        host, port = entry.removeprefix("dns:"), str(_PORT)
    return host.strip("[]"), int(port)


def slurm_hosts(text: str) -> Iterator[str]:
    """The names in a list like "n[01-03,7],m1": those with brackets have one pair (scontrol show hostnames)."""
    items = re.findall(r"(?:[^,\[]|\[[^]]*\])+", text)
    if ",".join(items) != text:
        raise ValueError(text)
    for item in items:
        match = re.fullmatch(r"([^[]*)\[([0-9,-]+)\](.*)", item)
        if match is None:
            if "[" in item:
                raise ValueError(item)
            yield item
            continue
        for part in match[2].split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{match[1]}{number:0{len(first)}d}{match[3]}"
