/* smi_query.c - the fields of --query-gpu (contract: smi_query.h). */
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

int smi_print_header(const char *fields, const struct smi_format *format)
{
    char copy[2048], line[4096] = "", *cursor = copy;
    snprintf(copy, sizeof copy, "%s", fields);
    for (char *name; (name = next_name(&cursor));) {
        const struct field *field = find_field(name);
        if (!field) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            return 2;
        }
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s%s%s%s", *line ? ", " : "", name, *field->unit ? " [" : "",
                 field->unit, *field->unit ? "]" : "");
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
