import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_prints_what_the_page_says():
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    printed = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)[1]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/ledger.md", "exec"), {})
    assert out.getvalue() == printed
