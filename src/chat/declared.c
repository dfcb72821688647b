#include "chat/declared.h"

static bool names_type(const json_value *v, const char *type)
{
    if (!v || v->kind != JSON_STRING || v->s.n != strlen(type)) return false;
    for (size_t i = 0; i < v->s.n; i++)
        if ((v->s.s[i] | 0x20) != type[i]) return false;
    return true;
}

bool declared_as(const json_value *schema, const char *type)
{
    const json_value *t = json_get(schema, "type");
    if (names_type(t, type)) return true;
    for (size_t i = 0; t && t->kind == JSON_ARRAY && i < t->n; i++)
        if (names_type(&t->item[i], type)) return true;
    return false;
}

const json_value *declared_member(const json_value *v, str key)
{
    for (size_t i = 0; v && v->kind == JSON_OBJECT && i < v->n; i++)
        if (str_eq(v->member[i].key, key)) return &v->member[i].value;
    return NULL;
}

const json_value *declared_parameters(const chat *c, str name)
{
    for (size_t i = 0; c && i < c->n_tools; i++)
        if (str_eq(c->tool[i].name, name)) return c->tool[i].parameters;
    return NULL;
}

static size_t digits(str s, size_t at)
{
    size_t n = 0;
    while (at + n < s.n && s.s[at + n] >= '0' && s.s[at + n] <= '9') n++;
    return n;
}

bool is_json_number(str s)
{
    size_t  i = s.n && s.s[0] == '-', n = digits(s, i);
    double  d;
    int64_t whole;
    if (!n || (n > 1 && s.s[i] == '0')) return false;
    i += n;
    if (i == s.n) return str_to_i64(s, &whole);
    if (s.s[i] == '.') {
        if (!(n = digits(s, i + 1))) return false;
        i += 1 + n;
    }
    if (i < s.n && (s.s[i] | 0x20) == 'e') {
        i += 1 + (i + 1 < s.n && (s.s[i + 1] == '+' || s.s[i + 1] == '-'));
        if (!(n = digits(s, i))) return false;
        i += n;
    }
    return i == s.n && str_to_f64(s, &d);
}
