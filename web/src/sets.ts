// Sets of prompts for the benchmark. Without prompts, the server makes records to copy.
export const promptSets = {
  records: [],
  sums: ["What is 27 plus 58?", "What is 64 plus 19?", "What is 145 plus 278?", "Count from 1 to 40.", "Count from 20 to 60.", "What is 9 plus 93?"],
  stories: ["Write a short story about a fox.", "Write a short story about a lighthouse keeper.", "Tell me a story about two friends and a river.",
    "Write a letter from a sailor to his sister.", "Describe a town in winter.", "Write a fable about an owl."],
  code: ["Write a Python function that returns the n-th Fibonacci number.", "Write a C function that reverses a string in place.",
    "Write a JavaScript function that removes duplicates from an array.", "Write a SQL query that counts the orders of each customer.",
    "Write a shell script that renames all .txt files to .md.", "Write a Python class for a stack with push, pop and peek."],
  own: [],
} satisfies Record<string, string[]>;
export type PromptSet = keyof typeof promptSets;
