/* Runs a fuzz target over the files of directories (or single files): a corpus as a regression test. */
#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int n_files;

static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        exit(1);
    }
    fseek(f, 0, SEEK_END);
    long     n    = ftell(f);
    uint8_t *data = malloc(n > 0 ? (size_t)n : 1);
    rewind(f);
    if (n > 0 && fread(data, 1, (size_t)n, f) != (size_t)n) exit(1);
    fclose(f);
    LLVMFuzzerTestOneInput(data, (size_t)n);
    free(data);
    n_files++;
}

static void run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        perror(path);
        exit(1);
    }
    if (!S_ISDIR(st.st_mode)) {
        run_file(path);
        return;
    }
    DIR           *d = opendir(path);
    struct dirent *f;
    while (d && (f = readdir(d))) {
        char sub[1024];
        if (f->d_name[0] == '.') continue;
        snprintf(sub, sizeof sub, "%s/%s", path, f->d_name);
        run_path(sub);
    }
    if (d) closedir(d);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) run_path(argv[i]);
    printf("%s: %d inputs\n", argc > 0 ? argv[0] : "replay", n_files);
    return n_files ? 0 : 1; /* an empty corpus tests nothing */
}
