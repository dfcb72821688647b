"""Runs the clients of tests/python/frameworks.txt. Usage: tests/python/run TANDEM frameworks [PART OF A NAME...]"""
import harness

harness.main(litellm="litellm_flows", instructor="instructor_flows", llama_index="llama_index_flows", smolagents="smolagents_flows")
