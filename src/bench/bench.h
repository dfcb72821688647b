/* bench/bench.h - the parts of `tandem bench`, each a command of its own. args start after the part's name; the result
 * is the exit code of the process. */
#ifndef TANDEM_BENCH_BENCH_H
#define TANDEM_BENCH_BENCH_H
int bench_table(int argc, char **args);
int bench_rows(int argc, char **args);
int bench_plot(int argc, char **args);
int bench_spec(int argc, char **args);
int bench_raw(int argc, char **args);
int bench_lanes(int argc, char **args);
int bench_kv(int argc, char **args);
int bench_pick(int argc, char **args);
int bench_shape(int argc, char **args);
int bench_serve(int argc, char **args);
#endif
