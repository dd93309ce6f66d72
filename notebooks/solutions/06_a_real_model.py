# %% [markdown]
# # Solutions: a real model
#
# **Minutes:** 31
#
# **Goals:** after these exercises you can
#
# - read off which orders carry the weight, and say what the read-out does not see
# - measure how much weight a truncated series misplaces
# - make two shifts of the scores, one that a recurrence can have and one that it cannot
#
# **Before:** [06 A real model](../06_a_real_model.ipynb)

# %%
import torch

from softattn_lib import doctor, exercises, taylor

doctor.check()
torch.set_default_dtype(torch.float64)
exercises.keep_record(False)  # solutions only


# %% [markdown]
# ## The read-out of orders
#
# **Fill in** · 6 minutes · ★☆☆ easy · [Which orders carry the weight?](../06_a_real_model.ipynb#Which-orders-carry-the-weight?)
#
# The read-out of the paper's repository: for each order $n$ the mean of $|x^n / n!|$ over the scores $x$. No model is needed; the checker brings scores.

# %%
def order_sizes(scores, max_order):
    """scores (T,) -> (max_order + 1,): the mean of |score ** n / n!|, for each order n."""
    n = torch.arange(max_order + 1)
    factorial = torch.lgamma(n + 1.0).exp().to(scores)  # lgamma(n + 1) = log n!
    terms = scores.abs()[:, None] ** n / factorial  # blank
    return terms.mean(0)  # blank


# %%
exercises.check("order_sizes", order_sizes)
# exercises.hint("order_sizes")

# %% [markdown] tags=["solution"]
# The absolute value is the trap of notebook 06: a score of $-42$ counts like one of $42$, though softmax gives it no weight at all.

# %% [markdown]
# ## How much weight lies elsewhere
#
# **Modify** · 8 minutes · ★★☆ medium · [How far is order N from softmax?](../06_a_real_model.ipynb#How-far-is-order-N-from-softmax?)
#
# This function takes the largest error of a weight, on rows that do not add up to 1. Change it so that it gives the **misplaced weight** $\frac12 \sum_s |p_s - w_s|$ of each row: the part of the order's shares $p$ that lies on other keys than softmax's $w$.

# %%
def misplaced(scores, order):
    """scores (T_q, T_k), even order -> (T_q,): the misplaced weight of each row."""
    exact = scores.softmax(-1)  # was: exact = scores.exp()
    weights = taylor(order)(scores)
    weights = weights / weights.sum(-1, keepdim=True)  # new
    return (weights - exact).abs().sum(-1) / 2  # was: return (weights - exact).abs().amax(-1)


# %%
exercises.check("misplaced", misplaced)
# exercises.hint("misplaced")

# %% [markdown] tags=["solution"]
# What one key has too much, others have too little, so the sum of sizes counts every bit twice: hence the half. With odd orders weights can be negative, and the number can exceed 1.

# %% [markdown]
# ## A shift that a recurrence can have
#
# **Make** · 7 minutes · ★★☆ medium · [A shift that a recurrence can have](../06_a_real_model.ipynb#A-shift-that-a-recurrence-can-have)
#
# Scores (scale 1, no mask) with one fixed vector taken off every key: the mean key of a reference text, which is not the text at hand.

# %%
def centred_scores(q, k, reference):
    """q, k (T, d), keys of another text (R, d) -> (T, T): scores with its mean key taken off."""
    mean_key = reference.mean(0)  # (d,)
    return q @ (k - mean_key).T


# %%
exercises.check("centred_scores", centred_scores)
# exercises.hint("centred_scores")

# %% [markdown] tags=["solution"]
# Row $t$ moves by $Q_t m^\top$ as a whole, so softmax stays as it was. The state simply stores powers of $K_s - m$.

# %% [markdown]
# ## The middle of a row
#
# **Make** · 10 minutes · ★★★ hard · [Softmax ignores a shift, the series does not](../06_a_real_model.ipynb#Softmax-ignores-a-shift,-the-series-does-not)
#
# Shift each row of scores so that its lowest and its highest visible score lie equally far from 0. Hidden scores are $-\infty$ and stay so. Every row has a visible key.

# %%
def centre_rows(scores):
    """scores (T_q, T_k), -inf where hidden -> the same shape, each row around 0."""
    hidden = scores == -torch.inf
    lowest = scores.masked_fill(hidden, torch.inf).amin(-1, keepdim=True)
    highest = scores.amax(-1, keepdim=True)
    return scores - (lowest + highest) / 2


# %%
exercises.check("centre_rows", centre_rows)
# exercises.hint("centre_rows")

# %% [markdown] tags=["solution"]
# This is the best shift for a series around 0, and it needs all the scores of the row. A recurrent network keeps no keys to score, so it cannot have it; the mean key of the exercise before is what it can have.

# %% [markdown]
# ## How far you are

# %%
exercises.progress("06")

# %% [markdown]
# Back to [06 A real model](../06_a_real_model.ipynb) · On to [the exercises of 07 Denominator, gate, norm](07_denominator_gate_norm.ipynb)
