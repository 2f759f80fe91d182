import pytest

from titanrun.config.suggest import (
    edit_distance,
    find_closest,
    format_word_list,
    is_certain_typo,
    remove_slot_word,
)

KEYS = [
    "lr",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "implementation",
    "local_batch_size",
    "global_batch_size",
]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("LR", "lr"),
        ("weight-decay", "weight_decay"),
        ("weightDecay", "weight_decay"),
        ("wieght_decay", "weight_decay"),
        ("weight_decy", "weight_decay"),
        ("lrr", "lr"),
        ("local_batchsize", "local_batch_size"),
        ("frobnicate", None),
        ("xy", None),
    ],
)
def test_the_key_that_was_meant(typed: str, meant: str | None) -> None:
    assert find_closest(typed, KEYS) == meant


def test_a_key_that_is_not_there_yet_wins_a_tie() -> None:
    assert find_closest("beta", ["beta1", "beta2"], present={"beta1"}) == "beta2"


def test_swapped_neighbours_are_one_edit() -> None:
    assert [
        edit_distance("step", "setp", 3),
        edit_distance("step", "steps", 3),
        edit_distance("a", "abcdef", 3),
    ] == [1, 1, 4]


@pytest.mark.parametrize(
    ("typed", "meant", "certain"),
    [
        ("weigth_decay", "weight_decay", True),
        ("weight_decai", "weight_decay", True),
        ("stepz", "steps", True),
        # two wrong letters
        ("weigth_decai", "weight_decay", False),
        ("step", "steps", True),
        ("mdoe", "mode", True),
        ("omde", "mode", True),
        ("mod", "mode", True),
        # short, with another letter
        ("mope", "mode", False),
        # another first letter, another number
        ("height", "weight", False),
        ("beta3", "beta1", False),
        # as near to another
        ("paths_a", "path_a", False),
        ("weight", "weight_decay", False),
    ],
)
def test_a_typo_is_certain_with_one_wrong_letter(typed: str, meant: str, certain: bool) -> None:
    names = ["weight_decay", "steps", "weight", "beta1", "path_a", "paths_b", "mode"]
    assert is_certain_typo(typed, meant, names) is certain


def test_a_list_reads_like_a_sentence() -> None:
    assert [format_word_list([]), format_word_list(["a"]), format_word_list(["a", "b", "c"])] == [
        "",
        "a",
        "a, b or c",
    ]
    assert format_word_list(map(str, range(20)), max_words=2) == "0, 1 and 18 more"


@pytest.mark.parametrize(
    ("name", "slot", "short"),
    [
        ("dpo_loss", "loss", "dpo"),
        ("DPOLoss", "loss", "DPO"),
        ("loss", "loss", "loss"),
        ("adamw-optimizer", "optimizer", "adamw"),
        ("cosine_lr_scheduler", "lr_scheduler", "cosine"),
        ("CosineScheduler", "lr_scheduler", "Cosine"),
        ("lora_converter", "converters", "lora"),
        ("glossy", "loss", "glossy"),
    ],
)
def test_a_name_without_the_word_for_its_slot(name: str, slot: str, short: str) -> None:
    assert remove_slot_word(name, slot) == short
