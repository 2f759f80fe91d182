"""The header of a resolved recipe."""

from titanrun.config.checksum import get_checksum_state, to_yaml_with_checksum


def test_the_signature_tells_a_changed_body() -> None:
    text = to_yaml_with_checksum({"version": 1, "name": "é"})
    assert text.startswith("# titanrun resolved recipe, format 1, sha256:")
    assert text.endswith('\nversion: 1\nname: "é"\n')
    assert get_checksum_state(text) == "good"
    assert get_checksum_state(text.replace("version: 1", "version: 2")) == "changed"
    assert get_checksum_state(text.replace("sha256:", "sha256:0")) == "changed"
    assert get_checksum_state(text + "\n") == "changed"
    assert get_checksum_state("version: 1\n") == "none"
    assert get_checksum_state("") == "none"


def test_line_breaks_and_byte_order_mark_do_not_break_the_signature() -> None:
    assert (
        get_checksum_state(
            "\ufeff" + to_yaml_with_checksum({"x": [1, {"y": "a\r\n"}]}).replace("\n", "\r\n")
        )
        == "good"
    )
