/* server/tables_inside.h - tables of the server that tests compare with the docs. */
#ifndef TANDEM_SERVER_TABLES_INSIDE_H
#define TANDEM_SERVER_TABLES_INSIDE_H
#include "server/dialects.h"
#include "server/fields.h"
#include "server/route.h"

extern const dialect_field      dialect_table[];
extern const int                n_dialect_fields;
extern const field_table *const field_tables[]; /* all of them */
extern const int                n_field_tables;
extern const route_info         route_table[];
extern const int                n_routes;
/* Writes the accepted values: "a whole number from 1 to 32". */
void field_describe(const field_info *f, char *out, size_t cap);
#endif
