/* model/config_value.h - reads one number of a model's configuration at a time and checks its range lo .. hi.
 *
 * Functions with an err return false and ERR_FORMAT when the value is there but unusable, or is missing without a
 * fallback; *out is unchanged then. */
#ifndef TANDEM_MODEL_CONFIG_VALUE_H
#define TANDEM_MODEL_CONFIG_VALUE_H
#include "gguf/gguf.h"
#include "json/json.h"

#define CONFIG_REQUIRED INT64_MIN /* as the fallback: the file must have it */

/* Set *out to v if it is in range. */
bool config_int(const char *key, int64_t v, int64_t lo, int64_t hi, int *out, err *e);
bool config_real(const char *key, double v, double lo, double hi, double *out, err *e);
bool config_missing(const char *key, err *e); /* sets the error that the key is missing, and returns false */

/* Read values of a GGUF file, whose key is "arch.suffix". gguf_arch_find writes the key for messages. */
enum { CONFIG_KEY_MAX = 96 };
const gguf_value *gguf_arch_find(const gguf *g, const char *arch, const char *suffix, char key[CONFIG_KEY_MAX]);
bool gguf_arch_int(const gguf *g, const char *arch, const char *suffix, int64_t fallback, int64_t lo, int64_t hi,
                   int *out, err *e);
bool gguf_arch_real(const gguf *g, const char *arch, const char *suffix, double fallback, double lo, double hi,
                    double *out, err *e);

/* Read members of a config.json. null counts as absent; o may be NULL: all are absent. The fallback must be in range,
 * too. */
const json_value *hf_present(const json_value *o, const char *key); /* the member; NULL: absent */
bool hf_int(const json_value *o, const char *key, int64_t fallback, int64_t lo, int64_t hi, int *out, err *e);
bool hf_real(const json_value *o, const char *key, double fallback, double lo, double hi, double *out, err *e);
bool hf_bool(const json_value *o, const char *key); /* false when it is absent or not a boolean */
/* Reads layer_types, which must be a list of n_layers names: sets sliding[l] to true for sliding_attention, to false
 * for full_attention. On failure some are set. */
bool hf_layer_types(const json_value *o, int n_layers, bool *sliding, err *e);
#endif
