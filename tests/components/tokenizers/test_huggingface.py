"""Tokenizers in Hugging Face layout, against transformers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, GPT2Tokenizer

from titanrun.components.tokenizers.config import HuggingFaceTokenizerConfig
from titanrun.components.tokenizers.huggingface import (
    HuggingFaceTokenizer,
    build_huggingface_tokenizer,
)
from titanrun.components.tokenizers.spec.tokenizer_files import get_vocab_size
from titanrun.config.problems import Problem, ProblemsFound

MakeFolder = Callable[..., Path]
BOS, EOS = 0, 1
TEXTS = [
    "",
    " ",
    "The cat",
    " naïve\r\n\tcafé ☕ 3.50€",
    "a</s>b",
    "<s>",
    "\n\n\n  x",
    "नमस्ते 👩‍👩‍👧 \u200b",
    "x" * 300,
]


def opened(folder: Path) -> HuggingFaceTokenizer:
    return build_huggingface_tokenizer(HuggingFaceTokenizerConfig(path=str(folder)))


def problem_of(folder: Path) -> Problem:
    with pytest.raises(ProblemsFound) as caught:
        opened(folder)
    (problem,) = caught.value.problems
    assert problem.code == "data" and problem.path == ("path",) and problem.hint
    return problem


@pytest.mark.parametrize("template", [None, "<s> $A", "$A </s>", "<s> $A </s>"])
def test_bos_and_eos_stand_once_whatever_the_template_adds(
    make_folder: MakeFolder, template: str | None
) -> None:
    folder = make_folder(template)
    tokenizer, oracle = opened(folder), AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (BOS, EOS)
    for text in TEXTS:
        ids = oracle.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == [BOS, *ids, EOS]
        assert tokenizer.encode(text, add_bos=False) == [*ids, EOS]
        assert tokenizer.encode(text, add_eos=False) == [BOS, *ids]
        assert tokenizer.encode(text, add_bos=False, add_eos=False) == ids
        adds = template or ""
        assert tokenizer.encode(
            text, add_bos="<s>" in adds, add_eos="</s>" in adds
        ) == oracle.encode(text)


def test_one_token_may_be_both_bos_and_eos(make_folder: MakeFolder) -> None:
    for template in (None, "<s> $A", "$A <s>", "<s> $A <s>"):
        tokenizer = opened(make_folder(template, eos_token="<s>"))
        ids = tokenizer.encode("cat", add_bos=False, add_eos=False)
        assert tokenizer.encode("cat") == [BOS, *ids, BOS]


def test_without_special_tokens_nothing_is_added(make_folder: MakeFolder) -> None:
    tokenizer = opened(make_folder(bos_token=None, eos_token=None))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)
    assert tokenizer.encode("cat") == tokenizer.encode("cat", add_bos=False, add_eos=False)


def test_a_batch_is_the_texts_one_by_one(make_folder: MakeFolder) -> None:
    tokenizer = opened(make_folder("<s> $A"))
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
    assert tokenizer.encode_batch([]) == []


@given(text=st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_decoding_gives_the_text_back(make_folder: MakeFolder, text: str) -> None:
    tokenizer = opened(make_folder())
    if "<s>" not in text and "</s>" not in text:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_vocabulary_and_merges_are_byte_level_bpe(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = tmp_path / "two-files"
    folder.mkdir()
    Tokenizer.from_file(str(make_folder() / "tokenizer.json")).model.save(str(folder))
    added = {
        "300": {"content": "<|one|>", "special": True},
        "301": {"content": "two", "special": False, "lstrip": True},
    }
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "pad_token": "<pad>",
        "added_tokens_decoder": added,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = opened(folder)
    oracle = GPT2Tokenizer(
        str(folder / "vocab.json"),
        str(folder / "merges.txt"),
        bos_token="<s>",
        eos_token="</s>",
        unk_token=None,
    )
    for text in TEXTS:
        assert tokenizer.encode(text, add_bos=False, add_eos=False) == oracle.encode(text)
    assert tokenizer.encode("<|one|>  two", add_bos=False, add_eos=False) == [300, 301]
    assert tokenizer.decode([300, *tokenizer.encode("cat"), 301]) == "cattwo"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (BOS, EOS, 303)


def test_limits_that_a_model_was_saved_with_do_not_cut_documents(make_folder: MakeFolder) -> None:
    folder = make_folder()
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.enable_truncation(4)
    library.enable_padding(length=8)
    library.save(str(folder / "tokenizer.json"))
    tokenizer = opened(folder)
    assert (
        tokenizer.decode(tokenizer.encode("The cat sat on the mat.")) == "The cat sat on the mat."
    )
    assert tokenizer.encode("", add_bos=False, add_eos=False) == []


def test_older_folders_name_special_tokens_in_a_file_of_their_own(make_folder: MakeFolder) -> None:
    folder = make_folder(bos_token=None)
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "other"})
    )
    assert (opened(folder).bos_id, opened(folder).eos_id) == (BOS, EOS)


def test_the_fingerprint_changes_with_the_files_that_count(make_folder: MakeFolder) -> None:
    folder = make_folder()
    first = opened(folder).fingerprint
    (folder / "README.md").write_text("notes")
    assert opened(folder).fingerprint == first
    assert opened(make_folder(pad_token="<pad>")).fingerprint != first
    assert opened(make_folder("<s> $A")).fingerprint != first


def test_added_tokens_with_other_ids_than_the_vocabulary_gives_are_refused(
    make_folder: MakeFolder,
) -> None:
    folder = make_folder(added_tokens_decoder={"400": {"content": "<|far|>", "special": True}})
    assert problem_of(folder).message.endswith("gives '<|far|>' the id 400, its vocabulary 300")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1]",
        '{"model": {"type": "BPE"}}',
        '{"model": {"type": "Nope", "vocab": {"a": 0}}}',
    ],
)
def test_a_damaged_tokenizer_is_a_problem(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    assert "tokenizer.json'" in problem_of(tmp_path).message


def test_damaged_merges_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("a b\n")
    assert "'merges.txt' cannot be read as a tokenizer" in problem_of(tmp_path).message
    (tmp_path / "vocab.json").write_text('{"a": ')
    assert "is not JSON at line 1" in problem_of(tmp_path).message


def test_the_quick_size_of_the_vocabulary_is_the_tokenizers(make_folder: MakeFolder) -> None:
    added = {
        str(token): {"__type": "AddedToken", "content": f"<{token}>", "special": token == 300}
        for token in (300, 301)
    }
    for config in (
        {},
        {"pad_token": "<pad>"},
        {"added_tokens_decoder": added, "pad_token": "<pad>"},
        {"pad_token": "<s>"},
    ):
        folder = make_folder(**config)
        assert (
            get_vocab_size(folder)
            == opened(folder).vocab_size
            == len(AutoTokenizer.from_pretrained(folder))
        ), config


def test_half_a_surrogate_pair_is_no_text(make_folder: MakeFolder) -> None:
    # as JSON may encode it, and as Python reads bytes of a command line that are not UTF-8
    for wrong, shown in (("moon \ud83d x", r"moon \ud83d x"), ("x" * 99 + "\udcff", r"xx\udcff'")):
        with pytest.raises(ProblemsFound) as caught:
            opened(make_folder()).encode_batch(["moon", wrong])
        (problem,) = caught.value.problems
        assert problem.code == "data" and shown in problem.message
        assert "is not Unicode text" in problem.message
