"""The toy that all notebooks share: four tokens, width two, numbers one can check by hand.

The scores q_t . k_s (scale 1, as in the paper's equations) lie between -2 and 3, wide enough that
low orders fail visibly and odd ones turn a weight negative.
"""

import torch

q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -2.0]], dtype=torch.float64)
k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0], [0.5, 0.5]], dtype=torch.float64)
v = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
tokens = ("first", "second", "third", "fourth")
