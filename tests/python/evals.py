"""Runs lm-evaluation-harness against the server. Usage: tests/python/run TANDEM evals [PART OF A NAME...]"""
import harness

harness.main(lm_eval="lm_eval_flows")
