import subprocess
import sys
from pathlib import Path

from ledger.worked_examples import main

EXPECTED = (Path(__file__).parent / "expected_reports.txt").read_text(encoding="utf-8")


def test_the_six_reports_are_printed_character_for_character(capsys):
    main()
    assert capsys.readouterr().out == EXPECTED


def test_running_the_module_prints_them():
    run = subprocess.run([sys.executable, "-m", "ledger.parallel"], capture_output=True, text=True, check=True)
    assert run.stdout == EXPECTED
    assert run.stderr == ""
