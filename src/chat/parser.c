/* Calls the stream parser of an answer's format. */
#include "chat/parser.h"

#include "chat/format.h"

chat_parser *chat_parser_new(const chat_parse_options *opt)
{
    chat_parser *p = opt->format->parser->create(opt);
    if (p) p->format = opt->format;
    return p;
}

void chat_parser_free(chat_parser *p)
{
    if (p) p->format->parser->destroy(p);
}

void chat_parser_put_id(chat_parser *p, int32_t id) { p->format->parser->put_id(p, id); }
void chat_parser_put_text(chat_parser *p, str text) { p->format->parser->put_text(p, text); }
bool chat_parser_in_thought(const chat_parser *p) { return p->format->parser->in_thought(p); }
bool chat_parser_undecided(const chat_parser *p) { return p->format->parser->undecided(p); }
bool chat_parser_finish(chat_parser *p, err *e) { return p->format->parser->finish(p, e); }
