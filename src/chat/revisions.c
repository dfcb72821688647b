/* The published revisions of Gemma 4's chat template: their rules, and detection of the revision of a model.
 *
 * A revision is a set of rules (gemma4.h). A template is compared without comments, white space and the tags that mark
 * a training target, so an indented copy is recognized. An unknown text is compared with the revisions by their signs:
 * fragments of template code, one or more for a rule. */
#include "base/mem.h"
#include "chat/gemma4.h"

enum { ALL_MAX = 1 << 24 /* bytes of a template without its white space */ };

/* --- the revisions ------------------------------------------------------------------------------*/
enum {
    APRIL_02 = GEMMA4_MEDIA_LINES | GEMMA4_MEDIA_IS_LAST | GEMMA4_EMPTY_AFTER_ANSWER,
    APRIL_10 = GEMMA4_SCHEMA_COMMAS | GEMMA4_THINK_LINE | GEMMA4_MEDIA_IS_LAST | GEMMA4_ANSWERS | GEMMA4_ONE_TURN |
               GEMMA4_THOUGHTS | GEMMA4_WAITS,
    APRIL_28 = APRIL_10 | GEMMA4_KEEP_KEYWORDS | GEMMA4_SYSTEM_PARTS | GEMMA4_END_BY_TEXT,
    MAY_18   = APRIL_28 | GEMMA4_ANSWER_MEDIA,
    JUNE     = (MAY_18 & ~GEMMA4_MEDIA_IS_LAST) | GEMMA4_NULL | GEMMA4_ONLY_OBJECTS | GEMMA4_UNNAMED | GEMMA4_PRESERVE |
           GEMMA4_JOIN,
    PULL_118   = JUNE | GEMMA4_PRESERVE_ALL | GEMMA4_JOIN_LINE,
    VLLM_JUNE  = PULL_118 | GEMMA4_JOIN_ANSWERED | GEMMA4_PAST_EMPTY | GEMMA4_THINK_AGAIN,
    INTERLEAVE = APRIL_02 | GEMMA4_THOUGHTS | GEMMA4_THOUGHT_BARE | GEMMA4_ONE_TURN_TO_CALL,
};

static const struct {
    const char  *name;
    gemma4_rules rules;
} revision[] = {
    [GEMMA4_GOOGLE_0402] = {"google 2026-04-02", APRIL_02},
    [GEMMA4_GOOGLE_0410] = {"google 2026-04-10", APRIL_10},
    [GEMMA4_GOOGLE_0428] = {"google 2026-04-28", APRIL_28},
    [GEMMA4_GOOGLE_0518] = {"google 2026-05-18", MAY_18},
    [GEMMA4_GOOGLE_0709] = {"google 2026-07-09", JUNE | GEMMA4_THOUGHTS_ALL | GEMMA4_JOIN_ANSWERED |
                                                     GEMMA4_END_BEFORE_NEXT | GEMMA4_THINK_AGAIN},
    [GEMMA4_LLAMA_0404]  = {"llama.cpp interleaved 2026-04-04", INTERLEAVE},
    [GEMMA4_LLAMA_0410]  = {"llama.cpp interleaved 2026-04-10", (INTERLEAVE & ~GEMMA4_MEDIA_LINES) | GEMMA4_THINK_LINE},
    [GEMMA4_VLLM_0408]   = {"vllm 2026-04-08", APRIL_02 | GEMMA4_ANSWERS | GEMMA4_ONE_TURN | GEMMA4_THOUGHTS},
    [GEMMA4_VLLM_0510]   = {"vllm 2026-05-10", APRIL_28 | GEMMA4_UNNAMED},
    [GEMMA4_VLLM_0529]   = {"vllm 2026-05-29", MAY_18 | GEMMA4_UNNAMED},
    [GEMMA4_VLLM_0616]   = {"vllm 2026-06-16", VLLM_JUNE},
    [GEMMA4_VLLM_0617]   = {"vllm 2026-06-17", VLLM_JUNE | GEMMA4_THOUGHTS_ALL},
    [GEMMA4_UNSLOTH_0612] = {"unsloth 2026-06-12", PULL_118 | GEMMA4_EMPTY_AFTER_ANSWER},
};
_Static_assert(COUNT(revision) == GEMMA4_REVISIONS, "a revision has no rules");

gemma4_rules gemma4_rules_of(int r) { return revision[r].rules; }

const char *gemma4_revision_name(int r) { return revision[r].name; }

/* str_hash of a template's compact text; docs/chat.md says where the templates are published. */
static const struct {
    uint64_t        hash;
    gemma4_revision revision;
} published[] = {
    {0x459455363fd3a503, GEMMA4_GOOGLE_0402},
    {0x74b0060e072c8dd8, GEMMA4_GOOGLE_0402}, /* axolotl's copy, with other names */
    {0x458c70b236a2bd32, GEMMA4_GOOGLE_0402},
    {0x2ee666f5a13b8ab9, GEMMA4_GOOGLE_0410},
    {0xa88f69f8ff9521e1, GEMMA4_GOOGLE_0410},
    {0x5076862766654993, GEMMA4_GOOGLE_0428},
    {0xcee11039e1bade2b, GEMMA4_GOOGLE_0428},
    {0xfefbedfa93ad158a, GEMMA4_GOOGLE_0428}, /* trl's copy for training */
    {0xd02016656844ac75, GEMMA4_GOOGLE_0518},
    {0xba84f3cc8b186fd9, GEMMA4_GOOGLE_0518},
    {0x5629bf33e98ab360, GEMMA4_GOOGLE_0709},
    {0x380de9d21d80a7e8, GEMMA4_GOOGLE_0709},
    {0xe2c7c5fc468bb45e, GEMMA4_LLAMA_0404},
    {0x1c5c1f02e27b9240, GEMMA4_LLAMA_0410},
    {0x0cc006aa497e4cdf, GEMMA4_VLLM_0408},
    {0x6fa961293d85cebe, GEMMA4_VLLM_0510},
    {0xddd69f54e6a1089e, GEMMA4_VLLM_0529},
    {0x8a5cda7207f88bad, GEMMA4_VLLM_0616},
    {0x6d300f309096a6b2, GEMMA4_VLLM_0617},
    {0x43db17b8dd4ab227, GEMMA4_UNSLOTH_0612},
    {0x6dc79fbf33f7a0db, GEMMA4_UNSLOTH_0612},
};

/* --- signs --------------------------------------------------------------------------------------*/
/* Written without white space. Rules without a sign cannot be detected in the templates of all model sizes. */
static const struct {
    gemma4_rules rule;
    const char  *text;
} sign[] = {
    {GEMMA4_SCHEMA_COMMAS, "{%endif-%}items:{"},
    {GEMMA4_KEEP_KEYWORDS, "filter_keys=true"},
    {GEMMA4_NULL, "argumentisnone"},
    {GEMMA4_ONLY_OBJECTS, "tool_calls[].function.arguments"},
    {GEMMA4_THINK_LINE, "'<|think|>\\n'"},
    {GEMMA4_SYSTEM_PARTS, "item['text']|trim+''"},
    {GEMMA4_MEDIA_LINES, "\\n\\n<|image|>\\n\\n"},
    {GEMMA4_MEDIA_IS_LAST, "prev_message_type='image'"},
    {GEMMA4_ANSWERS, "loop_messages[k]['role']!='tool'"},
    {GEMMA4_ANSWER_MEDIA, "part.get('type')=='image'"},
    {GEMMA4_ANSWER_MEDIA, "part.get('type')in['image'"},
    {GEMMA4_UNNAMED, "default('unknown',true)"},
    {GEMMA4_ONE_TURN, "continue_same_model_turn"},
    {GEMMA4_ONE_TURN_TO_CALL, "prev_message_type=='tool_response'andmessage['tool_calls']"},
    {GEMMA4_THOUGHTS, "message.get('reasoning')"},
    {GEMMA4_THOUGHTS, "message['reasoning_content']"},
    {GEMMA4_THOUGHTS_ALL, "ifthinking_textandthinking_gate-%}"},
    {GEMMA4_PRESERVE, "preserve_thinking"},
    {GEMMA4_PRESERVE_ALL, "orpreserve_thinking-%}"},
    {GEMMA4_THOUGHT_BARE, "{{-'<channel|>'-}}"},
    {GEMMA4_WAITS, "prev_message_type=='tool_call'andnotns_tr_out.flag"},
    {GEMMA4_END_BY_TEXT, "has_content"},
    {GEMMA4_END_BEFORE_NEXT, "andnotnext_nt.found)"},
    {GEMMA4_JOIN, "continues_into_next"},
    {GEMMA4_JOIN_LINE, "continues_into_next-%}{{-'\\n'-}}"},
    {GEMMA4_JOIN_ANSWERED, "orns_tr_out.flag)"},
    {GEMMA4_THINK_AGAIN, "prev_message_type=='tool_response'andenable_thinking"},
};

static bool has(str text, const char *part) { return text.n && memmem(text.s, text.n, part, strlen(part)); }

static gemma4_rules read_signs(str compact, gemma4_rules *known)
{
    gemma4_rules found = *known = 0;
    for (size_t i = 0; i < COUNT(sign); i++) {
        *known |= sign[i].rule;
        if (has(compact, sign[i].text)) found |= sign[i].rule;
    }
    return found;
}

static int count_bits(gemma4_rules x)
{
    int n = 0;
    for (; x; x &= x - 1) n++;
    return n;
}

/* Finds the first revision with the fewest different signs. A template without tools has too few signs: its revision is
 * not changed. */
static void find_nearest(str compact, chat_template *t)
{
    gemma4_rules known, found = read_signs(compact, &known);
    bool         tools = has(compact, "<|tool>");
    t->n_signs         = count_bits(known);
    t->n_same          = -1;
    for (gemma4_revision r = 0; r < GEMMA4_REVISIONS; r++) {
        int same = t->n_signs - count_bits((found ^ revision[r].rules) & known);
        if (same <= t->n_same || (!tools && r != GEMMA4_GOOGLE_0410)) continue;
        t->n_same   = same;
        t->revision = r;
    }
}

/* --- detection ----------------------------------------------------------------------------------*/
chat_template gemma4_detect(str text)
{
    chat_template t = {0};
    buf           b;
    buf_init(&b, ALL_MAX);
    str code        = chat_template_compact(&b, text) ? buf_str(&b) : (str){0};
    t.known         = has(code, "<|turn>") && has(code, "<turn|>");
    t.empty_thought = has(code, "<|channel>thought\\n<channel|>") || has(code, "<|channel>thought<channel|>");
    t.revision      = GEMMA4_GOOGLE_0410;
    if (t.known) find_nearest(code, &t);
    t.hash = str_hash(code);
    for (size_t i = 0; t.known && i < COUNT(published); i++) {
        if (published[i].hash != t.hash) continue;
        t.published = true;
        t.revision  = published[i].revision;
    }
    buf_deinit(&b);
    return t;
}
