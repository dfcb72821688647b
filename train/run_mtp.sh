#!/bin/sh
# The assistant of an exported target, on one H200: about 380 s. run_mtp.sh TARGET OUT
exec python3 "$(dirname "$0")/train_drafter.py" mtp --target "$1" --out "$2" --seconds 200
