/* model/roles.h - the tensors of a model by role. A family lists its roles in one table: the tensor's name in GGUF
 * files and in Hugging Face directories, and its shape in terms of the configuration. The loader, the converter and
 * the checks of a checkpoint read the same table. */
#ifndef TANDEM_MODEL_ROLES_H
#define TANDEM_MODEL_ROLES_H
#include "model/bind.h"

enum { ROLE_NAME_MAX = 160, ROLE_MAX_DIMS = 3 };

/* Converts a number of a Hugging Face directory to that of a GGUF file, which is the form that models use. */
typedef enum {
    ROLE_SAME,
    ROLE_PLUS_ONE, /* 1 + x */
    ROLE_NEG_EXP,  /* -e^x */
} role_change;

typedef struct {
    const char *gguf, *hf;          /* %d: the layer; hf without the directory's prefix; "": no such name */
    uint8_t     dim[ROLE_MAX_DIMS]; /* n_in, n_out, n_matrices, as arguments for role_table.size; 0: the size is 1 */
    uint8_t     change;             /* a role_change, for vectors */
} tensor_role;

typedef struct {
    const tensor_role *role;
    int                prefix_role; /* prefix_role: the role by which the prefix of a directory is found */
    const char *const *prefixes;    /* prefixes of Hugging Face names; the first match counts; ends with NULL */
    /* Returns the size that a value of tensor_role.dim stands for, in a layer. Sizes without layers ignore it. */
    int (*size)(const void *config, int dim, int layer);
} role_table;

/* Writes the name of a tensor. hf_prefix NULL: the GGUF name. `layer` is ignored where the role has no layers. */
void role_name(const role_table *t, int role, const char *hf_prefix, int layer, char out[ROLE_NAME_MAX]);
/* Returns a number of a Hugging Face directory as it is in a GGUF file. */
float role_changed(role_change change, float x);
bool  role_has_layers(const role_table *t, int role);
/* Returns the prefix of the names in a directory: the first one with which prefix_role exists, or the second of the
 * list if there is none. */
const char *role_hf_prefix(const role_table *t, const tensor_table *tensors);

/* Returns size i of a role's tensor, 1 where it has fewer dimensions. */
int role_size(const role_table *t, const void *config, int role, int i, int layer);

/* Binds tensors of a checkpoint by role. */
typedef struct {
    binder            b;
    const role_table *t;
    const void       *config;    /* passed to t->size */
    const char       *hf_prefix; /* NULL: a GGUF file */
} role_binder;

/* Returns a binder that copies b and borrows t and config. config is read when tensors are bound. End it with
 * bind_end(&result.b). */
role_binder   role_binder_of(binder b, const role_table *t, const void *config);
const tensor *role_find(const role_binder *g, int role, int layer); /* NULL: absent */
bool          role_require(const role_binder *g, int role, int layer, const tensor **out, err *e);
/* Binds a matrix, or a stack of them, of the role's shape, as bind_matrix. */
bool role_matrix(role_binder *g, weight **out, int role, int layer, err *e);
/* Binds a vector of the role's size, changed as the role says, multiplied by scale, as bind_vector. */
bool role_vector(role_binder *g, dev *out, int role, int layer, float scale, err *e);
/* Reads one number. In a GGUF file it may be missing: it is 1 then. */
bool role_scalar(const role_binder *g, float *out, int role, int layer, err *e);
#endif
