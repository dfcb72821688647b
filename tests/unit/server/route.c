/* Ids of requests, what pages of other origins may send, and paths that are refused. */
#include "server_rig.h"

#include <stdio.h>

TEST(server_request_ids_are_of_these_characters)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:/+=@";
    char              id[REQUEST_ID_MAX + 1];
    for (int c = 0; c < 256; c++) {
        char text[3] = {'a', (char)c, 'b'};
        bool want    = c && strchr(allowed, c);
        CHECK_MSG(call_id_is_valid((str){text, 3}) == want, "character %d", c);
        CHECK_MSG(call_id_is_valid((str){text + 1, 1}) == want, "character %d alone", c);
    }
    memset(id, 'x', sizeof id);
    CHECK(call_id_is_valid((str){id, REQUEST_ID_MAX}) && !call_id_is_valid((str){id, REQUEST_ID_MAX + 1}));
    CHECK(!call_id_is_valid((str){id, 0}) && !call_id_is_valid((str){0}));
}

TEST(server_preflights_name_the_fields_that_were_asked_for)
{
    static const char otherwise[] = "Authorization, Content-Type, X-Api-Key, X-Request-Id";
    static const struct {
        const char *asked;
        bool        kept;
    } k[] = {{"x-stainless-os, authorization", true},
             {"X-A9_!#$%&'*+-.^`|~", true},
             {"x(y)", false},
             {"x:y", false},
             {"a@b", false},
             {"a[b", false},
             {"a{b", false},
             {"a/b", false},
             {"z", true},
             {"A, Z, 0, 9", true}};
    server_rig r;
    rig_init(&r, t);
    r.opt.cors   = (const char *const[]){"https://app.example"};
    r.opt.n_cors = 1;
    rig_start(&r);
    for (size_t i = 0; i < COUNT(k); i++) {
        rig_reply a;
        char      fields[300];
        snprintf(fields, sizeof fields,
                 "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n"
                 "Access-Control-Request-Headers: %s\r\n",
                 k[i].asked);
        rig_ask(&r, "OPTIONS", "/v1/chat/completions", fields, "", &a);
        CHECK_INT(a.status, 204);
        CHECK_STR(rig_field(&a, "Access-Control-Allow-Headers"), str_of(k[i].kept ? k[i].asked : otherwise));
        CHECK_STR(rig_field(&a, "Access-Control-Allow-Methods"), STR("GET, POST, OPTIONS"));
        CHECK_STR(rig_field(&a, "Access-Control-Max-Age"), STR("600"));
        CHECK_STR(rig_field(&a, "Access-Control-Allow-Origin"), STR("https://app.example"));
        rig_reply_deinit(&a);
    }
    rig_stop(&r);
}

TEST(server_refuses_embeddings_with_a_sentence)
{
    static const struct {
        const char *path;
        int         status; /* clients of OpenAI's ask again after a 5xx */
    } k[] = {{"/v1/embeddings", 400}, {"/embeddings", 400}, {"/api/embed", 501}, {"/api/embeddings", 501}};
    server_rig r;
    rig_init(&r, t);
    rig_start(&r);
    for (size_t i = 0; i < COUNT(k); i++) {
        rig_reply a;
        rig_ask(&r, "POST", k[i].path, "", "{\"model\":\"nano\",\"input\":\"Hi\"}", &a);
        CHECK_INT(a.status, k[i].status);
        CHECK_MSG(strstr(a.body.p, "makes no embeddings"), "%s: %s", k[i].path, a.body.p);
        rig_reply_deinit(&a);
    }
    rig_stop(&r);
}
