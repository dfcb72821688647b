#!/usr/bin/env python3
"""The training text: seeded, endless, labelled. A sample's operand tuples decide its split by their hash, so that no tuple of
the held-out split is ever drawn for training. `gen.py --show` prints samples."""
import argparse
import json
import random
import sys
import zlib

import recall
import tools
from world import *
from chat import Sample, Turn, render

HELD_OUT = 16       # one operand tuple of so many is held out


def held_out(key):
    if key[0] == "request" and key[1] in DEMO: return True
    return zlib.crc32(repr(key).encode()) % HELD_OUT == 0


def key_of(label, v):
    return (label,) + (tuple(v) if isinstance(v, (tuple, list)) else (v,))


class Maker:
    """Draws samples of one split."""

    def __init__(self, seed, test=False, boost=None):
        """boost: {class: factor of its weight}"""
        self.rng = random.Random(seed)
        self.test = test
        self.weights = [w * (boost or {}).get(c, 1) for c, w in zip(CLASSES, WEIGHTS)]
        self.keys = []

    def draw(self, label, fn, small=None):
        """An operand tuple of this split. Tuples that `small` names are always for training, so that the easy cases are all seen."""
        while True:
            v = fn()
            if self.mine(label, v, small):
                self.keys.append(key_of(label, v))
                return v

    def mine(self, label, v, small=None):
        """Whether the tuple belongs to this split."""
        return (held_out(key_of(label, v)) and not (small and small(v))) == self.test

    def say(self, *wordings):
        """One of the wordings, sometimes as people type in haste."""
        r = self.rng
        text = r.choice(wordings)
        x = r.random()
        if x < 0.12 and text[-1] in "?.!": text = text[:-1]
        elif x < 0.20: text = text[0].lower() + text[1:]
        elif x < 0.26: text = text[0].lower() + text[1:].rstrip("?.!")
        elif x < 0.31: text = r.choice(["Hi, ", "Hey, ", "Please help: ", "Hello! ", "Ok, "]) + text[0].lower() + text[1:]
        elif x < 0.34 and text[-1] == ".": text = text[:-1] + ", please."
        return text

    def sample(self, cls=None):
        self.keys = []
        cls = cls or self.rng.choices(CLASSES, self.weights)[0]
        s = MAKERS[cls](self)
        s.cls, s.keys = cls, self.keys
        if not s.system and self.rng.random() < 0.06:
            s.system = self.rng.choice(["You are a helpful assistant.", "Be brief.", "You are nano.", "Answer the question.", "You are a careful assistant."])
        s.replay_thought = self.test or self.rng.random() < 0.5
        return s


HEADS = "b bl br c ch cl d dr f fl fr g gl gr h j k kl l m n p pl pr qu r s sh sk sl st t th tr v w y z".split()
HEARTS = "a e i o u ai ea ee ia io oa oo ou".split()
TAILS = ["", "", "", "", "l", "n", "r", "s", "t", "m", "ck", "nd", "ng", "sh", "x", "lin", "ton", "ville", "man"]


def invented(r):
    """A word that no list has, so that words are copied rather than guessed"""
    return "".join(r.choice(HEADS) + r.choice(HEARTS) for _ in range(r.choice([1, 2, 2, 3]))) + r.choice(TAILS)


def first(r): return invented(r).capitalize() if r.random() < 0.25 else r.choice(FIRST)
def last(r): return invented(r).capitalize() if r.random() < 0.25 else r.choice(LAST)
def city(r): return invented(r).capitalize() if r.random() < 0.2 else r.choice(CITIES)
def thing(r): return invented(r) if r.random() < 0.15 else r.choice(GOODS)


def listed(xs):
    xs = [str(x) for x in xs]
    return ", ".join(xs[:-1]) + " and " + xs[-1]


def one(user, answer, **kw):
    return Sample("", [Turn(user, answer)], **kw)


# --- arithmetic, worked step by step ---------------------------------------------------------------
COLUMNS = ["ones", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands"]


def add_steps(a, b):
    if a < 10 and b < 10: return ["%d + %d = %d" % (a, b, a + b)]
    lines, carry = ["%d + %d" % (a, b)], 0
    for i in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10 ** i % 10, b // 10 ** i % 10
        total = x + y + carry
        lines.append("%s: %d + %d%s = %d, write %d%s" % (COLUMNS[i], x, y, " + 1" if carry else "", total, total % 10, ", carry 1" if total > 9 else ""))
        carry = total // 10
    return lines


def sub_steps(a, b):
    """a >= b"""
    if a < 20 and b < 10: return ["%d - %d = %d" % (a, b, a - b)]
    lines, borrow = ["%d - %d" % (a, b)], 0
    for i in range(len(str(a))):
        x, y = a // 10 ** i % 10, b // 10 ** i % 10
        left = "%d%s - %d" % (x, " - 1" if borrow else "", y)
        d = x - borrow - y
        if d < 0: left = "%s, borrow 1, %d%s - %d" % (left, x + 10, " - 1" if borrow else "", y)
        lines.append("%s: %s = %d" % (COLUMNS[i], left, d % 10))
        borrow = d < 0
    return lines


def parts_of(n):
    """34 = 30 + 4"""
    s = str(n)
    return [int(c) * 10 ** (len(s) - 1 - i) for i, c in enumerate(s) if c != "0"]


def mul_steps(a, b):
    if a < 10 and b < 10: return ["%d x %d = %d" % (a, b, a * b)]
    lines, sums = ["%d x %d" % (a, b)], []
    for q in parts_of(b):
        ps = parts_of(a)
        line, total = "%d x %d" % (a, q), 0
        if len(ps) == 1: line, total = "%s = %d" % (line, a * q), a * q
        else:
            line += ": " + ", ".join("%d x %d = %d" % (p, q, p * q) for p in ps)
            total = ps[0] * q
            for p in ps[1:]:
                line += ", %d + %d = %d" % (total, p * q, total + p * q)
                total += p * q
        lines.append(line)
        sums.append(total)
    total = sums[0]
    for x in sums[1:]:
        lines.append("%d + %d = %d" % (total, x, total + x))
        total += x
    return lines


def div_steps(a, b):
    """Long division, digit by digit"""
    lines, rest, started = ["%d / %d" % (a, b)], 0, False
    for c in str(a):
        rest = 10 * rest + int(c)
        if rest < b and not started: continue
        started = True
        lines.append("%d / %d = %d remainder %d" % (rest, b, rest // b, rest % b))
        rest %= b
    return lines if started else lines + ["%d / %d = 0 remainder %d" % (a, b, a)]


def number(r, digits=(1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6)):
    n = r.choice(digits)
    return r.randrange(10 ** (n - 1) if n > 1 else 0, 10 ** n)


def add_pair(m):
    r = m.rng
    return m.draw("add", lambda: tuple(sorted((number(r), number(r)))), lambda p: p[1] < 13)


def shuffled(r, p):
    return p if r.random() < 0.5 else p[::-1]


def operation(m):
    """(wordings, steps, result) of one question"""
    r = m.rng
    kind = r.choices(["add", "sub", "mul", "div", "sum", "percent"], [32, 26, 22, 14, 8, 6])[0]
    if kind == "add":
        a, b = shuffled(r, add_pair(m))
        return ["What is %d plus %d?" % (a, b), "%d + %d" % (a, b), "What is %d + %d?" % (a, b), "Add %d and %d." % (a, b), "%d+%d=?" % (a, b),
                "Calculate %d + %d." % (a, b), "What's the sum of %d and %d?" % (a, b), "How much is %d plus %d?" % (a, b),
                "Compute %d plus %d." % (a, b), "What is the sum of %d and %d?" % (a, b), "Can you add %d and %d?" % (a, b),
                "What do you get when you add %d to %d?" % (b, a), "%d plus %d" % (a, b), "%d + %d = ?" % (a, b), "%d+%d" % (a, b)], add_steps(a, b), a + b
    if kind == "sub":
        negative = r.random() < 0.1
        a, b = m.draw("sub", lambda: tuple(sorted((number(r), number(r)), reverse=not negative)), lambda p: max(p) < 13)
        steps = sub_steps(a, b) if a >= b else ["%d is less than %d, so the answer is negative" % (a, b)] + sub_steps(b, a)
        return ["What is %d minus %d?" % (a, b), "%d - %d" % (a, b), "What is %d - %d?" % (a, b), "Subtract %d from %d." % (b, a), "%d-%d=?" % (a, b),
                "Calculate %d - %d." % (a, b), "What's the difference of %d and %d?" % (a, b), "How much is %d minus %d?" % (a, b),
                "Take %d away from %d." % (b, a), "Compute %d minus %d." % (a, b), "%d minus %d" % (a, b), "%d - %d = ?" % (a, b), "%d-%d" % (a, b)], steps, a - b
    if kind == "mul":
        def pair():
            x, y = number(r, (1, 2, 2, 3)), number(r, (1, 1, 2))
            return (x, y) if x > 1 and y > 1 and not (x > 99 and y > 9) else pair()
        a, b = m.draw("mul", lambda: tuple(sorted(pair())), lambda p: p[1] < 13)
        a, b = (b, a) if b > 99 else shuffled(r, (a, b))
        big, low = max(a, b), min(a, b)
        return ["What is %d times %d?" % (a, b), "%d * %d" % (a, b), "What is %d x %d?" % (a, b), "Multiply %d by %d." % (a, b), "%d*%d=?" % (a, b),
                "Calculate %d * %d." % (a, b), "What's the product of %d and %d?" % (a, b), "How much is %d times %d?" % (a, b),
                "Compute %d times %d." % (a, b), "%d times %d" % (a, b), "%d x %d = ?" % (a, b), "What is %d multiplied by %d?" % (a, b)], mul_steps(big, low), a * b
    if kind == "div":
        even = r.random() < 0.6

        def pair():
            x, y = r.randrange(12, 250) if r.random() < 0.7 else r.randrange(100, 1000), r.randrange(2, 13)
            return (x // y * y if even else x, y)
        a, b = m.draw("div", pair, lambda p: p[0] < 20)
        q, rest = divmod(a, b)
        steps = div_steps(a, b)
        return ["What is %d divided by %d?" % (a, b), "%d / %d" % (a, b), "Divide %d by %d." % (a, b), "Calculate %d / %d." % (a, b),
                "How much is %d divided by %d?" % (a, b), "How many times does %d go into %d?" % (b, a), "%d divided by %d" % (a, b),
                "%d/%d" % (a, b)], steps, "%d remainder %d" % (q, rest) if rest else q
    if kind == "percent":
        def pair():
            p, n = r.choice([1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 80, 90]), r.randrange(1, 100) * 10
            return (p, n) if p * n % 100 == 0 else pair()
        p, n = m.draw("percent", pair)
        return ["What is %d%% of %d?" % (p, n), "What is %d percent of %d?" % (p, n), "Calculate %d%% of %d." % (p, n), "How much is %d%% of %d?" % (p, n),
                "%d%% of %d" % (p, n)], mul_steps(max(p, n), min(p, n)) + ["%d / 100 = %d" % (p * n, p * n // 100)], p * n // 100
    xs = m.draw("sum", lambda: [r.randrange(1, 60) for _ in range(r.randrange(3, 6))])
    total, steps = xs[0], []
    for x in xs[1:]:
        steps.append("%d + %d = %d" % (total, x, total + x))
        total += x
    text = " + ".join(map(str, xs))
    return ["What is %s?" % text, text, "Calculate %s." % text, "Add %s." % listed(xs), "What is the sum of %s?" % listed(xs), "Add up %s." % listed(xs)], steps, total


def arith(m):
    wordings, steps, result = operation(m)
    return one(m.say(*wordings), "\n".join(steps) + "\nThe answer is %s." % result)


# --- units ------------------------------------------------------------------------------------------
def unit(name, n):
    return ONE[name] if n == 1 else name


def convert(m):
    r = m.rng
    if r.random() < 0.12:
        c = m.draw("celsius", lambda: r.randrange(2, 100) * 5)
        x = c * 9 // 5
        steps = div_steps(c, 5) + mul_steps(max(c // 5, 9), min(c // 5, 9)) + ["%d + 32 = %d" % (x, x + 32)]
        return one(m.say("Convert %d degrees Celsius to Fahrenheit." % c, "What is %d C in Fahrenheit?" % c, "How many degrees Fahrenheit is %d degrees Celsius?" % c),
                   "Divide by 5, multiply by 9, add 32.\n%s\n%d C is %d F." % ("\n".join(steps), c, x + 32))
    big, low, f = r.choice(UNITS)
    if r.random() < 0.62:
        n = m.draw("convert", lambda: (big, r.randrange(1, 100) if r.random() < 0.85 else r.randrange(100, 1000)), lambda v: v[1] < 4)[1]
        if f in (10, 100, 1000): steps = ["%d x %d = %d" % (n, f, n * f)]
        else: steps = mul_steps(max(n, f), min(n, f))
        a, ua, b, ub = n, big, n * f, low
    else:
        n = m.draw("convert back", lambda: (low, r.randrange(1, 60)), lambda v: v[1] < 4)[1]
        steps = ["%d / %d = %d" % (n * f, f, n)] if f in (10, 100, 1000) else div_steps(n * f, f)
        a, ua, b, ub = n * f, low, n, big
    sa, sb = (SHORT.get(ua), SHORT.get(ub)) if r.random() < 0.3 else (None, None)
    na, nb = (sa, sb) if sa and sb else (unit(ua, a), ub)
    return one(m.say("Convert %d %s to %s." % (a, na, nb), "How many %s are in %d %s?" % (nb, a, na), "What is %d %s in %s?" % (a, na, nb),
                     "How many %s is %d %s?" % (nb, a, na), "%d %s in %s" % (a, na, nb), "Change %d %s into %s." % (a, na, nb), "%d %s to %s" % (a, na, nb)),
               "1 %s is %d %s.\n%s\n%d %s is %d %s." % (ONE[big], f, low, "\n".join(steps), a, unit(ua, a), b, unit(ub, b)))


# --- sorting, counting, comparing ---------------------------------------------------------------------
def words_of(r, n):
    if r.random() < 0.2: return list(dict.fromkeys(invented(r) for _ in range(n)))
    return r.sample(r.choice([ANIMALS, FRUITS, GOODS, FIRST, CITIES, JOBS, COLORS]), n)


def sort(m):
    r = m.rng
    down = r.random() < 0.3
    if r.random() < 0.22:
        xs = m.draw("sort words", lambda: words_of(r, r.randrange(3, 7)))
        ys = sorted(xs, reverse=down)
        wording = ["Sort these words: %s", "Sort these words alphabetically: %s", "Put these words in alphabetical order: %s", "Arrange in alphabetical order: %s", "Sort: %s", "Sort %s"]
        if down: wording = ["Sort these words in reverse alphabetical order: %s", "Sort these words from Z to A: %s"]
    else:
        def numbers():
            top = r.choice([10, 100, 100, 100, 1000])
            n = r.randrange(3, 6 if top == 1000 else 9)
            return [r.randrange(0, top) for _ in range(n)]
        xs = m.draw("sort", numbers)
        ys = sorted(xs, reverse=down)
        wording = ["Sort these numbers: %s", "Sort these numbers in ascending order: %s", "Sort %s", "Put these numbers in order: %s", "Order these numbers: %s",
                   "Arrange from smallest to largest: %s", "Sort this list: %s", "Sort the numbers %s.", "Please sort: %s", "Sort: %s", "Sort these numbers from small to large: %s"]
        if down: wording = ["Sort these numbers in descending order: %s", "Sort from largest to smallest: %s", "Order these numbers from high to low: %s",
                            "Sort these numbers, largest first: %s"]
    text = r.choice([" ", ", ", ", "]).join(map(str, xs))
    if r.random() < 0.2:
        text = listed(xs)
        wording = wording + ([] if down else ["Can you sort %s for me?", "Sort %s.", "Sort %s for me."])
    elif r.random() < 0.15 and not isinstance(xs[0], str): text = "[%s]" % ", ".join(map(str, xs))
    return one(m.say(*[w % text for w in wording]), ", ".join(map(str, ys)))


def count(m):
    r = m.rng
    kind = r.randrange(5)
    if kind == 4:
        n = m.draw("count to", lambda: r.randrange(2, 31), lambda v: v <= 10)
        return one(m.say("Count to %d." % n, "Count up to %d." % n, "Count from 1 to %d." % n, "Can you count to %d?" % n), ", ".join(map(str, range(1, n + 1))))
    if kind == 0:
        word, c = m.draw("letters", lambda: (lambda w: (w, r.choice(w) if r.random() < 0.85 else r.choice("aeiorst")))(any_word(r)))
        n, steps = 0, []
        for x in word:
            n += x == c
            steps.append("%s %d" % (x, n))
        return one(m.say('How many times does the letter %s appear in "%s"?' % (c, word), "How many %s's are in the word %s?" % (c, word), "How many %s's are in %s?" % (c, word), "How many %s's are there in %s?" % (c, word), "how many %s in %s" % (c, word), "Count the letter %s in %s." % (c, word),
                         "How many letters %s are in %s?" % (c, word)), "%s\nThe letter %s appears %d time%s." % (", ".join(steps), c, n, "" if n == 1 else "s"))
    if kind == 1:
        xs, k = m.draw("above", lambda: (tuple(r.randrange(0, 100) for _ in range(r.randrange(4, 9))), r.randrange(10, 90)))
        hits = [x for x in xs if x > k]
        text = ", ".join(map(str, xs))
        return one(m.say("How many of these numbers are greater than %d: %s" % (k, text), "Count the numbers above %d: %s" % (k, text), "How many numbers are larger than %d in this list: %s" % (k, text)),
                   "%s\nThe count is %d." % (", ".join(map(str, hits)) or "none", len(hits)))
    if kind == 2:
        xs = m.draw("items", lambda: words_of(r, r.randrange(3, 10)))
        text = ", ".join(xs)
        return one(m.say("How many words are in this list: %s" % text, "Count the items: %s" % text, "How many items are there: %s" % text),
                   "%s\nThe count is %d." % (", ".join("%d %s" % (i + 1, x) for i, x in enumerate(xs)), len(xs)))
    a, b, step = m.draw("range", lambda: (r.randrange(0, 40), r.randrange(4, 13), r.choice([1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])), lambda v: v[0] < 2)
    xs = [a + i * step for i in range(b)]
    if step == 1: say = ["Count from %d to %d." % (a, xs[-1]), "List the numbers from %d to %d." % (a, xs[-1])]
    else: say = ["Count from %d to %d in steps of %d." % (a, xs[-1], step), "Start at %d and count by %ds up to %d." % (a, step, xs[-1])]
    return one(m.say(*say), ", ".join(map(str, xs)))


def any_word(r):
    if r.random() < 0.35: return invented(r)
    return r.choice(r.choice([ANIMALS, FRUITS, GOODS, JOBS, COLORS, PLACES, ADJ, THINGS, EVERYDAY]))


def text(m):
    """Words taken apart and put together"""
    r = m.rng
    k = r.randrange(6)
    w = m.draw("word", lambda: (any_word(r), k))[0]
    if k == 0: return one(m.say("Reverse the word %s." % w, "Reverse the word %s" % w, "Write %s backwards." % w, "Spell %s backwards." % w, "What is %s reversed?" % w), "%s\n%s" % (" ".join(w), w[::-1]))
    if k == 1: return one(m.say("Spell the word %s." % w, "Spell %s." % w, "How do you spell %s?" % w), "-".join(w))
    if k == 2: return one(m.say("How many letters does %s have?" % w, "How long is the word %s?" % w, "Count the letters of %s." % w, "How many letters are in the word %s?" % w),
                          "%s\nThe word has %d letters." % (", ".join("%d %s" % (i + 1, c) for i, c in enumerate(w)), len(w)))
    if k == 3: return one(m.say("Write %s in capital letters." % w, "Make %s uppercase." % w, "Uppercase %s." % w), w.upper())
    if k == 4: return one(m.say("What is the first letter of %s?" % w, "Which letter does %s start with?" % w, "First letter of %s?" % w), "The first letter of %s is %s." % (w, w[0]))
    return one(m.say("What is the last letter of %s?" % w, "Which letter does %s end with?" % w, "Last letter of %s?" % w), "The last letter of %s is %s." % (w, w[-1]))


def compare(m):
    r = m.rng
    kind = r.randrange(4)
    if kind == 0:
        a, b = m.draw("larger", lambda: (lambda x: (x, max(0, x + r.choice([-1, 1]) * r.randrange(1, 30)) if r.random() < 0.5 else number(r)))(number(r)), lambda p: max(p) < 10)
        if a == b: return one(m.say("Which is larger, %d or %d?" % (a, b)), "They are equal.")
        word = r.choice(["larger", "bigger", "greater"]) if r.random() < 0.6 else "smaller"
        want = min(a, b) if word == "smaller" else max(a, b)
        other = a + b - want
        return one(m.say("Which is %s, %d or %d?" % (word, a, b), "Which number is %s: %d or %d?" % (word, a, b), "What is %s, %d or %d?" % (word, a, b)),
                   "%d is %s than %d." % (want, word, other))
    if kind == 1:
        xs = m.draw("extreme", lambda: [r.randrange(0, 100) for _ in range(r.randrange(3, 8))])
        word = r.choice(["largest", "smallest"])
        return one(m.say("What is the %s of these numbers: %s" % (word, ", ".join(map(str, xs))), "Find the %s number: %s" % (word, " ".join(map(str, xs)))),
                   "The %s number is %d." % (word, max(xs) if word == "largest" else min(xs)))
    if kind == 2:
        n = m.draw("even", lambda: number(r), lambda v: v < 10)
        return one(m.say("Is %d even or odd?" % n, "Is %d an even number?" % n, "Is the number %d odd or even?" % n), "%d ends in %d, so it is %s." % (n, n % 10, "odd" if n % 2 else "even"))
    day, n = m.draw("day", lambda: (r.randrange(7), r.randrange(1, 40)), lambda v: v[1] < 4)
    return one(m.say("Today is %s. What day is it in %d days?" % (DAYS[day], n), "If today is %s, which day is %d days later?" % (DAYS[day], n)),
               "%d = 7 x %d + %d\n%s + %d is %s." % (n, n // 7, n % 7, DAYS[day], n % 7, DAYS[(day + n) % 7]))


# --- JSON ----------------------------------------------------------------------------------------------
def record(m):
    """(label, fields in order, sentences)"""
    r = m.rng
    kind = r.randrange(7)
    if kind == 6:
        d = {"name": "%s %s" % (first(r), last(r)), "age": r.randrange(1, 100)}
        return d, ["{name} is {age} years old.", "{name} is {age}.", "My name is {name} and I am {age}.", "{name}, aged {age}.", "This is {name}, {age} years old."]
    name = "%s %s" % (first(r), last(r)) if r.random() < 0.8 else first(r)
    if kind == 0:
        d = {"name": name, "age": r.randrange(1, 100), "city": city(r), "job": r.choice(JOBS)}
        return d, ["{name} is {age} years old and lives in {city}, working as a {job}.", "{name} from {city} is {age} years old and a {job}.", "I am {name}, {age}, a {job} in {city}.", "{name}, {age}, works as a {job} in {city}.", "{name}, {age}, lives in {city} and works as a {job}.", "{name} is a {age} year old {job} from {city}.", "In {city} there is a {job} called {name}, aged {age}.",
                   "My friend {name} is {age}, works as a {job} and lives in {city}."]
    if kind == 1:
        d = {"customer": name, "item": thing(r), "quantity": r.randrange(1, 30), "price": r.randrange(1, 400)}
        return d, ["{customer} ordered {quantity} of the item {item} at {price} euros each.", "Order from {customer}: {quantity} x {item}, {price} euros each.",
                   "The customer {customer} wants {quantity} pieces of {item} for {price} euros apiece."]
    if kind == 2:
        d = {"event": r.choice(TITLES), "day": r.choice(DAYS), "hour": r.randrange(7, 23), "place": city(r)}
        return d, ["The {event} is on {day} at {hour} in {place}.", "On {day} at {hour} we have the {event} in {place}.", "Come to {place} on {day}, the {event} starts at {hour}."]
    if kind == 3:
        d = {"product": thing(r), "color": r.choice(COLORS), "price": r.randrange(1, 900), "in_stock": r.random() < 0.5}
        return d, ["The {color} {product} costs {price} euros and is " + ("in stock." if d["in_stock"] else "sold out."),
                   "A {color} {product} for {price} euros, " + ("available now." if d["in_stock"] else "not available.")]
    if kind == 4:
        d = {"pet": first(r), "species": r.choice(ANIMALS), "age": r.randrange(1, 20), "owner": name}
        return d, ["{owner} has a {species} named {pet} who is {age} years old.", "{pet} the {species} is {age} and belongs to {owner}.", "The {species} {pet}, {age} years old, is owned by {owner}."]
    a, b = city(r), city(r)
    d = {"passenger": name, "from": a, "to": b, "day": r.choice(DAYS), "seat": r.randrange(1, 120)}
    return d, ["{passenger} travels from {from} to {to} on {day} in seat {seat}.", "On {day} {passenger} takes the train from {from} to {to}, seat {seat}.",
               "Ticket for {passenger}: {from} to {to}, {day}, seat {seat}."]


def json_class(m):
    r = m.rng
    d, sentences = None, None

    def fields():
        nonlocal d, sentences
        d, sentences = record(m)
        return tuple(d.items())
    m.draw("json", fields)
    text = r.choice(sentences).format(**d)
    keys = list(d)
    if r.random() < 0.3: r.shuffle(keys)
    if r.random() < 0.25: keys = keys[:r.randrange(2, len(keys) + 1)]
    named = ", ".join(keys) if r.random() < 0.7 else listed(keys)
    user = r.choice(["Extract the %s: %s" % (named, text), "Get the %s as JSON from this: %s" % (named, text), "Extract %s as JSON: %s" % (named, text), "Extract the %s from this sentence as JSON. %s" % (named, text), "%s\nGive me JSON with the keys %s." % (text, named),
                     "Turn this into JSON with %s: %s" % (named, text), "Return a JSON object with the fields %s for this text: %s" % (named, text),
                     "JSON with %s from: %s" % (named, text)])
    if r.random() < 0.12:
        keys = list(d)
        user = r.choice(["Make JSON from this: %s", "Turn this into JSON: %s", "%s\nGive me that as JSON.", "Convert to JSON: %s", "Extract the data as JSON: %s"]) % text
    return one(user, json.dumps({k: d[k] for k in keys}))


COLUMNS_OF = {"name": first, "age": lambda r: r.randrange(1, 100), "city": city, "job": lambda r: r.choice(JOBS), "item": thing,
              "price": lambda r: r.randrange(1, 500), "count": lambda r: r.randrange(0, 100), "color": lambda r: r.choice(COLORS),
              "day": lambda r: r.choice(DAYS), "animal": lambda r: r.choice(ANIMALS), "score": lambda r: r.randrange(0, 101), "country": lambda r: r.choice(list(COUNTRIES))}


def table(m):
    r = m.rng
    cols = r.sample(list(COLUMNS_OF), r.randrange(2, 5))
    rows = m.draw("table", lambda: [tuple(cols)] + [tuple(COLUMNS_OF[c](r) for c in cols) for _ in range(r.randrange(1, 5))])[1:]
    kind = r.randrange(3)
    if kind == 0: text = "\n".join(["| " + " | ".join(cols) + " |", "|" + " --- |" * len(cols)] + ["| " + " | ".join(map(str, x)) + " |" for x in rows])
    elif kind == 1: text = "\n".join([",".join(cols)] + [",".join(map(str, x)) for x in rows])
    else: text = "\n".join(["; ".join(cols)] + ["; ".join(map(str, x)) for x in rows])
    say = r.choice(["Convert this table to JSON:\n%s", "Turn the table into a JSON list:\n%s", "Table to JSON:\n%s", "%s\nGive me this table as JSON.", "Write these rows as JSON objects:\n%s"])
    return one(say % text, "[" + ",\n ".join(json.dumps(dict(zip(cols, x))) for x in rows) + "]")


# --- tiny Python functions -------------------------------------------------------------------------------
def code_task(r):
    """(tuple, tasks, code)"""
    n = r.randrange(2, 100)
    names = r.choice(["numbers", "values", "items", "xs"])
    verb, op, past = r.choice([("add", "+", "adds %d to"), ("subtract", "-", "subtracts %d from"), ("multiply", "*", "multiplies by %d")])
    k = r.randrange(12)
    if k == 11:
        what, name, args, body = r.choice(SIMPLE_CODE)
        return ("simple", what, args), "that %s" % what, name, args, body
    if k == 0: return ("each", op, n, names), "that %s each element of the list %s" % (past % n, names), "%s_each" % verb, names, "return [x %s %d for x in %s]" % (op, n, names)
    if k == 1: return ("above", n, names), "that returns the elements of the list %s above %d" % (names, n), "above_%d" % n, names, "return [x for x in %s if x > %d]" % (names, n)
    if k == 2: return ("divisible", n, names), "that counts the elements of the list %s that are divisible by %d" % (names, n), "count_divisible", names, "return sum(1 for x in %s if x %% %d == 0)" % (names, n)
    if k == 3:
        w = r.choice(FIRST + ANIMALS)
        return ("greet", w), 'that returns the text "%s"' % w, "get_text", "", 'return "%s"' % w
    if k == 4: return ("scalar", op, n), "that %s its argument" % (past % n), "%s_%d" % (verb, n), "x", "return x %s %d" % (op, n)
    if k == 5: return ("is", n), "that tells whether its argument is equal to %d" % n, "is_%d" % n, "x", "return x == %d" % n
    if k == 6:
        what, expr = r.choice([("sum", "sum(%s)"), ("largest element", "max(%s)"), ("smallest element", "min(%s)"), ("length", "len(%s)"), ("first element", "%s[0]"), ("last element", "%s[-1]"), ("sorted copy", "sorted(%s)"), ("reverse", "%s[::-1]")])
        return ("simple", what, names), "that returns the %s of the list %s" % (what, names), what.split()[0] + "_of", names, "return " + expr % names
    if k == 7: return ("power", n), "that prints the numbers from 1 to %d" % n, "print_numbers", "", "for i in range(1, %d):\n        print(i)" % (n + 1)
    if k == 8:
        lo = r.randrange(0, n)
        return ("clamp", lo, n), "that limits its argument to the range from %d to %d" % (lo, n), "clamp", "x", "return max(%d, min(%d, x))" % (lo, n)
    if k == 9:
        key, good = r.choice(["price", "age", "count", "score", "size", "weight"]), n
        return ("key", key, good, names), "that returns the entries of the list %s whose %s is at least %d" % (names, key, good), "filter_by_%s" % key, names, 'return [x for x in %s if x["%s"] >= %d]' % (names, key, good)
    w = r.choice(GOODS + COLORS + PLACES)
    return ("starts", w), 'that tells whether a text starts with "%s"' % w, "starts_with_%s" % w, "text", 'return text.startswith("%s")' % w


def code(m):
    r = m.rng
    made = None

    def make():
        nonlocal made
        made = code_task(r)
        return made[0]
    m.draw("code", make, lambda v: v[0] == "simple" or v == ("power", 99))
    _, task, name, arg, body = made
    if r.random() < 0.3:
        name = r.choice(["f", "solve", "helper", "run", "compute", "my_function", name])
        say = ["Write a Python function %s %s." % (name, task), "Write a function named %s in Python %s." % (name, task)]
    else:
        say = ["Write a Python function %s." % task, "Give me a Python function %s." % task, "I need a small Python function %s." % task, "Python function %s." % task, "Write a function %s." % task]
    return one(m.say(*say), "```python\ndef %s(%s):\n    %s\n```" % (name, arg, body))


# --- tools ------------------------------------------------------------------------------------------------
def tool_case(m, name):
    """(user, arguments, result, answer)"""
    r = m.rng
    if name == "get_weather":
        c, t, s = m.draw(name, lambda: city(r)), r.randrange(-15, 38), r.choice(WEATHER)
        u = r.choice([None, None, "C", "F"])
        ask = ["What is the weather in %s?" % c, "How is the weather in %s?" % c, "Weather in %s?" % c, "Tell me the weather in %s." % c] if not u else ["What is the weather in %s in %s?" % (c, "Celsius" if u == "C" else "Fahrenheit")]
        return m.say(*ask), dict({"city": c}, **({"unit": u} if u else {})), {"sky": s, "temp": t}, "It is %s in %s at %d degrees." % (s, c, t)
    if name == "get_time":
        c, h, mi = m.draw(name, lambda: city(r)), r.randrange(24), r.randrange(60)
        return m.say("What time is it in %s?" % c, "Tell me the time in %s." % c, "Time in %s?" % c), {"city": c}, "%02d:%02d" % (h, mi), "It is %02d:%02d in %s." % (h, mi, c)
    if name == "calculate":
        a, b, op = m.draw(name, lambda: (r.randrange(2, 10000), r.randrange(2, 10000), r.choice("+-*")))
        v = {"+": a + b, "-": a - b, "*": a * b}[op]
        e = "%d %s %d" % (a, op, b)
        return m.say("Use the calculator for %s." % e, "What is %s? Use the tool." % e, "Calculate %s with the tool." % e), {"expression": e}, v, "%s = %d" % (e, v)
    if name == "search_products":
        g, p, n = m.draw(name, lambda: thing(r)), r.randrange(5, 300), r.randrange(0, 40)
        if r.random() < 0.5: return m.say("Find a %s under %d euros." % (g, p), "Search for a %s for at most %d euros." % (g, p)), {"query": g, "max_price": p}, {"found": n}, "I found %d results for %s." % (n, g)
        return m.say("Search the shop for a %s." % g, "Do you have a %s in the shop?" % g), {"query": g}, {"found": n}, "I found %d results for %s." % (n, g)
    if name == "send_message":
        to, text = m.draw(name, lambda: (first(r), r.choice(MESSAGES)))
        return m.say("Tell %s: %s" % (to, text), "Send a message to %s: %s" % (to, text), "Write to %s: %s" % (to, text)), {"to": to, "text": text}, "sent", "I sent the message to %s." % to
    if name == "set_timer":
        n = m.draw(name, lambda: r.randrange(1, 240))
        return m.say("Set a timer for %d minutes." % n, "Start a timer of %d minutes." % n, "Remind me in %d minutes." % n), {"minutes": n}, "started", "The timer runs for %d minutes." % n
    if name == "convert_currency":
        (n, a, b), v = m.draw(name, lambda: (r.randrange(1, 2000), r.choice(CODES), r.choice(CODES))), r.randrange(1, 9000)
        return m.say("Convert %d %s to %s." % (n, a, b), "How much is %d %s in %s?" % (n, a, b)), {"amount": n, "source": a, "target": b}, {"amount": v}, "%d %s is %d %s." % (n, a, v, b)
    if name == "book_table":
        n, d = m.draw(name, lambda: (r.randrange(1, 30), r.choice(DAYS)))
        return m.say("Book a table for %d on %s." % (n, d), "Reserve a table for %d people on %s." % (n, d)), {"guests": n, "day": d}, {"confirmed": True}, "Your table for %d on %s is booked." % (n, d)
    if name == "get_stock":
        g, n = m.draw(name, lambda: thing(r)), r.randrange(0, 300)
        return m.say("How many pieces of %s are in store?" % g, "How many of the item %s do we have?" % g, "Check the stock of %s." % g), {"item": g}, {"count": n}, "There are %d pieces of %s in store." % (n, g)
    if name == "add_event":
        d, h, t = m.draw(name, lambda: (r.choice(DAYS), r.randrange(7, 23), r.choice(TITLES)))
        return m.say("Add %s on %s at %d to my calendar." % (t, d, h), "Put %s in the calendar for %s at %d." % (t, d, h)), {"day": d, "hour": h, "title": t}, "saved", "I added %s on %s at %d." % (t, d, h)
    if name == "turn_light":
        on, room, extra = m.draw(name, lambda: (r.random() < 0.5, r.choice(ROOMS), r.choice(["", " now", " please", " for me", " again"])))
        w = "on" if on else "off"
        return m.say("Turn %s the light in the %s%s." % (w, room, extra), "Switch the %s light %s%s." % (room, w, extra)), {"on": on, "room": room}, "ok", "The light in the %s is %s." % (room, w)
    a, n = m.draw("play_music", lambda: "%s %s" % (first(r), last(r))), r.randrange(2, 20)
    if r.random() < 0.5: return m.say("Play %d songs by %s." % (n, a)), {"artist": a, "count": n}, "playing", "Playing songs by %s." % a
    return m.say("Play music by %s." % a, "I want to hear %s." % a), {"artist": a}, "playing", "Playing songs by %s." % a


def tool(m):
    r = m.rng
    names = r.sample(list(TOOLS), r.randrange(2, 4))
    name = r.choice(names)
    user, args, result, answer = tool_case(m, name)
    s = Sample("", [Turn(user, answer, "", [(name, args)], [(name, result)])], tools=[(n,) + TOOLS[n] for n in names])
    x = r.random()
    if x < 0.1:                                     # a second city: two calls at once
        if name in ("get_weather", "get_time") and "unit" not in args:
            other = r.choice([c for c in CITIES if c != args["city"]])
            w = "weather" if name == "get_weather" else "time"
            s.turns = [Turn("What is the %s in %s and in %s?" % (w, args["city"], other), "", "", [(name, args), (name, {"city": other})], [])]
    elif x < 0.2:                                   # a question that needs no tool
        q = arith(m)
        s.turns = q.turns
    elif x < 0.25 and name != "calculate":          # the tool that it needs is not there
        s.tools = [(n,) + TOOLS[n] for n in r.sample([n for n in TOOLS if n != name], r.randrange(1, 3))]
        s.turns = [Turn(user, NO_TOOL)]
    elif x < 0.4:
        s.thinking = True
        s.turns[0].thought = "The user needs %s. I call it with %s." % (name, ", ".join("%s = %s" % (k, json.dumps(args[k])) for k in sorted(args)))
    return s


def any_tools(m):
    return tools.tools(m, sys.modules[__name__])


def agent(m):
    return tools.agent(m, sys.modules[__name__])


def recall_class(m, words=None):
    g = sys.modules[__name__]
    k, odd = tools.Kit(m, g), m.rng.choice([0.0, 0.1, 0.3])
    words = words or m.rng.choice([10, 30, 80, 200, 400])
    if m.rng.random() < 0.5: return recall.recall(m, g, lambda n: tools.prose(k, n, odd), words)
    return recall.recall(m, g, lambda n: story_text(m.rng, first(m.rng), m.rng.choice(ANIMALS), "", ""), words)


# --- thinking, word problems ---------------------------------------------------------------------------------
def word_problem(m):
    """(text, steps, answer)"""
    r = m.rng
    n = first(r)
    f = invented(r) + "s" if r.random() < 0.08 else r.choice(FRUITS)
    kind = r.randrange(7)
    if kind == 5:
        a, b = m.draw("word add", lambda: (r.randrange(2, 100), r.randrange(2, 100)), lambda p: max(p) < 8)
        return r.choice(["I have %d %s and buy %d more. How many do I have?", "I have %d %s and get %d more. How many do I have now?", "I have %d %s and buy %d more, how many do I have?"]) % (a, f, b), add_steps(a, b), "You have %d %s." % (a + b, f)
    if kind == 6:
        a, b = m.draw("word sub", lambda: (lambda x: (x, r.randrange(1, x)))(r.randrange(3, 100)), lambda p: max(p) < 8)
        return r.choice(["I have %d %s and eat %d. How many do I have left?", "I had %d %s and lost %d. How many are left?", "I have %d %s and give away %d, how many do I have left?"]) % (a, f, b), sub_steps(a, b), "You have %d %s left." % (a - b, f)
    if kind == 0:
        a, b = m.draw("word add", lambda: (r.randrange(2, 100), r.randrange(2, 100)), lambda p: max(p) < 8)
        return r.choice(["%s has %d %s and gets %d more. How many %s does %s have now?" % (n, a, f, b, f, n), "%s picks %d %s in the morning and %d in the evening. How many %s is that?" % (n, a, f, b, f)]), add_steps(a, b), "%s has %d %s." % (n, a + b, f)
    if kind == 1:
        a, b = m.draw("word sub", lambda: (lambda x: (x, r.randrange(1, x)))(r.randrange(3, 100)), lambda p: max(p) < 8)
        return r.choice(["%s has %d %s and gives away %d. How many are left?" % (n, a, f, b), "There are %d %s in a basket. %s eats %d. How many %s are left?" % (a, f, n, b, f)]), sub_steps(a, b), "%d %s are left." % (a - b, f)
    if kind == 2:
        a, b = m.draw("word mul", lambda: (r.randrange(2, 30), r.randrange(2, 13)), lambda p: max(p) < 5)
        g = r.choice(["boxes", "baskets", "bags", "crates"])
        return "%s has %d %s with %d %s each. How many %s are there?" % (n, b, g, a, f, f), mul_steps(a, b), "There are %d %s." % (a * b, f)
    if kind == 3:
        a, b = m.draw("word div", lambda: (r.randrange(2, 20), r.randrange(2, 11)), lambda p: max(p) < 5)
        return "%s shares %d %s equally among %d friends. How many does each one get?" % (n, a * b, f, b), div_steps(a * b, b), "Each one gets %d %s." % (a, f)
    xs = m.draw("taller", lambda: r.sample(FIRST, 3))
    ask = r.random() < 0.5
    w1, w2 = r.choice([("taller", "tallest"), ("older", "oldest"), ("faster", "fastest")])
    low = {"tallest": "shortest", "oldest": "youngest", "fastest": "slowest"}[w2]
    facts = ["%s is %s than %s." % (xs[0], w1, xs[1]), "%s is %s than %s." % (xs[1], w1, xs[2])]
    if r.random() < 0.5: facts.reverse()
    return "%s Who is the %s?" % (" ".join(facts), w2 if ask else low), ["%s > %s > %s" % tuple(xs)], "%s is the %s." % (xs[0] if ask else xs[2], w2 if ask else low)


def word(m):
    text, steps, answer = word_problem(m)
    return one(text, "\n".join(steps) + "\n" + answer)


def think(m):
    """Thinking on: the steps are thought, the answer is short."""
    r = m.rng
    x = r.random()
    if x < 0.45:
        wordings, steps, result = operation(m)
        text, answer = m.say(*wordings), "The answer is %s." % result
    elif x < 0.85: text, steps, answer = word_problem(m)
    else:
        q = r.choice([sort, compare, facts, json_class])(m).turns[0]
        text, steps, answer = q.user, ["I can answer this at once."], q.answer
    return Sample("", [Turn(text, answer, "\n".join(steps))], thinking=True)


# --- facts ---------------------------------------------------------------------------------------------------
def fact(m):
    r = m.rng
    kind = r.choices(range(9), [30, 10, 10, 10, 12, 6, 8, 14, 8])[0]
    if kind == 8:
        what, i = r.choice(list(NAMED)), r.randrange(1, 6)
        n = ["one", "two", "three", "four", "five"][i - 1]
        single = what[:-3] + "y" if what.endswith("ies") else what[:-1]
        w = what if i > 1 else single
        return (what, i), "named", ["Name %s %s." % (n, w), "List %s %s." % (n, w), "Give me %s %s." % (n, w), "Tell me %s %s." % (n, w), "Name %d %s." % (i, w), "List %d %s." % (i, w)], ", ".join(NAMED[what][:i])
    c = r.choice(list(COUNTRIES))
    capital, language, currency, continent = COUNTRIES[c]
    if kind == 0: return c, "capital", ["What is the capital of %s?" % c, "Which city is the capital of %s?" % c, "Capital of %s?" % c, "Name the capital of %s." % c, "What's the capital city of %s?" % c, "Tell me the capital of %s." % c, "%s: capital?" % c, "Do you know the capital of %s?" % c], "The capital of %s is %s." % (c, capital)
    if kind == 1: return c, "language", ["What language do people speak in %s?" % c, "Which language is spoken in %s?" % c, "What is the language of %s?" % c, "Language of %s?" % c, "Name the main language of %s." % c], "People in %s speak %s." % (c, language)
    if kind == 2: return c, "currency", ["What is the currency of %s?" % c, "Which money is used in %s?" % c, "What money do they use in %s?" % c, "Currency of %s?" % c, "Name the currency of %s." % c], "The currency of %s is the %s." % (c, currency)
    if kind == 3: return c, "continent", ["On which continent is %s?" % c, "Where is %s?" % c, "Which continent is %s in?" % c, "What continent does %s belong to?" % c, "In what part of the world is %s?" % c], "%s is in %s." % (c, continent)
    if kind == 4:
        e = r.choice(list(ELEMENTS))
        symbol, n = ELEMENTS[e]
        if r.random() < 0.5: return e, "symbol", ["What is the symbol of %s?" % e, "What is the chemical symbol for %s?" % e, "Symbol of %s?" % e, "Which symbol does %s have?" % e, "Name the symbol of the element %s." % e], "The symbol of %s is %s." % (e, symbol)
        return e, "number", ["What is the atomic number of %s?" % e, "Which number does the element %s have?" % e, "Atomic number of %s?" % e, "Tell me the atomic number of %s." % e], "The atomic number of %s is %d." % (e, n)
    if kind == 5:
        a = r.choice(list(LEGS))
        return a, "legs", ["How many legs does a %s have?" % a, "How many legs has a %s?" % a, "Number of legs of a %s?" % a, "Tell me how many legs a %s has." % a], "A %s has %d legs." % (a, LEGS[a])
    if kind == 6:
        i = r.randrange(8)
        return i, "planet", ["Which planet is the %s from the sun?" % ORDINALS[i], "What is the %s planet?" % ORDINALS[i], "Name the %s planet from the sun." % ORDINALS[i]], "%s is the %s planet from the sun." % (PLANETS[i], ORDINALS[i])
    seq, what = r.choice([(DAYS, "day"), (MONTHS, "month")])
    i = r.randrange(len(seq))
    j = (i + 1) % len(seq)
    if r.random() < 0.5: return seq[i], "after", ["What %s comes after %s?" % (what, seq[i]), "Which %s follows %s?" % (what, seq[i]), "What is the %s after %s?" % (what, seq[i])], "After %s comes %s." % (seq[i], seq[j])
    return seq[j], "before", ["What %s comes before %s?" % (what, seq[j]), "Which %s is before %s?" % (what, seq[j]), "What is the %s before %s?" % (what, seq[j])], "Before %s comes %s." % (seq[j], seq[i])


def facts(m):
    """Every fact is trained; a held-out tuple is a fact asked in a way that training never uses for it."""
    made = None

    def make():
        nonlocal made
        subject, kind, wordings, answer = fact(m)
        i = m.rng.randrange(len(wordings))
        made = wordings[i], answer
        return subject, kind, i
    m.draw("fact", make)
    return one(m.say(made[0]), made[1])


# --- stories ---------------------------------------------------------------------------------------------------
def a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


class Words:
    """Draws the words of a story, none twice. Each word follows from the one before: mostly the pool's first choice after it, sometimes the second,
    now and then any. So the likeliest story differs from prompt to prompt, and to foresee it takes as many steps as it has words."""

    def __init__(self, r, *said):
        self.r, self.used, self.last = r, set(said), said[-1]

    def __call__(self, pool):
        n, h = len(pool), zlib.crc32(("%s|%s %d" % (self.last, pool[0], len(pool))).encode())
        x = self.r.random()
        at = h % n if x < 0.75 else (h >> 8) % n if x < 0.9 else self.r.randrange(n)
        while pool[at] in self.used: at = (at + 1) % n
        self.last = pool[at]
        self.used.add(self.last)
        return self.last

    def number(self, low, high):
        """A number of low .. high - 1 that follows from the last word"""
        return low + zlib.crc32(self.last.encode()) % (high - low)


BEGINNINGS = ["Once there was", "Long ago there lived", "They still talk about", "Nobody noticed"] + [t.capitalize() + " there was" for t in TIMES]
SOUNDS = ["bell", "drum", "flute", "horn", "violin", "whistle", "harp", "trumpet"]


def sentence(k, ch, hero, it):
    """Sentence k of sixteen about the hero."""
    if k == 0: t = "%s %s %s %s" % (hero, ch(ADV), ch(PAST), a(ch(ADJ)) + " " + ch(THINGS))
    elif k == 1: t = "%s the %s %s stood %s" % (ch(["Behind", "Near", "Beyond", "Above", "Inside", "Under"]), ch(PLACES), a(ch(ADJ)) + " " + ch(ANIMALS), ch(ASIDES))
    elif k == 2: t = "%s, %s %s and %s" % (ch(TIMES).capitalize(), hero, ch(INTRANS), ch(INTRANS))
    elif k == 3: return '"%s," %s the %s %s.' % (ch(SAYINGS), ch(["said", "cried", "whispered", "sang", "shouted", "muttered"]), ch(ADJ), ch(ANIMALS))
    elif k == 4: t = "%s felt %s, then %s" % (it, ch(MOODS), ch(MOODS))
    elif k == 5: t = "%s and %s %s the %s %s" % (hero, ch(FIRST), ch(PAST), ch(ADJ), ch(THINGS))
    elif k == 6: t = "a %s %s %s across the %s" % (ch(["cold", "soft", "strange", "warm", "loud", "sudden"]), ch(["wind", "song", "light", "shadow", "voice", "smell"]), ch(["drifted", "moved", "rolled", "spread", "crept"]), ch(PLACES))
    elif k == 7: t = "the %s was %s and the %s was %s" % (ch(PLACES), ch(ADJ), ch(PLACES), ch(ADJ))
    elif k == 8: t = "%s %s the %s %s" % (it, ch(PAST), ch(THINGS), ch(ASIDES))
    elif k == 9: t = "nobody in %s had ever %s %s" % (ch(CITIES), ch(["seen", "wanted", "owned", "drawn", "heard of"]), a(ch(ADJ)) + " " + ch(THINGS))
    elif k == 10: t = "%s the %s of %s gave them %s" % (ch(["once", "later", "soon", "that day", "at last"]), ch(JOBS), ch(CITIES), a(ch(COLORS)) + " " + ch(THINGS))
    elif k == 11: t = "the %s %s %s %s" % (ch(ADJ), ch(ANIMALS), ch(INTRANS), ch(ADV))
    elif k == 12: t = "%s traded the %s for %s" % (it, ch(THINGS), a(ch(ADJ)) + " " + ch(THINGS))
    elif k == 13: return '"%s," said %s. "%s."' % (ch(SAYINGS), ch(FIRST), ch(SAYINGS))
    elif k == 14: t = "%s dreamed of %s and %s" % (hero, ch(FRUITS), ch(FRUITS))
    else: t = "from the %s came the sound of %s" % (ch(PLACES), a(ch(ADJ)) + " " + ch(SOUNDS))
    return t[0].upper() + t[1:] + "."


def story_text(r, name, animal, thing, place, adj=""):
    ch = Words(r, *filter(None, [adj, animal, thing, place, name]))
    if not name: name = ch(FIRST)
    adj = adj or ch(ADJ)
    who = "%s %s named %s" % (a(adj), animal, name) if animal else "%s, %s %s" % (name, a(adj), ch(JOBS))
    it = name if animal else ch(["She", "He"])
    begin = ch(BEGINNINGS) + " " + who + " near "
    opening = [begin + ("the %s of %s" % (ch(PLACES), place) if place else "the %s %s" % (ch(ADJ), ch(PLACES))) + "."]
    if thing: opening.append(ch(["%s owned %s %s.", "%s had found %s %s.", "%s looked for %s %s.", "%s could not forget %s %s."]) % (name, a(ch(ADJ)), thing))
    kinds, body = list(range(16)), []
    for _ in range(ch.number(3, 7)): body.append(sentence(kinds.pop(ch.number(0, len(kinds))), ch, name, it))
    k = ch.number(0, 5)
    if k == 0: end = "%s %s, and the %s was %s." % (name, ch(INTRANS), ch(PLACES), ch(ADJ))
    elif k == 1: end = "In the end %s felt %s." % (name, ch(MOODS))
    elif k == 2: end = "%s kept the %s and never %s again." % (name, thing or ch(THINGS), ch(INTRANS))
    elif k == 3: end = "And so %s came home, %s and %s." % (name, ch(MOODS), ch(MOODS))
    else: end = "That was the day %s learned to be %s." % (name, ch(MOODS))
    return " ".join(opening + body + [end])


STORIES = [     # what the prompt names (n name, a animal, t thing, p place), and its wordings
    ("na", "Write a short story about {a} named {n}.", "Tell me a story about {a} called {n}."),
    ("np", "Tell me a story about {n} in {p}.", "Write a short story about {n} from {p}."),
    ("nt", "Write a story about {n} and {t}.", "Tell me a short story about {n} and {t}."),
    ("ap", "Write a story about {a} in {p}.", "Tell me about {a} that lived in {p}."),
    ("at", "Tell a story about {a} and {t}.", "Write a short story with {a} and {t}."),
    ("natp", "Write a short story about {a} named {n} and {t} in {p}.", "Tell me a story in {p} about {a} named {n} and {t}."),
    ("a", "Tell me a story about {a}.", "Write a story about {a}.", "Story about {a}", "Tell me a short story about {a}", "Can you tell me a story about {a}?"),
    ("t", "Tell me a story about {t}.", "Write a short story about {t}."),
    ("n", "Tell me a story about {n}.", "Write a story about someone called {n}."),
    ("ntp", "Tell me a story about {n}, {t} and {p}.", "Write a story with {n}, {t} and {p}.")]


def story(m):
    r = m.rng
    if not m.test and r.random() < 0.04:
        return one(m.say("Tell me a story.", "Write a short story.", "Write a story.", "Tell a story please."), story_text(r, r.choice(FIRST), r.choice(ANIMALS), "", ""), exact=False)
    form = r.choice(STORIES)
    draw = {"n": lambda: first(r), "a": lambda: invented(r) if r.random() < 0.1 else r.choice(ANIMALS + CREATURES),
            "t": lambda: invented(r) if r.random() < 0.1 else r.choice(THINGS), "p": lambda: city(r)}
    described = "a" in form[0] and r.random() < 0.25
    drawn = m.draw("story", lambda: [draw[c]() for c in form[0]] + ([r.choice(ADJ)] if described else []))
    words, adj = dict(zip(form[0], drawn)), drawn[-1] if described else ""
    named = {c: a(w) if c in "at" else w for c, w in words.items()}
    if adj: named["a"] = a("%s %s" % (adj, words["a"]))
    user = m.say(*[w.format(**named) for w in form[1:]])
    return one(user, story_text(r, words.get("n", ""), words.get("a", ""), words.get("t", ""), words.get("p", ""), adj), exact=False)


# --- several turns --------------------------------------------------------------------------------------------
def chat(m):
    r = m.rng
    turns = []
    kind = r.randrange(5)
    if kind == 0:                                    # a number carried on
        x, y = m.draw("add", lambda: tuple(sorted((r.randrange(2, 500), r.randrange(100, 1000)))), lambda p: p[1] < 13)
        turns.append(Turn(m.say("What is %d plus %d?" % (x, y), "%d + %d" % (x, y), "Add %d and %d." % (x, y)), "\n".join(add_steps(x, y)) + "\nThe answer is %d." % (x + y)))
        t = x + y
        for _ in range(r.randrange(1, 3)):
            if t < 200 or r.random() < 0.5:
                low, high = m.draw("add", lambda: tuple(sorted((t, r.randrange(2, 300)))), lambda p: p[1] < 13)
                n = low + high - t
                turns.append(Turn(r.choice(["Add %d.", "And plus %d?", "Now add %d.", "Plus %d?", "Add %d to that."]) % n, "\n".join(add_steps(t, n)) + "\nThe answer is %d." % (t + n)))
                t += n
            else:
                n = m.draw("sub", lambda: (t, r.randrange(1, t)), lambda p: max(p) < 13)[1]
                turns.append(Turn(r.choice(["Now subtract %d.", "And minus %d?", "Minus %d?", "Take away %d."]) % n, "\n".join(sub_steps(t, n)) + "\nThe answer is %d." % (t - n)))
                t -= n
    elif kind == 1:                                  # a list worked on
        xs = m.draw("sort", lambda: [r.randrange(0, 100) for _ in range(r.randrange(3, 8))])
        turns.append(Turn(m.say("Sort these numbers: %s" % " ".join(map(str, xs)), "Sort %s" % ", ".join(map(str, xs))), ", ".join(map(str, sorted(xs)))))
        more = [("Now in reverse order.", ", ".join(map(str, sorted(xs, reverse=True)))), ("And from largest to smallest?", ", ".join(map(str, sorted(xs, reverse=True)))),
                ("Which one is the largest?", "The largest number is %d." % max(xs)), ("Which one is the smallest?", "The smallest number is %d." % min(xs)),
                ("How many numbers are there?", "There are %d numbers." % len(xs)), ("Give me the list as JSON.", json.dumps(sorted(xs)))]
        turns += [Turn(u, v) for u, v in r.sample(more, r.randrange(1, 3))]
    elif kind == 2:                                  # a country
        c, first, _ = m.draw("fact", lambda: (r.choice(list(COUNTRIES)), r.choice(["capital", "language", "currency", "continent"]), 0))
        capital, language, currency, continent = COUNTRIES[c]
        qs = {"capital": ("What is the capital of %s?" % c, "The capital of %s is %s." % (c, capital), "And the capital?", "What is its capital?"),
              "language": ("What language do people speak in %s?" % c, "People in %s speak %s." % (c, language), "And the language?", "What language do they speak there?"),
              "currency": ("What is the currency of %s?" % c, "The currency of %s is the %s." % (c, currency), "And the currency?", "What money do they use there?"),
              "continent": ("On which continent is %s?" % c, "%s is in %s." % (c, continent), "And the continent?", "On which continent is it?")}
        turns = [Turn(*qs.pop(first)[:2])] + [Turn(r.choice(q[2:]), q[1]) for q in r.sample(list(qs.values()), r.randrange(1, 3))]
    elif kind == 3:                                  # a record, then one field
        d = {}

        def fields():
            d.clear()
            d.update({"name": r.choice(FIRST), "age": r.randrange(18, 90), "city": r.choice(CITIES), "job": r.choice(JOBS)})
            return tuple(d.items())
        m.draw("json", fields)
        turns = [Turn("Extract name, age, city, job as JSON: {name}, {age}, lives in {city} and works as a {job}.".format(**d), json.dumps(d))]
        k = r.choice(list(d))
        turns.append(Turn(r.choice(["Only the %s.", "What is the %s?", "Just the %s, please."]) % k, str(d[k])))
        if r.random() < 0.4: turns.append(Turn("Remove the %s." % k, json.dumps({x: v for x, v in d.items() if x != k})))
    else:                                            # small talk around two questions
        q = r.choice([arith, convert, sort, facts, compare])(m).turns[0]
        turns = [Turn(*r.choice(list(SMALL_TALK.items()))), q] if r.random() < 0.5 else [q, Turn(*r.choice([("Thanks!", "You are welcome!"), ("Thank you", "You are welcome!"), ("Great, thanks.", "You are welcome!")]))]
    return Sample("", turns)


def talk(m):
    """Greetings, questions about itself, and what it does not know."""
    r = m.rng
    if not m.test and r.random() < 0.45:
        user, answer = r.choice(list(SMALL_TALK.items()))
        return one(m.say(user, user, user + "!" if user[-1] != "?" else user), answer)
    if r.random() < 0.3:
        name = r.choice([n for n in TOOLS if n not in ("calculate", "convert_currency")])
        return one(tool_case(m, name)[0], NO_TOOL)
    text = m.draw("odd", lambda: r.choice(ODD).format(a=r.choice(ODD_A), b=r.choice(ODD_B), y=r.randrange(1900, 2030), l=r.choice(["French", "German", "Latin"]),
                                                      t=r.choice(SAYINGS), c=r.choice(list(COUNTRIES)), n=r.choice(FIRST)))
    return one(m.say(text), UNKNOWN)


# --- Chinese -----------------------------------------------------------------------------------------------------
ZH_COLUMNS = ["个位", "十位", "百位", "千位"]


def zh_add(a, b):
    if a < 10 and b < 10: return "%d + %d = %d" % (a, b, a + b)
    lines, carry = ["%d + %d" % (a, b)], 0
    for i in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10 ** i % 10, b // 10 ** i % 10
        t = x + y + carry
        lines.append("%s：%d + %d%s = %d，写%d%s" % (ZH_COLUMNS[i], x, y, " + 1" if carry else "", t, t % 10, "，进1" if t > 9 else ""))
        carry = t // 10
    return "\n".join(lines)


def zh(m):
    r = m.rng
    k = r.randrange(7)
    if k <= 1:
        p = m.draw("add", lambda: tuple(sorted((number(r, (1, 2, 2, 3)), number(r, (1, 2, 2, 3))))), lambda p: p[1] < 13)
        x, y = shuffled(r, p)
        return one(r.choice(["%d加%d等于多少？", "%d加%d是多少？", "请计算%d加%d。", "%d + %d等于几？", "计算：%d + %d", "%d+%d=？"]) % (x, y), zh_add(x, y) + "\n答案是%d。" % (x + y))
    if k == 2:
        x, y = m.draw("mul", lambda: tuple(sorted((r.randrange(2, 10), r.randrange(2, 100)))), lambda p: p[1] < 13)
        lines = mul_steps(y, x)
        return one(r.choice(["%d乘以%d等于多少？", "%d乘%d是多少？", "请计算%d乘以%d。"]) % (y, x), "\n".join(lines) + "\n答案是%d。" % (x * y))
    if k == 3:
        xs = m.draw("sort", lambda: [r.randrange(0, 100) for _ in range(r.randrange(3, 8))])
        down = r.random() < 0.3
        say = ["从大到小排列：%s", "把这些数从大到小排序：%s"] if down else ["从小到大排列：%s", "把这些数从小到大排序：%s", "给这些数排序：%s"]
        return one(r.choice(say) % "，".join(map(str, xs)), "，".join(map(str, sorted(xs, reverse=down))))
    if k == 4:
        c, i = m.draw("zh capital", lambda: (r.choice(list(ZH_CAPITALS)), r.randrange(5)))
        return one(["%s的首都是哪里？", "%s的首都是什么？", "请问%s的首都在哪里？", "%s的首都？", "你知道%s的首都吗？"][i] % c, "%s的首都是%s。" % (c, ZH_CAPITALS[c]))
    if k == 5:
        u, v, f = r.choice(ZH_UNITS)
        n = m.draw("zh unit", lambda: (u, r.randrange(2, 100)), lambda p: p[1] < 5)[1]
        steps = "%d x %d = %d" % (n, f, n * f) if f in (100, 1000) else "\n".join(mul_steps(max(n, f), min(n, f)))
        return one(r.choice(["%d%s等于多少%s？", "%d%s是多少%s？"]) % (n, u, v), "1%s是%d%s。\n%s\n%d%s是%d%s。" % (u, f, v, steps, n, u, n * f, v))
    if not m.test and r.random() < 0.3:
        q, ans = r.choice(list(ZH_TALK.items()))
        return one(q + r.choice(["", "？", "。", "！"]), ans)
    x, y = m.draw("zh word", lambda: (r.randrange(2, 80), r.randrange(2, 80)), lambda p: max(p) < 6)
    n, t = r.choice(ZH_NAMES), r.choice(ZH_THINGS)
    return one("%s有%d个%s，又买了%d个。%s现在有多少个%s？" % (n, x, t, y, n, t), zh_add(x, y) + "\n%s有%d个%s。" % (n, x + y, t))


def long(m):
    """A conversation that goes from topic to topic, up to about 1,800 tokens."""
    r = m.rng
    turns, size, limit = [], 0, r.randrange(600, 4600)
    while size < limit:
        new = r.choice([arith, convert, sort, count, text, compare, json_class, table, code, word, facts, story, chat, zh])(m).turns
        turns += new
        size += sum(len(t.user) + len(t.answer) for t in new)
    return Sample("", turns, exact=False)


MAKERS = {"arith": arith, "convert": convert, "sort": sort, "count": count, "text": text, "compare": compare, "json": json_class, "table": table, "code": code,
          "tool": tool, "word": word, "think": think, "facts": facts, "story": story, "chat": chat, "talk": talk, "zh": zh, "long": long, "tools": any_tools, "agent": agent, "recall": recall_class}
CLASSES = list(MAKERS)
WEIGHTS = [17, 9, 9, 7, 6, 5, 9, 5, 5, 9, 6, 7, 5, 8, 8, 2.5, 6, 1.4, 36, 2, 3]


def shard(seed, index, tokenizer, n_tokens, boost=None):
    """The ids and the trained flags of shard `index`: whole samples, until there are n_tokens."""
    import numpy as np
    m = Maker("%s:train:%d" % (seed, index), boost=boost)
    ids, trained = [], []
    while len(ids) < n_tokens:
        i, t, _ = tokenizer.encode_sample(m.sample())
        ids += tokenizer.lead + i
        trained += [0] * len(tokenizer.lead) + t
    return np.array(ids, np.uint16), np.array(trained, np.uint8)


def held_out_set(seed, per_class, classes=None):
    """The held-out samples: per_class of each class, no prompt twice."""
    out = []
    for cls in classes or CLASSES:
        m, seen = Maker("%s:test:%s" % (seed, cls), True), set()
        tries = 0
        while len(seen) < per_class and tries < 50 * per_class:
            tries += 1
            s = m.sample(cls)
            prompt = "".join(p for p, _ in render(s)[0][:render(s)[1][-1]])
            if prompt in seen or not s.keys: continue
            seen.add(prompt)
            out.append(s)
    return out


def prompts(seed, n, classes):
    """The first questions of held-out conversations without tools or instructions, no question twice: n of each class, and of a class that is
    named k times k * n. One dict a prompt, as `tandem bench --prompts` reads them."""
    found = {}
    for cls in set(classes):
        want, out = n * classes.count(cls), []
        for s in held_out_set(seed, 8 * want, [cls]):
            text = s.turns[0].user
            if not (s.system or s.tools or s.thinking or s.reminder or text in out): out.append(text)
        if len(out) < want: sys.exit("there are only %d prompts of the class %s" % (len(out), cls))
        found[cls] = iter(out)
    return [{"class": cls, "prompt": next(found[cls])} for _ in range(n) for cls in classes]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--test", action="store_true")
    p.add_argument("--show", type=int, default=2, help="samples a class")
    p.add_argument("--only", help="a class; with --prompts a list, in which a class may be named several times")
    p.add_argument("--prompts", type=int, metavar="N", help="print N held-out prompts of each class as JSON lines instead")
    o = p.parse_args()
    if o.prompts:
        for x in prompts(o.seed, o.prompts, o.only.split(",") if o.only else CLASSES): print(json.dumps(x, ensure_ascii=False))
        return
    m = Maker("%s:show" % o.seed, o.test)
    for cls in [o.only] if o.only else CLASSES:
        for _ in range(o.show):
            print("=== %s\n%s" % (cls, "".join(t for t, _ in render(m.sample(cls))[0])))


if __name__ == "__main__":
    main()
