"""Templates have a bound in time and memory: row B17 of the defect list."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from titanrun.components.tokenizers import template_budget
from titanrun.components.tokenizers.chat_template import ChatTemplate
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

USER = [{"role": "user", "content": "hi"}]
NAMES = '{% set ns = namespace(x="ab", l=[1], t=(1,)) %}{% set other = namespace(l=[1]) %}'
LOOP = "{% for i in range(99) %}"
NESTED = (
    LOOP + "{% set ns.l = [ns.l, ns.l] %}{% set ns.t = (ns.t, ns.t) %}"
    "{% set other.l = [other.l, other.l] %}{% endfor %}"
)
LARGE = {
    "repetition": '{{ "x" * 10**9 }}',
    "reversed repetition": '{{ 10**9 * "x" }}',
    "repeated list": "{{ ([1] * 10**9)|length }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "default of a macro": '{% macro f(a="x" * 10**9) %}{{ a }}{% endmacro %}{{ f() }}',
    "center": '{{ "x"|center(10**9) }}',
    "constant center": '{{ "x"|center(1000000000) }}',
    "method center": '{{ "x".center(10**9) }}',
    "ljust": '{{ "x".ljust(10**9) }}',
    "zfill": '{{ "x".zfill(10**9) }}',
    "expandtabs": '{{ "\\t".expandtabs(10**9) }}',
    "indent": '{{ "x\\ny"|indent(10**9) }}',
    "indent by a text": '{{ ("x\\n" * 10000)|indent("y" * 100000) }}',
    "format filter": '{{ "%1000000000d"|format(5) }}',
    "format operator": '{{ "%1000000000d" % 5 }}',
    "format width of an argument": '{{ "%*d" % (10**9, 5) }}',
    "format method": '{{ "{:1000000000}".format(5) }}',
    "format of a format": '{{ "{:{}}".format(5, 10**9) }}',
    "format map": '{{ "{a:{b}}".format_map({"a": 5, "b": 10**9}) }}',
    "join": '{{ range(99999)|join("x" * 99999) }}',
    "method join": '{{ ("x" * 99999).join(range(99999)|map("string")|list) }}',
    "join of a generator": '{{ range(99999)|map("string")|join("x" * 99999) }}',
    "replace": '{{ ("x" * 99999)|replace("x", "y" * 99999) }}',
    "method replace": '{{ ("x" * 99999).replace("", "y" * 99999) }}',
    "translate": '{{ ("x" * 99999).translate({120: "y" * 99999}) }}',
    "batch": '{{ [1]|batch(10**9, "x")|list|length }}',
    "slice": "{{ [1]|slice(10**9)|list|length }}",
    "sum of lists": "{{ ([[1]] * 99999)|sum(start=[])|length }}",
    "tojson": "{{ [[[1]]]|tojson(indent=10**9) }}",
    "wordwrap": '{{ ("x" * 999999)|wordwrap(1) }}',
    "truncate": '{{ "xxxxxxxxxxxxxxxxx"|truncate(5, end="y" * 10**9) }}',
    "filter block": "{% filter center(10**9) %}x{% endfilter %}",
    "mapped center": '{{ ["x"]|map("center", 10**9)|list }}',
    "to_bytes": '{{ (1).to_bytes(10**9, "big") }}',
    "punycode": '{{ ("é" * 999999).encode("punycode") }}',
    "striptags": '{{ ("<!---->" * 99999)|striptags }}',
}
GROWING = {
    "sum": NAMES + LOOP + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "concatenation": NAMES + LOOP + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "block": NAMES + LOOP + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"
    "{% endfor %}",
    "format": NAMES + LOOP + '{% set ns.x = "%s%s" % (ns.x, ns.x) %}{% endfor %}',
    "join": NAMES + LOOP + "{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    "replace": NAMES + LOOP + '{% set ns.x = ns.x|replace("b", "bb") %}{% endfor %}',
    "lists": NAMES + LOOP + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "macro": "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}"
    + NAMES
    + LOOP
    + "{% set ns.x = d(ns.x) %}{% endfor %}",
    "numbers": NAMES.replace('"ab"', "10") + LOOP + "{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "output of nested lists": NAMES + NESTED + "{{ ns.l }}",
    "json of nested lists": NAMES + NESTED + "{{ ns.l|tojson }}",
    "concatenation of nested lists": NAMES + NESTED + '{{ ns.l ~ "" }}',
    "comparison of nested lists": NAMES + NESTED + "{{ ns.l == other.l }}",
    "search for nested lists": NAMES + NESTED + "{{ ns.l in [other.l] }}",
    "hash of nested tuples": NAMES + NESTED + "{{ {ns.t: 1} }}",
    "key of nested tuples": NAMES + NESTED + "{{ {}[ns.t] }}",
    "method with nested tuples": NAMES + NESTED + "{{ {}.get(ns.t) }}",
    "test of nested lists": NAMES + NESTED + "{{ ns.l is lower }}",
    "nested namespaces": "{% set h = namespace(l=1) %}"
    + LOOP
    + "{% set h.l = namespace(x=h.l, y=h.l) %}{% endfor %}{{ h.l }}",
}
LIST = "{% set r = range(99999)|list %}"
TEXT = '{% set s = "x" * 99999 %}{% set t = s ~ "" %}{% for i in range(99999) %}'
LONG = {
    "nested loops": "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "loop with a condition": "{% for i in range(99999) %}"
    "{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "tree of macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "tree of loops": "{% for i in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}"
    "{% endfor %}",
    "wide recursion": LIST + "{% for i in r recursive %}{% if loop.depth < 4 %}{{ loop(r) }}"
    "{% endif %}{% endfor %}",
    "arguments": LIST + "{% macro f() %}{{ varargs|length }}{% endmacro %}"
    "{% for i in r %}{{ f(*r) }}{% endfor %}",
    "generators": LIST + '{% for i in r %}{{ r|select("none")|list|length }}{% endfor %}',
    "copies of lists": "{% for i in range(99999) %}{{ range(99999)|list|length }}{% endfor %}",
    "slices": TEXT + "{% set u = s[1:] %}{% endfor %}",
    "comparisons": TEXT + "{% if s == t %}{% endif %}{% endfor %}",
    "searches": TEXT + '{% if "y" in s %}{% endif %}{% endfor %}',
    "methods": TEXT + "{% set u = s.upper() %}{% endfor %}",
    "changes": TEXT + "{{ loop.changed(s if i % 2 else t) }}{% endfor %}",
}
REAL_TIME = ("nested loops", "tree of macros", "generators", "copies of lists")


def refuse(text: str) -> str:
    """Return the problem of a template that cannot be rendered."""
    with pytest.raises(ProblemsFound) as caught:
        ChatTemplate(text, {}, source="bomb.jinja").render(USER)
    (problem,) = caught.value.problems
    assert (
        problem.code == "data" and problem.path == ("tokenizer", "chat_template") and problem.hint
    )
    return problem.message


@pytest.mark.parametrize("name", LARGE)
def test_a_large_value_is_refused_before_it_is_made(name: str) -> None:
    message = "the chat template of 'bomb.jinja' rejects the messages: it exceeds the limit of"
    assert refuse(LARGE[name]).startswith(message)


@pytest.mark.parametrize("name", [*GROWING, *LONG])
def test_a_template_that_never_ends_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered, so that reaching it takes little time."""
    monkeypatch.setattr(template_budget, "BASE_LIMIT", 2**21)
    assert "it exceeds the limit of time and memory" in refuse({**GROWING, **LONG}[name])


@pytest.mark.slow
def test_the_limit_is_seconds_and_less_than_a_gigabyte() -> None:
    """Each in a process that may use 60 seconds and 1 GiB, and must end by a problem."""
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
        "from titanrun.components.tokenizers.chat_template import ChatTemplate\n"
        "from titanrun.config.problems import ProblemsFound\n"
        "try:\n"
        "    ChatTemplate(sys.stdin.read(), {}, source='bomb').render("
        "[{'role': 'user', 'content': 'hi'}])\n"
        "except ProblemsFound as found:\n"
        "    sys.exit(3 if 'exceeds the limit' in found.problems[0].message else 1)\n"
    )
    for text in [*GROWING.values(), *(LONG[name] for name in REAL_TIME)]:
        done = subprocess.run([sys.executable, "-c", program], input=text, text=True, check=False)
        assert done.returncode == 3, text


def test_a_template_that_is_too_long_or_too_deep_is_refused() -> None:
    assert "more than 1,048,576 characters" in refuse("x" * 2**21)
    assert "cannot be read" in refuse("{% for i in [1] %}" * 40 + "{% endfor %}" * 40)


def test_no_template_is_random() -> None:
    assert "'lipsum' is undefined" in refuse("{{ lipsum(n=10**6) }}")


def test_the_limit_grows_with_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "BASE_LIMIT", 1000)
    template = ChatTemplate("{{ messages[0].content * 100 }}", {}, source="test")
    assert template.render([{"role": "user", "content": "x" * 1000}]) == "x" * 100_000
    with pytest.raises(ProblemsFound, match="exceeds the limit"):
        ChatTemplate("{{ 'x' * 1000000 }}", {}, source="test").render(USER)


def test_long_conversations_are_within_the_limit() -> None:
    """5,000 messages, of 20 million characters, in a template that copies what it wrote."""
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": f" {number} " + "word " * 800}
        for number in range(5000)
    ]
    text = (
        "{% for message in messages %}{% set ns = namespace(done=message.role + ': ') %}"
        "{% for part in message.content.split(' ') %}{% endfor %}"
        "{% if '</think>' not in message.content %}"
        "{% set ns.done = ns.done + message.content|trim %}{% endif %}{{ ns.done + '\n' }}"
        "{% endfor %}"
    )
    expected = "".join(f"{one['role']}: {one['content'].strip()}\n" for one in messages)
    assert ChatTemplate(text, {}, source="test").render(messages) == expected


def test_threads_have_limits_of_their_own() -> None:
    template = ChatTemplate("{% for i in range(9999) %}{{ i }}{% endfor %}", {}, source="test")
    expected = "".join(map(str, range(9999)))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: template.render(USER), range(16)))
    assert found == [expected] * 16


def test_validate_names_the_template_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "bomb.jinja").write_text(LARGE["repetition"])
    (tmp_path / "chats.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    )
    (tmp_path / "recipe.yaml").write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer:\n"
        f"  {{name: tiny, chat_template: {tmp_path}/bomb.jinja}}\ntraining:\n"
        f"  dataset: {{name: chat, path: {tmp_path}/chats.jsonl}}\n  seq_len: 64\n"
    )
    with pytest.raises(ProblemsFound) as caught:
        resolve_recipe(str(tmp_path / "recipe.yaml"), environment={}, should_check_inputs=True)
    (problem,) = caught.value.problems
    assert "bomb.jinja' rejects the messages: it exceeds the limit" in problem.message
    assert problem.origin is not None and problem.origin.line == 4
