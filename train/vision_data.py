"""What nano-vision learns from: scenes (shapes, digits, bar charts, two frames of a motion) and questions about them, as arrays that
vision_draw.py draws and vision.py trains on. Only numbers that the held-out pictures do not have are drawn here: see `snap`."""
import math
import random

import numpy as np

from gen import Maker
from tokenizer import Tokenizer

SHAPES = ["circle", "square", "triangle", "star", "cross", "ring"]
COLORS = {              # anchors; a color in a picture lies between two of them
    "red": [(255, 0, 0), (220, 40, 40), (200, 20, 30)],
    "green": [(0, 128, 0), (40, 160, 60), (0, 190, 40), (30, 220, 60)],
    "blue": [(0, 0, 255), (40, 80, 220), (30, 110, 230), (20, 40, 170)],
    "yellow": [(255, 255, 0), (245, 220, 50), (255, 225, 20)],
    "orange": [(255, 165, 0), (245, 140, 30), (255, 125, 0)],
    "purple": [(128, 0, 128), (140, 50, 180), (110, 30, 160)],
    "pink": [(255, 192, 203), (245, 150, 190), (255, 105, 180)],
    "black": [(0, 0, 0), (25, 25, 25)],
    "white": [(255, 255, 255), (240, 240, 240)],
}
NAMES = list(COLORS)
KEY_WEIGHT = {"shape": 6.0, "color": 3.0, "count": 6.0, "digit": 4.0, "bar": 2.0, "move": 2.0}    # of the words that say what a picture shows
MOVES = ["left", "right", "up", "down"]
CLASSES = ["shape", "color", "count", "digit", "bar", "move"]
N_SHAPES, RECT = len(SHAPES), 99
KIND_NONE, KIND_RECT, KIND_GLYPH = 0, 1 + N_SHAPES, 2 + N_SHAPES    # what a patch shows, for the auxiliary loss; 1..: a shape; glyphs follow
KINDS = KIND_GLYPH + 10
SLOTS = {"object": 4, "count": 5, "digit": 2, "bar": 8, "move": 1}
BUDGET, CELL = 70, 48
TEXTS = ["arith", "convert", "sort", "count", "text", "compare", "json", "table", "code", "word", "facts", "story", "chat", "zh", "tool", "think", "talk"]   # classes of gen.py


def snap(v, n, rest, test):
    """The nearest number above v (in units) that has this rest when divided by n, for the held-out pictures; one that has not, for training."""
    if test: return v + (rest - v) % n
    return v + 1 if v % n == rest else v


def fit(width, height, budget=BUDGET):
    """The size to which the engine scales a picture (media/patches.c)."""
    f = math.sqrt(budget * CELL * CELL / (width * height))
    h, w = int(f * height // CELL) * CELL, int(f * width // CELL) * CELL
    if h == 0: return min(width // height * CELL, budget * CELL), CELL
    if w == 0: return CELL, min(height // width * CELL, budget * CELL)
    return w, h


class Scene:
    """Objects of a picture: rows of (kind, x, y, rx, ry, angle, r, g, b). Kinds: 1.. a shape, RECT, and 100 + glyph.
    Lengths are parts of the width and the height."""

    def __init__(self, background):
        self.background, self.rows = background, []

    def add(self, *row): self.rows.append(row)


class Drawer:
    """Draws scenes. test: the held-out ones."""

    def __init__(self, seed, fonts, test=False):
        self.r, self.fonts, self.test = random.Random(seed), fonts, test

    def size(self, v):
        """A size or height, a part of the side. The held-out ones never occur in training; so with places and shades."""
        return snap(round(1000 * v), 7, 3, self.test) / 1000

    def place(self, v): return snap(round(1000 * v), 11, 5, self.test) / 1000

    def shade(self, name):
        a, b = self.r.choice(COLORS[name]), self.r.choice(COLORS[name])
        t = self.r.random()
        x, y, z = (min(255, max(0, round(p + (q - p) * t + self.r.uniform(-12, 12)))) for p, q in zip(a, b))
        z = snap(x + y + z, 5, 0, self.test) - x - y
        return x, y, z if z < 256 else z - 5 if self.test else z - 2

    def background(self):
        """(r, g, b), and the names of colors that cannot be seen on it"""
        x, r = self.r.random(), self.r
        if x < 0.35: return (255, 255, 255), {"white"}
        if x < 0.70:
            v = r.randint(205, 245)
            return tuple(min(255, max(0, v + r.randint(-8, 8))) for _ in range(3)), {"white", "pink"} if v > 225 else {"white"}
        if x < 0.82: return (0, 0, 0), {"black"}
        if x < 0.92:
            v = r.randint(20, 70)
            return tuple(v + r.randint(-6, 6) for _ in range(3)), {"black"}
        v = r.randint(120, 170)
        return (v, v, v), {"black", "white"} if v < 130 else {"white"}

    def names(self, n, hidden):
        return self.r.sample([c for c in NAMES if c not in hidden], n)

    def places(self, n, low, high, aspect, gap=1.12):
        """n centers with sizes (parts of the shorter side) that do not overlap: (x, y, size in x, size in y)"""
        sx, sy = (1 / aspect, 1) if aspect > 1 else (1, aspect)        # a part of the shorter side as parts of width and height
        while True:
            out = []
            for _ in range(60):
                size = self.r.uniform(low, high)
                x, y = self.r.uniform(size * sx * 1.1, 1 - size * sx * 1.1), self.r.uniform(size * sy * 1.1, 1 - size * sy * 1.1)
                if all(math.hypot((x - a) / sx, (y - b) / sy) > gap * (size + c) for a, b, c in out): out.append((x, y, size))
                if len(out) == n: return out, sx, sy
            high *= 0.9
            low = min(low, high * 0.8)

    def angle(self, shape):
        if shape == "square": return self.r.uniform(-0.15, 0.15)
        if shape == "triangle": return self.r.uniform(-0.4, 0.4)
        if shape == "cross": return self.r.uniform(-0.12, 0.12)
        return self.r.uniform(0, 6.28) if shape == "star" else 0.0

    def put(self, scene, shape, color, place, sx, sy):
        x, y, size = place
        size = self.size(size)
        scene.add(1 + SHAPES.index(shape), self.place(x), self.place(y), size * sx, size * sy, self.angle(shape), *self.shade(color))

    # --- the classes: each returns a scene and questions (class, question, answer in words, key word) ---
    def objects(self, aspect):
        r = self.r
        back, hidden = self.background()
        n = r.choice([1, 1, 2, 2, 3, 4])
        s, shapes, colors = Scene(back), r.sample(SHAPES, n), self.names(n, hidden)
        places, sx, sy = self.places(n, *((0.10, 0.42) if n == 1 else (0.08, 0.24) if n == 2 else (0.075, 0.18)), aspect)
        for shape, color, place in zip(shapes, colors, places): self.put(s, shape, color, place, sx, sy)
        asked = []
        for shape, color in zip(shapes, colors):
            shown = ["What shape is the %s object?" % color, "What shape is %s?" % color, "Which shape is %s?" % color, "What is the %s shape?" % color,
                     "What is the shape of the %s object?" % color]
            named = ["What color is the %s?" % shape, "Which color does the %s have?" % shape, "What is the color of the %s?" % shape,
                     "Tell me the color of the %s." % shape, "The %s is what color?" % shape]
            if n == 1:
                shown += ["What shape is this?", "What shape is it?", "Which shape do you see?", "What is this?", "What is in the picture?", "What shape is in the picture?"] * 2
                named += ["What color is this?", "What color is it?", "Which color do you see?", "What color is the shape?", "What color is the object?"] * 2
            q = r.choice(shown)
            asked.append(("shape", q, "The %s object is a %s." % (color, shape) if color in q else "It is a %s." % shape, shape))
            q = r.choice(named)
            asked.append(("color", q, "The %s is %s." % (shape, color) if shape in q else "It is %s." % color, color))
        r.shuffle(asked)
        return s, asked

    def counts(self, aspect):
        r = self.r
        back, hidden = self.background()
        s, n = Scene(back), r.choice([1, 2, 3, 4, 5])
        kinds = 1 if r.random() < 0.45 else 2
        if kinds == 2: n = max(2, n)
        shapes, colors = r.sample(SHAPES, kinds), self.names(kinds, hidden)
        mixed = kinds == 1 and r.random() < 0.35           # one shape in many colors
        low, high = (0.08, 0.20) if n <= 3 else (0.075, 0.15)
        size = r.uniform(low, high)
        places, sx, sy = self.places(n, size * 0.85, size, aspect, 1.3)
        first = n if kinds == 1 else r.randint(1, n - 1)
        free = [c for c in NAMES if c not in hidden]
        for i, place in enumerate(places):
            k = int(i >= first)
            self.put(s, shapes[k], r.choice(free) if mixed else colors[k], place, sx, sy)
        asked = []

        def ask(thing, m):
            things = thing + ("es" if thing.endswith("ss") else "s")
            q = r.choice(["How many %s are there?", "How many %s do you see?", "Count the %s.", "How many %s are in the picture?", "How many %s can you see?"]) % things
            asked.append(("count", q, "There is 1 %s." % thing if m == 1 else "There are %d %s." % (m, things), str(m)))
        if kinds == 1: ask(r.choice([shapes[0], shapes[0], "shape", "object"]), n)
        else:
            ask(shapes[0], first)
            ask(shapes[1], n - first)
            if r.random() < 0.5: ask("%s %s" % (colors[0], shapes[0]), first)
            if r.random() < 0.4: ask(r.choice(["shape", "object"]), n)
            r.shuffle(asked)
        return s, asked

    def digits(self, aspect):
        r = self.r
        back, hidden = self.background()
        color = self.names(1, hidden)[0]
        s, text = Scene(back), str(r.randint(0, 9) if r.random() < 0.5 else r.randint(10, 99))
        size, rgb = self.size(r.uniform(0.13, 0.40 if len(text) == 1 else 0.30)), self.shade(color)
        sx, sy = (1 / aspect, 1) if aspect > 1 else (1, aspect)
        wide = size * 0.62
        half = 1.25 * wide * len(text)
        x, y = self.place(r.uniform(min(0.5, half * sx), max(0.5, 1 - half * sx))), self.place(r.uniform(size * sy, 1 - size * sy))
        font, angle = r.choice(self.fonts), r.uniform(-0.12, 0.12)
        step = wide * r.uniform(1.85, 2.6)
        for i, d in enumerate(text):
            off = (i - (len(text) - 1) / 2) * step
            s.add(100 + font * 10 + int(d), x + off * math.cos(angle) * sx, y + off * math.sin(angle) * sy, size * sx, size * sy, angle, *rgb)
        q = ["What number is this?", "What number do you see?", "Which number is shown?", "What number is in the picture?", "Read the number."]
        if len(text) == 1: q += ["What digit is this?", "Which digit do you see?", "What digit is in the picture?", "Which digit is shown?", "Read the digit."]
        q = r.choice(q)
        asked = [("digit", q, "The %s is %s." % ("digit" if "digit" in q else "number", text), text)]
        if r.random() < 0.3:
            word = "digit" if len(text) == 1 and r.random() < 0.5 else "number"
            asked.append(("color", "What color is the %s?" % word, "The %s is %s." % (word, color), color))
        return s, asked

    def bars(self, aspect):
        r = self.r
        back, hidden = self.background()
        n = r.randint(2, 6)
        s, colors = Scene(back), self.names(n, hidden)
        top = r.uniform(0.55, 0.85)
        heights = [top] + [r.uniform(0.12, top - 0.07) for _ in range(n - 1)]
        heights = [self.size(h) for h in heights]
        tall = r.randrange(n)
        heights[0], heights[tall] = heights[tall], heights[0]
        left, right, base = r.uniform(0.05, 0.2), r.uniform(0.8, 0.96), r.uniform(0.88, 0.96)
        step = (right - left) / n
        width = step * r.uniform(0.45, 0.9)
        if r.random() < 0.7:
            ink = (230, 230, 230) if sum(back) < 380 else (40, 40, 40)
            s.add(RECT, (left + right) / 2, base + 0.006, (right - left) / 2 + 0.02, 0.006, 0, *ink)
            if r.random() < 0.7: s.add(RECT, left - 0.02, (base + 0.1) / 2, 0.005, (base - 0.1) / 2, 0, *ink)
        for i in range(n):
            s.add(RECT, left + (i + 0.5) * step, base - heights[i] / 2, width / 2, heights[i] / 2, 0, *self.shade(colors[i]))
        asked = [("bar", r.choice(["Which bar is the tallest?", "What color is the tallest bar?", "Which bar is tallest?", "Which color is the tallest bar?", "Which is the tallest bar?"]),
                  "The tallest bar is %s." % colors[tall], colors[tall])]
        if r.random() < 0.3:
            asked.append(("count", r.choice(["How many bars are there?", "How many bars do you see?", "Count the bars."]), "There are %d bars." % n, str(n)))
        return s, asked

    def moves(self, aspect):
        r = self.r
        back, hidden = self.background()
        shape, color, way = r.choice(SHAPES), self.names(1, hidden)[0], r.choice(MOVES)
        sx, sy = (1 / aspect, 1) if aspect > 1 else (1, aspect)
        size, rgb = self.size(r.uniform(0.08, 0.22)), self.shade(color)
        gap = r.uniform(0.15, min(0.5, 1 - 2.2 * size))
        ax, ay = size * sx * 1.1, size * sy * 1.1
        drift = r.uniform(-0.25, 0.25) * gap
        if way in ("left", "right"):
            x0 = r.uniform(ax, 1 - ax - gap)
            x1 = x0 + gap
            y0 = r.uniform(ay + abs(drift), 1 - ay - abs(drift)) if 2 * (ay + abs(drift)) < 1 else 0.5
            y1 = y0 + (drift if 2 * (ay + abs(drift)) < 1 else 0)
        else:
            y0 = r.uniform(ay, 1 - ay - gap)
            y1 = y0 + gap
            x0 = r.uniform(ax + abs(drift), 1 - ax - abs(drift)) if 2 * (ax + abs(drift)) < 1 else 0.5
            x1 = x0 + (drift if 2 * (ax + abs(drift)) < 1 else 0)
        if way in ("left", "up"): x0, x1, y0, y1 = x1, x0, y1, y0
        out, angle = [], self.angle(shape)
        for x, y in ((self.place(x0), self.place(y0)), (self.place(x1), self.place(y1))):
            s = Scene(back)
            s.add(1 + SHAPES.index(shape), x, y, size * sx, size * sy, angle, *rgb)
            out.append(s)
        thing = r.choice([shape, shape, "object"])
        q = r.choice(["Which way does the %s move?", "In which direction does the %s move?", "Where does the %s move?", "Which way is the %s moving?"]) % thing
        asked = [("move", q, "The %s moves %s." % (thing, way), way)]
        if r.random() < 0.4:
            asked.append(("color", "What color is the %s?" % shape, "The %s is %s." % (shape, color), color))
        return out, asked


class Writer:
    """Turns questions into rows of the text model: one picture, or two frames, and questions that share it."""

    def __init__(self, seed):
        self.t, self.r = Tokenizer(), random.Random(seed + ":write")
        self.texts = Maker(seed + ":texts")
        self.pool = []
        s = self.t.special
        self.boi, self.eoi, self.image, self.video = s["<|image>"], s["<image|>"], s["<|image|>"], s["<|video|>"]

    def say(self, text):
        x = self.r.random()
        if x < 0.12 and text[-1] in "?.!": text = text[:-1]
        elif x < 0.20: text = text[0].lower() + text[1:]
        elif x < 0.26: text = text[0].lower() + text[1:].rstrip("?.!")
        return text

    def plain(self, n_cells, limit):
        """A conversation whose last question needs no picture, with one before one of its questions: ids, blocks, where the answer starts"""
        user = [self.t.special["<|turn>"], *self.t.part("user\n")]
        while len(self.pool) < 60 or self.r.random() < 0.3:
            s = self.texts.sample(self.r.choice(TEXTS))
            ids, _, starts = self.t.encode_sample(s)
            if len(ids) > limit - n_cells - 2 or starts[-1] >= len(ids): continue
            turns = [i + 3 for i in range(len(ids) - 3) if ids[i:i + 3] == user and i < starts[-1]]
            self.pool.append((ids, starts[-1], turns))
            if len(self.pool) > 1000: self.pool.pop(self.r.randrange(500))
        while True:
            ids, start, turns = self.r.choice(self.pool)
            if len(ids) <= limit - n_cells - 2 and turns: break
        at = self.r.choice(turns)
        return (ids[:at] + [self.boi] + [self.image] * n_cells + [self.eoi] + ids[at:], [0] * (at + 1) + [1] * n_cells + [0] * (len(ids) - at + 1), start + n_cells + 2)

    def write(self, asked, n_cells, frames, length):
        """ids, positions, groups (0: shared), blocks, weights of the next token, classes of the questions asked. Soft tokens are the rows with a block."""
        r, t = self.r, self.t
        sp = t.special
        ids, pos, group, block, weight, cls = [], [], [], [], [], []

        def put(x, g, w=0.0, b=0):
            x = [x] if isinstance(x, int) else x
            for i in x:
                at = pos[-1] + 1 if pos else 0
                if g and group[-1] not in (0, g): at = self.prefix
                ids.append(i), pos.append(at), group.append(g), block.append(b), weight.append(w)

        nl = list(t.part("\n"))
        model = [sp["<turn|>"], *nl, sp["<|turn>"], *t.part("model\n"), sp["<|channel>"], *t.part("thought\n"), sp["<channel|>"]]
        again = [sp["<turn|>"], *nl, sp["<|turn>"], *t.part("model\n")]

        def pictures(g, lead):
            """lead: the text before"""
            if frames == 2 and r.random() < 0.8:
                second = r.choice([0, 0, 1, 1, 1, 2, 3])
                put(list(t.part(lead + "00:00 ")), g)
                put(self.boi, g); put([self.video] * n_cells, g, 0, 1); put(self.eoi, g)
                put(list(t.part(" 00:%02d " % second)), g)
                put(self.boi, g); put([self.video] * n_cells, g, 0, 2); put(self.eoi, g)
                return
            put(list(t.part(lead)), g)
            for f in range(frames):
                put(self.boi, g); put([self.image] * n_cells, g, 0, f + 1); put(self.eoi, g)

        def answer(c, a, key, g):
            x = t.part(a)
            for i in x: put(i, g, 1.0)
            if key:                      # the words that say what the picture shows count more
                at = a.index(key)
                before = len(t.part(a[:at].rstrip()))
                n = len(t.part(a[:at + len(key)])) - before
                for j in range(before, before + n): weight[len(ids) - len(x) + j] = KEY_WEIGHT[c]

        asked = list(asked)
        put(sp["<bos>"], 0)
        if r.random() < 0.08:
            put(sp["<|turn>"], 0)
            put(list(t.part("system\n" + r.choice(["You are a helpful assistant.", "Be brief.", "You are nano.", "Answer the question.", "You are a careful assistant."]))), 0)
            put([sp["<turn|>"], *nl], 0)
        put(sp["<|turn>"], 0)
        if r.random() < 0.1 and frames == 1:       # the question stands before the picture
            c, q, a, key = asked[0]
            pictures(0, "user\n" + self.say(q))
            self.prefix = pos[-1] + 1
            put(model, 1)
            answer(c, a, key, 1)
            put(sp["<turn|>"], 1, 1.0)
            return ids, pos, group, block, weight, [c]
        pictures(0, "user\n")
        self.prefix = pos[-1] + 1
        g = 0
        chain = r.random() < 0.12
        while asked:
            x = asked.pop(0)
            room = length - len(ids)
            c, q, a, key = x
            q = list(t.part(self.say(q)))
            if len(q) + len(model) + len(t.part(a)) + 1 > room: break
            g += 1
            if chain and asked and room > 90:     # this answer is in the history of the next question
                put(q, g); put(again, g); put(list(t.part(a)), g); put([sp["<turn|>"], *nl, sp["<|turn>"]], g)
                c, q2, a, key = asked.pop(0)
                put(list(t.encode("user\n" + self.say(q2))), g)
            else: put(q, g)
            put(model, g)
            answer(c, a, key, g)
            put(sp["<turn|>"], g, 1.0)
            cls.append(c)
        return ids, pos, group, block, weight, cls
