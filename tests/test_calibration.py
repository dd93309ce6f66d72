"""One polynomial for each head of a small random model: fitted, stored, judged, refused."""

import copy
import math
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from softattn_lib import taylor
from softattn_lib.calibration import (
    FAMILIES,
    Calibration,
    LayerCalibration,
    ScoresOutsideWarning,
    calibrate,
    fingerprint,
    judge,
    load_calibration,
    take_sample,
)
from softattn_lib.families import ChebyshevPolynomial, chebyshev, minimax, on_interval
from softattn_lib.fitting import least_squares, observe, square, taylor_about_best_center
from softattn_lib.llama import capture_attention
from softattn_lib.matching import match_outputs

LAYERS, HEADS, KEY_HEADS = 2, 6, 2
quiet = pytest.mark.filterwarnings("ignore::softattn_lib.calibration.ScoresOutsideWarning")


def tiny_model(seed=0, **options):
    settings = {
        "vocab_size": 53,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": 4,
        "initializer_range": 0.2,
        "pad_token_id": 0,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**settings | options)).eval()


def tokens(*shape, seed=0):
    return torch.randint(1, 53, shape, generator=torch.Generator().manual_seed(seed))


MODEL, IDS = tiny_model(), tokens(3, 16)
TEXTS = {"one": IDS[:2], "two": IDS[2:]}


@cache
def sample():
    return take_sample(MODEL, TEXTS)


@cache
def calibrated(family="square", order=4, criterion=None):
    return calibrate(MODEL, sample(), order, family, criterion)


def quiet_judge(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScoresOutsideWarning)
        return judge(*args, **options)


def constant(value, low=-50.0, high=50.0):
    """A calibration of MODEL whose weights all have one value."""
    polynomial = ChebyshevPolynomial(low, high, ((value,),))
    layer = LayerCalibration((polynomial,) * HEADS, torch.zeros(KEY_HEADS, 4), torch.ones(HEADS))
    return Calibration("constant", 0, "", fingerprint(MODEL), {}, (layer,) * LAYERS)


def loss_of(model, ids):
    with torch.no_grad():
        return sum(model(row[None], labels=row[None]).loss.item() for row in ids) / len(ids)


# take_sample


def test_a_sample_is_what_attention_computes_with():
    captured = capture_attention(MODEL, None, IDS[1])
    for index, layer in captured.layers.items():
        q, k, v, _ = sample().layers[index]
        assert q.shape == (HEADS, 3, 16, 4) and k.shape == v.shape == (KEY_HEADS, 3, 16, 4)
        torch.testing.assert_close(q[:, 1], layer.query)
        torch.testing.assert_close(k[:, 1], layer.key)
        torch.testing.assert_close(v[:, 1], layer.value)
        torch.testing.assert_close(sample().scores(index)[:, 1].float(), layer.scores())


def test_a_sample_keeps_some_queries():
    some = take_sample(MODEL, TEXTS, queries=4)
    assert some.layers[0][0].shape == (HEADS, 3, 4, 4)
    assert some.layers[0][1].shape == (KEY_HEADS, 3, 16, 4)
    assert some.visible.sum(1).tolist() == [4, 8, 12, 16]
    rows = [3, 7, 11, 15]
    torch.testing.assert_close(some.scores(1), sample().scores(1)[:, :, rows])


def test_mixing_keeps_the_length_of_what_the_output_projection_makes():
    for index, layer in enumerate(MODEL.model.layers):
        _, _, v, mixing = sample().layers[index]
        weight = layer.self_attn.o_proj.weight.detach()
        for head in range(HEADS):
            output = v[head // 3, 0]
            projected = output @ weight[:, 4 * head : 4 * head + 4].T
            torch.testing.assert_close((output @ mixing[head]).norm(dim=-1), projected.norm(dim=-1))


def test_texts_are_known_by_name_size_and_hash():
    texts = sample().texts
    assert list(texts) == ["one", "two"]
    assert [about["tokens"] for about in texts.values()] == [32, 16]
    again = take_sample(MODEL, {"one": IDS[:2].int(), "two": IDS[1:2]}).texts
    assert again["one"] == texts["one"] and again["two"]["sha256"] != texts["two"]["sha256"]


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"a": IDS[0]},
        {"a": IDS, "b": IDS[:, :9]},
        {"a": IDS[None]},
        {"a": IDS, "b": IDS[:0]},
        {"a": IDS[:, :0]},
    ],
    ids=["none", "one axis", "two lengths", "three axes", "no text", "no tokens"],
)
def test_texts_that_do_not_fit_together(texts):
    with pytest.raises(ValueError, match=r"^texts must be token ids of shape"):
        take_sample(MODEL, texts)
    with pytest.raises(ValueError, match=r"^texts must be token ids of shape"):
        calibrate(MODEL, texts, 2)


# calibrate


@quiet
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_polynomial_for_each_head(family):
    for criterion in FAMILIES[family] or (None,):
        calibration = calibrate(MODEL, sample(), 4, family, criterion)
        assert (calibration.family, calibration.order) == (family, 4)
        assert calibration.criterion == (criterion or "")
        assert calibration.texts == sample().texts and len(calibration.layers) == LAYERS
        for layer in calibration.layers:
            assert [p.order for p in layer.polynomials] == [4] * HEADS
            assert layer.key_shift.shape == (KEY_HEADS, 4) and layer.gate.tolist() == [1] * HEADS
        result = judge(MODEL, IDS, calibration)
        assert math.isfinite(result.loss)
        assert result.tokens == 3 * 15 and result.rows == LAYERS * HEADS * 3 * 16


@pytest.mark.parametrize("family", FAMILIES)
def test_each_head_has_the_fit_of_its_own_scores(family):
    layers = calibrated(family).layers
    if family == "sum_of_squares":
        q, k, v, mixing = sample().layers[1]
        v = v.repeat_interleave(3, 0) @ mixing.unsqueeze(1)
        expected, shift = match_outputs(4, q, k, v, sample().visible, scale=0.5)
        assert layers[1].polynomials == tuple(expected)
        assert torch.equal(layers[1].key_shift, shift)
        return
    head = 4
    observed = observe(sample().scores(1)[head])
    ends = observed.low, observed.high
    expected = {
        "taylor": lambda: on_interval(taylor(4), *ends),
        "taylor_centered": lambda: taylor_about_best_center(4, observed),
        "chebyshev": lambda: chebyshev(4, *ends),
        "minimax": lambda: minimax(4, *ends),
        "least_squares": lambda: least_squares(4, observed),
        "square": lambda: square(4, observed),
    }[family]()
    assert layers[1].polynomials[head] == expected
    assert not layers[1].key_shift.any()


def test_the_first_criterion_is_the_default():
    assert calibrate(MODEL, sample(), 2, "square").criterion == "weight"
    default = calibrated("least_squares").layers[0].polynomials
    assert default == calibrated("least_squares", criterion="weight").layers[0].polynomials
    assert default != calibrated("least_squares", criterion="score").layers[0].polynomials


def test_texts_and_a_sample_of_them_are_the_same():
    from_texts = calibrate(MODEL, TEXTS, 4, "square")
    assert from_texts.layers[1].polynomials == calibrated().layers[1].polynomials
    assert from_texts.texts == calibrated().texts


def test_a_sample_of_another_model():
    with pytest.raises(ValueError, match=r"^texts is a sample of the model llama"):
        calibrate(tiny_model(seed=1), sample(), 2)


def test_errors_say_what_there_is():
    with pytest.raises(ValueError, match=r"family must be one of taylor.*of_squares; got 'x'"):
        calibrate(MODEL, sample(), 2, "x")
    with pytest.raises(ValueError, match=r"criterion of square must be .*weight.*score.*got 'x'"):
        calibrate(MODEL, sample(), 2, "square", "x")
    with pytest.raises(ValueError, match=r"criterion of sum_of_squares must be .*output"):
        calibrate(MODEL, sample(), 2, criterion="weight")
    with pytest.raises(ValueError, match="criterion of taylor must be"):
        calibrate(MODEL, sample(), 2, "taylor", "weight")


@pytest.mark.parametrize("family", FAMILIES)
def test_orders_that_are_none(family):
    for order in (-1, 2.0, True, "2", None):
        with pytest.raises(ValueError, match=r"^order must be an integer >= 0"):
            calibrate(MODEL, sample(), order, family)


def test_squares_have_even_orders():
    for family, order in (("square", 3), ("sum_of_squares", 3), ("sum_of_squares", 0)):
        with pytest.raises(ValueError, match=f"^order of .* even.* got {order}$"):
            calibrate(MODEL, sample(), order, family)


# judge


def test_softmax_is_the_loss_of_the_model():
    result = judge(MODEL, IDS, None)
    assert result.loss == pytest.approx(loss_of(MODEL, IDS), abs=1e-6)
    assert (result.tokens, result.rows, result.not_positive, result.outside) == (45, 0, 0, 0)


@quiet
@pytest.mark.parametrize(
    ("family", "order"), [("square", 24), ("minimax", 20), ("taylor", 24), ("sum_of_squares", 12)]
)
def test_a_high_order_has_the_loss_of_softmax(family, order):
    result = judge(MODEL, IDS, calibrated(family, order))
    assert result.loss == pytest.approx(judge(MODEL, IDS, None).loss, abs=1e-4)
    assert result.not_positive == 0


@quiet
def test_higher_orders_come_closer():
    softmax = judge(MODEL, IDS, None).loss
    gaps = [abs(judge(MODEL, IDS, calibrated("square", n)).loss - softmax) for n in (2, 8, 20)]
    assert gaps[0] > gaps[1] > gaps[2]


def test_no_heads_are_softmax_exactly():
    result = judge(MODEL, IDS, calibrated("taylor", 1), heads=[])
    assert result == judge(MODEL, IDS, None)


def test_only_the_named_heads_are_replaced():
    """Layer 1, head 4 averages, by a constant weight; the others are softmax, seen by hooks."""

    def heads_of_layer_1(heads):
        seen = []
        projection = MODEL.model.layers[1].self_attn.o_proj
        hook = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))
        result = judge(MODEL, IDS[:1], constant(1.0), heads=heads)
        hook.remove()
        return result, seen[0].unflatten(-1, (HEADS, 4)).transpose(0, 1)

    _, before = heads_of_layer_1([])
    result, after = heads_of_layer_1({(1, 4)})
    others = [0, 1, 2, 3, 5]
    assert torch.equal(after[others], before[others])
    value = capture_attention(MODEL, None, IDS[0]).layers[1].value[4 // 3]
    means = value.cumsum(0) / torch.arange(1, 17).unsqueeze(-1)
    torch.testing.assert_close(after[4], means)
    assert result.rows == 16


@quiet
def test_all_heads_by_name_are_all_heads():
    every = {(layer, head) for layer in range(LAYERS) for head in range(HEADS)}
    calibration = calibrated()
    assert judge(MODEL, IDS, calibration, every) == judge(MODEL, IDS, calibration)


def test_judging_leaves_the_model_as_it_was():
    before = loss_of(MODEL, IDS)
    quiet_judge(MODEL, IDS, calibrated("taylor", 1))
    with pytest.raises(ValueError):
        judge(tiny_model(seed=1), IDS, calibrated())
    assert loss_of(MODEL, IDS) == before
    assert MODEL.config._attn_implementation == "sdpa"


@quiet
def test_texts_longer_than_a_block_of_rows():
    """More queries than are weighed at once: each sees the keys of all blocks before it."""
    ids = tokens(1, 300, seed=3)
    calibration = calibrate(MODEL, {"long": ids}, 20, "square")
    result = judge(MODEL, ids, calibration)
    assert result.loss == pytest.approx(judge(MODEL, ids, None).loss, abs=1e-4)
    assert result.rows == LAYERS * HEADS * 300
    means = judge(MODEL, ids, constant(1.0), heads={(0, 0)})
    assert means.rows == 300 and means.outside == 0


@quiet
def test_a_key_shift_moves_scores_and_a_gate_multiplies():
    calibration = calibrated("square", 20)
    plain = judge(MODEL, IDS, calibration).loss
    shift = 0.2 * torch.randn(KEY_HEADS, 4, generator=torch.Generator().manual_seed(0))

    def with_each(**change):
        layers = tuple(replace(layer, **change) for layer in calibration.layers)
        return judge(MODEL, IDS, replace(calibration, layers=layers)).loss

    assert with_each(key_shift=shift) == pytest.approx(plain, abs=2e-3)  # still nearly exp
    assert with_each(key_shift=shift) != plain
    without = copy.deepcopy(MODEL)
    for layer in without.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    nothing = with_each(gate=torch.zeros(HEADS))
    assert nothing == pytest.approx(loss_of(without, IDS), abs=1e-6)


# What judge counts


@pytest.mark.parametrize(("value", "share"), [(-1.0, 1.0), (0.0, 1.0), (1.0, 0.0)])
def test_sums_that_are_not_positive_are_counted(value, share):
    last = {(LAYERS - 1, head) for head in range(HEADS)}  # no layer reads what comes of them
    result = judge(MODEL, IDS, constant(value), last)
    assert result.rows == HEADS * 3 * 16
    assert result.not_positive == share * result.rows
    assert math.isfinite(result.loss) == (value != 0)


@quiet
def test_a_family_of_signed_weights_has_sums_that_are_not_positive():
    model = tiny_model(initializer_range=0.3)
    for family in ("chebyshev", "minimax"):
        calibration = calibrate(model, TEXTS, 3, family)
        assert judge(model, IDS, calibration).not_positive > 0
    for family in ("square", "sum_of_squares"):
        assert judge(model, IDS, calibrate(model, TEXTS, 2, family)).not_positive == 0


def test_scores_outside_are_counted_and_warned_of():
    """In one head, which sees the same keys as softmax does, half an interval is left out."""
    scores = sample().scores(1)[4]
    observed = observe(scores)
    middle = float(torch.from_numpy(observed.score).median())
    share = float((observed.score > middle).mean())
    with pytest.warns(ScoresOutsideWarning, match=rf"^{share:.2%} of the scores") as seen:
        result = judge(MODEL, IDS, constant(1.0, -50.0, middle), heads=[(1, 4)])
    assert len(seen) == 1
    assert result.outside == pytest.approx(share, abs=1e-6) and 0.4 < share < 0.6


def test_hidden_scores_are_not_outside():
    visible = observe(sample().scores(1)[4])
    result = judge(MODEL, IDS, constant(1.0, visible.low, visible.high), heads=[(1, 4)])
    every = sample().layers[1]
    hidden = 0.5 * every[0][4] @ every[1][1].mT
    assert hidden.max() > visible.high or hidden.min() < visible.low
    assert result.outside == 0


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "sum_of_squares"])
def test_the_first_layer_has_no_scores_outside_of_what_it_was_fitted_on(family):
    first = {(0, head) for head in range(HEADS)}
    assert judge(MODEL, IDS, calibrated(family), first).outside == 0


# The model it is of


def test_another_model_is_refused():
    for other in (tiny_model(seed=1), tiny_model(num_hidden_layers=3)):
        with pytest.raises(ValueError, match=r"^calibration is for the model llama of 2 layers"):
            judge(other, IDS, calibrated())


@pytest.mark.parametrize("projection", ["q_proj", "k_proj"])
def test_one_changed_weight_is_refused(projection):
    other = copy.deepcopy(MODEL)
    with torch.no_grad():
        getattr(other.model.layers[-1].self_attn, projection).weight[3, 5] += 0.01
    with pytest.raises(ValueError, match="other weights give other scores; run calibrate"):
        judge(other, IDS, calibrated())


def test_the_same_weights_in_bfloat16_are_the_same_model():
    assert fingerprint(copy.deepcopy(MODEL).bfloat16()) == fingerprint(MODEL)
    assert fingerprint(tiny_model()) == fingerprint(MODEL)
    assert fingerprint(MODEL).startswith("llama of 2 layers, 6 heads, ")


@quiet
def test_a_bfloat16_model_is_judged():
    half = copy.deepcopy(MODEL).bfloat16()
    result = judge(half, IDS, calibrated("square", 4))
    assert result.loss == pytest.approx(judge(MODEL, IDS, calibrated("square", 4)).loss, abs=0.05)


# Files


@quiet
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_loaded_is_what_was_saved(family, tmp_path):
    calibration, path = calibrated(family), tmp_path / "new" / "it.safetensors"
    calibration.save(path)
    loaded = load_calibration(str(path))
    for name in ("family", "order", "criterion", "model", "texts"):
        assert getattr(loaded, name) == getattr(calibration, name)
    for got, expected in zip(loaded.layers, calibration.layers, strict=True):
        assert got.polynomials == expected.polynomials
        assert torch.equal(got.key_shift, expected.key_shift)
        assert torch.equal(got.gate, expected.gate)
    assert judge(MODEL, IDS, loaded) == judge(MODEL, IDS, calibration)


def test_a_missing_file(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(FileNotFoundError, match="there is no such file"):
            load_calibration(path)


@pytest.mark.parametrize("keep", [0, 4, 100, -8])
def test_a_file_that_is_cut_off(tmp_path, keep):
    path = tmp_path / "it.safetensors"
    calibrated().save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"it\.safetensors' is not one, or is broken"):
        load_calibration(path)


def test_files_that_are_something_else(tmp_path):
    path = tmp_path / "it.safetensors"
    path.write_text("not a tensor in sight")
    with pytest.raises(ValueError, match="is not one, or is broken"):
        load_calibration(path)
    for metadata in (None, {"format": "pt"}):
        save_file({"weight": torch.zeros(3)}, path, metadata)
        with pytest.raises(ValueError, match="is not one, or is broken"):
            load_calibration(path)


def parts(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.mark.parametrize("lost", ["terms", "low", "high", "gate", "order", "texts", "is_squared"])
def test_a_file_with_a_part_missing(tmp_path, lost):
    path = tmp_path / "it.safetensors"
    calibrated().save(path)
    tensors, about = parts(path)
    (tensors if lost in tensors else about).pop(lost)
    save_file(tensors, path, about)
    with pytest.raises(ValueError, match=f"is broken: '{lost}'"):
        load_calibration(path)


def test_a_file_from_before_there_were_adaptations(tmp_path):
    path = tmp_path / "it.safetensors"
    calibrated().save(path)
    tensors, about = parts(path)
    save_file(tensors, path, {k: v for k, v in about.items() if k != "adaptations"})
    assert load_calibration(path).adaptations == ()


@pytest.mark.parametrize("broken", ["[", "[1]", "3"])
def test_adaptations_that_are_none(tmp_path, broken):
    path = tmp_path / "it.safetensors"
    calibrated().save(path)
    tensors, about = parts(path)
    save_file(tensors, path, about | {"adaptations": broken})
    with pytest.raises(ValueError, match="is not one, or is broken"):
        load_calibration(path)


def test_a_file_with_wrong_numbers(tmp_path):
    path = tmp_path / "it.safetensors"
    calibrated().save(path)
    tensors, about = parts(path)
    for change in (
        {"terms": tensors["terms"] * math.nan},
        {"low": tensors["high"]},
        {"low": tensors["low"][:-1].clone()},
        {"gate": torch.ones(HEADS)},
        {"gate": tensors["gate"] * math.nan},
        {"key_shift": tensors["key_shift"] / 0},
    ):
        save_file({**tensors, **{k: v.clone() for k, v in change.items()}}, path, about)
        with pytest.raises(ValueError, match="is not one, or is broken"):
            load_calibration(path)


def test_numbers_of_numpy_are_stored(tmp_path):
    fit = calibrate(MODEL, TEXTS, np.int64(2), "square")
    replace(fit, adaptations=({"steps": np.int64(3)},)).save(tmp_path / "it")
    loaded = load_calibration(tmp_path / "it")
    assert (loaded.order, loaded.adaptations) == (2, ({"steps": 3},))


@pytest.mark.parametrize("ids", [IDS[0], IDS[:0], IDS[:, :1]], ids=["one axis", "none", "short"])
def test_without_a_token_to_predict_there_is_nothing_to_judge(ids):
    with pytest.raises(ValueError, match=r"^token_ids must be \(n, T\), .* got shape"):
        judge(MODEL, ids, None)


def test_a_head_that_the_model_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"heads names \[\(9, 9\)\]"):
        judge(MODEL, IDS, None, heads=[(9, 9)])


def test_a_head_without_scores_is_named():
    broken = copy.deepcopy(MODEL)
    with torch.no_grad():
        broken.model.layers[1].self_attn.q_proj.weight[4:8] = 0  # of head 1
    with pytest.raises(ValueError, match="layer 1, head 1: scores must hold"):
        calibrate(broken, TEXTS, 2, "square")


@quiet
def test_sums_that_are_not_a_number_are_counted():
    fit = calibrate(MODEL, TEXTS, 2, "square")
    nothing = (ChebyshevPolynomial(-1.0, 1.0, ((0.0,),)),) * HEADS
    layers = tuple(replace(layer, polynomials=nothing) for layer in fit.layers)
    result = judge(MODEL, IDS, replace(fit, layers=layers))
    assert result.not_positive == result.rows == LAYERS * HEADS * IDS.numel()


@pytest.mark.parametrize("name", ["key_shift", "gate", "low", "model", "family"])
def test_a_file_that_lacks_a_part_is_refused(tmp_path, name):
    path = tmp_path / "fit.safetensors"
    calibrate(MODEL, TEXTS, 2, "square").save(path)
    with safe_open(path, "pt") as file:
        about = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    about.pop(name, None), tensors.pop(name, None)
    save_file(tensors, path, about)
    with pytest.raises(ValueError, match="is not one, or is broken"):
        load_calibration(path)


@quiet
def test_a_bfloat16_model_is_judged_in_float32():
    fit = calibrate(MODEL, TEXTS, 16, "square")
    rounded = copy.deepcopy(MODEL).bfloat16()
    softmax, loss = (judge(rounded, IDS, x).loss for x in (None, fit))
    assert abs(loss - softmax) < 0.02
