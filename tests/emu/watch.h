/* tests/emu/watch.h - finds kernels that start early and use memory before they may.
 *
 * A kernel that LAUNCH_EARLY launches may run before the kernels before it have finished. Until a block calls
 * wait_for_previous, it must not read what they wrote, nor write any device memory, which they may use. In a launch
 * of the emulator they have all run, so a kernel that does not wait computes the same. Therefore the compiler inserts a
 * call before each access of a kernel (-fsanitize=thread, without its library), and each two bytes of device memory
 * have the number of the launch that wrote them. An access that comes too early ends the program with a message.
 *
 * What earlier launches wrote may be read early when they are known to be complete: there was a copy, a wait of the host,
 * the start of a graph or a plain launch since, or the kernel before waited before it let this one start. read_l2 may also
 * read what a block wrote before it let the next kernel start.
 *
 * One thread that waits stands for its block: a warp that relies on another one's wait without a barrier is found only
 * where the random order lets it run first. The streams of a queue are one here, and waits between them nothing. */
#ifndef TANDEM_EMU_WATCH_H
#define TANDEM_EMU_WATCH_H
#include <stdbool.h>
#include <stddef.h>

/* Device memory that was allocated, nothing of which was written; and that is freed. */
void watch_begin(const void *p, size_t bytes);
void watch_end(const void *p, size_t bytes);

void watch_launch(const char *kernel, bool early);
void watch_block(void); /* the next block of the launch runs */
void watch_block_end(void);
void watch_launch_end(void);
void watch_all_complete(void); /* what follows starts when all launches so far are complete */
#endif
