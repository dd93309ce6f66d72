# %% [markdown]
# # Solutions: exp as a series
#
# **Minutes:** 23
#
# **Goals:** after these exercises you can
#
# - sum the series of exp without a single factorial
# - turn softmax into its truncated series, and leave out what no longer holds
# - find the order that a given size of scores needs
#
# **Before:** [02 exp as a series](../02_exp_as_a_series.ipynb)

# %%
import math

import torch

from softattn_lib import doctor, exercises, taylor

doctor.check()
torch.set_default_dtype(torch.float64)
exercises.keep_record(False)  # solutions only


# %% [markdown]
# ## The series, term by term
#
# **Fill in** · 5 minutes · ★☆☆ easy · [Why a series](../02_exp_as_a_series.ipynb#Why-a-series)
#
# The sum of $x^n / n!$ for $n = 0$ to $N$. Each term follows from the one before, so no factorial has to be computed.

# %%
def truncated_exp(x, order):
    """x of any shape, order N -> same shape: the sum of x**n / n! for n = 0 to N."""
    term = torch.ones_like(x)  # order 0
    total = term.clone()
    for n in range(1, order + 1):
        term = term * x / n  # blank
        total = total + term  # blank
    return total


# %%
exercises.check("truncated_exp", truncated_exp)
# exercises.hint("truncated_exp")

# %% [markdown] tags=["solution"]
# This order of work also keeps the numbers small: $x^n$ and $n!$ alone overflow long before their ratio does.

# %% [markdown]
# ## From softmax to its series
#
# **Modify** · 8 minutes · ★★☆ medium · [Two habits that break](../02_exp_as_a_series.ipynb#Two-habits-that-break)
#
# This function gives the softmax shares of a row, in the usual careful way. Change it so that `exp` is cut off after the order $N$, and the shares still add up to 1. Mind what is right for `exp` alone.

# %%
def series_shares(scores, order):
    """scores (T,), order N -> (T,): the share of each key, exp cut off after the order."""
    # was: scores = scores - scores.max()
    terms = [scores**n / math.factorial(n) for n in range(order + 1)]  # new
    weights = sum(terms)  # was: weights = scores.exp()
    return weights / weights.sum()


# %%
exercises.check("series_shares", series_shares)
# exercises.hint("series_shares")

# %% [markdown] tags=["solution"]
# Nothing replaces the shift. A polynomial does not overflow at the scores where it is any good, and the shift would move them all to one side of 0, the bad one.

# %% [markdown]
# ## How many orders
#
# **Make** · 10 minutes · ★★★ hard · [What is missing](../02_exp_as_a_series.ipynb#What-is-missing)
#
# Find the smallest **even** order $N$ for which every score with $|x| \le R$ gets a weight within the tolerance: $|P_N(x) / e^x - 1| \le$ `tolerance`. For even orders one score decides; which? (`taylor(order)` can be called on a number.)

# %%
def order_for_radius(radius, tolerance):
    """radius R, tolerance -> the smallest even order that is good enough, an int."""
    order = 0
    while abs(taylor(order)(-radius) / math.exp(-radius) - 1) > tolerance:
        order += 2
    return order


# %%
exercises.check("order_for_radius", order_for_radius)
# exercises.hint("order_for_radius")

# %% [markdown] tags=["solution"]
# At $-R$ the terms alternate in sign and the exact weight is smallest, so the relative error is largest there. The library's `order_for_tolerance` finds the same orders from the dropped terms alone, which it can sum without a minus sign. At radius 18 and tolerance 0.001 the loop above would never end: so many digits cancel in float64.

# %% [markdown]
# ## How far you are

# %%
exercises.progress("02")

# %% [markdown]
# Back to [02 exp as a series](../02_exp_as_a_series.ipynb) · On to [the exercises of 03 Powers of an inner product](03_powers_of_an_inner_product.ipynb)
