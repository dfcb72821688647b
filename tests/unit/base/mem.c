#include "base/mem.h"

#include "base/inside.h"
#include "test.h"

#include <sys/resource.h>
#include <sys/stat.h>

/* A file below a root of the test's own, with the directories on the way. */
static void put(test_case *t, const char *root, const char *path, const char *text)
{
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(full, 0700);
        *at = '/';
    }
    FILE *f = fopen(full, "w");
    if (!CHECK(f)) return;
    fputs(text, f);
    fclose(f);
}

static const char *new_root(test_case *t, const char *name, const char *cgroup)
{
    static char root[512];
    snprintf(root, sizeof root, "%s/%s", test_tmp_dir(), name);
    mkdir(root, 0700);
    put(t, root, "/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:   8000 kB\n");
    if (cgroup) put(t, root, "/proc/self/cgroup", cgroup);
    return root;
}

TEST(mem_available_follows_cgroups)
{
    const char *root = new_root(t, "none", NULL);
    CHECK_INT(mem_available_under(root), 8000 * 1024);

    root = new_root(t, "v2", "0::/a/b\n");
    put(t, root, "/sys/fs/cgroup/a/b/memory.max", "max\n");
    put(t, root, "/sys/fs/cgroup/a/b/memory.current", "10\n");
    CHECK_INT(mem_available_under(root), 8000 * 1024);
    put(t, root, "/sys/fs/cgroup/a/b/memory.max", "5000\n");
    CHECK_INT(mem_available_under(root), 4990);
    put(t, root, "/sys/fs/cgroup/a/memory.max", "3000\n"); /* the one above has less */
    put(t, root, "/sys/fs/cgroup/a/memory.current", "1000\n");
    CHECK_INT(mem_available_under(root), 2000);
    put(t, root, "/sys/fs/cgroup/a/memory.current", "3001\n");
    CHECK_INT(mem_available_under(root), 0);

    root = new_root(t, "container", "0::/\n");
    put(t, root, "/sys/fs/cgroup/memory.max", "700\n");
    put(t, root, "/sys/fs/cgroup/memory.current", "300\n");
    CHECK_INT(mem_available_under(root), 400);

    root = new_root(t, "v1", "12:cpu,cpuacct:/x\n5:hugetlb,memory:/c\n0::/x\n");
    put(t, root, "/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "900\n");
    put(t, root, "/sys/fs/cgroup/memory/c/memory.usage_in_bytes", "100\n");
    CHECK_INT(mem_available_under(root), 800);
    put(t, root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(t, root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n");
    CHECK_INT(mem_available_under(root), 800);
}

/* The limit is far above what the process has mapped, also under the address sanitizer, so that nothing else fails. */
TEST(mem_available_follows_the_address_space)
{
    struct rlimit before, now;
    const char   *root = new_root(t, "rlimit", "0::/\n");
    put(t, root, "/proc/self/status", "Name: x\nVmSize:\t  100000000000 kB\n");
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    now          = before;
    now.rlim_cur = (rlim_t)100000000000 * 1024 + 12345;
    if (before.rlim_cur != RLIM_INFINITY || setrlimit(RLIMIT_AS, &now) != 0) return;
    size_t left = mem_available_under(root);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK_INT(left, 12345);
    CHECK_INT(mem_available_under(root), 8000 * 1024);
}
