"""Counts the checks of an end-to-end test, and runs its parts."""
import sys
import time

passed = failed = 0


def check(ok, what):
    """Counts a check, and prints what was checked if it failed."""
    global passed, failed
    passed += bool(ok)
    failed += not ok
    if not ok:
        print("FAILED:", what, flush=True)


def run_tests(name, tests):
    """Calls the functions in turn, prints their times and the number of checks, and ends the program."""
    for test in tests:
        began = time.monotonic()
        test()
        print(f"{test.__name__}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"{name}: {passed} of {passed + failed} checks passed")
    sys.exit(failed != 0)
