"""aider, as its users run it, with one question each time. Usage: tests/python/run TANDEM aider [PART OF A NAME...]"""
import harness

harness.main(aider="aider_flows")
