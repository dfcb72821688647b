#!/bin/sh
# The DFlash drafter of an exported target, on one H200: about 420 s. run_dflash.sh TARGET OUT
exec python3 "$(dirname "$0")/train_drafter.py" dflash --target "$1" --out "$2"
