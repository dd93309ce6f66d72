# %% [markdown]
# # Solutions: powers of an inner product
#
# **Minutes:** 26
#
# **Goals:** after these exercises you can
#
# - write a Kronecker square with one product
# - pack it, with each count where it belongs
# - put a whole truncated series into one row
#
# **Before:** [03 Powers of an inner product](../03_powers_of_an_inner_product.ipynb)

# %%
import math

import torch

from softattn_lib import doctor, exercises

doctor.check()
torch.set_default_dtype(torch.float64)
exercises.keep_record(False)  # solutions only


# %% [markdown]
# ## All products of two entries
#
# **Fill in** · 6 minutes · ★☆☆ easy · [The square, with a pencil](../03_powers_of_an_inner_product.ipynb#The-square,-with-a-pencil)
#
# For each token the row of all products $x_i x_j$, with no loop over $i$ or $j$: first as a $d \times d$ matrix, then as one row.

# %%
def kronecker_square(x):
    """x (T, d) -> (T, d * d): of each row, all products of two of its entries."""
    products = x[:, :, None] * x[:, None, :]  # blank
    return products.flatten(1)  # blank


# %%
exercises.check("kronecker_square", kronecker_square)
# exercises.hint("kronecker_square")

# %% [markdown] tags=["solution"]
# The token stays the first axis throughout. A product over tokens, `x.T @ x`, would add the rows up: that is what a state does with them, later.

# %% [markdown]
# ## Each product once
#
# **Modify** · 8 minutes · ★★☆ medium · [The same number again and again](../03_powers_of_an_inner_product.ipynb#The-same-number-again-and-again)
#
# These rows hold every product once, $x_i x_j$ with $i \le j$. But their inner products are not the squared scores. Change the code so that they are, with the same factor for queries and keys.

# %%
def packed_square(x):
    """x (T, d) -> (T, d (d + 1) / 2): rows whose inner products are the squared scores."""
    d = x.shape[-1]
    i, j = torch.triu_indices(d, d)  # all pairs with i <= j
    count = 1 + (i < j).to(x)  # new
    return count.sqrt() * x[:, i] * x[:, j]  # was: return x[:, i] * x[:, j]


# %%
exercises.check("packed_square", packed_square)
# exercises.hint("packed_square")

# %% [markdown] tags=["solution"]
# $(q k^\top)^2$ holds $q_1 q_2\, k_1 k_2$ twice and $q_1^2 k_1^2$ once. Query and key each bring $\sqrt{2}$, and the product is the count.

# %% [markdown]
# ## The whole series in one row
#
# **Make** · 12 minutes · ★★★ hard · [All orders in one row](../03_powers_of_an_inner_product.ipynb#All-orders-in-one-row)
#
# The query's row for the series up to order $N$: the Kronecker powers $q^{\otimes 0}, q^{\otimes 1}, \dots, q^{\otimes N}$ side by side, in full and not packed, each divided by $n!$. With a key's row of plain powers the inner product is then the whole cut-off series.

# %%
def all_orders(q, order):
    """q (T, d), order N -> (T, 1 + d + ... + d ** N): the power n divided by n!, side by side."""
    power, rows = torch.ones_like(q[:, :1]), []
    for n in range(order + 1):
        rows.append(power / math.factorial(n))
        power = (power[:, :, None] * q[:, None, :]).flatten(1)
    return torch.cat(rows, dim=-1)


# %%
exercises.check("all_orders", all_orders)
# exercises.hint("all_orders")

# %% [markdown] tags=["solution"]
# The coefficients stand on the query's side alone. So the keys need not know which polynomial will be asked for, and neither does the state that they fill.

# %% [markdown]
# ## How far you are

# %%
exercises.progress("03")

# %% [markdown]
# Back to [03 Powers of an inner product](../03_powers_of_an_inner_product.ipynb) · On to [the exercises of 04 Linear attention is an RNN](04_linear_attention_is_an_rnn.ipynb)
