# %% [markdown]
# # Solutions: what the names hide
#
# **Minutes:** 33
#
# **Goals:** after these exercises you can
#
# - let a state forget, and say what a new token does not lose
# - put an input gate where it belongs
# - normalise along the right axis, and notice the wrong one
# - write a decay for all pairs at once
#
# **Before:** [08 What the names hide](../08_what_the_names_hide.ipynb)

# %%
import torch

from softattn_lib import doctor, exercises

doctor.check()
torch.set_default_dtype(torch.float64)
exercises.keep_record(False)  # solutions only


# %% [markdown]
# ## A state that forgets
#
# **Fill in** · 6 minutes · ★☆☆ easy · [One formula, three parts](../08_what_the_names_hide.ipynb#One-formula,-three-parts)
#
# The state of equation (8.1) with a decay: in step $t$ what the state holds is multiplied by $e^{\texttt{log\_decay}_t}$, and the new token enters whole. (Feature map identity, no gates.)

# %%
def decaying_state(k, v, log_decay):
    """k (T, d), v (T, e), log_decay (T,) -> (d, e): the state after all T tokens."""
    state = torch.zeros(k.shape[-1], v.shape[-1]).to(k)
    for t in range(len(k)):
        kept = log_decay[t].exp() * state  # blank
        state = kept + torch.outer(k[t], v[t])  # blank
    return state


# %%
exercises.check("decaying_state", decaying_state)
# exercises.hint("decaying_state")

# %% [markdown] tags=["solution"]
# Whether a token decays on entry is a convention, and libraries differ in it. Here it does not: its first decay is that of the next step.

# %% [markdown]
# ## A gate on the way in
#
# **Modify** · 7 minutes · ★★☆ medium · [One formula, three parts](../08_what_the_names_hide.ipynb#One-formula,-three-parts)
#
# This causal softmax attention (scale 1) has a gate among its arguments and does not use it. Make it the *input* gate $\iota_s$ of equation (8.1): it multiplies the value of token $s$, and leaves the sum of the weights as it is.

# %%
def input_gated(q, k, v, gate):
    """q, k (T, d), v (T, e), gate (T,) -> (T, e): softmax attention to gated values."""
    weights = (q @ k.T).exp().tril()
    numerator = weights @ (gate[:, None] * v)  # was: numerator = weights @ v
    return numerator / weights.sum(-1, keepdim=True)


# %%
exercises.check("input_gated", input_gated)
# exercises.hint("input_gated")

# %% [markdown] tags=["solution"]
# With the gate in the denominator too, a token with gate 0 would be gone altogether, as under a mask. Here it still takes part in the sum of the weights, and pulls the output towards 0.

# %% [markdown]
# ## A cosine that is one
#
# **Make** · 8 minutes · ★★☆ medium · [Predict which coincide](../08_what_the_names_hide.ipynb#Predict-which-coincide)
#
# Queries and keys of several heads; give the cosine of every query with every key of its head. A vector of zeros has the cosine 0 with everything. (One of the paper's variants means to do this and normalises along another axis: see the errata of notebook 08.)

# %%
def cosine_scores(q, k):
    """q, k (H, T, d) -> (H, T, T): the cosine of each query with each key, head by head."""
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    return q @ k.mT


# %%
exercises.check("cosine_scores", cosine_scores)
# exercises.hint("cosine_scores")

# %% [markdown] tags=["solution"]
# `normalize` without `dim` goes along axis 1. For (H, T, d) that is the tokens, for (B, H, T, d) the heads, and for neither the width.

# %% [markdown]
# ## Decay for all pairs at once
#
# **Make** · 12 minutes · ★★★ hard · [One formula, three parts](../08_what_the_names_hide.ipynb#One-formula,-three-parts)
#
# The decay $a_{s..t}$ for all pairs: the product of the decays of the steps *after* $s$ up to $t$, 0 in the future ($s > t$). No loop. A single step may forget nearly everything, with a `log_decay` of $-800$.

# %%
def decay_matrix(log_decay):
    """log_decay (T,) -> (T, T): row t, column s holds the decay of token s at step t."""
    running = log_decay.cumsum(0)
    return (running[:, None] - running).exp().tril()


# %%
exercises.check("decay_matrix", decay_matrix)
# exercises.hint("decay_matrix")

# %% [markdown] tags=["solution"]
# Above the diagonal the differences are positive and exp may overflow. `tril` puts zeros there whatever it finds; a product with a mask of zeros would make NaN of inf. (For gradients one masks before exp, with $-\infty$.)

# %% [markdown]
# ## How far you are

# %%
exercises.progress("08")

# %% [markdown]
# Back to [08 What the names hide](../08_what_the_names_hide.ipynb) · On to [the exercises of 09 Expressiveness](09_expressiveness.ipynb)
