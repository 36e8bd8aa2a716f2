/* resolve.c - replays requests for driver functions and says which function each one got.
 *
 * stdin: lines "name<TAB>cuda version<TAB>flags". stdout: "name<TAB>version<TAB>flags<TAB>library<TAB>symbol", "-" where there was none. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*resolve)(const char *, void **, int, uint64_t) = (int (*)(const char *, void **, int, uint64_t))dlsym(driver, "cuGetProcAddress");
    int (*resolve_v2)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
    char line[512], name[256];
    int version;
    unsigned long long flags;
    while (fgets(line, sizeof line, stdin)) {
        void *function = NULL;
        int status, result;
        Dl_info info = {0};
        if (sscanf(line, "%255s %d %llu", name, &version, &flags) != 3)
            return fprintf(stderr, "bad request: %s", line), 1;
        result = resolve_v2 ? resolve_v2(name, &function, version, flags, &status) : resolve(name, &function, version, flags);
        if (result == 0 && function && dladdr(function, &info) && info.dli_sname)
            printf("%s\t%d\t%llu\t%s\t%s\n", name, version, flags, base_of(info.dli_fname), info.dli_sname);
        else
            printf("%s\t%d\t%llu\t-\t-\n", name, version, flags);
    }
    return 0;
}
