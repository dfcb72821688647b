#!/bin/sh
# The DFlash drafter and the assistant of an exported target, on one H200: about 420 s. run_drafters.sh TARGET OUT
exec python3 "$(dirname "$0")/train_drafter.py" --target "$1" --out "$2"
