"""Text for a language model: where it comes from, its tokens, what is trained on and held out."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from softattn_lib.tasks.presets import Preset

SPLIT_SEED = 123  # of what is held out of a data set, as in the paper's code
DOCUMENTS_AT_ONCE = 1000  # of a data set, joined and cut into sequences
SEPARATOR = "\n"  # between them


@cache
def embedded_text() -> str:
    """The text that comes with the package: 1.09 million characters of the King James Bible.

    In the public domain; king_james.md beside the file says more.

    >>> embedded_text()[:52]
    'In the beginning God created the heaven and the eart'
    """
    packed = files("softattn_lib.tasks").joinpath("king_james.txt.gz").read_bytes()
    return gzip.decompress(packed).decode("utf-8")


def read_text(path: str | Path) -> str:
    """The text of a file in UTF-8.

    Raises:
        FileNotFoundError, ValueError: no such file; an empty one, or not UTF-8.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"text is {str(path)!r}, and there is no such file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"text is {str(path)!r}, which is not UTF-8: {error}") from None
    if not text:
        raise ValueError(f"text is {str(path)!r}, which is empty")
    return text


class ByteTokenizer:
    """The bytes of UTF-8: any text, 256 tokens.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("Ah"), tokenizer.decode([65, 104]), tokenizer.size
    (tensor([ 65, 104]), 'Ah', 256)
    """

    size = 256

    def encode(self, text: str) -> Tensor:
        return torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8).long()

    def decode(self, ids) -> str:
        return bytes(ids).decode("utf-8", errors="replace")

    def state(self) -> dict:
        """All it takes to make it again, see `tokenizer_from_state`."""
        return {"kind": "bytes"}


class CharacterTokenizer:
    """One token for each character of an alphabet, in the order of their code points.

    >>> tokenizer = CharacterTokenizer("cab")
    >>> tokenizer.encode("cab"), tokenizer.decode([2, 0, 1]), tokenizer.size
    (tensor([2, 0, 1]), 'cab', 3)
    """

    def __init__(self, alphabet):
        self.alphabet = "".join(sorted(alphabet))
        self.size = len(self.alphabet)

    def encode(self, text: str) -> Tensor:
        """
        Raises:
            ValueError: a character that is not in the alphabet.
        """
        if unknown := sorted(set(text) - set(self.alphabet)):
            raise ValueError(f"text has characters outside the alphabet: {unknown}")
        return torch.searchsorted(_code_points(self.alphabet), _code_points(text))

    def decode(self, ids) -> str:
        return "".join(self.alphabet[number] for number in ids)

    def state(self) -> dict:
        return {"kind": "characters", "alphabet": self.alphabet}


def _code_points(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode("utf-32-le")), dtype=torch.int32)


class SubwordTokenizer:
    """Pieces of words: a tokenizer of Hugging Face's `tokenizers`."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size()

    @classmethod
    def train(cls, texts, vocab_size: int) -> "SubwordTokenizer":
        """Byte-pair encoding on bytes, learned from an iterable of texts.

        >>> tokenizer = SubwordTokenizer.train(["the thin then"], vocab_size=258)
        >>> tokenizer.decode(tokenizer.encode("then the").tolist())
        'then the'
        """
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def from_json(cls, text: str) -> "SubwordTokenizer":
        """From the content of a tokenizer.json."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_str(text))

    def encode(self, text: str) -> Tensor:
        return torch.tensor(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids) -> str:
        return self._tokenizer.decode(list(ids))

    def state(self) -> dict:
        return {"kind": "subwords", "json": self._tokenizer.to_str()}


def make_tokenizer(name: str, texts, vocab_size: int | None = None):
    """A tokenizer, made from texts where it has to be.

    Args:
        name: "bytes", "characters", "bpe", or the path of a tokenizer.json.
        texts: iterable of str, of which "characters" takes the alphabet and "bpe" its merges.
        vocab_size: how many tokens the model has; None for as many as the tokenizer, which "bpe"
            has to be told.

    Raises:
        ValueError, FileNotFoundError: another name; a tokenizer of another size.

    >>> make_tokenizer("characters", ["banana"]).size
    3
    """
    if name == "bpe" and vocab_size is None:
        raise ValueError("tokenizer 'bpe' needs vocab_size, the number of tokens to learn")
    if name == "bytes":
        tokenizer = ByteTokenizer()
    elif name == "characters":
        tokenizer = CharacterTokenizer(set().union(*texts))
    elif name == "bpe":
        tokenizer = SubwordTokenizer.train(texts, vocab_size)
    elif Path(name).is_file():
        tokenizer = SubwordTokenizer.from_json(read_text(name))
    else:
        raise ValueError(
            "tokenizer must be bytes, characters, bpe or the path of a tokenizer.json; "
            f"got {name!r}"
        )
    if vocab_size not in (None, tokenizer.size):
        raise ValueError(
            f"tokenizer {name!r} has {tokenizer.size} tokens and the model {vocab_size}; "
            f"they agree with vocab_size={tokenizer.size}, or with another tokenizer"
        )
    return tokenizer


def tokenizer_from_state(state: dict):
    """The tokenizer whose `state()` this is.

    >>> tokenizer_from_state(CharacterTokenizer("ab").state()).decode([1, 0])
    'ba'
    """
    if state["kind"] == "bytes":
        return ByteTokenizer()
    if state["kind"] == "characters":
        return CharacterTokenizer(state["alphabet"])
    return SubwordTokenizer.from_json(state["json"])


class TokenWindows(Dataset):
    """Sequences of length + 1 tokens of one long text: inputs, and targets one further.

    Args:
        ids: (N,) int64.
        length: T.
        stride: tokens from the start of one sequence to that of the next.

    >>> windows = TokenWindows(torch.arange(10), length=3, stride=3)
    >>> len(windows), windows[2]
    (3, tensor([6, 7, 8, 9]))
    """

    def __init__(self, ids: Tensor, length: int, stride: int = 1):
        self.ids, self.length, self.stride = ids, length, stride

    def __len__(self):
        return max(0, (len(self.ids) - self.length - 1) // self.stride + 1)

    def __getitem__(self, index):
        start = range(len(self))[index] * self.stride  # IndexError ends a loop over all
        return self.ids[start : start + self.length + 1]


class TableWindows(Dataset):
    """Sequences of length + 1 tokens, one in each row of a Hugging Face data set."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        return torch.tensor(self.table[index]["ids"])


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sequences of T + 1 tokens to train on, sequences held out, and their tokenizer.

    Attributes:
        name: of the text.
        train, held_out: data sets of int64 tensors (T + 1,).
        tokenizer: one of those of this module.
    """

    name: str
    train: Dataset
    held_out: Dataset
    tokenizer: object

    @property
    def fingerprint(self) -> str:
        """Tells one corpus from another, by the number of sequences and some of them."""
        some = [x.tolist() for part in (self.train, self.held_out) for x in (part[0], part[-1])]
        seen = repr((len(self.train), len(self.held_out), some))
        return hashlib.sha256(seen.encode()).hexdigest()[:16]


def make_corpus(
    text=None,
    *,
    length: int,
    tokenizer: str = "characters",
    vocab_size: int | None = None,
    held_out: float = 0.05,
    column: str = "text",
) -> Corpus:
    """Cut a text, or a data set of texts, into sequences.

    Args:
        text: None for the embedded text, the path of a file, or a Hugging Face `datasets.Dataset`
            with a column of texts. Of a file the last part is held out; of a data set a random
            choice of its rows, always the same.
        length: T, tokens of a sequence; each has one more, for the targets.
        tokenizer, vocab_size: see `make_tokenizer`.
        held_out: share of the text.
        column: name of the column of texts.

    Raises:
        FileNotFoundError, ValueError, KeyError: what `read_text` and `make_tokenizer` raise; a
            text too short for one sequence to train on and one held out; no such column.

    >>> corpus = make_corpus(length=96)
    >>> corpus.tokenizer.size, corpus.train[0].shape
    (63, torch.Size([97]))
    """
    options = {"length": length, "tokenizer": tokenizer, "vocab_size": vocab_size}
    if text is None or isinstance(text, str | Path):
        corpus = _corpus_of_text(text, held_out, **options)
    else:
        corpus = _corpus_of_table(text, held_out, column, **options)
    for part, windows in (("train", corpus.train), ("hold out", corpus.held_out)):
        if len(windows) == 0:
            raise ValueError(
                f"text {corpus.name!r} is too short: there is not one sequence of length {length} "
                f"to {part}, with held_out={held_out}"
            )
    return corpus


def corpus_for(settings: Preset, text=None, column: str = "text") -> Corpus:
    """What a model of these settings reads of a text; text and column as in `make_corpus`.

    >>> from softattn_lib.tasks.presets import PRESETS
    >>> corpus_for(PRESETS["mini"]).train[0].shape  # a sequence and the token after it
    torch.Size([65])
    """
    return make_corpus(
        text,
        length=settings.length,
        tokenizer=settings.tokenizer,
        vocab_size=settings.vocab_size,
        held_out=settings.held_out,
        column=column,
    )


def text_name(source) -> str:
    """What a source of text is called in tables of results.

    >>> text_name(None), text_name("some/where.txt")
    ('king_james', 'where.txt')
    """
    if source is None:
        return "king_james"
    if isinstance(source, str | Path):
        return Path(source).name
    return source.info.dataset_name or "data set"


def load_table(name: str):
    """A Hugging Face data set, its training split: of the hub, or a folder on this machine.

    The folder is one of `save_to_disk`, or of files that `datasets.load_dataset` reads.

    Raises:
        ImportError: the package `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError:
        raise ImportError("a data set needs: pip install 'softattn_lib[data]'") from None
    if not (Path(name) / "dataset_info.json").is_file():
        return datasets.load_dataset(name, split="train")
    return datasets.load_from_disk(name)


def _corpus_of_text(source, held_out, *, length, tokenizer, vocab_size) -> Corpus:
    text = embedded_text() if source is None else read_text(source)
    tokenizer = make_tokenizer(tokenizer, [text], vocab_size)
    ids = tokenizer.encode(text)
    cut = len(ids) - round(len(ids) * held_out)
    return Corpus(
        name=text_name(source),
        train=TokenWindows(ids[:cut], length),
        held_out=TokenWindows(ids[cut:], length, stride=length),
        tokenizer=tokenizer,
    )


def _corpus_of_table(table, held_out, column, *, length, tokenizer, vocab_size) -> Corpus:
    if column not in table.column_names:
        raise KeyError(f"column must be one of {', '.join(table.column_names)}; got {column!r}")
    tokenizer = make_tokenizer(tokenizer, chain([SEPARATOR], table[column]), vocab_size)

    def cut(batch):
        ids = tokenizer.encode(SEPARATOR.join(batch[column]))
        return {"ids": [x.tolist() for x in TokenWindows(ids, length, stride=length + 1)]}

    parts = table.train_test_split(test_size=held_out, seed=SPLIT_SEED)
    windows = {
        name: TableWindows(
            part.map(cut, batched=True, batch_size=DOCUMENTS_AT_ONCE,
                     remove_columns=table.column_names)
        )
        for name, part in parts.items()
    }  # fmt: skip
    return Corpus(text_name(table), windows["train"], windows["test"], tokenizer)
