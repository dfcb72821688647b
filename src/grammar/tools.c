/* Compiles tool calls in a family's markup: call_open call_prefix NAME{...} call_close, or as tagged.c describes. */
#include "base/mem.h"
#include "grammar/schema.h"

static node *write_arguments(maker *m, const grammar_tool *tool)
{
    json_member       type   = {STR("type"), {.kind = JSON_STRING, .s = STR("object")}};
    json_value        object = {.kind = JSON_OBJECT, .n = 1, .member = &type};
    builder          *b      = &m->b;
    const json_value *p      = tool->parameters;
    if (tool->free) {
        node *any = node_alt(b, node_not(b, NULL, 0), make_quote(m));
        return node_seq(b, node_puts(b, "{"), node_repeat(b, any, 0, -1), node_puts(b, "}"));
    }
    return !p || p->kind == JSON_NULL ? node_puts(b, "{}") : write_root(m, p, &object);
}

static node *write_call(maker *m, const grammar_tool *tool)
{
    builder *b    = &m->b;
    node    *args = write_arguments(m, tool);
    if (!is_callable(tool->name)) builder_fail(b, ERR_INPUT, "its name cannot be used in a call");
    return node_seq(b, node_marker(b, str_of(m->call->call_open)), node_puts(b, m->call->call_prefix),
                    node_text(b, tool->name), args ? args : node_empty(b), node_marker(b, str_of(m->call->call_close)));
}

/* Writes a call of any of the tools; NULL when one of them fails, and *bad is its number. */
static node *write_calls(maker *m, const grammar_tool *tool, size_t n, const tok_markup *markup, size_t *bad)
{
    node_vec v = {0};
    for (size_t i = 0; i < n; i++) {
        node_vec_put(&m->b, &v, markup->quote ? write_call(m, &tool[i]) : write_tagged_call(m, &tool[i], markup));
        if (!m->b.failed) continue;
        *bad = i;
        return NULL;
    }
    return node_list(&m->b, NODE_ALT, v.p, v.n);
}

static node *write_answer(maker *m, const json_value *schema, node *calls)
{
    maker_set_markup(m, NULL);
    node *answer = write_root(m, schema, NULL);
    return answer ? node_alt(&m->b, answer, calls) : calls;
}

/* Frees a tool whose schema cannot be enforced and that is not strict, and writes all again with the steps that are
 * left. */
bool grammar_tool_calls(grammar **out, grammar_tool *tool, size_t n, const grammar_calls *how, err *e)
{
    maker   m;
    node   *calls;
    size_t  bad  = 0;
    int64_t work = GRAMMAR_MAX_WORK;
    *out         = NULL;
    bool tagged  = !how->markup->quote; /* their values are JSON */
    for (;;) {
        maker_init(&m, tagged ? NULL : how->markup, how->cancel);
        m.b.work = work;
        calls    = write_calls(&m, tool, n, how->markup, &bad);
        if (calls || m.b.why.code != ERR_INPUT || tool[bad].strict || tool[bad].free || !is_callable(tool[bad].name))
            break;
        buf_printf(how->warnings, "%stool '%.*s' takes any arguments: %s", how->warnings->n ? "; " : "",
                   STR_ARG(tool[bad].name), m.b.why.text);
        tool[bad].free = true;
        work           = m.b.work;
        builder_deinit(&m.b);
    }
    if (!calls) {
        err_set(e, m.b.why.code, "%s", m.b.why.text);
        builder_deinit(&m.b);
        err_wrap(e, "the parameters of tool '%.*s' cannot be used", STR_ARG(tool[bad].name));
        return err_blame(e, "tools", 0);
    }
    if (tagged)
        calls = node_seq(&m.b, node_repeat(&m.b, node_puts(&m.b, "\n"), 0, 2), calls); /* after a thought or a call */
    calls = node_repeat(&m.b, calls, 1, how->several ? -1 : 1);
    if (how->answer) calls = write_answer(&m, how->answer, calls);
    return maker_finish(&m, calls, out, e) || (how->answer && err_wrap(e, "the schema cannot be used"));
}
