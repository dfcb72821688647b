"""The class `recall`: notes with one fact among many, and a question about it. In the training text they have up to about 1,500 tokens; rows of their own
have 4,096 to 16,384 (lengthen.py)."""
from chat import Sample, Turn
from world import CITIES, FIRST, GOODS, JOBS

KINDS = [       # a note, its question, its answer
    ("The code for {name} is {n}.", ["What is the code for {name}?", "Which code belongs to {name}?", "Tell me the code for {name}."]),
    ("{name} lives in {city}.", ["Where does {name} live?", "In which city does {name} live?"]),
    ("The meeting with {name} is in room {n}.", ["In which room is the meeting with {name}?", "Which room is the meeting with {name} in?"]),
    ("{name} works as {job}.", ["What is the job of {name}?", "What does {name} work as?"]),
    ("{name} ordered {thing}.", ["What did {name} order?", "Which thing did {name} order?"]),
    ("The locker of {name} has the number {n}.", ["What is the number of {name}'s locker?", "Which number does the locker of {name} have?"]),
]
BEFORE = ["Read these notes and answer the question at the end.", "Here are some notes.", "Notes:", "Read the text.", "Keep this in mind:", ""]


def person(r, gen, taken):
    """A name that the notes have not used"""
    while True:
        name = (gen.invented(r).capitalize() if r.random() < 0.6 else r.choice(FIRST)) + (" " + gen.invented(r).capitalize() if r.random() < 0.5 else "")
        if name not in taken: break
    taken.add(name)
    return name


def note(m, gen, taken, asked=False):
    """A note and its questions; the operands of one that is asked decide the split"""
    r = m.rng
    text, questions = r.choice(KINDS)

    def draw():
        return person(r, gen, set(taken)), r.choice([r.randrange(10, 100), r.randrange(100, 1000), r.randrange(1000, 10000)])
    name, n = m.draw("recall", draw) if asked else draw()
    taken.add(name)
    d = dict(name=name, n=n, city=gen.invented(r).capitalize() if r.random() < 0.3 else r.choice(CITIES), job=gen.a(r.choice(JOBS)), thing=gen.a(r.choice(GOODS)))
    return text.format(**d), [q.format(**d) for q in questions]


def notes(m, gen, prose, words):
    """A text of about so many words: (text, the notes in it that may be asked about, with their questions)"""
    r = m.rng
    taken, out, asked, size = set(), [], [], 0
    n_asked, plain = r.choice([1, 1, 1, 2, 3]), r.choice([0.1, 0.3, 0.6])      # plain: the share of notes among the paragraphs
    while size < words:
        s = note(m, gen, taken)[0] if r.random() < plain else prose(r.choice([5, 12, 30]))
        size += s.count(" ") + 1
        out.append(s)
    for _ in range(n_asked):
        found = note(m, gen, taken, True)
        asked.append(found)
        out.insert(r.randrange(len(out) + 1), found[0])
    return r.choice(["\n", "\n", " ", "\n- "]).join(out), asked


def recall(m, gen, prose, words):
    """A conversation about notes of about so many words; prose(n) makes other text of n words"""
    r = m.rng
    text, asked = notes(m, gen, prose, words)
    turns = [Turn(m.say(*questions), answer) for answer, questions in asked]
    before, kind = r.choice(BEFORE), r.random()
    text = (before + "\n\n" + text).strip()
    if kind < 0.65: turns[0].user = text + r.choice(["\n\n", "\n\nQuestion: ", "\n"]) + turns[0].user
    elif kind < 0.85: turns.insert(0, Turn(text, "Ok."))
    s = Sample("", turns)
    if kind >= 0.85: s.system = text
    return s
