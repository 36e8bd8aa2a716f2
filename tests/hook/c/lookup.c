/* lookup.c - what dlsym and dlvsym answer to a program, one check per argument; prints "name: fact" lines.
 *
 * Runs twice, with and without the hook: everything that is not about a hooked symbol must be the same. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *owner(void *address)
{
    Dl_info info = {0};
    if (!address)
        return "nothing";
    if (!dladdr(address, &info) || !info.dli_fname)
        return "unknown";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static void say(const char *name, const char *fact) { printf("%s: %s\n", name, fact); }

int main(void)
{
    say("default cu before load", owner(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")));
    const char *error = dlerror();
    say("its error", error && strstr(error, "cuMemAlloc_v2") ? "names the symbol" : error ? error : "none");

    void *first = dlsym(RTLD_NEXT, "open"), *second = dlsym(RTLD_NEXT, "open");
    say("next twice", first && first == second ? "same" : "different");
    say("next open", owner(first));
    say("default malloc", owner(dlsym(RTLD_DEFAULT, "malloc")));
    say("versioned", owner(dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.14")));
    say("no such version", owner(dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_9.9")));
    say("no such symbol", owner(dlsym(RTLD_DEFAULT, "tenfold_no_such_symbol")));

    /* a name that ends where the page ends must not be read past its end */
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(page + 4096, 4096, PROT_NONE);
    const char *const edges[] = {"", "c", "cu", "n", "nv", "nvm", "nvml"};
    for (unsigned index = 0; index < sizeof edges / sizeof *edges; index++) {
        char *name = page + 4096 - strlen(edges[index]) - 1;
        strcpy(name, edges[index]);
        (void)dlsym(RTLD_DEFAULT, name);
    }
    say("page edge", "survived");

    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    say("handle cuMemAlloc_v2", owner(dlsym(driver, "cuMemAlloc_v2")));
    say("handle cuMemcpyHtoD_v2", owner(dlsym(driver, "cuMemcpyHtoD_v2")));
    say("handle nvmlDeviceGetMemoryInfo", owner(dlsym(nvml, "nvmlDeviceGetMemoryInfo")));
    say("handle nvmlInit_v2", owner(dlsym(nvml, "nvmlInit_v2")));
    say("wrong handle", owner(dlsym(nvml, "cuMemAlloc_v2")));
    say("handle no such cu", owner(dlsym(driver, "cuNoSuchFunction")));
    say("default cu local", owner(dlsym(RTLD_DEFAULT, "cuMemcpyHtoD_v2")));

    /* same names in a library that is no driver */
    void *fake = dlopen(getenv("TENFOLD_TEST_FAKE"), RTLD_NOW | RTLD_LOCAL);
    say("fake cuMemAlloc_v2", owner(dlsym(fake, "cuMemAlloc_v2")));
    say("fake cudnnCreate", owner(dlsym(fake, "cudnnCreate")));

    mode_t mask = umask(077);
    umask(mask);
    printf("umask: %03o\n", (unsigned)mask);
    return 0;
}
