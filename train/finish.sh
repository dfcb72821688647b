#!/bin/sh
# A target goes on with new text, then both drafters with its answers, in one call of about 350 s on one H200: finish.sh TARGET DRAFTERS OUT
# What is not there in DRAFTERS (dflash/, mtp/) starts from nothing. The drafters come as OUT/drafters.tar, kept up to date on the way.
here=$(dirname "$0")
work=$(mktemp -d)
python3 "$here/train_target.py" --resume "$1" --out "$3" --seconds 80 --shards 100 --processes 10 --per-class 20 || exit 1
keep() { tar -C "$work" -cf "$work.tar" . && cp "$work.tar" "$3/drafters.part" && mv "$3/drafters.part" "$3/drafters.tar"; }
(while sleep 15; do keep "$@"; done) &
loop=$!
python3 "$here/train_drafter.py" --target "$3" --resume "$2" --out "$work" --questions 60000 --answer-seconds 40 --seconds 110 --per-class 15
status=$?
kill $loop
keep "$@"
exit $status
