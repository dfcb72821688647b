/* model/config_value.h - one number of a model's configuration at a time, checked for its range.
 *
 * Each returns false with a sentence when the value is there but unusable, or is missing without a fallback. */
#ifndef TANDEM_MODEL_CONFIG_VALUE_H
#define TANDEM_MODEL_CONFIG_VALUE_H
#include "json/json.h"

#define CONFIG_REQUIRED INT64_MIN /* as the fallback: the file must have it */

bool config_int(const char *key, int64_t v, int64_t lo, int64_t hi, int *out, err *e);
bool config_real(const char *key, double v, double lo, double hi, double *out, err *e);
bool config_missing(const char *key, err *e);

/* Members of a config.json; null is as good as absent. */
const json_value *hf_present(const json_value *o, const char *key);
bool hf_int(const json_value *o, const char *key, int64_t fallback, int64_t lo, int64_t hi, int *out, err *e);
bool hf_real(const json_value *o, const char *key, double fallback, double lo, double hi, double *out, err *e);
bool hf_bool(const json_value *o, const char *key); /* false when absent */
/* layer_types, which must be there: true for sliding_attention, false for full_attention. */
bool hf_layer_types(const json_value *o, int n_layers, bool *sliding, err *e);
#endif
