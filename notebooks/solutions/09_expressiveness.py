# %% [markdown]
# # Solutions: expressiveness
#
# **Minutes:** 31
#
# **Goals:** after these exercises you can
#
# - write pairs into a state and read them back
# - find the block of weights that a state has to carry
# - compute how much random keys disturb each other
# - say what a set of features leaves unexplained
#
# **Before:** [09 Expressiveness](../09_expressiveness.ipynb)

# %%
import math

import torch

from softattn_lib import doctor, exercises, kronecker_power

doctor.check()
torch.set_default_dtype(torch.float64)
exercises.keep_record(False)  # solutions only


# %% [markdown]
# ## Write all pairs, ask for each
#
# **Fill in** · 6 minutes · ★☆☆ easy · [Capacity: random pairs, no training](../09_expressiveness.ipynb#Capacity:-random-pairs,-no-training)
#
# Write all pairs of a key and a symbol into one state of order $n$, then ask with each key. The answer is the number of the symbol with the largest read.

# %%
def read_back(keys, values, n):
    """keys (P, d), one-hot values (P, symbols), order n -> (P,): the symbol that each key names."""
    powers = kronecker_power(keys, n)  # (P, d ** n)
    state = powers.T @ values  # blank
    return (powers @ state).argmax(-1)  # blank


# %%
exercises.check("read_back", read_back)
# exercises.hint("read_back")

# %% [markdown] tags=["solution"]
# No denominator is needed: it would divide a whole read by one positive number, and the largest entry would stay the largest.

# %% [markdown]
# ## What crosses the middle
#
# **Modify** · 7 minutes · ★★☆ medium · [What a mask does](../09_expressiveness.ipynb#What-a-mask-does)
#
# This measures the rank of the whole causal matrix of weights, which the zeros of the mask raise. Change it so that it measures what the state carries across the middle: the rank of the **later queries on the earlier keys**.

# %%
def state_rank(weights):
    """weights (T, T) of all pairs, T even -> the rank of the block that crosses the middle."""
    causal = weights.tril()
    half = len(weights) // 2
    crossing = causal[half:, :half]  # was: crossing = causal
    return torch.linalg.matrix_rank(crossing, rtol=1e-5).item()


# %%
exercises.check("state_rank", state_rank)
# exercises.hint("state_rank")

# %% [markdown] tags=["solution"]
# Nothing is masked in this block, so equation (9.1) holds for it: its rank is at most the number of rows of the state.

# %% [markdown]
# ## How much the others disturb
#
# **Make** · 8 minutes · ★★☆ medium · [Capacity: random pairs, no training](../09_expressiveness.ipynb#Capacity:-random-pairs,-no-training)
#
# Equation (9.2): the mean squared weight that a pure power $n$ gives to a random other key of length 1 in $d$ dimensions,
#
# $\frac{1 \cdot 3 \cdots (2n - 1)}{d\, (d + 2) \cdots (d + 2n - 2)}.$

# %%
def expected_overlap(n, d):
    """order n, width d -> the mean of cos ** (2 n) over random directions, a number."""
    return math.prod((2 * j + 1) / (d + 2 * j) for j in range(n))


# %%
exercises.check("expected_overlap", expected_overlap)
# exercises.hint("expected_overlap")

# %% [markdown] tags=["solution"]
# For $n = 1$ it is $1/d$, since $d$ equal squares add up to 1. Each further order multiplies it by another small fraction, and so leaves room for more pairs.

# %% [markdown]
# ## What no mixture of features gives
#
# **Make** · 10 minutes · ★★★ hard · [What no element-wise map can do](../09_expressiveness.ipynb#What-no-element-wise-map-can-do)
#
# Fit the target by the best mixture of the features (least squares, no constant added), and give the share of the target's **variance** that the fit leaves over, as a number.

# %%
def unexplained(features, target):
    """features (P, D), target (P,) -> the variance left by the fit over the target's, a number."""
    solution = torch.linalg.lstsq(features, target[:, None]).solution[:, 0]
    return ((target - features @ solution).var() / target.var()).item()


# %%
exercises.check("unexplained", unexplained)
# exercises.hint("unexplained")

# %% [markdown] tags=["solution"]
# With it you can repeat the experiment of notebook 09: element-wise features of a key leave much of a squared score over, and three products of two entries settle it.

# %% [markdown]
# ## How far you are

# %%
exercises.progress("09")

# %% [markdown]
# Back to [09 Expressiveness](../09_expressiveness.ipynb)
