"""Settings that all tests share."""

import sys

# jsonschema imports this for one optional check that notebooks do not use; it takes seconds.
sys.modules.setdefault("rfc3987_syntax", None)

import torch
from hypothesis import settings

torch.set_num_threads(1)

# The same examples in every run: a red test is red for everybody. A busy machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
