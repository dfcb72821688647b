/* Writes the weights of a test model from the seed that they were drawn with.
 *
 * The weights are random: bf16(mean + scale * r), where r comes from PyTorch's torch.randn on a processor. Compressed, they would
 * take 1.3 bytes each; drawn again, they take nothing. RECIPE has the lines
 *
 *     seed N                            for the generator
 *     normal OFFSET COUNT MEAN SCALE    draws COUNT numbers, at OFFSET bytes in the file; in the order of the draws
 *     hash H                            FNV-1a of the whole file, in 16 hexadecimal digits
 *
 * The input is the file less the numbers drawn, as 16-bit differences: the header and what is not drawn stand there as they are.
 * Usage: unseed RECIPE <DIFFERENCES >FILE */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PI 3.14159265358979323846
enum { N = 624, M = 397, BLOCK = 16 };

/* --- MT19937 --------------------------------------------------------------------------------------*/
static uint32_t state[N];
static int      next_word = N;

static void seed_generator(uint32_t seed)
{
    state[0] = seed;
    for (uint32_t i = 1; i < N; i++) state[i] = 1812433253u * (state[i - 1] ^ state[i - 1] >> 30) + i;
    next_word = N;
}

static uint32_t draw(void)
{
    if (next_word == N) {
        for (int i = 0; i < N; i++) {
            uint32_t y = (state[i] & 0x80000000u) | (state[(i + 1) % N] & 0x7fffffffu);
            state[i]   = state[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        next_word = 0;
    }
    uint32_t y = state[next_word++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

static double draw_uniform(void) { return (draw() & 0xffffff) * 0x1p-24; }

/* --- normal numbers, as torch.randn orders them ---------------------------------------------------
 * All uniform numbers first; then 16 at a time, the first 8 with the last 8, by Box and Muller. Where the count is no multiple of
 * 16, the last 16 are drawn once more. */
static void turn_block(double *x)
{
    for (int j = 0; j < BLOCK / 2; j++) {
        double radius = sqrt(-2 * log(1 - x[j])), angle = 2 * PI * x[j + BLOCK / 2];
        x[j]             = radius * cos(angle);
        x[j + BLOCK / 2] = radius * sin(angle);
    }
}

static double draw_wide(void)
{
    uint64_t high = draw();
    return (double)((high << 32 | draw()) & 0x1fffffffffffffu) * 0x1p-53;
}

/* Fewer than 16 are drawn one after the other, in pairs. */
static double draw_one(void)
{
    static double spare;
    static bool   has_spare;
    has_spare = !has_spare;
    if (!has_spare) return spare;
    double angle = 2 * PI * draw_wide(), radius = sqrt(-2 * log1p(-draw_wide()));
    spare = radius * sin(angle);
    return radius * cos(angle);
}

static void draw_normal(double *x, size_t n)
{
    if (n < BLOCK) {
        for (size_t i = 0; i < n; i++) x[i] = draw_one();
        return;
    }
    for (size_t i = 0; i < n; i++) x[i] = draw_uniform();
    for (size_t i = 0; i + BLOCK <= n; i += BLOCK) turn_block(x + i);
    if (n % BLOCK == 0) return;
    double *last = x + n - BLOCK;
    for (int i = 0; i < BLOCK; i++) last[i] = draw_uniform();
    turn_block(last);
}

static uint16_t round_to_bf16(double v)
{
    float    f = (float)v;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* --- the file -------------------------------------------------------------------------------------*/
static _Noreturn void stop(const char *recipe, const char *why)
{
    fprintf(stderr, "%s: %s\n", recipe, why);
    exit(1);
}

static unsigned char *read_all(FILE *f, size_t *n)
{
    size_t         room = 1 << 20;
    unsigned char *p    = malloc(room);
    for (*n = 0; p;) {
        size_t got = fread(p + *n, 1, room - *n, f);
        if (!got) return p;
        *n += got;
        if (*n == room) p = realloc(p, room *= 2);
    }
    return NULL;
}

static void add_normal(unsigned char *file, size_t offset, size_t count, double mean, double scale)
{
    double *x = malloc(count * sizeof *x);
    if (!x) stop("unseed", "no memory");
    draw_normal(x, count);
    for (size_t i = 0; i < count; i++) {
        unsigned char *p = file + offset + 2 * i;
        unsigned       v = round_to_bf16(mean + scale * x[i]) + (p[0] | (unsigned)p[1] << 8);
        p[0]             = (unsigned char)v;
        p[1]             = (unsigned char)(v >> 8);
    }
    free(x);
}

static uint64_t hash_of(const unsigned char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

int main(int argc, char **argv)
{
    FILE *f = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!f) stop("unseed", "usage: unseed RECIPE <DIFFERENCES >FILE");
    size_t         n, offset, count;
    unsigned char *file = read_all(stdin, &n);
    if (!file) stop("unseed", "no memory");
    char     line[256];
    double   mean, scale;
    uint64_t hash = 0;
    uint32_t seed;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "seed %" SCNu32, &seed) == 1)
            seed_generator(seed);
        else if (sscanf(line, "hash %" SCNx64, &hash) == 1)
            continue;
        else if (sscanf(line, "normal %zu %zu %lf %lf", &offset, &count, &mean, &scale) != 4 || offset > n ||
                 count > (n - offset) / 2)
            stop(argv[1], "a line is not understood, or is past the end of the file");
        else
            add_normal(file, offset, count, mean, scale);
    }
    if (hash_of(file, n) != hash) stop(argv[1], "the file is not the one that was packed");
    return fwrite(file, 1, n, stdout) == n && !fflush(stdout) ? 0 : 1;
}
