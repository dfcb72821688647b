#!/bin/sh
# The target from nothing, on one H200: about 450 s. run_target.sh OUT
exec python3 "$(dirname "$0")/train_target.py" --out "$1"
