/* smi_query.c - the fields of --query-gpu and --query-compute-apps, and the long form -q (contract: smi_query.h). */
#include "smi_query.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum type { TYPE_TEXT, TYPE_NUMBER, TYPE_MIB, TYPE_WATT, TYPE_COUNT, TYPE_TIME };

struct field {
    const char *name, *alias, *unit;
    enum type type;
    size_t offset;
    unsigned since_branch; /* first driver whose nvidia-smi knows it; 0 = older than all that matter here */
};

#define AT(member) offsetof(struct smi_card, member)
static const struct field g_fields[] = {
    {"timestamp", "", "", TYPE_TIME, 0},
    {"driver_version", "", "", TYPE_TEXT, AT(driver)},
    {"count", "", "", TYPE_COUNT, 0},
    {"index", "", "", TYPE_NUMBER, AT(index)},
    {"name", "gpu_name", "", TYPE_TEXT, AT(name)},
    {"uuid", "gpu_uuid", "", TYPE_TEXT, AT(uuid)},
    {"serial", "gpu_serial", "", TYPE_TEXT, AT(serial)},
    {"pci.bus_id", "gpu_bus_id", "", TYPE_TEXT, AT(bus_id)},
    {"memory.total", "", "MiB", TYPE_MIB, AT(total_mib)},
    {"memory.used", "", "MiB", TYPE_MIB, AT(used_mib)},
    {"memory.free", "", "MiB", TYPE_MIB, AT(free_mib)},
    {"memory.reserved", "", "MiB", TYPE_MIB, AT(reserved_mib), 510},
    {"utilization.gpu", "", "%", TYPE_NUMBER, AT(gpu_percent)},
    {"utilization.memory", "", "%", TYPE_NUMBER, AT(memory_percent)},
    {"temperature.gpu", "", "", TYPE_NUMBER, AT(temperature_c)},
    {"power.draw", "", "W", TYPE_WATT, AT(power_mw)},
    {"power.limit", "enforced.power.limit", "W", TYPE_WATT, AT(power_limit_mw)},
    {"clocks.sm", "clocks.current.sm", "MHz", TYPE_NUMBER, AT(sm_mhz)},
    {"clocks.gr", "clocks.current.graphics", "MHz", TYPE_NUMBER, AT(sm_mhz)},
    {"clocks.mem", "clocks.current.memory", "MHz", TYPE_NUMBER, AT(memory_mhz)},
    {"clocks.max.sm", "clocks.max.graphics", "MHz", TYPE_NUMBER, AT(sm_max_mhz)},
    {"clocks.max.mem", "clocks.max.memory", "MHz", TYPE_NUMBER, AT(memory_max_mhz)},
    {"pstate", "", "", TYPE_TEXT, AT(pstate)},
    {"compute_mode", "", "", TYPE_TEXT, AT(compute_mode)},
    {"compute_cap", "", "", TYPE_TEXT, AT(compute_capability), 510}, /* 470.256.02 refuses it: huggingface/candle#733 */
    {"persistence_mode", "", "", TYPE_TEXT, AT(persistence)},
    {"ecc.mode.current", "", "", TYPE_TEXT, AT(ecc)},
    {"mig.mode.current", "", "", TYPE_TEXT, AT(mig_mode), 450},
    {"mig.mode.pending", "", "", TYPE_TEXT, AT(mig_pending), 450},
};
enum { FIELD_COUNT = sizeof g_fields / sizeof g_fields[0] };

static const char *const g_process_fields[] = {"pid", "process_name", "name", "used_memory", "used_gpu_memory", "gpu_uuid", "gpu_name",
                                               "gpu_bus_id", NULL};

static bool exists(const struct field *field)
{
    return strtoul(smi_driver_version(), NULL, 10) >= field->since_branch;
}

static const struct field *find_field(const char *name)
{
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (!exists(&g_fields[i]))
            continue;
        else if (!strcmp(g_fields[i].name, name) || (*g_fields[i].alias && !strcmp(g_fields[i].alias, name)))
            return &g_fields[i];
    return NULL;
}

static bool is_process_field(const char *name)
{
    for (size_t i = 0; g_process_fields[i]; i++)
        if (!strcmp(g_process_fields[i], name))
            return true;
    return false;
}

/* The next of "a, b,c"; NULL at the end. */
static char *next_name(char **cursor)
{
    char *name = strsep(cursor, ",");
    while (name && *name == ' ')
        name++;
    for (char *end = name ? name + strlen(name) : NULL; end && end > name && end[-1] == ' ';)
        *--end = '\0';
    return name;
}

static bool is_known(const char *name, bool of_cards)
{
    return of_cards ? find_field(name) != NULL : is_process_field(name);
}

int smi_print_header(const char *fields, const struct smi_format *format, bool of_cards)
{
    char copy[2048], line[4096] = "", *cursor = copy;
    snprintf(copy, sizeof copy, "%s", fields);
    for (char *name; (name = next_name(&cursor));) {
        if (!is_known(name, of_cards)) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            return 2;
        }
        const char *unit = of_cards ? find_field(name)->unit : strstr(name, "memory") ? "MiB" : "";
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s%s%s%s", *line ? ", " : "", name, *unit ? " [" : "", unit,
                 *unit ? "]" : "");
    }
    if (!format->without_header)
        puts(line);
    return 0;
}

static void print_value(const struct smi_card *card, const struct field *field, bool with_unit)
{
    const char *at = (const char *)card + field->offset;
    char text[64];
    time_t now = time(NULL);
    struct tm broken;
    switch (field->type) {
    case TYPE_TEXT:
        fputs(*at ? at : "[N/A]", stdout);
        return;
    case TYPE_NUMBER:
        printf("%u", *(const unsigned *)at);
        break;
    case TYPE_MIB:
        printf("%llu", *(const unsigned long long *)at);
        break;
    case TYPE_WATT:
        printf("%.2f", *(const unsigned *)at / 1000.0);
        break;
    case TYPE_COUNT:
        printf("%u", smi_count());
        return;
    case TYPE_TIME:
        strftime(text, sizeof text, "%Y/%m/%d %H:%M:%S.000", localtime_r(&now, &broken));
        fputs(text, stdout);
        return;
    }
    if (with_unit && *field->unit)
        printf(" %s", field->unit);
}

void smi_print_row(const struct smi_card *card, const char *fields, const struct smi_format *format)
{
    char copy[2048], *cursor = copy;
    const char *separator = "";
    snprintf(copy, sizeof copy, "%s", fields);
    for (char *name; (name = next_name(&cursor)); separator = ", ") {
        fputs(separator, stdout);
        print_value(card, find_field(name), !format->without_units);
    }
    putchar('\n');
}

static void print_process_value(const struct smi_card *card, const struct smi_process *process, const char *name, bool with_unit)
{
    if (!strcmp(name, "pid"))
        printf("%u", process->pid);
    else if (!strcmp(name, "process_name") || !strcmp(name, "name"))
        fputs(process->name, stdout);
    else if (!strcmp(name, "gpu_uuid"))
        fputs(card->uuid, stdout);
    else if (!strcmp(name, "gpu_name"))
        fputs(card->name, stdout);
    else if (!strcmp(name, "gpu_bus_id"))
        fputs(card->bus_id, stdout);
    else
        printf("%llu%s", process->used_mib, with_unit ? " MiB" : "");
}

void smi_print_process_rows(const struct smi_card *card, const char *fields, const struct smi_format *format)
{
    static struct smi_process list[SMI_PROCESSES_MAX];
    unsigned count = smi_processes(card, list);
    for (unsigned i = 0; i < count; i++) {
        char copy[2048], *cursor = copy;
        const char *separator = "";
        snprintf(copy, sizeof copy, "%s", fields);
        for (char *name; (name = next_name(&cursor)); separator = ", ") {
            fputs(separator, stdout);
            print_process_value(card, &list[i], name, !format->without_units);
        }
        putchar('\n');
    }
}

void smi_print_fields(void)
{
    puts("List of valid properties to query for the switch \"--query-gpu=\":\n");
    for (size_t i = 0; i < FIELD_COUNT; i++)
        printf("\"%s\"%s%s%s\n", g_fields[i].name, *g_fields[i].alias ? " or \"" : "", g_fields[i].alias, *g_fields[i].alias ? "\"" : "");
}

static void line(int depth, const char *name, const char *value)
{
    printf("%*s%-*s: %s\n", depth * 4, "", 42 - depth * 4, name, value);
}

static void number(int depth, const char *name, unsigned long long value, const char *unit)
{
    char text[64];
    snprintf(text, sizeof text, "%llu%s%s", value, *unit ? " " : "", unit);
    line(depth, name, text);
}

static void watts(int depth, const char *name, unsigned milliwatts)
{
    char text[32];
    snprintf(text, sizeof text, "%.2f W", milliwatts / 1000.0);
    line(depth, name, text);
}

void smi_print_details(const struct smi_card *card)
{
    static struct smi_process list[SMI_PROCESSES_MAX];
    char text[32];
    printf("GPU %s\n", card->bus_id);
    line(1, "Product Name", card->name);
    line(1, "Persistence Mode", card->persistence);
    puts("    MIG Mode");
    line(2, "Current", strcmp(card->mig_mode, "[N/A]") ? card->mig_mode : "N/A");
    line(2, "Pending", strcmp(card->mig_pending, "[N/A]") ? card->mig_pending : "N/A");
    line(1, "Serial Number", card->serial);
    line(1, "GPU UUID", card->uuid);
    number(1, "Minor Number", card->minor_number, "");
    puts("    PCI");
    snprintf(text, sizeof text, "0x%08X", card->device_id);
    line(2, "Device Id", text);
    line(2, "Bus Id", card->bus_id);
    snprintf(text, sizeof text, "0x%08X", card->subsystem_id);
    line(2, "Sub System Id", text);
    line(1, "Performance State", card->pstate);
    puts("    FB Memory Usage");
    number(2, "Total", card->total_mib, "MiB");
    number(2, "Reserved", card->reserved_mib, "MiB");
    number(2, "Used", card->used_mib, "MiB");
    number(2, "Free", card->free_mib, "MiB");
    line(1, "Compute Mode", card->compute_mode);
    puts("    Utilization");
    number(2, "Gpu", card->gpu_percent, "%");
    number(2, "Memory", card->memory_percent, "%");
    puts("    ECC Mode");
    line(2, "Current", card->ecc);
    puts("    Temperature");
    number(2, "GPU Current Temp", card->temperature_c, "C");
    puts("    GPU Power Readings");
    watts(2, "Power Draw", card->power_mw);
    watts(2, "Current Power Limit", card->power_limit_mw);
    puts("    Clocks");
    number(2, "SM", card->sm_mhz, "MHz");
    number(2, "Memory", card->memory_mhz, "MHz");
    puts("    Max Clocks");
    number(2, "SM", card->sm_max_mhz, "MHz");
    number(2, "Memory", card->memory_max_mhz, "MHz");
    unsigned count = smi_processes(card, list);
    line(1, "Processes", count ? "" : "None");
    for (unsigned i = 0; i < count; i++) {
        number(2, "Process ID", list[i].pid, "");
        line(3, "Type", "C");
        line(3, "Name", list[i].name);
        number(3, "Used GPU Memory", list[i].used_mib, "MiB");
    }
    putchar('\n');
}
