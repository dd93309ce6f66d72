# %% [markdown]
# # Solutions: softmax attention is a sum of RNNs
#
# **Minutes:** 28
#
# **Goals:** after these exercises you can
#
# - write the state of any order
# - add the orders up, with coefficients and denominator
# - build a recurrent network of order 2 from nothing
#
# **Before:** [05 Softmax attention is a sum of RNNs](../05_softmax_attention_is_a_sum_of_rnns.ipynb)

# %%
import math

import torch

from softattn_lib import doctor, exercises, kronecker_power

doctor.check()
torch.set_default_dtype(torch.float64)
exercises.keep_record(False)  # solutions only


# %% [markdown]
# ## The state of one order
#
# **Fill in** · 5 minutes · ★☆☆ easy · [The state of one order](../05_softmax_attention_is_a_sum_of_rnns.ipynb#The-state-of-one-order)
#
# The state $H_T^n = \sum_s (K_s^{\otimes n})^\top V_s$ after all tokens, equation (5.1). Use `kronecker_power(k, n)`.

# %%
def order_state(k, v, n):
    """k (T, d), v (T, e), order n -> (d ** n, e): the state of this order after T tokens."""
    powers = kronecker_power(k, n)  # blank
    return powers.T @ v  # blank


# %%
exercises.check("order_state", order_state)
# exercises.hint("order_state")

# %% [markdown] tags=["solution"]
# With a 1 behind each value the same line gives $[H^n, z^n]$, numerator and denominator together.

# %% [markdown]
# ## Add the orders up
#
# **Modify** · 8 minutes · ★★☆ medium · [The sum](../05_softmax_attention_is_a_sum_of_rnns.ipynb#The-sum)
#
# One query reads the states of several orders, with a 1 behind each value for the denominator. Two things are wrong with the sum. Compare it with equation (5.2), and change it.

# %%
def sum_of_rnns(q, k, v, order):
    """q (d,), k (T, d), v (T, e), order N -> (e,): orders 0 to N, divided by their own sum."""
    values = torch.cat([v, torch.ones_like(v[:, :1])], dim=-1)
    total = 0
    for n in range(order + 1):  # was: for n in range(1, order + 1):
        state = kronecker_power(k, n).T @ values
        read = kronecker_power(q, n) @ state
        total = total + read / math.factorial(n)  # was: total = total + read
    return total[:-1] / total[-1]


# %%
exercises.check("sum_of_rnns", sum_of_rnns)
# exercises.hint("sum_of_rnns")

# %% [markdown] tags=["solution"]
# Order 0 adds the sum of the values above and the number of tokens below. Without it the row is no longer pulled towards the plain mean.

# %% [markdown]
# ## A network of order 2
#
# **Make** · 15 minutes · ★★★ hard · [Softmax is the limit](../05_softmax_attention_is_a_sum_of_rnns.ipynb#Softmax-is-the-limit)
#
# All of notebook 05 in one function: a causal recurrent network that keeps the orders 0, 1 and 2 of exp, goes through the tokens once, and divides by its own denominator. (The scale is 1. Any way that gives the numbers counts as right; the loop is the point.)

# %%
def second_order_rnn(q, k, v):
    """q, k (T, d), v (T, e) -> (T, e): causal, orders 0 to 2 over their own sum."""
    values = torch.cat([v, torch.ones_like(v[:, :1])], dim=-1)
    states, outs = [0.0, 0.0, 0.0], []
    for t in range(len(q)):
        total = 0.0
        for n in range(3):
            states[n] = states[n] + torch.outer(kronecker_power(k[t], n), values[t])
            total = total + kronecker_power(q[t], n) @ states[n] / math.factorial(n)
        outs.append(total[:-1] / total[-1])
    return torch.stack(outs)


# %%
exercises.check("second_order_rnn", second_order_rnn)
# exercises.hint("second_order_rnn")

# %% [markdown] tags=["solution"]
# Three states of $1$, $d$ and $d^2$ rows. The library packs them, puts them into one matrix, and does the rest as you did: `recurrent_attention(q, k, v, kernel=taylor(2), scale=1.0)`.

# %% [markdown]
# ## How far you are

# %%
exercises.progress("05")

# %% [markdown]
# Back to [05 Softmax attention is a sum of RNNs](../05_softmax_attention_is_a_sum_of_rnns.ipynb) · On to [the exercises of 06 A real model](06_a_real_model.ipynb)
