"""The header of a resolved recipe."""

from titanrun.config.signature import check_signature, signed


def test_the_signature_tells_a_changed_body() -> None:
    text = signed({"version": 1, "name": "é"})
    assert text.startswith("# titanrun resolved recipe, format 1, sha256:")
    assert text.endswith('\nversion: 1\nname: "é"\n')
    assert check_signature(text) == "good"
    assert check_signature(text.replace("version: 1", "version: 2")) == "changed"
    assert check_signature(text.replace("sha256:", "sha256:0")) == "changed"
    assert check_signature(text + "\n") == "changed"
    assert check_signature("version: 1\n") == "none"
    assert check_signature("") == "none"


def test_line_breaks_and_byte_order_mark_do_not_break_the_signature() -> None:
    assert (
        check_signature("\ufeff" + signed({"x": [1, {"y": "a\r\n"}]}).replace("\n", "\r\n"))
        == "good"
    )
