"""The environment of chat templates: a sandbox that also bounds time and memory."""

from collections.abc import Callable, Iterable
from types import BuiltinMethodType, MethodType
from typing import Any, cast

from jinja2 import nodes
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from titanrun.components.tokenizers.template_budget import (
    CALL,
    STEP,
    ChargedIterable,
    TemplateBudget,
)
from titanrun.components.tokenizers.template_prices import (
    charge_method,
    charge_operator,
    measure_length,
    price_filter,
    price_test,
)

# filters that the syntax tree calls; templates cannot write these names
ITERATE, CONCATENATE, COMPARE, CONTAIN, SLICE, HASH, WRITE = (
    " iterate",
    " concatenate",
    " compare",
    " contain",
    " slice",
    " hash",
    " write",
)


TEXT_FILTERS = {CONCATENATE, "trim", "lower", "upper", "capitalize", "string", "tojson", "replace"}


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox whose templates pay for their work from `budget`."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self, **options: Any) -> None:
        self.budget = TemplateBudget()
        super().__init__(**options)
        # random, and not of use in a chat
        self.globals.pop("lipsum", None)
        self.macro_units = CALL

    def close_filters(self) -> None:
        """Give all filters and tests their prices; call it after further ones were added."""
        for name, function in list(self.filters.items()):
            self.filters[name] = price_filter(name, function, self.budget)
        for name, test in list(self.tests.items()):
            self.tests[name] = price_test(name, cast(Callable[..., Any], test), self.budget)
        self.filters |= {
            ITERATE: self._iterate,
            CONCATENATE: self._concatenate,
            COMPARE: self._charge_size,
            CONTAIN: self._charge_container,
            SLICE: self._slice,
            HASH: self._charge_size,
            WRITE: self._write,
        }

    def concat(self, pieces: Iterable[str]) -> str:
        """Return joined pieces of output. jinja2 calls it for everything that is written."""
        found = pieces if isinstance(pieces, list) else list(pieces)
        self.budget.charge(STEP + sum(map(len, found)))
        return "".join(found)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator."""
        if operator == "+" and type(left) is str and type(right) is str:
            # the usual case, without further calls
            budget, text = self.budget, left + right
            budget.spent = spent = budget.spent + STEP + len(text)
            if spent > budget.limit:
                budget.extend()
            return text
        charge_operator(self.budget, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function of a template."""
        budget, called = __self.budget, getattr(__obj, "__wrapped__", __obj)
        if type(called) is Macro:
            budget.charge(__self.macro_units + len(args) + len(kwargs))
            # variables of the compiled code, which no macro takes
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return called(*args, **kwargs)
        if isinstance(called, BuiltinMethodType) and called.__self__ is not None:
            args = tuple(budget.list_iterator(value) for value in args)
            charge_method(budget, called, args, kwargs)
        elif isinstance(called, LoopContext):
            budget.charge(__self.macro_units)
            args = tuple(ChargedIterable(budget, value, __self.macro_units) for value in args)
        elif isinstance(called, MethodType):
            budget.charge(CALL + budget.measure([*args, *kwargs.values()]))
        else:
            budget.charge(CALL + len(kwargs) + sum(map(measure_length, args)))
        return super().call(__context, __obj, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Return the syntax tree of a template, with prices."""
        tree = super()._parse(source, name, filename)
        macros = [count_nodes(macro) for macro in tree.find_all((nodes.Macro, nodes.CallBlock))]
        self.macro_units = CALL + max(macros, default=0)
        priced = PriceNodes().visit(tree)
        priced.set_environment(self)
        return priced  # type: ignore[no-any-return]

    def _iterate(self, values: Any, units: int) -> ChargedIterable:
        return ChargedIterable(self.budget, values, units)

    def _concatenate(self, values: tuple[Any, ...]) -> str:
        self.budget.charge(STEP + sum(self.budget.measure(value) for value in values))
        return "".join(map(str, values))

    def _charge_size(self, value: Any) -> Any:
        if isinstance(value, int):
            return value
        self.budget.charge(STEP + self.budget.measure(value))
        return value

    def _charge_container(self, value: Any) -> Any:
        """Pay for a look into a value; a mapping finds keys without reading all of them."""
        return value if isinstance(value, dict) else self._charge_size(value)

    def _slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        found = value[start:stop:step]
        self.budget.charge(STEP + measure_length(found))
        return found

    def _write(self, value: Any) -> Any:
        """Pay for the text of a value that is written."""
        if type(value) is not str:
            self.budget.charge(self.budget.measure(value))
        return value


class PriceNodes(NodeTransformer):
    """Rewriting of a syntax tree so that what jinja2 offers no hook for has a price."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """Pay for each pass of a loop, by the size of its body."""
        units = STEP + count_nodes(node)
        self.generic_visit(node)
        node.iter = call_filter(ITERATE, cast(nodes.Expr, node.iter), nodes.Const(units))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Pay for a ~ b."""
        self.generic_visit(node)
        return call_filter(CONCATENATE, nodes.Tuple(node.nodes, "load", lineno=node.lineno))

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        """Pay for the text of what is no text."""
        self.generic_visit(node)
        node.nodes = [
            child if is_text(child) else call_filter(WRITE, child) for child in node.nodes
        ]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """Pay for the copy that a slice is, and for the hash of a key."""
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            if not is_constant(node.arg):
                node.arg = call_filter(HASH, node.arg)
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return call_filter(SLICE, node.node, *(end or nodes.Const(None) for end in ends))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Pay for reading both sides. A constant side bounds what is read of the other."""
        self.generic_visit(node)
        is_known = is_constant(node.expr)
        for operand in node.ops:
            if is_constant(operand.expr):
                continue
            if operand.op in ("in", "notin"):
                operand.expr = call_filter(CONTAIN, operand.expr)
            elif not is_known:
                operand.expr = call_filter(COMPARE, operand.expr)
        if not is_known and not all(is_constant(operand.expr) for operand in node.ops):
            node.expr = call_filter(COMPARE, node.expr)
        return node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        """Pay for the hashes of keys."""
        self.generic_visit(node)
        for pair in node.items:
            if not is_constant(pair.key):
                pair.key = call_filter(HASH, pair.key)
        return node


def call_filter(name: str, value: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    """Return the node of a value to which a filter is applied."""
    return nodes.Filter(value, name, list(args), [], None, None, lineno=value.lineno)


def is_constant(node: nodes.Expr) -> bool:
    """Return whether a node is a constant, or a list of them, or true or false."""
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(map(is_constant, node.items))
    return isinstance(node, nodes.Const | nodes.Test | nodes.Not | nodes.Compare)


def is_text(node: nodes.Expr) -> bool:
    """Return whether the value of a node is certainly text, or a constant."""
    if isinstance(node, nodes.Add):
        return is_text(node.left) or is_text(node.right)
    if isinstance(node, nodes.Filter):
        return node.name in TEXT_FILTERS
    return isinstance(node, nodes.Const | nodes.TemplateData)


def count_nodes(node: nodes.Node) -> int:
    """Return the number of nodes below a node."""
    return sum(1 for _ in node.find_all(nodes.Node))
