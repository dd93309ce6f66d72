"""Text for a language model: sources, tokenizers, what is trained on and what is held out."""

import gzip

import datasets
import pytest
import torch

from softattn_lib.tasks import text
from softattn_lib.tasks.text import (
    SubwordTokenizer,
    TokenWindows,
    make_corpus,
    make_tokenizer,
    tokenizer_from_state,
)

VERSES = text.embedded_text()[:20_000]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "verses.txt"
    path.write_text(VERSES, encoding="utf-8")
    return path


@pytest.fixture
def table():
    return datasets.Dataset.from_dict({"verse": VERSES.splitlines()})


def test_the_embedded_text_is_there_with_its_licence():
    whole = text.embedded_text()
    assert 500_000 < len(whole) < 1_500_000
    assert whole.startswith("In the beginning God created the heaven and the earth.\n")
    assert whole.endswith("no man forbidding him.\n")
    assert "public domain" in text.files("softattn_lib.tasks").joinpath("king_james.md").read_text()


def test_the_embedded_text_packs_to_the_same_bytes_everywhere():
    packed = text.files("softattn_lib.tasks").joinpath("king_james.txt.gz").read_bytes()
    assert packed[4:8] == bytes(4)  # no time of packing
    assert gzip.decompress(packed).decode() == text.embedded_text()


# Tokenizers


@pytest.mark.parametrize("name", ["bytes", "characters", "bpe"])
def test_a_tokenizer_reads_what_it_wrote(name):
    tokenizer = make_tokenizer(name, [VERSES], 300 if name == "bpe" else None)
    ids = tokenizer.encode(VERSES)
    assert ids.dtype == torch.int64 and ids.dim() == 1
    assert ids.min() >= 0 and ids.max() < tokenizer.size
    assert tokenizer.decode(ids.tolist()) == VERSES
    again = tokenizer_from_state(tokenizer.state())
    assert torch.equal(again.encode(VERSES), ids)
    assert again.size == tokenizer.size


def test_bytes_take_any_text_and_subwords_take_fewer_tokens():
    assert make_tokenizer("bytes", []).decode([*"é∑".encode()]) == "é∑"
    subwords = make_tokenizer("bpe", [VERSES], 512)
    assert subwords.size == 512
    assert len(subwords.encode(VERSES)) < len(VERSES) / 1.5


def test_a_tokenizer_file_of_hugging_face_is_read(tmp_path):
    trained = SubwordTokenizer.train([VERSES], 280)
    path = tmp_path / "tokenizer.json"
    path.write_text(trained.state()["json"], encoding="utf-8")
    read = make_tokenizer(str(path), [])
    assert torch.equal(read.encode("In the beginning"), trained.encode("In the beginning"))


@pytest.mark.parametrize(
    ("name", "vocab_size", "named"),
    [
        ("words", None, "tokenizer must be bytes, characters, bpe or the path of.*got 'words'"),
        ("bpe", None, "tokenizer 'bpe' needs vocab_size"),
        ("bytes", 32_000, "tokenizer 'bytes' has 256 tokens and the model 32000"),
        ("characters", 40, "tokenizer 'characters' has 6 tokens and the model 40"),
        ("bpe", 32_000, r"tokenizer 'bpe' has \d+ tokens and the model 32000"),
    ],
)
def test_a_tokenizer_that_is_unknown_or_of_another_size_is_refused(name, vocab_size, named):
    with pytest.raises(ValueError, match=named):
        make_tokenizer(name, ["begins"], vocab_size)


def test_a_character_outside_the_alphabet_is_named():
    with pytest.raises(ValueError, match="outside the alphabet: \\['!'\\]"):
        text.CharacterTokenizer("abc").encode("cab!")


# Sequences


def test_windows_hold_inputs_and_targets_and_end_where_the_text_ends():
    windows = TokenWindows(torch.arange(11), length=4)
    assert [x.tolist() for x in windows] == [[*range(i, i + 5)] for i in range(7)]
    assert windows[-1].tolist() == [6, 7, 8, 9, 10]
    every_target_once = TokenWindows(torch.arange(11), length=5, stride=5)
    assert [x[1:].tolist() for x in every_target_once] == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    assert len(TokenWindows(torch.arange(4), length=4)) == 0


def test_the_end_of_a_file_is_held_out(file):
    corpus = make_corpus(file, length=10, held_out=0.1)
    assert corpus.name == "verses.txt"
    first, last = corpus.held_out[0].tolist(), corpus.train[-1].tolist()
    assert corpus.tokenizer.decode(last) == VERSES[:18_000][-11:]
    assert corpus.tokenizer.decode(first) == VERSES[18_000:][:11]
    assert (len(corpus.train), len(corpus.held_out)) == (18_000 - 10, 199)


def test_the_embedded_text_is_the_default():
    corpus = make_corpus(length=96)
    assert corpus.name == "king_james"
    assert corpus.tokenizer.decode(corpus.train[0].tolist()) == VERSES[:97]


def test_a_fingerprint_tells_corpora_apart(file):
    options = [{"length": 10}, {"length": 11}, {"length": 10, "tokenizer": "bytes"}]
    prints = [make_corpus(file, **option).fingerprint for option in options]
    assert len(set(prints)) == 3
    assert make_corpus(file, length=10).fingerprint == prints[0]
    file.write_text("A" + VERSES[1:])
    assert make_corpus(file, length=10).fingerprint != prints[0]


def test_a_file_that_is_not_there_empty_or_no_text_is_one_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no such file"):
        make_corpus(tmp_path / "missing.txt", length=8)
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.touch()
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"empty.txt', which is empty"):
        make_corpus(str(empty), length=8)
    with pytest.raises(ValueError, match=r"binary.txt', which is not UTF-8"):
        make_corpus(binary, length=8)


@pytest.mark.parametrize(
    ("length", "held_out", "part"),
    [(20_000, 0.05, "train"), (500, 0.02, "hold out"), (8, 0.0001, "hold out")],
)
def test_a_sequence_longer_than_the_text_is_refused(file, length, held_out, part):
    with pytest.raises(ValueError, match=rf"not one sequence of length {length} to {part}"):
        make_corpus(file, length=length, held_out=held_out)


# Hugging Face data sets


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
def test_a_data_set_becomes_sequences(table, tokenizer):
    vocab_size = 300 if tokenizer == "bpe" else None
    corpus = make_corpus(
        table, length=20, tokenizer=tokenizer, vocab_size=vocab_size, held_out=0.2, column="verse"
    )
    assert corpus.train[0].shape == corpus.held_out[0].shape == (21,)
    assert corpus.train[0].dtype == torch.int64
    verses = set(VERSES.splitlines())
    trained = "".join(corpus.tokenizer.decode(x.tolist()) for x in corpus.train).split("\n")
    held_out = "".join(corpus.tokenizer.decode(x.tolist()) for x in corpus.held_out).split("\n")
    assert set(trained[:-1]) | set(held_out[:-1]) <= verses  # the last one may be cut short
    assert set(trained).isdisjoint(held_out)
    assert len(held_out) == pytest.approx(0.2 * len(verses), rel=0.1)


def test_a_data_set_on_disk_is_split_the_same_way_every_time(table, tmp_path):
    table.save_to_disk(tmp_path / "verses")
    prints = {
        make_corpus(datasets.load_from_disk(tmp_path / "verses"), length=9, column="verse")
        .fingerprint
        for _ in range(2)
    }  # fmt: skip
    assert len(prints) == 1


def test_a_data_set_without_the_column_or_too_short_is_refused(table):
    with pytest.raises(KeyError, match="column must be one of verse; got 'text'"):
        make_corpus(table, length=20)
    with pytest.raises(ValueError, match="not one sequence of length 9000 to hold out"):
        make_corpus(table, length=9000, column="verse")
