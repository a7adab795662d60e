"""A built wheel and source distribution hold all that is needed, and the wheel runs from anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import analyzer
from benchmarks.docs import ROOT

NEEDED = (
    "analyzer/py.typed",
    "analyzer/glossary.toml",
    "analyzer/crosscheck/worker.py",
    "heuristics/kernels.toml",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel is built from the source distribution, as `python -m build` does."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel_holds_data_types_and_the_manual(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"commlens-{analyzer.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = f"commlens-{analyzer.__version__}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        scripts = archive.read(f"{info}/entry_points.txt").decode()
    kept = [path for room in ("analyzer", "heuristics", "ledger", "parsers") for path in (ROOT / room).rglob("*")]
    data = [str(p.relative_to(ROOT)) for p in kept if p.is_file() and p.suffix not in (".pyc",)]
    assert set(data) <= set(names)
    assert set(NEEDED) <= set(names)
    assert f"commlens-{analyzer.__version__}.data/data/share/man/man1/analyze.1" in names
    assert {name.partition("/")[0] for name in names} == {
        "analyzer", "heuristics", "ledger", "parsers", info, info.replace("dist-info", "data"),
    }  # fmt: skip
    assert "analyze = analyzer.cli:main" in scripts
    assert "Project-URL" not in metadata
    assert "Provides-Extra: hta" in metadata


def test_the_source_distribution_holds_tests_and_documents(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "docs/man/analyze.1", "mkdocs.yml", "check"} <= names
    assert any(name.startswith("tests/") for name in names)
    assert any(name.startswith("sample_traces/ddp4/") for name in names)


def test_the_installed_wheel_analyses_reports_and_explains(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    place = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(place), wheel]
    subprocess.run(pip, check=True, capture_output=True)
    env = {**os.environ, "PYTHONPATH": str(place), "PYTHONSAFEPATH": "1"}

    def ran(*arguments: str) -> str:
        command = [sys.executable, str(place / "bin" / "analyze"), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout

    where = subprocess.run(
        [sys.executable, "-c", "import analyzer; print(analyzer.__file__)"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(place))
    job = str(ROOT / "sample_traces" / "ddp4")
    assert "Layout  tp1  cp1  pp1  dp4" in ran(job, "-q")
    assert "Tensor parallelism" in ran("explain", "tp")
    ran("report", job, "-o", "report.html", "-q")
    assert "</html>" in (tmp_path / "report.html").read_text()
