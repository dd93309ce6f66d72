"""Notebooks as tests: what nbval leaves uncompared, and how long a notebook may take."""

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

# jsonschema imports this for one optional check that notebooks do not use; it takes seconds.
sys.modules.setdefault("rfc3987_syntax", None)

from tools.notebooks import NOT_COMPARED, new_learner

seconds = Counter()
scratch = pytest.StashKey()
collect_ignore_glob = ["exercises/my_*"]  # a learner's own


def pytest_configure(config):
    """No exercise is solved and nothing guessed, whoever runs the notebooks; nothing is recorded."""
    folder = config.stash[scratch] = tempfile.TemporaryDirectory()
    os.environ |= new_learner(folder.name)


def pytest_addoption(parser):
    parser.addoption(
        "--notebook-seconds", type=float, default=60.0, help="the longest that a notebook may take"
    )


def pytest_collectstart(collector):
    if collector.path and collector.path.suffix == ".ipynb":
        collector.skip_compare += NOT_COMPARED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Fail the cells that end after their notebook's time is up (the kernel's start counts)."""
    report = yield
    limit = item.config.option.notebook_seconds
    name = str(item.path.relative_to(Path(__file__).parent))
    seconds[name] += report.duration
    if report.when == "call" and report.passed and seconds[name] > limit:
        report.outcome = "failed"
        report.longrepr = f"{name} takes more than {limit:g} s, the limit for a notebook"
    return report


def pytest_terminal_summary(terminalreporter):
    for name, duration in sorted(seconds.items()):
        terminalreporter.write_line(f"{name}: {duration:.1f} s")
