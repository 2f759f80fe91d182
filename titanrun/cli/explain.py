"""`titanrun explain`: what a field, a component, a problem code or a rule means."""

import json
import sys

from titanrun.cli.arguments import Parser
from titanrun.cli.plugin_option import takes_plugins, use_plugins
from titanrun.cli.terminal import columns, fitted
from titanrun.config.problems import fail

EXAMPLES = """  titanrun explain training.seq_len     a field: what it takes, default, unit, meaning of a change
  titanrun explain optimizer            a section and its fields
  titanrun explain optimizer:adamw      a component and its fields
  titanrun explain unknown-key          a problem code: cause and fix
  titanrun explain batch-sizes-divide   a rule, named behind the slash of a problem
  titanrun explain optimizer:lion --plugins my_plugin
  titanrun explain --all > reference.md"""


def run(arguments: list[str]) -> int:
    """Print one entry of the reference, or all of it."""
    parser = Parser(
        "explain", "What a field, a component, a problem code or a rule means.", EXAMPLES
    )
    parser.add_argument("word", nargs="*", help="a path, slot:name, a problem code or a rule")
    parser.add_argument("--all", action="store_true", help="the whole reference, as Markdown")
    parser.add_argument("--json", action="store_true", help="one JSON object a word")
    takes_plugins(parser)
    options = parser.parse_args(arguments)
    use_plugins(options)
    if options.all:
        from titanrun.recipe.reference import reference

        sys.stdout.write(reference())
        return 0
    if not options.word:
        raise fail(
            "usage",
            "nothing to explain was named",
            help="titanrun explain training.steps, or titanrun explain --all",
        )
    from titanrun.recipe.explained import explanation

    if options.json:
        for word in options.word:
            print(json.dumps({"word": word, "text": explanation(word)}, ensure_ascii=False))
        return 0
    sys.stdout.write(fitted("\n".join(explanation(word) for word in options.word), columns()))
    return 0
