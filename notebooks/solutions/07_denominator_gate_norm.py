# %% [markdown]
# # Solutions: denominator, gate, norm
#
# **Minutes:** 23
#
# **Goals:** after these exercises you can
#
# - write the paper's Gate form
# - turn softmax attention into the Norm form
# - place a gate where it has something to do
#
# **Before:** [07 Denominator, gate, norm](../07_denominator_gate_norm.ipynb)

# %%
import torch

from softattn_lib import doctor, exercises, taylor

doctor.check()
torch.set_default_dtype(torch.float64)
exercises.keep_record(False)  # solutions only


# %% [markdown]
# ## Gate in place of the denominator
#
# **Fill in** · 5 minutes · ★☆☆ easy · [The Gate form](../07_denominator_gate_norm.ipynb#The-Gate-form)
#
# The paper's Gate form, equation (7.2), with the gates given: $\sigma_t / t$ stands where the denominator stood.

# %%
def gate_form(q, k, v, gate):
    """q, k (T, d), v (T, e), gate (T,) -> (T, e): the Gate form, scale 1."""
    numerator = (q @ k.T).exp().tril() @ v  # (T, e)
    steps = torch.arange(1, len(q) + 1)  # blank
    return gate[:, None] * numerator / steps[:, None]  # blank


# %%
exercises.check("gate_form", gate_form)
# exercises.hint("gate_form")

# %% [markdown] tags=["solution"]
# Both factors belong to the query's token. They could just as well be multiplied into one number per token, which is all that $G_t$ was.

# %% [markdown]
# ## Norm in place of the denominator
#
# **Modify** · 6 minutes · ★★☆ medium · [The Norm form](../07_denominator_gate_norm.ipynb#The-Norm-form)
#
# This is causal softmax attention with the scale 1. Change it into the paper's Norm form, equation (7.4).

# %%
def norm_form(q, k, v):
    """q, k (T, d), v (T, e) -> (T, e): the Norm form, every row of length 1."""
    weights = (q @ k.T).exp().tril()
    numerator = weights @ v
    size = numerator.norm(dim=-1, keepdim=True)  # was: size = weights.sum(-1, keepdim=True)
    return numerator / size


# %%
exercises.check("norm_form", norm_form)
# exercises.hint("norm_form")

# %% [markdown] tags=["solution"]
# If you left the denominator in and divided by the length afterwards, the checker said *right* as well: a positive factor cancels in a norm (7.5).

# %% [markdown]
# ## A gate that acts
#
# **Make** · 12 minutes · ★★★ hard · [What is inert](../07_denominator_gate_norm.ipynb#What-is-inert)
#
# Causal attention with the weights of `taylor(order)`, the L2 norm in place of the denominator, and a gate that has an effect. A row of length 0 stays 0. (Scale 1. Parallel or recurrent, as you like.)

# %%
def gated_norm(q, k, v, gate, order):
    """q, k (T, d), v (T, e), gate (T,), order N -> (T, e): rows of length gate[t], or 0."""
    y = taylor(order)(q @ k.T).tril() @ v
    length = y.norm(dim=-1, keepdim=True)
    return gate[:, None] * y / torch.where(length > 0, length, 1)


# %%
exercises.check("gated_norm", gated_norm)
# exercises.hint("gated_norm")

# %% [markdown] tags=["solution"]
# The gate multiplies the *result*. Multiplied into $y$ it would cancel with the length, and get no gradient in training.

# %% [markdown]
# ## How far you are

# %%
exercises.progress("07")

# %% [markdown]
# Back to [07 Denominator, gate, norm](../07_denominator_gate_norm.ipynb) · On to [the exercises of 08 What the names hide](08_what_the_names_hide.ipynb)
