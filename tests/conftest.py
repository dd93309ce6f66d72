"""Settings that all tests share."""

import sys

# jsonschema imports this for one optional check that notebooks do not use; it takes seconds.
sys.modules.setdefault("rfc3987_syntax", None)

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# The same examples in every run: a red test is red for everybody. A busy machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium or Chrome; without one, the tests that need it are skipped.

    One for each module: while Playwright is open, `asyncio.run` fails in the whole process.
    """
    pytest.importorskip("playwright", reason="no Playwright: `make browser` installs it")
    from tools.browser import chromium, open_browser

    if chromium() is None:
        pytest.skip("no Chromium or Chrome: `make browser` installs one")
    with open_browser() as opened:
        yield opened
