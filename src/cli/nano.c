#include "cli/cli.h"

#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART(name) extern const char name[], name##_end[]
PART(nano_target);
PART(nano_dflash);
PART(nano_mtp);
PART(nano_qwen_target);
PART(nano_qwen_dflash);
PART(nano_vision_mmproj);

enum { TARGET, DFLASH, MTP, ENCODER, PARTS, MODELS = 3 };
typedef struct {
    const char *name, *from, *to; /* without bytes: the target has it inside; without name: there is none */
    char        path[32];         /* once unpacked */
} part;
static part built_in[MODELS][PARTS] = {
    {{"nano", nano_target, nano_target_end, ""},
     {"nano-dflash", nano_dflash, nano_dflash_end, ""},
     {"nano-mtp", nano_mtp, nano_mtp_end, ""}},
    {{"nano-qwen", nano_qwen_target, nano_qwen_target_end, ""},
     {"nano-qwen-dflash", nano_qwen_dflash, nano_qwen_dflash_end, ""},
     {"nano-qwen", NULL, NULL, ""}},
    {{"nano-vision", nano_target, nano_target_end, ""},
     {"nano-vision-dflash", nano_dflash, nano_dflash_end, ""},
     {"nano-vision-mtp", nano_mtp, nano_mtp_end, ""},
     {"nano-vision-mmproj", nano_vision_mmproj, nano_vision_mmproj_end, ""}},
};

static bool write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* Makes the bytes available as a file in memory, because all readers take files. */
static bool unpack(part *x, const char **path, err *e)
{
    if (!x->path[0]) {
        int fd = memfd_create(x->name, MFD_CLOEXEC);
        if (fd < 0 || !write_all(fd, x->from, (size_t)(x->to - x->from))) {
            err_set(e, ERR_IO, "cannot unpack the model %s: %s", x->name, strerror(errno));
            if (fd >= 0) close(fd);
            return false;
        }
        snprintf(x->path, sizeof x->path, "/proc/self/fd/%d", fd);
    }
    *path = x->path;
    return true;
}

static bool is_path(const part *x, const char *path) { return x->path[0] && strcmp(path, x->path) == 0; }

/* Returns the parts of a built-in model; NULL: it is another one. */
static part *parts_of(const char *model)
{
    for (int i = 0; i < MODELS; i++)
        if (!strcmp(model, built_in[i][TARGET].name) || is_path(&built_in[i][TARGET], model)) return built_in[i];
    return NULL;
}

bool cli_is_built_in(const char *model) { return parts_of(model); }

bool cli_resolve_model(const char **path, err *e)
{
    part       *x = parts_of(*path ? *path : "nano");
    const char *encoder;
    return !x || (unpack(&x[TARGET], path, e) && (!x[ENCODER].name || unpack(&x[ENCODER], &encoder, e)));
}

const char *cli_encoder(const char *model, const char *given)
{
    const part *x = parts_of(model);
    return !given && x && x[ENCODER].name ? x[ENCODER].path : given;
}

bool cli_unpack_drafters(const char *model, const char *out[2], err *e)
{
    part *x = parts_of(model);
    return unpack(&x[DFLASH], &out[0], e) && unpack(&x[x[MTP].from ? MTP : TARGET], &out[1], e);
}

/* Finds the name of a part of a built-in model, and that of the model. Returns NULL if the path is of neither. */
static const char *part_name(const char *path, const char **model)
{
    for (int i = 0; i < MODELS; i++)
        for (int k = 0; k < PARTS; k++)
            if (is_path(&built_in[i][k], path)) return *model = built_in[i][TARGET].name, built_in[i][k].name;
    return NULL;
}

const char *cli_path_name(const char *path)
{
    const char *model, *name = part_name(path, &model);
    return name ? name : path;
}

const char *cli_id(const char *path)
{
    const char *model, *name = part_name(path, &model);
    return name ? name : file_name(path);
}

const char *cli_shown_path(const char *path)
{
    const char *model;
    return part_name(path, &model) ? model : path;
}
