/* sim_boot.c - `tenfold-sim boot`: what loading the driver does on a node: the machine's state and the device nodes under /dev.
 *
 * The configuration file holds init's options, one `name value` a line (`card a800-80gb`, `set policy=fifo`). A state that is already
 * there is left alone, so that running it twice is harmless. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "sim_commands.h"

enum { WORDS_MAX = 64 };

/* Majors of the NVIDIA driver: 195 is fixed (Linux devices.txt); nvidia-uvm and caps get theirs at load, these are common ones. */
enum { NVIDIA_MAJOR = 195, UVM_MAJOR = 511, CONTROL_MINOR = 255 };

static int make_node(const char *folder, const char *name, unsigned major_number, unsigned minor_number)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (mknod(path, S_IFCHR | 0666, makedev(major_number, minor_number)) < 0 && errno != EEXIST)
        return fail("cannot make device node '%s': %s", path, strerror(errno));
    chmod(path, 0666);
    return 0;
}

static int make_nodes(const char *folder, uint32_t cards)
{
    int result = make_node(folder, "nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR);
    for (uint32_t i = 0; i < cards && result == 0; i++) {
        char name[32];
        snprintf(name, sizeof name, "nvidia%u", i);
        result = make_node(folder, name, NVIDIA_MAJOR, i);
    }
    if (result == 0)
        result = make_node(folder, "nvidia-uvm", UVM_MAJOR, 0);
    return result ? result : make_node(folder, "nvidia-uvm-tools", UVM_MAJOR, 1);
}

static int read_options(const char *path, char **words, int *ret_count)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return fail("cannot read '%s': %s", path, strerror(errno));
    char line[512], name[64], value[400], option[80];
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, " %63s %399s", name, value) != 2 || name[0] == '#' || *ret_count + 2 > WORDS_MAX)
            continue;
        snprintf(option, sizeof option, "--%s", name);
        words[(*ret_count)++] = strdup(option);
        words[(*ret_count)++] = strdup(value);
    }
    fclose(file);
    return 0;
}

int command_boot(const char *path, struct arguments *arguments)
{
    const char *config = take_option(arguments, "--config"), *folder = take_option(arguments, "--dev");
    char *words[WORDS_MAX];
    struct arguments options = {.words = words, .program = arguments->program};
    struct sim_machine machine;
    if (!config)
        return fail("boot needs --config FILE");
    int result = read_options(config, words, &options.count);
    if (result == 0 && state_attach(path, &machine) == 0)
        state_detach(&machine);
    else if (result == 0)
        result = command_init(path, &options);
    if (result == 0)
        result = attach(path, &machine);
    if (result)
        return result;
    uint32_t cards = machine.state->card_count;
    state_detach(&machine);
    return make_nodes(folder ? folder : "/dev", cards);
}
