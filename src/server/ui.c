#include "server/ui_inside.h"

#include "base/mem.h"
#include "server/inside.h"
#include "server/route.h"

#define UI_FILE(name, file, etag) extern const char name[], name##_end[];
#include "server/web/files.inc"
#undef UI_FILE

static const char *type_of(const char *name)
{
    if (str_ends(str_of(name), ".js")) return "text/javascript; charset=utf-8";
    return str_ends(str_of(name), ".css") ? "text/css; charset=utf-8" : "text/html; charset=utf-8";
}

ui_file ui_find(str name)
{
    const struct {
        const char *name, *etag, *from, *to;
    } files[] = {
#define UI_FILE(name, file, etag) {file, "\"" etag "\"", name, name##_end},
#include "server/web/files.inc"
#undef UI_FILE
    };
    if (!name.n) name = STR("index.html");
    for (size_t i = 0; i < COUNT(files); i++)
        if (str_is(name, files[i].name))
            return (ui_file){.type    = type_of(files[i].name),
                             .etag    = files[i].etag,
                             .body    = {files[i].from, (size_t)(files[i].to - files[i].from)},
                             .is_page = str_ends(name, ".html")};
    return (ui_file){0};
}

bool ui_is_known(str if_none_match, const char *etag)
{
    return if_none_match.s && memmem(if_none_match.s, if_none_match.n, etag, strlen(etag));
}

void endpoint_ui(server *s, server_call *c)
{
    http_field f[SERVER_MAX_FIELDS + 8];
    ui_file    file = ui_find(route_name(c));
    int        n    = call_headers(s, c, f);
    if (!file.type) {
        server_error why;
        error_set(&why, 404, NULL, "not_found", "There is no file of the dashboard at this path.");
        call_refuse(s, c, &why);
        return;
    }
    /* The names of other files change with their content. */
    str age    = file.is_page ? STR("no-cache") : STR("max-age=31536000, immutable");
    f[n++]     = (http_field){STR("Content-Type"), str_of(file.type)};
    f[n++]     = (http_field){STR("Content-Security-Policy"), STR(UI_POLICY)};
    f[n++]     = (http_field){STR("X-Content-Type-Options"), STR("nosniff")};
    f[n++]     = (http_field){STR("Referrer-Policy"), STR("no-referrer")};
    f[n++]     = (http_field){STR("ETag"), str_of(file.etag)};
    f[n++]     = (http_field){STR("Cache-Control"), age};
    bool known = ui_is_known(http_call_field(c->http, "If-None-Match"), file.etag);
    http_reply(c->http, known ? 304 : 200, f, (size_t)n, file.body);
}

bool ui_redirect(server *s, server_call *c)
{
    http_field f[SERVER_MAX_FIELDS + 2];
    str        accept = http_call_field(c->http, "Accept");
    int        n      = call_headers(s, c, f);
    if (!accept.s || !memmem(accept.s, accept.n, "text/html", 9)) return false;
    f[n++] = (http_field){STR("Location"), STR("/ui/")};
    f[n++] = (http_field){STR("Vary"), STR("Accept")};
    http_reply(c->http, 302, f, (size_t)n, (str){0});
    return true;
}
