"""Finds places in a C source where a fault can be planted.

sites(text) returns a list of Site: a kind, a line, and the text of the file with one small fault. Every fault keeps
the number of lines. The reader knows as much C as this project's formatted sources need; a fault that does not
compile is dropped by the caller.
"""
import re
from collections import namedtuple

Token = namedtuple("Token", "kind text pos")
Site = namedtuple("Site", "kind line start end text function")

KINDS = ("comparison", "bound", "removed", "early return", "condition", "logic", "negation")

TOKEN = re.compile(r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
  | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<op><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)
""", re.X | re.S)

FLIPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ASSIGNS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"}
CONTROL = {"if", "for", "while", "switch"}
NOT_STATEMENTS = CONTROL | {"else", "do", "return", "break", "continue", "goto", "case", "default", "assert", "static",
                            "const", "struct", "enum", "union", "_Static_assert", "typedef", "extern"}
# Functions that only give back memory or write a log line: a plain run does not see whether they are called.
FREES = re.compile(r"^(mem_free|free|close|munmap|log_\w+|\w*_(free|deinit|close|munmap|unmap))$")


def without_directives(text):
    """Returns the text with preprocessor lines blanked out, all positions kept."""
    def blank(m):
        return re.sub(r"[^\n]", " ", m.group())
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", blank, text, flags=re.M)


def tokenize(text):
    out = []
    for m in TOKEN.finditer(without_directives(text)):
        if m.lastgroup != "space":
            out.append(Token(m.lastgroup, m.group(), m.start()))
    return out


def match_brackets(tokens):
    """Returns for each bracket the index of its partner."""
    pairs, open_ = {}, []
    for i, t in enumerate(tokens):
        if t.kind != "op":
            continue
        if t.text in "([{":
            open_.append(i)
        elif t.text in ")]}" and open_:
            j = open_.pop()
            pairs[i], pairs[j] = j, i
    return pairs


def functions(tokens, pairs):
    """Yields (type tokens, name, index of the body's '{', index of its '}')."""
    i, begin = 0, 0
    while i < len(tokens):
        t = tokens[i].text
        if t == "{":
            end = pairs.get(i, len(tokens) - 1)
            if i and tokens[i - 1].text == ")":
                opening = pairs.get(i - 1, 0)
                if opening > begin and tokens[opening - 1].kind == "word":
                    yield tokens[begin:opening - 1], tokens[opening - 1].text, i, end
            i = end
            if i + 1 < len(tokens) and tokens[i + 1].text != ";":
                begin = i + 1
        elif t == ";":
            begin = i + 1
        i += 1


def zero_of(type_tokens, alternative):
    """Returns the statement that returns at once from a function of this type."""
    words = [t.text for t in type_tokens if t.text not in ("static", "inline", "extern", "const", "_Noreturn")]
    if "__attribute__" in words or not words:
        return None
    if words == ["void"]:
        return "return;"
    if words == ["bool"]:
        return "return true;" if alternative else "return false;"
    if "*" in words:
        return "return 0;"
    return "return (%s){0};" % " ".join(words)


class Reader:
    def __init__(self, text):
        self.text = text
        self.tokens = tokenize(text)
        self.pairs = match_brackets(self.tokens)
        self.found = []
        self.function = ""

    def add(self, kind, start, end, new):
        """Notes a fault: text[start:end] becomes new, padded with the line breaks that it had."""
        old = self.text[start:end]
        new += "\n" * (old.count("\n") - new.count("\n"))
        line = self.text.count("\n", 0, start) + 1
        self.found.append(Site(kind, line, start, end, new, self.function))

    def binary(self, i):
        """Whether the operator at i has an operand on its left."""
        p = self.tokens[i - 1]
        return p.kind in ("word", "number", "string") and p.text != "return" or p.text in (")", "]")

    def statement_starts(self, first, last):
        """Yields the indexes where a statement of the body starts; notes conditions of if on the way."""
        tokens, pairs = self.tokens, self.pairs
        i, fresh = first, True
        while i < last:
            t = tokens[i]
            if fresh:
                yield i
            fresh = False
            if t.text in CONTROL and t.kind == "word" and tokens[i + 1].text == "(":
                i, fresh = pairs[i + 1], True
            elif t.text in ("else", "do", ";", "}"):
                fresh = True
            elif t.text in ("(", "["):
                i = pairs[i]
            elif t.text == "{":
                if self.is_block(i):
                    fresh = True
                else:
                    i = pairs[i]
            elif t.text == ":" and self.is_label(i, first):
                fresh = True
            i += 1

    def is_block(self, i):
        p = self.tokens[i - 1]
        if p.text == ")":
            opening = self.pairs[i - 1]
            return self.tokens[opening - 1].text in CONTROL
        return p.text in ("else", "do", ";", "{", "}", ":")

    def is_label(self, i, first):
        j = i - 1
        while j > first and self.tokens[j].text not in (";", "{", "}", "?", ":"):
            if self.tokens[j].text in ("case", "default"):
                return True
            j -= 1
        return False

    def end_of_statement(self, i, last):
        while i < last:
            if self.tokens[i].text in "([{":
                i = self.pairs[i]
            elif self.tokens[i].text == ";":
                return i
            i += 1
        return None

    def declares(self, i):
        """Whether the statement at i is a declaration: two words in a row, or a type and a star."""
        a, b = self.tokens[i], self.tokens[i + 1]
        if a.kind != "word" or a.text in NOT_STATEMENTS - {"static", "const", "struct", "enum", "union"}:
            return False
        return b.kind == "word" or b.text == "*"

    def removable(self, i, end, with_frees):
        a, b = self.tokens[i], self.tokens[i + 1]
        if a.text in NOT_STATEMENTS or self.declares(i):
            return False
        if a.kind == "word":
            if b.text == "(":
                return with_frees or not FREES.match(a.text)
            return b.text in ("->", ".", "[") or b.text in ASSIGNS
        if a.text == "(" and self.tokens[i + 1].text == "void":
            return False
        return a.text in ("*", "++", "--", "(") and end > i + 1

    def add_early_return(self, type_tokens, body):
        at = self.tokens[body].pos + 1
        for alternative in (False, True):
            new = zero_of(type_tokens, alternative)
            if new and (not alternative or "true" in new):
                self.add("early return", at, at, " " + new)

    def add_statements(self, first, last, with_frees):
        quiet = []  # index ranges of assertions and of declarations' array sizes
        for i in self.statement_starts(first, last):
            end = self.end_of_statement(i, last)
            t = self.tokens[i]
            if t.text == "if":
                a, b = self.tokens[i + 1].pos, self.tokens[self.pairs[i + 1]].pos
                cond = self.text[a + 1:b]
                self.add("condition", a + 1, b, "(%s) && 0" % cond)
                self.add("condition", a + 1, b, "(%s) || 1" % cond)
            if end is None:
                continue
            if t.text in ("assert", "_Static_assert"):
                quiet.append((i, end))
            elif self.removable(i, end, with_frees):
                self.add("removed", t.pos, self.tokens[end].pos, "")
            elif self.declares(i):
                for j in range(i, end):
                    if self.tokens[j].text == "[" and self.tokens[j - 1].kind == "word":
                        quiet.append((j, self.pairs[j]))
                    if self.tokens[j].text == "=":
                        break
        return quiet

    def add_operators(self, first, last, quiet):
        tokens = self.tokens
        for i in range(first, last):
            if any(a <= i <= b for a, b in quiet):
                continue
            t, after = tokens[i], tokens[i + 1]
            end = t.pos + len(t.text)
            if t.text in FLIPS and t.kind == "op" and self.binary(i) and not self.is_maximum(t):
                self.add("comparison", t.pos, end, FLIPS[t.text])
            elif t.text in ("&&", "||"):
                self.add("logic", t.pos, end, "||" if t.text == "&&" else "&&")
            elif t.text == "!":
                self.add("negation", t.pos, end, "")
            elif t.text in ("+", "-") and self.binary(i) and re.fullmatch(r"1[uUlL]*", after.text):
                self.add("bound", t.pos, after.pos + len(after.text), "")
            elif t.kind == "number" and re.fullmatch(r"(\d+|0[xX][0-9a-fA-F]+)[uUlL]*", t.text) and self.is_bound(i):
                self.add("bound", t.pos, end, "(%s + 1)" % t.text)
                if int(t.text.rstrip("uUlL"), 0 if t.text[:2] in ("0x", "0X") else 10) > 0:
                    self.add("bound", t.pos, end, "(%s - 1)" % t.text)

    def is_maximum(self, t):
        """Whether < and <= give the same result: a > b ? a : b, if (a > b) b = a."""
        begin = self.text.rfind("\n", 0, t.pos) + 1
        line = self.text[begin:self.text.find("\n", t.pos)]
        left, right = line[:t.pos - begin], line[t.pos - begin + len(t.text):]
        a = re.search(r"([\w.>\-\[\]]+) $", left)
        for pattern in (r" ([\w.>\-\[\]]+) \? ([\w.>\-\[\]]+) : ([\w.>\-\[\]]+)[;,)]",
                        r" ([\w.>\-\[\]]+)\) ([\w.>\-\[\]]+) += ([\w.>\-\[\]]+);"):
            m = re.match(pattern, right)
            if a and m and {m.group(2), m.group(3)} == {a.group(1), m.group(1)}:
                return t.text in ("<", ">", "<=", ">=")
        return False

    def is_bound(self, i):
        """Whether the constant at i is compared, added, subtracted, an index, or in an argument's place of a limit."""
        p, n = self.tokens[i - 1], self.tokens[i + 1]
        if p.text in FLIPS or n.text in FLIPS:
            return True
        if p.text in ("+", "-") and self.binary(i - 1) and not re.fullmatch(r"1[uUlL]*", self.tokens[i].text):
            return True
        return p.text == "[" and n.text == "]"

    def read(self, with_frees):
        for type_tokens, name, body, end in functions(self.tokens, self.pairs):
            self.function = name
            if with_frees or not FREES.match(name):
                self.add_early_return(type_tokens, body)
            quiet = self.add_statements(body + 1, end, with_frees)
            self.add_operators(body + 1, end, quiet)
        return self.found


def sites(text, with_frees=False):
    return Reader(text).read(with_frees)


def planted(text, site):
    """Returns the text with the fault."""
    return text[:site.start] + site.text + text[site.end:]
