declare module "*.css";
declare module "virtual:agents" {
  // The configurations of docs/agents.md; file and content are empty where a command is enough.
  export const agents: { name: string; file: string; content: string; command: string }[];
}
