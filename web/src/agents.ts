// The configurations of docs/agents.md; a test compares them.
export interface Agent {
  name: string;
  file?: string;
  content?: string;
  command: string;
}

export const agents: Agent[] = [
  {
    name: "opencode",
    file: "~/.config/opencode/opencode.json",
    content: `{
  "model": "tandem/{{model}}",
  "small_model": "tandem/{{model}}",
  "share": "disabled",
  "autoupdate": false,
  "provider": {
    "tandem": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "tandem",
      "options": {"baseURL": "{{base}}/v1", "apiKey": "none"},
      "models": {"{{model}}": {"limit": {"context": 65536, "output": 4096}}}
    }
  }
}`,
    command: `opencode run "What is 27 plus 58?"`,
  },
  {
    name: "codex",
    file: "~/.codex/config.toml",
    content: `model = "{{model}}"
model_provider = "tandem"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.tandem]
name = "tandem"
base_url = "{{base}}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"`,
    command: `export LOCAL_KEY=none
codex exec --skip-git-repo-check "What is 27 plus 58?"`,
  },
  {
    name: "claude-code",
    command: `export ANTHROPIC_BASE_URL={{base}} ANTHROPIC_API_KEY=none
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1
claude --model {{model}} -p "What is 27 plus 58?"`,
  },
  {
    name: "pi",
    file: "~/.pi/agent/models.json",
    content: `{
  "providers": {
    "tandem": {
      "baseUrl": "{{base}}/v1",
      "api": "openai-completions",
      "apiKey": "none",
      "models": [{"id": "{{model}}", "contextWindow": 65536, "maxTokens": 4096}]
    }
  }
}`,
    command: `pi --model tandem/{{model}} -p "What is 27 plus 58?"`,
  },
];
