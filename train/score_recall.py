#!/usr/bin/env python3
"""Facts recalled from long notes, through `tandem daemon`: `score_recall.py --tandem BIN -m MODEL --kv f16,q8_0,tq3 --sparse 0,0.01` prints exact answers
per type of K/V, ALPHA of sparse attention and length, and how many answers are those of the first type and ALPHA. The notes and questions are those of
recall.py with held-out operands. Needs no torch."""
import argparse
import json
import subprocess

import gen
import recall
import tools


def notes(seed, n_asked, words, share):
    """A text of about so many words, with n_asked notes spread over it, and their (question, answer)"""
    m = gen.Maker("%s:%d:%d" % (seed, n_asked, words), test=True)
    r, taken, out, asked, size = m.rng, set(), [], [], 0
    kit = tools.Kit(m, gen)
    while size < words:
        s = recall.note(m, gen, taken)[0] if r.random() < share else tools.prose(kit, r.choice([5, 12, 30]), 0.1)
        size += s.count(" ") + 1
        out.append(s)
    for i in range(n_asked):
        text, questions = recall.note(m, gen, taken, True)
        asked.append((questions[0], text))
        out.insert((2 * i + 1) * len(out) // (2 * n_asked), text)
    return "Read these notes and answer the question at the end.\n\n" + "\n".join(out), asked


class Daemon:
    def __init__(self, o, kv, sparse):
        run = [o.tandem, "daemon", "-m", o.m, "--ctx", "20480", "--kv", kv, "--sparse-fa", sparse, "--device", o.device, "--max-lanes", "2", "--draft", "none"]
        if o.everywhere: run += ["--kv-sliding", kv]
        self.p = subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.event()["type"] == "ready"

    def event(self): return json.loads(self.p.stdout.readline())

    def ask(self, text):
        """The answer, and the tokens of the prompt"""
        print(json.dumps({"id": 1, "op": "generate", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 40}), file=self.p.stdin, flush=True)
        answer = ""
        while True:
            e = self.event()
            if e["type"] == "token": answer += e["text"]
            elif e["type"] == "done": return answer.strip(), e["usage"]["prompt_tokens"]
            elif e["type"] == "error": raise SystemExit(e)

    def quit(self):
        print('{"id": 2, "op": "quit"}', file=self.p.stdin, flush=True)
        self.p.communicate()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--tandem", required=True)
    p.add_argument("-m", required=True)
    p.add_argument("--device", default="auto")
    p.add_argument("--kv", default="f16,q8_0,q4_0,tq3", help="types of K and V")
    p.add_argument("--sparse", default="0", help="shares for --sparse-fa")
    p.add_argument("--everywhere", action="store_true", help="the types also in sliding layers")
    p.add_argument("--words", default="2100,4200,8300", help="words of the notes: a token is about half a word")
    p.add_argument("--texts", type=int, default=8, help="texts of each length")
    p.add_argument("--questions", type=int, default=8, help="questions about each text")
    p.add_argument("--notes", type=float, default=0.05, help="share of other notes among the paragraphs")
    p.add_argument("--seed", default="nano-1")
    p.add_argument("--show", type=int, default=0, help="wrong answers to print")
    o = p.parse_args()
    first = {}
    for kv in o.kv.split(","):
        for sparse in o.sparse.split(","):
            d, row = Daemon(o, kv, sparse), []
            for words in map(int, o.words.split(",")):
                right, same, asked, tokens = 0, 0, 0, 0
                for t in range(o.texts):
                    text, questions = notes("%s:recall:%d" % (o.seed, t), o.questions, words, o.notes)
                    for question, answer in questions:
                        got, tokens = d.ask(text + "\n\n" + question)
                        right, asked = right + (got == answer), asked + 1
                        same += first.setdefault((words, t, question), got) == got
                        if got != answer and asked - right <= o.show: print("%r: expected %r, got %r" % (question, answer, got))
                row.append("%d tokens: %d right, %d the same, of %d" % (tokens, right, same, asked))
            print("%-10s %-6s %s" % (kv, sparse, "   ".join(row)), flush=True)
            d.quit()


if __name__ == "__main__":
    main()
