"""What may still be put into the page cache: the node, or the control group with least, of either version."""

from pathlib import Path

from hfs.mountd.core.limits import ControlGroup, Memory, available_bytes, groups_of

MEMINFO = "MemTotal:       24000000 kB\nMemFree:          100000 kB\nMemAvailable:    9000000 kB\n"
NODE_BYTES = 9_000_000 * 1024


def limited(folder: Path, limit: str, current: int, inactive: int) -> None:
    """A control group of version 2."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.high").write_text("max\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\nactive_file 7\n")


def limited_v1(folder: Path, limit: int, usage: int, inactive: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"cache 5\ninactive_file 1\ntotal_inactive_file {inactive}\n")


def process_in(tmp_path: Path, cgroup: str, mountinfo: str) -> list[ControlGroup]:
    """The groups of a process with these files in /proc."""
    (tmp_path / "cgroup").write_text(cgroup)
    (tmp_path / "mountinfo").write_text(mountinfo)
    (tmp_path / "meminfo").write_text(MEMINFO)
    return groups_of(str(tmp_path))


def available(tmp_path: Path, groups: list[ControlGroup]) -> int:
    return available_bytes(str(tmp_path / "meminfo"), groups)


def test_the_node_or_the_group_whichever_has_less(tmp_path: Path) -> None:
    top = tmp_path / "top"
    groups = process_in(tmp_path, "0::/job\n", f"30 24 0:26 / {top} rw - cgroup2 cgroup2 rw\n")
    assert available(tmp_path, []) == NODE_BYTES
    assert available(tmp_path, groups) == NODE_BYTES  # nothing is there to read
    limited(top / "job", "max", 1, 1)
    assert available(tmp_path, groups) == NODE_BYTES
    limited(top / "job", "1000000", 900_000, 50_000)
    assert available(tmp_path, groups) == 150_000
    (top / "job/memory.high").write_text("950000\n")
    assert available(tmp_path, groups) == 100_000
    (top / "job/memory.high").write_text("100\n")  # taken away from a group that has more already
    assert available(tmp_path, groups) == 0


def test_the_least_of_all_groups_above(tmp_path: Path) -> None:
    top = tmp_path / "top"
    groups = process_in(
        tmp_path, "0::/slurm/job_7/step_0/task\n", f"30 24 0:26 / {top} rw shared:4 - cgroup2 cgroup2 rw\n"
    )
    assert [group.path.removeprefix(str(top)) for group in groups] == [
        *("/slurm/job_7/step_0/task", "/slurm/job_7/step_0", "/slurm/job_7", "/slurm", ""),
    ]
    limited(top / "slurm/job_7/step_0/task", "max", 10, 0)
    limited(top / "slurm/job_7/step_0", "5000", 100, 0)
    limited(top / "slurm/job_7", "4000", 1500, 500)
    assert available(tmp_path, groups) == 3000
    limited(top / "slurm", "2000", 1500, 0)
    assert available(tmp_path, groups) == 500


def test_version_1(tmp_path: Path) -> None:
    top = tmp_path / "memory"
    mounts = (
        f"31 30 0:27 / {tmp_path}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"32 30 0:28 / {top} rw - cgroup cgroup rw,memory\n"
        f"33 30 0:29 / {tmp_path}/unified rw - cgroup2 cgroup2 rw\n"
    )
    groups = process_in(tmp_path, "9:memory:/slurm/job\n3:cpu,cpuacct:/other\n0::/user.slice\n", mounts)
    limited_v1(top / "slurm/job", 9223372036854771712, 100, 0)
    limited_v1(top / "slurm", 3000, 1000, 200)
    assert available(tmp_path, groups) == 2200


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    """Without a namespace of its own /proc names groups of the host, and the mount shows one of them as its root."""
    top = tmp_path / "memory"
    groups = process_in(
        tmp_path, "9:memory:/kubepods/pod1/c1\n", f"32 30 0:28 /kubepods/pod1/c1 {top} ro - cgroup cgroup rw,memory\n"
    )
    assert [group.path for group in groups] == [str(top)]
    limited_v1(top, 1000, 400, 0)
    assert available(tmp_path, groups) == 600
    groups = process_in(tmp_path, "9:memory:/a/b\n", f"32 30 0:28 /elsewhere {top} ro - cgroup cgroup rw,memory\n")
    assert available(tmp_path, groups) == 600


def test_looked_at_once_a_second() -> None:
    now = [0.0]
    memory = Memory(lambda: now[0])
    assert memory.has_room(4096)
    assert not memory.has_room(1 << 60)
    memory._available_bytes = 100
    assert memory.has_room(50)
    assert not memory.has_room(51)
    now[0] = 1.0
    assert memory.has_room(4096)
