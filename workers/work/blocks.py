"""Find the basic blocks of a kernel's text, and count what one execution of each does.

Owns the walk that finds blocks, inserts their counters and passes operations and accesses to
``costs.py``. Code after a ``return``, ``break`` or ``continue`` is a block of its own, and so is an
operand that ``&&``, ``||`` or ``?:`` may skip. So the counters and the text together give the exact
number of executions of each operation. Code after a statement into which a jump leads is a block of
its own, too. Jumps into loops and two extensions of C, ``({ … })`` and ``a ?: b``, are refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from clang import cindex

from workers.analysis.copy.cursors import (
    CALL,
    CASE,
    COMPOUND,
    DEFAULT,
    DO,
    FOR,
    IF,
    LABEL,
    MEMBER,
    SUBSCRIPT,
    SWITCH,
    UNARY,
    UNEXPOSED,
    VARIABLE,
    WHILE,
    children_of,
    statement_end,
    text_range,
)
from workers.analysis.copy.punctuation import punctuation
from workers.analysis.copy.rewriter import CONTEXT, Rewriter
from workers.source.clang.nodes import Space, TypeClass, TypeFacts
from workers.work.costs import Costs, Use

_CONDITIONAL, _BINARY, _COMPOUND_ASSIGN = 116, 114, 115
_DECL_STMT, _NULL_STMT = 231, 230
_CONTINUE, _BREAK = 212, 213
_GOTO, _LABEL_NAME = 210, 48
_STATEMENT_EXPRESSION, _ATTRIBUTED = 121, 200
_LEAVES_LOOP = frozenset({_CONTINUE, _BREAK})
"""libclang's numbers for ``continue`` and ``break``."""
_LEAVES_FUNCTION = frozenset({210, 211, 214})
"""libclang's numbers for ``goto`` (with a label or an address) and ``return``."""
_LOOPS = frozenset({WHILE, DO, FOR})
_SIZEOF = 136
_FIRST_INVALID, _LAST_INVALID = 70, 73
_LOGICAL_AND, _LOGICAL_OR = 20, 21
_COSTLY = frozenset({CALL, SUBSCRIPT, MEMBER, UNARY, _BINARY, _COMPOUND_ASSIGN, _CONDITIONAL})
"""Operations. An operand with one of them is a block, also if the block's tally is empty."""


@dataclass(slots=True, kw_only=True)
class Block:
    """Statements that run equally often.

    ``tally``: what one execution does, by the names of ``costs.py``. ``turn``: number of the block
    that counts the iterations of the innermost loop around this block, or the calls of its
    function. ``is_turn``: whether the block is the body of a loop.
    """

    number: int
    turn: int
    is_turn: bool = False
    tally: Counter[str] = field(default_factory=Counter)


class BlockWalk:
    """Numbers the blocks of all functions of a file and inserts their counters.

    Args:
        rewriter: the rewriter of the file. Walk before the rewriter makes other edits, so that the
            counters are outside of these edits.
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._edits = rewriter.edits
        self._costs = Costs(rewriter, self._expression)
        self.blocks: list[Block] = []
        self._spans: list[tuple[int, int, Block]] = []
        self._turn: Block | None = None
        self._jumps: list[tuple[int, str]] = []
        """Place and label of each ``goto`` of the function."""
        self._has_labels = False

    @property
    def uses(self) -> dict[tuple[int, int], Use]:
        """The use of each access, by the access's range in the text."""
        return self._costs.uses

    def block_at(self, offset: int) -> Block:
        """Return the block that contains an offset of the text."""
        inside = [one for one in self._spans if one[0] <= offset < one[1]]
        return max(enumerate(inside), key=lambda one: (one[1][0], one[0]))[1][2]

    def walk(self, body: Any) -> None:
        """Insert the counters of one function's body."""
        start, end = text_range(body)
        self._jumps = _jumps_of(body)
        self._has_labels = _contains(body, frozenset({LABEL, SWITCH}))
        self._turn = None
        entry = self._new(start, end)
        self._turn = entry
        entry.turn = entry.number
        self._edits.insert(start + 1, f" {_count(entry)};")
        self._compound(body, entry)

    def copy(self, cursor: Any, pointers: list[TypeFacts]) -> Block:
        """Return a block that counts the elements that one work-item copies for its work-group."""
        start, _ = text_range(cursor)
        self._turn = None
        block = self._new(start, start)
        for kind, use in zip(pointers, ("store", "load"), strict=True):
            if kind.pointee is not None:
                self._costs.memory(kind.pointee.space, 1, kind.pointee.size_bytes, block, use)
        return block

    def _new(self, start: int, end: int, *, is_turn: bool = False) -> Block:
        number = len(self.blocks)
        turn = number if is_turn or self._turn is None else self._turn.number
        block = Block(number=number, turn=turn, is_turn=is_turn)
        self.blocks.append(block)
        self._spans.append((start, end, block))
        return block

    # -- statements ----------------------------------------------------------------------------

    def _compound(self, compound: Any, block: Block, *, has_left: bool = False) -> None:
        """Walk the statements of a block; with ``has_left``, only a jump reaches the first one."""
        end = text_range(compound)[1]
        for statement in children_of(compound):
            start = text_range(statement)[0]
            if has_left and statement._kind_id not in {LABEL, CASE, DEFAULT, _NULL_STMT}:
                block = self._new(start, end)
                self._edits.insert(start, f"{_count(block)}; ")
            if statement._kind_id != _NULL_STMT:
                block, has_left = self._statement(statement, block, end)

    def _statement(self, statement: Any, block: Block, end: int) -> tuple[Block, bool]:
        """Walk a statement; return its last block, and whether the next one begins a new block.

        The next statement begins a new block if this statement may jump elsewhere, or if a jump
        leads into this statement.
        """
        while statement._kind_id == _ATTRIBUTED and children_of(statement):
            statement = children_of(statement)[-1]
        kind, children = statement._kind_id, children_of(statement)
        if kind in {LABEL, CASE, DEFAULT}:
            return self._labelled(statement, block, end)
        if kind == COMPOUND:
            self._compound(statement, block)
        elif kind == IF:
            self._expression(children[0], block)
            for branch in children[1:]:
                self._branch(branch)
        elif kind in _LOOPS:
            self._loop(statement, block)
        elif kind == SWITCH:
            self._expression(children[0], block)
            if children[-1]._kind_id == COMPOUND:
                self._compound(children[-1], block, has_left=True)
            else:
                self._branch(children[-1])
        else:
            self._expression(statement, block)
        return block, _may_leave(statement) or self._is_entered(statement)

    def _is_entered(self, statement: Any) -> bool:
        """Whether a ``goto`` or a ``switch`` outside of a statement leads into it."""
        if not self._has_labels:
            return False
        start, end = text_range(statement)
        from_outside = {label for at, label in self._jumps if not start <= at < end}
        stack = [(statement, False)]
        while stack:
            one, in_switch = stack.pop()
            kind = one._kind_id
            if (kind in {CASE, DEFAULT} and not in_switch) or (
                kind == LABEL and one.spelling in from_outside
            ):
                return True
            stack.extend((child, in_switch or kind == SWITCH) for child in children_of(one))
        return False

    def _labelled(self, statement: Any, block: Block, end: int) -> tuple[Block, bool]:
        """Walk the statement after a label in a new block, because a jump may reach it."""
        inner = children_of(statement)
        if not inner:
            return block, False
        below = inner[-1]
        if below._kind_id in {LABEL, CASE, DEFAULT}:
            return self._labelled(below, block, end)
        start = text_range(below)[0]
        block = self._new(start, end)
        self._edits.insert(start, f"{_count(block)}; ")
        return self._statement(below, block, end)

    def _branch(self, statement: Any, *, is_turn: bool = False) -> Block:
        """Walk a statement that may run less often than the code around it."""
        start, end = text_range(statement)
        block = self._new(start, end + 1, is_turn=is_turn)
        outer = self._turn
        if is_turn:
            self._turn = block
        if statement._kind_id == COMPOUND:
            self._edits.insert(start + 1, f" {_count(block)};")
        else:
            closing = statement_end(self._edits.raw, statement, end)
            self._edits.wrap(start, closing, f"{{ {_count(block)}; ", " }")
        self._statement(statement, block, end)
        self._turn = outer
        return block

    def _loop(self, statement: Any, block: Block) -> None:
        """Walk a loop; the condition runs once more than the body, unless a jump ends the loop."""
        kind, children = statement._kind_id, children_of(statement)
        body = children[0] if kind == DO else children[-1]
        if self._is_entered(body):
            raise self._rewriter.unresolved(statement, "a jump into a loop")
        parts = {"condition": children[-1] if kind == DO else children[0]}
        if kind == FOR:
            parts = _for_parts(self._edits.raw, statement, children[:-1])
        if "start" in parts:
            self._expression(parts["start"], block)
        turn = self._branch(body, is_turn=True)
        outer, self._turn = self._turn, turn
        is_plain = not _contains(body, _LEAVES_FUNCTION) and not _breaks(body)
        if "step" in parts:
            self._spans.append((*text_range(parts["step"]), turn))
            if is_plain:
                self._expression(parts["step"], turn)
            else:
                self._optional(parts["step"])
        if "condition" in parts:
            if kind == DO and is_plain:
                self._spans.append((*text_range(parts["condition"]), turn))
                self._expression(parts["condition"], turn)
            else:
                self._optional(parts["condition"])
        self._turn = outer

    # -- expressions -----------------------------------------------------------------------------

    def _expression(self, cursor: Any, block: Block) -> None:
        """Walk an expression that runs with ``block``; operands that may be skipped get blocks."""
        kind = cursor._kind_id
        if kind == _SIZEOF:
            return
        children = children_of(cursor)
        if kind == _STATEMENT_EXPRESSION:
            raise self._rewriter.unresolved(cursor, "a statement in an expression")
        if kind == UNEXPOSED and self._lacks_an_operand(children):
            raise self._rewriter.unresolved(cursor, "an operator ?: without its second operand")
        if kind == _CONDITIONAL and len(children) == 3:
            self._expression(children[0], block)
            is_vector = self._rewriter.type(children[0]).shape is TypeClass.VECTOR
            for child in children[1:]:
                if is_vector:
                    self._expression(child, block)
                else:
                    self._optional(child)
        elif kind == _BINARY and self._costs.operator(cursor) in {_LOGICAL_AND, _LOGICAL_OR}:
            self._expression(children[0], block)
            self._optional(children[1])
        elif kind == _DECL_STMT:
            for variable in children:
                self._initialiser(variable, block)
        else:
            self._costs.add(cursor, block)

    def _lacks_an_operand(self, children: list[Any]) -> bool:
        """Whether these are the operands of ``a ?: b``, for which libclang has no kind."""
        if len(children) < 2:
            return False
        start, end = text_range(children[0])[1], text_range(children[-1])[0]
        return self._edits.raw[start:end].lstrip(b") \t\n").startswith(b"?")

    def _initialiser(self, variable: Any, block: Block) -> None:
        if variable._kind_id != VARIABLE or self._rewriter.type(variable).space is Space.CONSTANT:
            return  # initialised before the kernel runs
        value = cindex.conf.lib.clang_Cursor_getVarDeclInitializer(variable)
        if not _FIRST_INVALID <= value._kind_id <= _LAST_INVALID:
            value._tu = variable._tu
            self._expression(value, block)

    def _optional(self, cursor: Any) -> None:
        """Walk an operand that may be skipped; it needs no counter if it only names variables."""
        start, end = text_range(cursor)
        block = self._new(start, end)
        self._expression(cursor, block)
        if block.tally or _contains(cursor, _COSTLY):
            self._edits.wrap(start, end, f"({_count(block)}, ", ")")
        else:
            self.blocks.pop()
            self._spans.pop()


def _count(block: Block) -> str:
    return f"lp_count_block({CONTEXT}, {block.number})"


def _jumps_of(body: Any) -> list[tuple[int, str]]:
    """Return the place and the label of each ``goto``."""
    found: list[tuple[int, str]] = []
    stack = [body]
    while stack:
        one = stack.pop()
        below = list(one.get_children())
        if one._kind_id == _GOTO:
            names = [child.spelling for child in below if child._kind_id == _LABEL_NAME]
            found.extend((text_range(one)[0], name) for name in names)
        stack.extend(below)
    return found


def _contains(cursor: Any, kinds: frozenset[int]) -> bool:
    stack = [cursor]
    while stack:
        one = stack.pop()
        if one._kind_id in kinds:
            return True
        stack.extend(children_of(one))
    return False


def _may_leave(statement: Any) -> bool:
    """Whether a statement has a jump out of itself, so that the code after it may not run."""
    stack = [(statement, False)]
    while stack:
        one, is_inside = stack.pop()
        kind = one._kind_id
        if kind in _LEAVES_FUNCTION or (kind in _LEAVES_LOOP and not is_inside):
            return True
        inside = is_inside or kind in _LOOPS
        if kind == SWITCH:
            # `break` leaves only the switch; `continue` belongs to a loop around the switch.
            if not inside and _contains(one, frozenset({_CONTINUE})):
                return True
            inside = True
        stack.extend((child, inside) for child in children_of(one))
    return False


def _breaks(body: Any) -> bool:
    """Whether a loop's body has a ``break`` of that loop."""
    stack = [body]
    while stack:
        one = stack.pop()
        if one._kind_id == _BREAK:
            return True
        if one._kind_id not in {*_LOOPS, SWITCH}:
            stack.extend(children_of(one))
    return False


def _for_parts(raw: bytes, statement: Any, header: list[Any]) -> dict[str, Any]:
    """Return the parts of a ``for`` header by name; libclang omits empty parts silently."""
    at = raw.index(b"(", text_range(statement)[0])
    signs = punctuation(raw, at)
    semicolons = (offset for offset, sign, depth in signs if sign == b";" and depth == 1)
    ends = list(islice(semicolons, 2))
    names = ("start", "condition", "step")
    return {names[sum(text_range(part)[0] > end for end in ends)]: part for part in header}
