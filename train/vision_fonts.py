#!/usr/bin/env python3
"""Draws the digits of installed fonts as distances to their edge: `vision_fonts.py OUT.npz [DIGITS]`. Needs Pillow and scipy, and Debian's font packages.
Whole families are held out; DIGITS is a file with one font of each of these, for tests (tests/server/draw.mjs)."""
import glob
import os
import sys
import zlib

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import distance_transform_edt

HELD_OUT = {"dejavu", "lato", "vollkorn", "quicksand", "courier-prime", "sora"}
SKIPPED = {"hack", "isabella", "kristi", "cabinsketch", "ecolier-court", "stix-word", "unhinted", "RobotoTTF", "karlatamilinclined", "karlatamilupright", "karla-variable",
           "tlwg", "sawarabi-gothic", "noto", "croscore", "liberation", "beteckna", "ocr-a", "rufscript"}
BIG, SIZE, REACH = 256, 40, 1.25       # pixels while drawing, pixels of the result, what it covers: half a digit's height is 1
PER_FAMILY = 4


def digits(path):
    """[10, SIZE, SIZE] signed distances, in halves of the digits' height; None: the font has no digits of one height"""
    font = ImageFont.truetype(path, 300)
    boxes = [font.getbbox(str(d)) for d in range(10)]
    top, bottom = min(b[1] for b in boxes), max(b[3] for b in boxes)
    half, out = (bottom - top) / 2, []
    if half < 40 or any(b[3] - b[1] < 0.5 * (bottom - top) for b in boxes): return None
    for d, b in enumerate(boxes):
        if b[2] - b[0] > 2.2 * half: return None
        im = Image.new("L", (int(2 * half * REACH),) * 2)
        ImageDraw.Draw(im).text((half * REACH - (b[0] + b[2]) / 2, half * REACH - (top + bottom) / 2), str(d), fill=255, font=font)
        m = np.array(im.resize((BIG, BIG), Image.BILINEAR)) > 127
        if m.mean() < 0.01: return None
        sd = (distance_transform_edt(~m) - distance_transform_edt(m)) / (BIG / 2 / REACH)
        out.append(np.array(Image.fromarray(sd.astype(np.float32)).resize((SIZE, SIZE), Image.BOX)))
    return np.stack(out)


def main():
    families, seen = {}, set()
    for path in sorted(glob.glob("/usr/share/fonts/**/*.[to]tf", recursive=True)):
        family, name = os.path.basename(os.path.dirname(path)), os.path.basename(path).lower()
        if family in SKIPPED or any(w in name for w in ("math", "symbol", "dingbat", "initial", "keyboard", "thin", "hair", "d050000l", "capit", "outline", "mono-b", "nonuni", "siz", "variable")): continue
        families.setdefault(family, []).append(path)
    glyphs, names, held, families_of = [], [], [], []
    for family, paths in sorted(families.items()):
        step = max(1, len(paths) // PER_FAMILY)
        for path in paths[::step][:PER_FAMILY]:
            try: g = digits(path)
            except OSError: continue
            if g is None: continue
            glyphs.append(np.clip(np.round(g * 100), -127, 127).astype(np.int8))
            names.append(os.path.basename(path))
            held.append(family in HELD_OUT)
            families_of.append(family)
    np.savez_compressed(sys.argv[1], glyphs=np.stack(glyphs), names=names, held=held)
    if len(sys.argv) > 2:
        some = [next(i for i, f in enumerate(families_of) if f == h) for h in sorted(HELD_OUT) if h in families_of]
        with open(sys.argv[2], "wb") as f: f.write(zlib.compress(np.stack([glyphs[i] for i in some]).tobytes(), 9))
    print("%d fonts, %d of them held out, %d bytes" % (len(names), sum(held), os.path.getsize(sys.argv[1])))


if __name__ == "__main__":
    main()
