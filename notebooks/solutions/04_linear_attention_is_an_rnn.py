# %% [markdown]
# # Solutions: linear attention is an RNN
#
# **Minutes:** 26
#
# **Goals:** after these exercises you can
#
# - fill a state token by token
# - get a denominator out of the same state
# - join the parallel and the recurrent form in a chunk
#
# **Before:** [04 Linear attention is an RNN](../04_linear_attention_is_an_rnn.ipynb)

# %%
import torch

from softattn_lib import doctor, exercises

doctor.check()
torch.set_default_dtype(torch.float64)
exercises.keep_record(False)  # solutions only


# %% [markdown]
# ## Fill a state
#
# **Fill in** · 6 minutes · ★☆☆ easy · [The state is recurrent](../04_linear_attention_is_an_rnn.ipynb#The-state-is-recurrent)
#
# Fill the state of linear attention with the feature map relu, equation (4.2), token by token.

# %%
def linear_state(k, v):
    """k (T, d), v (T, e) -> (d, e): the state after all T tokens, with the feature map relu."""
    state = torch.zeros(k.shape[-1], v.shape[-1]).to(k)
    for t in range(len(k)):
        written = torch.outer(torch.relu(k[t]), v[t])  # blank
        state = state + written  # blank
    return state


# %%
exercises.check("linear_state", linear_state)
# exercises.hint("linear_state")

# %% [markdown] tags=["solution"]
# The loop shows the recurrence. The sum that it makes is one matrix product, `torch.relu(k).T @ v`, and that is how the parallel form gets the state.

# %% [markdown]
# ## A mean out of the state
#
# **Modify** · 8 minutes · ★★☆ medium · [The denominator comes along](../04_linear_attention_is_an_rnn.ipynb#The-denominator-comes-along)
#
# This recurrent network reads a *sum* of weighted values. Change it so that it gives their *mean*: divide by the sum of the weights, and take that sum out of the same state.

# %%
def linear_attention(q, k, v):
    """q, k (T, d), v (T, e) -> (T, e): causal means of the values, feature map elu + 1."""
    q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    values = torch.cat([v, torch.ones_like(v[:, :1])], dim=-1)  # was: values = v
    state, reads = torch.zeros(k.shape[-1], values.shape[-1]).to(k), []
    for t in range(len(q)):
        state = state + torch.outer(k[t], values[t])
        reads.append(q[t] @ state)
    reads = torch.stack(reads)
    return reads[:, :-1] / reads[:, -1:]  # was: return reads


# %%
exercises.check("linear_attention", linear_attention)
# exercises.hint("linear_attention")

# %% [markdown] tags=["solution"]
# One more column, and nothing else in the loop changes. The column holds the sum of the key features, and the query weighs it as it weighs the others.

# %% [markdown]
# ## Pairs inside, a state between
#
# **Make** · 12 minutes · ★★★ hard · [Three forms, one function](../04_linear_attention_is_an_rnn.ipynb#Three-forms,-one-function)
#
# A state holds the past, and a chunk of $C$ tokens comes in. Give the read-outs of the chunk's queries, and the state after it, **without a loop over tokens**. (Feature map identity, no denominator. The check sees the numbers alone and would let a loop pass.)

# %%
def one_chunk(state, q, k, v):
    """state (d, e), q and k (C, d), v (C, e) -> the pair: reads (C, e), new state (d, e)."""
    weights = (q @ k.T).tril()  # pairs inside the chunk
    reads = q @ state + weights @ v
    return reads, state + k.T @ v


# %%
exercises.check("one_chunk", one_chunk)
# exercises.hint("one_chunk")

# %% [markdown] tags=["solution"]
# With $C = T$ and an empty state this is the parallel form, with $C = 1$ the recurrent one. In between one chooses $C$ for speed.

# %% [markdown]
# ## How far you are

# %%
exercises.progress("04")

# %% [markdown]
# Back to [04 Linear attention is an RNN](../04_linear_attention_is_an_rnn.ipynb) · On to [the exercises of 05 Softmax attention is a sum of RNNs](05_softmax_attention_is_a_sum_of_rnns.ipynb)
