# %% [markdown]
# # Start here: one row of attention
#
# **Minutes:** 15
#
# **Goals:** after this notebook you can
#
# - say in one sentence what softmax attention has to do with recurrent networks
# - move from a plain average to softmax attention, one order at a time, on a real attention head
# - run the same head as a recurrent network, and say what its memory costs
#
# **Before:** you have met queries, keys and values. Needs the small model, which `make model` fetches once. Without it, read on: all outputs are stored.
#
# **Notation:** $t$ step of the query; $s$ step of the key, or a score where no steps are meant; $e$ width of a value, or the base of exp; $G$ one over the denominator; $n$ an order; $N$ the highest order kept; $\phi$ features ([all symbols](01_softmax_attention.ipynb#Symbols)).
#
# **On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ git+ADDRESS"`, with the address of this repository.

# %% [markdown]
# All these notebooks turn around one result, from the paper *On the Expressiveness of Softmax Attention: A Recurrent Neural Network Perspective* (Mongaras and Larson, 2025). In our words: **the numerator of softmax attention is a sum of recurrent networks, one for each power of the score.**

# %%
import torch

from softattn_lib import attention_step, doctor, init_state, parallel_attention, taylor
from softattn_lib.predictions import predict, reveal

doctor.check(model=True)  # says nothing when all is well

# %% [markdown]
# ## A real head
#
# SmolLM2-135M-Instruct is a language model of the Llama family: 30 layers with 9 attention heads each, with weights that were stored in about 4 bits. We let it read one sentence and keep what its attention layers compute with.

# %%
from softattn_lib.llama import capture_attention, load_small_model

model, tokenizer = load_small_model()
text = "She poured the tea slowly, because the cup was old and the tea was hot."
captured = capture_attention(model, tokenizer, text)
print(len(captured.tokens), "tokens in", len(captured.layers), "layers")

# %% [markdown]
# Attention gives each pair of tokens a **score** $s$, the inner product of a query and a key times a scale. Scores decide how hard the rest of this tour is, so we let the code choose: of all 270 heads, the one whose largest score is smallest in size.

# %%
from softattn_lib.scores import rank_heads

ranked = rank_heads(captured)
calm = ranked[0]
print(f"{len(ranked)} heads; the calmest is head {calm.head} of layer {calm.layer}")
print("its scores lie between -2 and 2.5:", calm.lowest > -2 and calm.highest < 2.5)
print("all scores of the wildest head do too:", ranked[-1].radius < 2.5)

# %% [markdown]
# Here are that head's queries, keys and values, in float64 so that equal things come out equal. The last token, the full stop, looks back over the whole sentence: this is the row we follow.

# %%
layer = captured.layers[calm.layer]
q = layer.query[calm.head].double()  # (T, d)
k = layer.key_for_each_query_head()[calm.head].double()  # (T, d)
v = layer.value_for_each_query_head()[calm.head].double()  # (T, e)
scores = k @ q[-1] * layer.scale  # (T,): of the last query
print("T, d and e are", len(q), q.shape[-1], v.shape[-1])

# %% [markdown]
# ## From an average to softmax, one order at a time
#
# Softmax attention weighs each value by $e^{s}$ and divides by the sum of the weights. Now write the exponential as its series and keep the orders $0$ to $N$:
#
# $$e^{s} \approx 1 + s + \frac{s^2}{2} + \dots + \frac{s^N}{N!}$$
#
# Order 0 is blind: every weight is 1, and the output is the plain average of all values so far. Order 1 makes the weight a straight line in the score.
#
# What these notebooks print is stored in them. Below a question it is folded away until you run the cell, so guess first.
#
# **Predict:** which order will you need until the eye sees no difference to softmax: 2, 6 or 12? And which weights can a straight line turn negative?

# %% tags=["nbval-ignore-output"]
from softattn_lib.widgets import order_explorer

widget = order_explorer.mount(captured.tokens, scores, v)
widget

# %% [markdown]
# The same without the mouse: set the order, read the figure. The first of its traces holds the weights, the third the distance of the output to that of softmax attention, for all orders at once.

# %%
for order in range(3):
    widget.order.value = order
    weights = widget.figure.data[0].y  # (T,)
    print(f"order {order}: lowest weight is negative: {min(weights) < 0}")
distance = widget.figure.data[2].y  # one for each order
print("every order comes closer:", all(distance[1:] < distance[:-1]))
close = [order for order, d in enumerate(distance) if d < 0.01]
print("within 1 % from order", close[0] if close else "13 or later", "on")

# %% [markdown]
# So 6 is enough *here*, because the scores are small. Every order helps on this row; in general an order may make it worse, and odd ones can turn weights negative (a straight line does where the score is below $-1$). [02](02_exp_as_a_series.ipynb) shows when.
#
# ## The recurrence
#
# Why bother with powers? Because a power of an inner product is itself an inner product, of longer vectors: with $\phi$ collecting all products of up to $N$ entries, each with a suitable factor, the weight of a query $q$ and a key $k$ up to order $N$ is $\phi(q) \cdot \phi(k)$. Then the sum over the past can be stored instead of the past: each token adds $\phi(k)$ times $[v, 1]$, with its value $v$, to one **state**, and each query reads it. The 1 keeps the denominator.
#
# Some questions stand in a box of their own, like the next one. Run its cell, choose, and commit before you go on: the cell below holds your guess against the result. (A wrong guess is worth as much as a right one: you will see better what happens. Your guesses stay on your machine.)

# %% tags=["nbval-ignore-output"]
predict(
    "00-state-size",
    "The sentence grows from 1 to 17 tokens. What happens to the size of the state?",
    ["it grows with every token", "it stays as it is", "it shrinks"],
)

# %%
order = 2
state = init_state(taylor(order), d=64, e=64, dtype=torch.float64)
outputs, sizes = [], []
for t in range(len(q)):
    out, state = attention_step(q[t], k[t], v[t], state, kernel=taylor(order))
    outputs.append(out)
    sizes.append(state.sums.numel())
    if t in (0, 7, 16):
        print(f"after token {t + 1:2}: state of shape", tuple(state.sums.shape))
change = "grows with every token" if sizes[-1] > sizes[0] else "shrinks"
result = "it stays as it is" if len(set(sizes)) == 1 else f"it {change}"
reveal("00-state-size", result, "every token is added to the same sums. "
       "Nothing is stored token by token.")

# %% [markdown]
# Nothing but the state was handed from token to token. Are these the numbers of the form that compares all pairs of tokens?

# %%
parallel, _ = parallel_attention(q, k, v, kernel=taylor(order))  # (T, e)
difference = (torch.stack(outputs) - parallel).abs().max().item()
print("recurrent and parallel form agree to 1e-12:", difference < 1e-12)

# %% [markdown]
# ## What the memory costs
#
# An ordinary decoder keeps every key and value, the KV cache: $2 \cdot 64$ numbers a token for this head. The state of order 2 keeps 2145 features times 65 columns, whatever the length of the text.
#
# Which one is smaller for our 17 tokens, and by how much?

# %% tags=["nbval-ignore-output"]
predict(
    "00-state-beside-cache",
    "How many times as large as the KV cache of our 17 tokens is the state?",
    low=0.25, high=1024, step=4, log=True, unit="times",
)

# %%
cache = 2 * 64 * len(q)
print(f"KV cache {cache:,} numbers, state {state.sums.numel():,} numbers")
reveal("00-state-beside-cache", state.sums.numel() / cache,
       "a constant size is not a small one: it has a row for each product of up to two of the 64 "
       "entries of a key.")

# %% [markdown]
# A state of constant size is not a small state. From which length of text on does it pay?

# %%
from softattn_lib import num_features

for order in (1, 2, 3, 4):
    floats = num_features(64, order) * 65
    print(f"order {order}: smaller than the cache from token {-(-floats // 128):,} on")

# %% [markdown]
# At order 2 it pays after about a thousand tokens, at order 4 after some four hundred thousand. Softmax itself is the limit of *all* orders: no finite number of them is exact. What the view gives is understanding: which powers a network needs, and what each one remembers.
#
# ## Where next
#
# | notebook | what you do there | minutes |
# |---|---|---|
# | [01 Softmax attention, by hand](01_softmax_attention.ipynb) | compute one row with a pencil; meet the denominator $G_t$ | 25 |
# | [02 exp as a series](02_exp_as_a_series.ipynb) | cut the series off, bound the error, see odd orders fail | 30 |
# | [03 Powers of an inner product](03_powers_of_an_inner_product.ipynb) | turn $(q \cdot k)^n$ into features and count them | 25 |
# | [04 Linear attention is an RNN](04_linear_attention_is_an_rnn.ipynb) | move the sum inside, get a state | 30 |
# | [05 Softmax attention is a sum of RNNs](05_softmax_attention_is_a_sum_of_rnns.ipynb) | put the pieces together: the paper's result | 40 |
# | [06 A real model](06_a_real_model.ipynb) | measure all 270 heads of this model: where the series works, where it is hopeless | 25 |
# | [07 Denominator, gate, norm](07_denominator_gate_norm.ipynb) | put a gate or a norm in the denominator's place, and see what is lost | 50 |
# | [08 What the names hide](08_what_the_names_hide.ipynb) | find out which of 38 variants are one function; put one together | 35 |
# | [09 Expressiveness](09_expressiveness.ipynb) | store random pairs in a state, and count those that come back | 40 |
# | [10 Training the ablations](10_training_the_ablations.ipynb) | train a variant; compare 26 of them over three seeds | 35 |
# | [11 What it costs](11_what_it_costs.ipynb) | measure time and memory; find where the recurrence overtakes softmax | 25 |
# | [12 Beyond Taylor](12_beyond_taylor.ipynb) | replace exp in a pretrained model by better polynomials than Taylor's | 35 |
# | [13 Looking back](13_looking_back.ipynb) | judge eleven statements about attention; look back at your guesses | 15 |
#
# The minutes are for reading, guessing and running; exercises and what you try yourself come on top. In a hurry? 02, 05 and 06 carry the story. A teacher or researcher may want to look at the library's `parallel_attention`, `recurrent_attention` and `check_kernel` first.
#
# ## What you saw
#
# - Replacing $e^s$ by its series up to order $N$ turns numerator and denominator of attention into sums of recurrent networks, and the numbers are the same in both forms.
# - Order 0 is a plain average, order 1 a straight line in the score, and with scores as small as here a few orders come within 1 % of softmax.
# - The state has constant size, and it is large: that is the price of every order.
#
# **Try it:** take another head, `calm = ranked[-1]`, and run the notebook again. Which order do you need now? Does order 12 suffice? (Expect no: it is the head with the widest scores.) Then put in a sentence of your own.

# %% [markdown]
# On to [01 Softmax attention](01_softmax_attention.ipynb)
#
# **Found a mistake?** Open an issue with what `make doctor` prints, and the name of this notebook.
