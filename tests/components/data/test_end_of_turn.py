"""Templates whose turn ends lie outside of what they mark: row A15 of the defect list."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from titanrun.cli.data_output import iter_sample_lines
from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.chat_dataset import build_chat_dataset
from titanrun.components.data.labelled_dataset import build_labelled_dataset
from titanrun.components.data.preference_dataset import build_preference_dataset
from titanrun.components.data.replies_config import (
    LabelledDatasetConfig,
    PreferenceDatasetConfig,
)
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import HuggingFaceTokenizer
from titanrun.components.tokenizers.spec.tokenizer_files import open_tokenizer_folder
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands.data import ACTIONS

END = "<|im_end|>"


def write_chatml(before: str, after: str) -> str:
    """Return chatml with the end of the block before or after the end of the turn."""
    return (
        "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
        "{%- if message.role == 'assistant' %}{% generation %}{{ message.content }}"
        f"{before}{{% endgeneration %}}{after}"
        f"{{%- else %}}{{{{ message.content }}}}{END}{{%- endif %}}{{{{ '\\n' }}}}{{%- endfor %}}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
    )


INSIDE, OUTSIDE = write_chatml(END, ""), write_chatml("", END)
AFTER_SPACE = write_chatml("", f"{{{{ ' {END}' }}}}")
INSIDE_WITH_SPACE = write_chatml(f"{{{{ ' {END}' }}}}", "")
MESSAGES = [
    {"role": "user", "content": "one two"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "four\n"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny tokenizer with the tokens of chatml."""
    oracle = AutoTokenizer.from_pretrained(str(TinyTokenizerConfig().folder))
    oracle.add_special_tokens({"additional_special_tokens": ["<|im_start|>", END]})
    oracle.save_pretrained(str(tmp_path / "assets"))
    (tmp_path / "assets" / "chat_template.jinja").unlink()
    return tmp_path / "assets"


def build_row(folder: Path, template: str, **options: Any) -> Any:
    """Return the ids and the counts of one conversation."""
    (folder / "chat_template.jinja").write_text(template)
    file = folder.parent / "chats.jsonl"
    file.write_text(json.dumps({"messages": MESSAGES}) + "\n")
    tokenizer = HuggingFaceTokenizer(open_tokenizer_folder(folder))
    rows = build_chat_dataset(
        ChatDatasetConfig(path=str(file), **options),
        tokenizer=tokenizer,
        sample_length=65,
        cache_folder=folder.parent / "cache",
    )
    return rows[0][:2]


def ask_transformers(folder: Path, template: str) -> tuple[list[int], list[int]]:
    oracle = AutoTokenizer.from_pretrained(str(folder))
    found: Any = oracle.apply_chat_template(
        MESSAGES, chat_template=template, return_assistant_tokens_mask=True, return_dict=True
    )
    return found["input_ids"], found["assistant_masks"]


@pytest.mark.parametrize(
    ("written", "meant"), [(OUTSIDE, INSIDE), (AFTER_SPACE, INSIDE_WITH_SPACE), (INSIDE, INSIDE)]
)
def test_the_end_of_a_turn_is_trained_on_request(folder: Path, written: str, meant: str) -> None:
    """transformers judges by a template that marks the end itself."""
    expected_ids, expected = ask_transformers(folder, meant)
    ids, counts = build_row(folder, written, train_end_of_turn=True)
    assert ids[: len(expected_ids)].tolist() == expected_ids
    assert counts[: len(expected)].tolist() == expected and not counts[len(expected) :].any()
    _, plain = ask_transformers(folder, written)
    _, counts = build_row(folder, written)
    assert counts[: len(plain)].tolist() == plain


def test_last_replies_and_weighted_ones_get_their_end_too(folder: Path) -> None:
    _, expected = ask_transformers(folder, INSIDE)
    last = len(expected) - expected[::-1].index(1)
    _, counts = build_row(folder, OUTSIDE, train_end_of_turn=True, train_on="last_reply")
    assert counts[last - 1] == 1 and counts.sum() < sum(expected)
    _, counts = build_row(
        folder,
        OUTSIDE,
        train_end_of_turn=True,
        train_on="roles",
        role_weights={"assistant": 0.5},
    )
    assert counts[: len(expected)].tolist() == expected


def test_a_preference_pair_gets_the_end_of_both_replies(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(OUTSIDE)
    file = folder.parent / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "one", "chosen": "two", "rejected": "three"}) + "\n")
    tokenizer = HuggingFaceTokenizer(open_tokenizer_folder(folder))
    ends = []
    for is_trained in (False, True):
        rows = build_preference_dataset(
            PreferenceDatasetConfig(path=str(file), train_end_of_turn=is_trained),
            tokenizer=tokenizer,
            sample_length=65,
            cache_folder=folder.parent / "cache",
        )
        ids, counts = rows[0][:2]
        end_id = tokenizer.encode(END, add_bos=False, add_eos=False)[0]
        ends.append(int(((ids == end_id) & (counts == 1)).sum()))
    assert ends == [0, 2]


def test_a_labelled_reply_gets_its_end(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(OUTSIDE)
    file = folder.parent / "replies.jsonl"
    file.write_text(json.dumps({"prompt": "one", "completion": "two", "label": True}) + "\n")
    tokenizer = HuggingFaceTokenizer(open_tokenizer_folder(folder))
    ends = []
    for is_trained in (False, True):
        rows = build_labelled_dataset(
            LabelledDatasetConfig(path=str(file), train_end_of_turn=is_trained),
            tokenizer=tokenizer,
            sample_length=65,
            cache_folder=folder.parent / "cache",
        )
        ids, counts = rows[0][:2]
        end_id = tokenizer.encode(END, add_bos=False, add_eos=False)[0]
        ends.append(int(((ids == end_id) & (counts == 1)).sum()))
    assert ends == [0, 1]


def test_a_template_without_an_end_cannot_train_one(folder: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}"
    template += "{% endgeneration %}{% endfor %}"
    with pytest.raises(ProblemsFound, match="writes no special token after a reply") as caught:
        build_row(folder, template, train_end_of_turn=True)
    assert caught.value.problems[0].path == ("train_end_of_turn",)


def write_recipe(folder: Path, template: str, *, records: Any = ({"messages": MESSAGES},)) -> Path:
    (folder / "chat_template.jinja").write_text(template)
    (folder.parent / "chats.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    recipe = folder.parent / "recipe.yaml"
    recipe.write_text(
        "version: 1\n"
        "model: {name: llama3, flavor: debugmodel, vocab_size: 2052,\n"
        "        attention: {mask: block_causal}}\n"
        f"tokenizer: {{name: huggingface, path: {folder}}}\n"
        "training:\n"
        f"  dataset: {{name: chat, path: {folder.parent / 'chats.jsonl'}}}\n"
        "  seq_len: 128\n"
    )
    return recipe


def find_warnings(recipe: Path, *overrides: str) -> list[Problem]:
    resolved = resolve_recipe(str(recipe), overrides, environment={}, should_check_inputs=True)
    return [one for one in resolved.warnings if one.rule == "end-of-turn-not-trained"]


def test_an_end_outside_of_the_loss_is_warned_of_with_its_place(folder: Path) -> None:
    (warning,) = find_warnings(write_recipe(folder, OUTSIDE))
    assert warning.severity == "warning" and END in warning.message
    assert warning.origin is not None and warning.origin.line == 6
    assert "training.dataset.train_end_of_turn: true" in str(warning.hint)
    assert not find_warnings(write_recipe(folder, INSIDE))
    assert not find_warnings(
        write_recipe(folder, OUTSIDE), "training.dataset.train_end_of_turn=true"
    )
    assert not find_warnings(write_recipe(folder, OUTSIDE), "training.dataset.train_on=all")


def test_a_template_that_forgets_the_end_of_some_replies_is_warned_of(folder: Path) -> None:
    """The test conversation has no tool call, but the data do."""
    template = OUTSIDE.replace(
        "{{ message.content }}{% endgeneration %}" + END,
        "{{ message.content }}{% if 'four' not in message.content %}" + END + "{% endif %}"
        "{% endgeneration %}{% if 'four' in message.content %}" + END + "{% endif %}",
    )
    assert template != OUTSIDE
    (warning,) = find_warnings(write_recipe(folder, template))
    assert warning.message.startswith("a reply in record 1 of ")


def test_a_reply_that_is_not_trained_may_lack_its_end(folder: Path) -> None:
    """Of two replies, train_on: last_reply trains the second."""
    template = OUTSIDE.replace(
        "{{ message.content }}{% endgeneration %}" + END,
        "{{ message.content }}{% if 'two' != message.content %}" + END + "{% endif %}"
        "{% endgeneration %}{% if 'two' == message.content %}" + END + "{% endif %}",
    )
    assert template != OUTSIDE
    recipe = write_recipe(folder, template)
    assert not find_warnings(recipe, "training.dataset.train_on=last_reply")
    (warning,) = find_warnings(recipe, "training.dataset.train_on=replies")
    assert warning.message.startswith("a reply in record 1 of ")


def test_an_earlier_reply_that_ends_with_another_token_is_warned_of(folder: Path) -> None:
    """As gpt_oss does: only its last reply ends with the token that stops generation."""
    template = INSIDE.replace(
        "{{ message.content }}" + END,
        "{{ message.content }}{{ '" + END + "' if loop.last else '<|im_start|>' }}",
    )
    assert template != INSIDE
    recipe = write_recipe(folder, template)
    (warning,) = find_warnings(recipe)
    assert "<|im_start|>', at which generation does not stop" in warning.message
    assert str(warning.hint).startswith("set train_on: last_reply")
    assert not find_warnings(recipe, "training.dataset.train_on=last_reply")


@pytest.mark.parametrize("after", ["", "<|end_of_turn|>"])
def test_a_turn_that_no_token_ends_is_warned_of(folder: Path, after: str) -> None:
    (warning,) = find_warnings(write_recipe(folder, OUTSIDE.replace(END, after)))
    assert warning.message.startswith("the chat template writes")
    assert f"'{after}'" in warning.message or not after


def test_data_show_marks_replies_without_their_end(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(folder.parent)

    def show(template: str) -> tuple[dict[str, Any], str]:
        text = resolve_recipe(str(write_recipe(folder, template)), environment={}).text
        request = {"resolved": text, "count": 2, "row": None, "section": None}
        (training,) = ACTIONS["show"](request)
        return training, "".join(iter_sample_lines([training], use_color=False))

    training, text = show(OUTSIDE)
    assert (training["replies"], training["without_end"]) == (2, 2)
    assert "two⟧[no end of turn]" in text and "2 of 2 replies without the end" in text
    training, text = show(INSIDE)
    assert (training["replies"], training["without_end"]) == (2, 0)
    assert "no end of turn" not in text and "without the end" not in text


def test_the_shipped_template_trains_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "assets"
    shutil.copytree(TinyTokenizerConfig().folder, folder)
    template = (folder / "chat_template.jinja").read_text()
    assert not find_warnings(write_recipe(folder, template))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (INSIDE, f"4 of 4 replies end with {END}, learned"),
        (INSIDE_WITH_SPACE.replace(f"{{{{ ' {END}' }}}}", f"{END}{{{{ '\\n' }}}}"), None),
        (OUTSIDE, None),
    ],
)
def test_the_start_counts_replies_whose_end_is_learned(
    folder: Path, template: str, expected: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Expected numbers are those of transformers' assistant mask."""
    (folder / "chat_template.jinja").write_text(template)
    file = folder.parent / "chats.jsonl"
    file.write_text((json.dumps({"messages": MESSAGES}) + "\n") * 2)
    caplog.set_level("INFO")
    build_chat_dataset(
        ChatDatasetConfig(path=str(file), packing="best_fit"),
        tokenizer=HuggingFaceTokenizer(open_tokenizer_folder(folder)),
        sample_length=65,
        cache_folder=folder.parent / "cache",
    )
    (record,) = [one for one in caplog.records if "replies end with" in one.message]
    if expected is None:
        learned = 2 * count_learned_ends(folder, template)
        assert record.message.startswith(f"{learned} of 4 replies end with ")
        assert record.levelname == ("INFO" if learned == 4 else "WARNING")
    else:
        assert record.message == expected


def count_learned_ends(folder: Path, template: str) -> int:
    """Return the number of end tokens in the loss, by transformers."""
    ids, masks = ask_transformers(folder, template)
    end_id = AutoTokenizer.from_pretrained(str(folder)).convert_tokens_to_ids(END)
    return sum(one == end_id and mask == 1 for one, mask in zip(ids, masks, strict=True))


def test_a_reply_that_is_cut_does_not_end(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second reply is cut: its end is beyond the sequence."""
    (folder / "chat_template.jinja").write_text(INSIDE)
    file = folder.parent / "chats.jsonl"
    file.write_text(json.dumps({"messages": MESSAGES}) + "\n")
    _, masks = ask_transformers(folder, INSIDE)
    length = len(masks) - masks[::-1].index(1) - 1
    build_chat_dataset(
        ChatDatasetConfig(path=str(file), too_long="cut"),
        tokenizer=HuggingFaceTokenizer(open_tokenizer_folder(folder)),
        sample_length=length,
        cache_folder=folder.parent / "cache",
    )
    assert f"1 of 2 replies end with {END}, learned; of the others" in caplog.text
