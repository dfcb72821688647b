"""Runs the clients of tests/python/clients.txt. Usage: tests/python/run TANDEM clients [PART OF A NAME...]"""
import harness

harness.main(
    openai="openai_flows",
    anthropic="anthropic_flows",
    langchain="langchain_flows",
    pydantic_ai="pydantic_ai_flows",
    ollama="ollama_flows",
    pydantic="pydantic_flows",
    open_webui="open_webui_flows",
    llama_cpp="llama_cpp_flows",
    vllm="vllm_flows",
)
