"""Adapting a calibration on text: what it trains, what it leaves alone, and what it refuses."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from softattn_lib.calibration import (
    Calibration,
    LayerCalibration,
    calibrate,
    fingerprint,
    judge,
    load_calibration,
)
from softattn_lib.families import ChebyshevPolynomial
from softattn_lib.tasks.adapt import (
    LEARNING_RATE,
    SIGNED_LEARNING_RATE,
    AdaptedHeads,
    adapt,
    match,
)
from softattn_lib.tasks.beyond_taylor import one_of_each, pieces


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=12,
        intermediate_size=20,
        head_dim=4,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def texts():
    ids = torch.randint(1, 50, (2, 4, 24), generator=torch.Generator().manual_seed(0))
    return {"one": ids[0], "two": ids[1]}


@pytest.fixture(scope="module")
def square(model, texts):
    return calibrate(model, texts, 2, "square")


def short(*arguments, **options):
    return adapt(*arguments, batch_size=2, cpu=True, **options)


def numbers(calibration):
    """All numbers of a calibration, name -> tensor; the ends of the intervals as their parts."""
    layers = calibration.layers
    heads = [p for layer in layers for p in layer.polynomials]
    return {
        "terms": torch.tensor([p.terms for p in heads]),
        "width": torch.tensor([p.high - p.low for p in heads]),
        "gate": torch.stack([layer.gate for layer in layers]),
        "key_shift": torch.stack([layer.key_shift for layer in layers]),
    }


@pytest.mark.parametrize(
    ("family", "order"), [("square", 2), ("sum_of_squares", 4), ("least_squares", 4)]
)
def test_the_loss_falls_and_its_first_value_is_that_of_match(model, texts, family, order):
    before, seen = calibrate(model, texts, order, family), []
    after = short(
        model, texts, before, steps=30, learning_rate=0.003, on_step=lambda *x: seen.append(x)
    )
    ids = torch.cat(list(texts.values()))
    assert match(model, ids, after).loss < 0.98 * match(model, ids, before).loss
    assert [step for step, _ in seen] == list(range(1, 31))
    one = {"one": texts["one"][:1]}
    short(model, one, before, steps=1, on_step=lambda *x: seen.append(x))
    assert seen[-1][1].loss == pytest.approx(match(model, one["one"], before).loss, rel=1e-5)


@pytest.mark.parametrize("family", ["taylor", "chebyshev", "minimax", "least_squares", "square"])
def test_the_default_learning_rate_is_one_for_the_family(model, texts, family):
    before = calibrate(model, texts, 4, family)
    after, ids = short(model, texts, before, steps=30), torch.cat(list(texts.values()))
    assert match(model, ids, after).loss < match(model, ids, before).loss
    expected = LEARNING_RATE if family == "square" else SIGNED_LEARNING_RATE
    assert after.adaptations[0]["learning_rate"] == expected


def test_without_a_step_the_calibration_comes_back(model, texts, square):
    for name, found in numbers(short(model, texts, square, steps=0)).items():
        assert found.equal(numbers(square)[name]), name


def test_all_that_is_named_is_trained_and_the_model_is_not(model, texts, square):
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    before, after = numbers(square), numbers(short(model, texts, square, steps=2))
    for name, found in after.items():
        assert not (found == before[name]).flatten(1 if name == "key_shift" else 0).all(), name
    for name, weight in model.state_dict().items():
        assert weight.equal(weights[name])
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert model.config._attn_implementation == "sdpa"


def test_the_result_says_what_it_was_adapted_on_and_is_stored(model, texts, square, tmp_path):
    once = short(model, texts, square, steps=2)
    twice = short(model, texts, once, steps=1, seed=1)
    assert square.adaptations == () and twice.texts == square.texts
    assert [about["steps"] for about in twice.adaptations] == [2, 1]
    assert [about["seed"] for about in twice.adaptations] == [0, 1]
    assert once.adaptations[0]["texts"] == square.texts  # the same ones
    once.save(tmp_path / "adapted.safetensors")
    loaded = load_calibration(tmp_path / "adapted.safetensors")
    assert loaded.adaptations == once.adaptations
    loaded.check(model)
    with pytest.raises(ValueError, match="another"):
        replace(loaded, model="another").check(model)
    for name, found in numbers(loaded).items():
        assert found.equal(numbers(once)[name]), name


def test_the_outputs_are_those_of_the_calibration_that_is_made_of_them(model, texts, square):
    """With every parameter moved: temperature, coefficients, gate and key shift fold exactly."""
    project = model.model.layers[0].self_attn.o_proj.weight
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 6, 9, 4, generator=generator)
    k, v = torch.randn(2, 1, 2, 9, 4, generator=generator)
    heads = AdaptedHeads(square.layers[0], project)
    heads.choose_coordinates(q, k)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    layer = heads.calibration()
    out, positive = heads.output(q, k, v)
    assert positive.all()
    for head, polynomial in enumerate(layer.polynomials):
        scores = q[0, head].double() @ (k[0, head // 3] - layer.key_shift[head // 3]).double().mT
        weights = polynomial(scores).tril()
        expected = (
            layer.gate[head] * (weights / weights.sum(-1, keepdim=True)) @ v[0, head // 3].double()
        )
        torch.testing.assert_close(out[head, 0].double(), expected, rtol=1e-4, atol=1e-5)
    again, _ = AdaptedHeads(layer, project).output(q, k, v)
    torch.testing.assert_close(again, out, rtol=1e-4, atol=1e-5)


def test_the_error_of_a_head_is_that_of_what_the_output_projection_makes_of_it(model, square):
    project = model.model.layers[0].self_attn.o_proj.weight
    generator = torch.Generator().manual_seed(0)
    q, target = torch.randn(1, 6, 9, 4, generator=generator), torch.randn(1, 9, 6, 4)
    k, v = torch.randn(2, 1, 2, 9, 4, generator=generator)
    heads = AdaptedHeads(square.layers[0], project)
    out, _ = heads.output(q, k, v)
    errors, lacking = heads.errors(q, k, v, target)
    for head in range(6):
        part, goal = project[:, 4 * head : 4 * head + 4], target[0, :, head]
        error, size = ((x @ part.mT).square().sum() for x in (out[head, 0] - goal, goal))
        torch.testing.assert_close(errors[head], error / size, rtol=1e-4, atol=0)
    assert lacking == 0


def lines(model, slope):
    """A calibration of 1 + slope * t in every head: not positive everywhere for a large slope."""
    line = ChebyshevPolynomial(-1.0, 1.0, ((1.0, slope),))
    layer = LayerCalibration((line,) * 6, torch.zeros(2, 4), torch.ones(6))
    return Calibration("chebyshev", 1, "", fingerprint(model), {}, (layer, layer))


@pytest.mark.filterwarnings("ignore::softattn_lib.calibration.ScoresOutsideWarning")
def test_rows_without_a_positive_sum_are_left_out_and_counted(model, texts):
    calibration, seen = lines(model, 1.0), []
    ids = {"one": texts["one"][:1]}
    judged = judge(model, ids["one"], calibration)
    found = match(model, ids["one"], calibration)
    assert 0 < found.not_positive < judged.rows
    short(model, ids, calibration, steps=1, on_step=lambda step, found: seen.append(found))
    assert seen[0].not_positive == 2 * found.not_positive  # the text is in the batch twice
    assert seen[0].loss == pytest.approx(found.loss)


def test_a_head_without_a_single_positive_row_is_an_error(model, texts):
    bad = ChebyshevPolynomial(-1.0, 1.0, ((-1.0,),))
    layer = replace(lines(model, 1.0).layers[0], polynomials=(bad,) * 6)
    calibration = replace(lines(model, 1.0), layers=(layer, layer))
    with pytest.raises(ValueError, match="head 0 have no row with a positive sum"):
        short(model, texts, calibration, steps=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "steps=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"texts": {}}, "one T"),
        ({"texts": {"a": torch.ones(1, 4).long(), "b": torch.ones(1, 5).long()}}, "one T"),
        ({"learning_rate": 1e30, "steps": 3}, "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(model, texts, square, options, message):
    with pytest.raises(ValueError, match=message):
        adapt(**{"model": model, "texts": texts, "calibration": square, "cpu": True} | options)


def test_a_calibration_of_another_model_is_refused(model, texts, square):
    other = replace(square, model="another")
    with pytest.raises(ValueError, match="another"):
        short(model, texts, other)
    with pytest.raises(ValueError, match="another"):
        match(model, texts["one"], other)


def test_files_are_cut_into_sequences(tmp_path):
    def tokenizer(text, verbose):
        return {"input_ids": [ord(c) for c in text]}

    file = tmp_path / "text"
    file.write_text("abcdefgh")
    found = pieces(tokenizer, [file], 3)
    assert found[str(file)].tolist() == [[97, 98, 99], [100, 101, 102]]
    assert one_of_each(found).tolist() == [[100, 101, 102]]
    for length, message in [(9, "has 8 tokens"), (1, "at least 2")]:
        with pytest.raises(ValueError, match=message):
            pieces(tokenizer, [file], length)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=f"^text is '{file}', which is not UTF-8"):
        pieces(tokenizer, [file], 3)
