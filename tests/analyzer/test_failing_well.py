"""What goes wrong outside of the traces: full disks, files that are there already, Ctrl-C, too little memory."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from analyzer.cli import main
from analyzer.reading.memory import Estimate
from analyzer.render import whole_file, write
from parsers.errors import InputError

COMMAND = [sys.executable, "-m", "analyzer.cli"]


def run(*words: str | Path, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, preexec_fn=before, check=False, timeout=120
    )


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("analyze: ")
    return line


def small_files() -> None:
    """No file of more than 1,000 bytes can be written: as on a disk that is full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    result = run("formats", "--format", "json", "-o", tmp_path / "out.json", before=small_files)
    assert f"{tmp_path}/out.json: cannot be written (File too large)" in one_line(result)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("old")
    result = run("formats", "--format", "json", "-o", tmp_path / "out.json", "--force", before=small_files)
    assert "cannot be written" in one_line(result)
    assert (tmp_path / "out.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_full_disk_behind_a_summary(sample_traces: Path, tmp_path: Path) -> None:
    trace = sample_traces / "ddp4" / "rank0.json.gz"
    result = run("summarize", trace, "-q", "-o", tmp_path / "a.parquet", before=small_files)
    assert "a.parquet: cannot be written" in one_line(result)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_stdout_on_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "formats"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "analyze: stdout: cannot be written (No space left on device); nothing was left behind; "
    assert (done.returncode, done.stderr) == (2, f"{said}make room or name another place with -o\n")


def test_nobody_reads_stdout_to_its_end() -> None:
    with subprocess.Popen([*COMMAND, "formats", "--format", "json"], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 0)


def refused(*words: str | Path) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    return line


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "formats.md"
    target.write_text("mine")
    assert f"{target} exists; --force overwrites it" in refused("formats", "--format", "md", "-o", target)
    assert target.read_text() == "mine"
    again = CliRunner().invoke(main, ["formats", "--format", "md", "-o", str(target), "--force"])
    assert again.exit_code == 0
    assert target.read_text().startswith("# ")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "TRACE", "-o", "OUT"],
        ["run", "TRACE", "--format", "json", "-o", "OUT"],
        ["summarize", "TRACE", "-o", "OUT"],
        ["baseline", "write", "TRACE", "-o", "OUT"],
        ["compare", "TRACE", "TRACE", "-o", "OUT"],
        ["compare", "TRACE", "TRACE", "--report", "junit=OUT"],
        ["check", "TRACE", "--baseline", "OUT", "-o", "OUT"],
        ["predict", "--model", "llama3-8b", "--layout", "dp8", "-o", "OUT"],
        ["hang", "TRACE", "-o", "OUT"],
        ["formats", "-o", "OUT"],
    ],
)
def test_no_command_overwrites_unasked(sample_traces: Path, tmp_path: Path, words: list[str]) -> None:
    target = tmp_path / "there"
    target.write_text("mine")
    named = {"TRACE": str(sample_traces / "ddp4"), "OUT": str(target), "junit=OUT": f"junit={target}"}
    assert "exists; --force overwrites it" in refused(*(named.get(word, word) for word in words))
    assert target.read_text() == "mine"


def test_a_directory_that_may_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != tmp_path)  # whoever runs this may be root
    assert f"no permission to write in {tmp_path}" in refused("formats", "-o", tmp_path / "a.txt")


def test_devices_and_links_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write(b"new", str(link))
    assert (link.is_symlink(), real.read_text(), stat.S_IMODE(real.stat().st_mode)) == (True, "new", 0o640)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(b"through", str(pipe))
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_what_fails_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def half() -> None:
        with whole_file(tmp_path / "out") as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert list(tmp_path.iterdir()) == []


# -- interrupted


def interrupted(traces: Path, temporary: Path, number: signal.Signals, *words: str) -> tuple[int, str, list[str]]:
    """Exit code and stderr of a run that hangs on its input and gets a signal, and what it left in ``TMPDIR``."""
    temporary.mkdir()
    process = subprocess.Popen(
        [*COMMAND, "run", *map(str, sorted(traces.iterdir())), *words],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=obeying_signals,
    )
    time.sleep(1)
    limit = time.monotonic() + 60
    while not asleep_in_open(process.pid) and time.monotonic() < limit:
        time.sleep(0.05)
    os.killpg(process.pid, number) if number is signal.SIGINT else process.send_signal(number)
    try:
        _, said = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    with pytest.raises(ProcessLookupError):  # nobody of its group is left
        os.killpg(process.pid, 0)
    return process.returncode, said.strip(), [path.name for path in temporary.iterdir()]


def obeying_signals() -> None:
    """A shell that starts the tests in the background lets them ignore Ctrl-C, and what they start as well."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def asleep_in_open(pid: int) -> bool:
    """Whether the process or one of its children waits for somebody to write to a pipe."""
    tasks = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return any("fifo" in Path(f"/proc/{task}/wchan").read_text() for task in tasks)


@pytest.fixture
def pipes(tmp_path: Path) -> Path:
    """Traces that nobody ever writes."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(3):
        os.mkfifo(folder / f"rank{rank}.json")
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_ends_everything(pipes: Path, tmp_path: Path, workers: str) -> None:
    found = interrupted(pipes, tmp_path / "tmp", signal.SIGINT, "--workers", workers)
    assert found == (130, "analyze: interrupted", [])


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_cancelled_job_cleans_up(pipes: Path, tmp_path: Path) -> None:
    assert interrupted(pipes, tmp_path / "tmp", signal.SIGTERM, "--workers", "2") == (143, "", [])


# -- some of many


def test_one_bad_file_of_many_is_left_out_and_named(sample_traces: Path, tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.json.gz").write_bytes((sample_traces / "ddp4" / f"rank{rank}.json.gz").read_bytes())
    (tmp_path / "rank2.json.gz").write_bytes(b"\x1f\x8b\x08\x00 no gzip at all")
    for workers in ("1", "2"):
        words = [*map(str, sorted(tmp_path.iterdir())), "--workers", workers, "--format", "json", "-q"]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0
        trust = json.loads(result.stdout)["trust"]
        assert (trust["ranks_present"], trust["ranks_missing"]) == ([0, 1, 3], [2])
        assert any(w.startswith(f"{tmp_path}/rank2.json.gz is left out: ") for w in trust["warnings"])
    strict = CliRunner().invoke(main, [*map(str, sorted(tmp_path.iterdir())), "--strict"])
    assert strict.exit_code == 3
    assert "1 file left out" in strict.stderr
    base = tmp_path / "base.json"
    assert (
        CliRunner().invoke(main, ["baseline", "write", str(sample_traces / "ddp4"), "-o", str(base), "-q"]).exit_code
        == 0
    )
    gate = CliRunner().invoke(main, ["check", *map(str, sorted(tmp_path.glob("rank*"))), "--baseline", str(base)])
    assert gate.exit_code == 3
    assert "rank2.json.gz: the file cannot be read, what it lacks cannot be checked" in gate.stdout + gate.stderr


def test_where_no_file_can_be_used_the_first_says_why(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("nothing of the kind")
    assert refused(tmp_path / "a.json", tmp_path / "b.json").startswith(f"analyze: {tmp_path}/a.json: is not a trace")


# -- memory


def test_a_memory_limit_lets_fewer_files_be_read_at_a_time(
    sample_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analyzer.reading import pool
    from analyzer.reading.one import Job, Loaded

    paths = sorted((sample_traces / "tp2_pp2_dp2").glob("rank*.json.gz"))
    jobs = [Job(str(path), stored_bytes=path.stat().st_size) for path in paths]
    together: list[int] = []
    give = pool._Pool._give

    def counted(self: pool._Pool, worker: pool._Worker) -> None:
        give(self, worker)
        together.append(sum(w not in self._idle for w in self._workers))

    monkeypatch.setattr(pool._Pool, "_give", counted)
    for limit, most in ((None, 3), (450 << 20, 2), (1, 1)):
        together.clear()
        results = pool.run_in_processes(jobs, 3, lambda _job: None, limit)
        assert [type(result) for result in results] == [Loaded] * len(jobs)
        assert max(together) == most


def test_the_estimate_follows_what_was_measured() -> None:
    estimate = Estimate()
    assert estimate.of(0) == 160 << 20
    assert estimate.of(100 << 20) == 560 << 20
    estimate.learn(10 << 20, 260 << 20)
    assert estimate.of(100 << 20) == 1160 << 20
    estimate.learn(10 << 20, 170 << 20)  # a smaller one takes nothing back
    assert estimate.of(100 << 20) == 1160 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("512MiB", 512 << 20), ("1.5g", 1_500_000_000), ("1000", 1000), ("2TiB", 2 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    from analyzer.commands.options import Size

    assert Size().convert(text, None, None) == size


def test_a_size_that_is_none(sample_traces: Path) -> None:
    assert "'much' is not a size such as 8GB or 512MiB" in refused(sample_traces / "ddp4", "--memory-limit", "much")


# -- bombs


def test_a_decompression_bomb_is_refused_and_may_be_allowed(tmp_path: Path) -> None:
    import gzip

    from tests.parsers.made import three_steps

    bomb = tmp_path / "rank0.json.gz"
    text = three_steps(world=1).text()
    at = text.index('"traceEvents"')
    padded = (text[:at] + " " * (300 << 20) + text[at:]).encode()
    bomb.write_bytes(gzip.compress(padded, 6))
    said = refused(bomb)
    assert said.startswith(f"analyze: {bomb}, byte ")
    assert re.search(r"grows to more than 25[67] MiB \(\d+ times its size\)", said)
    assert "--max-expansion" in said
    allowed = CliRunner().invoke(main, [str(bomb), "--max-expansion", "2000", "--format", "json", "-q"])
    assert allowed.exit_code == 0
    assert '"events":87' in allowed.stdout.replace(" ", "")
    capped = refused(bomb, "--max-expansion", "2000", "--max-unpacked", "280MiB")
    assert re.search(r"grows to more than 2[89]\d MiB", capped)


def test_an_output_in_a_place_that_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write(b"x", str(tmp_path / "no" / "such" / "file"))
