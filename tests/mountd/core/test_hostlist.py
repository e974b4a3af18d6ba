"""The hosts of a job as launchers say them, and its secret, which no other user may read."""

import os
from pathlib import Path

import pytest

from hfs.mountd.core.config.loading import load, peer_secret
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.core.hostlist import host_and_port, peers_of

SLURM = {"SLURM_JOB_NODELIST": "n[01-02],m1"}
PLACES = {"source": "/s", "mountpoint": "/m", "cache": "/c"}


@pytest.mark.parametrize(
    ("wanted", "environ", "found"),
    [
        *(("none", SLURM, "none"), ("mpi", SLURM, "mpi"), ("a,b:7", SLURM, "a,b:7"), ("dns:x.y", {}, "dns:x.y")),
        *((word, {**SLURM, "MASTER_ADDR": "h"}, "n01,n02,m1") for word in ("slurm", "auto")),
        *(("torchrun", {**SLURM, "MASTER_ADDR": "h"}, "h"), ("auto", {"PET_RDZV_ENDPOINT": "h:29400"}, "h")),
        *((word, {}, None) for word in ("slurm", "torchrun", "auto")),
    ],
)
def test_what_the_launcher_says(wanted: str, environ: dict[str, str], found: str | None) -> None:
    if found is None:
        with pytest.raises(ConfigError, match=r"is not set|is set"):
            load({**PLACES, "peers": wanted, "peer_secret": "/x"}, environ, [])
    else:
        assert peers_of(wanted, environ) == found
        assert load({**PLACES, "peers": wanted, "peer_secret": "/x"}, environ, [])[0].peers == found


def test_entries_have_ports_and_a_job_a_secret() -> None:
    found = [host_and_port(entry) for entry in ("a", "a:7", "dns:s.x:9", "[::1]", "[::1]:5")]
    assert found == [("a", 24370), ("a", 7), ("s.x", 9), ("::1", 24370), ("::1", 5)]
    with pytest.raises(ConfigError, match=r"peer-secret: missing; give -o peer-secret=FILE"):
        load({**PLACES, "peers": "a,b"}, {}, [])


def test_the_secret_is_nobody_else_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text("s" * 40 + "\n")
    path.chmod(0o600)
    assert peer_secret(str(path)) == b"s" * 40
    monkeypatch.setenv("JOB_SECRET", "v" * 32)
    assert peer_secret("env:JOB_SECRET") == b"v" * 32
    for mode in (0o604, 0o602, *(() if os.geteuid() == 0 else (0o640,))):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="is not ours alone"):
            peer_secret(str(path))
    path.chmod(0o600)
    path.write_text("short")
    for named in (str(path), "env:NONE", str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(ConfigError, match=r"at least 32 characters|cannot be read"):
            peer_secret(named)
