# %% [markdown]
# # Solutions: softmax attention, by hand
#
# **Minutes:** 25
#
# **Goals:** after these exercises you can
#
# - write one row of softmax attention from memory
# - put mask and scale where they belong
# - make a masked softmax that no score can break
#
# **Before:** [01 Softmax attention, by hand](../01_softmax_attention.ipynb)

# %%
import torch

from softattn_lib import doctor, exercises

doctor.check()
torch.set_default_dtype(torch.float64)
exercises.keep_record(False)  # solutions only


# %% [markdown]
# ## One row
#
# **Fill in** · 5 minutes · ★☆☆ easy · [One row with a pencil](../01_softmax_attention.ipynb#One-row-with-a-pencil)
#
# The four steps of the pencil for one query that sees all keys: score, weigh, sum, divide. Two of them are blank.

# %%
def softmax_row(q, k, v):
    """q (d,), k (T, d), v (T, e) -> (e,): the output for one query, scale 1."""
    scores = k @ q  # (T,)
    weights = scores.exp()  # blank
    return weights @ v / weights.sum()  # blank


# %%
exercises.check("softmax_row", softmax_row)
# exercises.hint("softmax_row")

# %% [markdown] tags=["solution"]
# The order of the last two steps is free: dividing the weights first gives the same row, and shows each value's share on the way.

# %% [markdown]
# ## Mask and scale
#
# **Modify** · 8 minutes · ★★☆ medium · [All rows at once, and a leak](../01_softmax_attention.ipynb#All-rows-at-once,-and-a-leak)
#
# This is the careless attention: every query sees the future, and nothing is scaled. Change it so that query $t$ sees the keys $s \le t$ only, and every score is multiplied by $d^{-1/2}$.

# %%
def causal_attention(q, k, v):
    """q, k (T, d), v (T, e) -> (T, e): causal softmax attention with the scale d ** -0.5."""
    scores = q @ k.T * q.shape[-1] ** -0.5  # was: scores = q @ k.T
    weights = scores.exp().tril()  # was: weights = scores.exp()
    return weights @ v / weights.sum(-1, keepdim=True)


# %%
exercises.check("causal_attention", causal_attention)
# exercises.hint("causal_attention")

# %% [markdown] tags=["solution"]
# The mask multiplies the *weights* by 0 here. On the scores it would have to be $-\infty$, since $e^0 = 1$ is no mask.

# %% [markdown]
# ## A softmax that survives
#
# **Make** · 12 minutes · ★★★ hard · [The row's maximum, and when to take it](../01_softmax_attention.ipynb#The-row's-maximum,-and-when-to-take-it)
#
# Each row of `scores` becomes weights that add up to 1 over the visible keys and are 0 elsewhere. No score may break it, however large, hidden ones included. A row without any visible key becomes all 0.

# %%
def masked_softmax(scores, visible):
    """scores (T_q, T_k), visible (T_q, T_k) of bools -> (T_q, T_k) weights."""
    hidden = scores.masked_fill(~visible, -torch.inf)
    weights = (hidden - hidden.amax(-1, keepdim=True)).exp()
    return (weights / weights.sum(-1, keepdim=True)).nan_to_num(0.0)


# %%
exercises.check("masked_softmax", masked_softmax)
# exercises.hint("masked_softmax")

# %% [markdown] tags=["solution"]
# An empty row has the maximum $-\infty$, and $-\infty - (-\infty)$ is NaN; only such a row can be NaN, so it may be replaced at the end. Torch's own softmax can stand for the last two lines: `hidden.softmax(-1).nan_to_num(0.0)`.

# %% [markdown]
# ## How far you are

# %%
exercises.progress("01")

# %% [markdown]
# Back to [01 Softmax attention, by hand](../01_softmax_attention.ipynb) · On to [the exercises of 02 exp as a series](02_exp_as_a_series.ipynb)
