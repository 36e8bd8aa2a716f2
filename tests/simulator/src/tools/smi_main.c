/* smi_main.c - nvidia-smi for the simulated driver: -L, --query-gpu, the modes, and the table.
 *
 * Forms and exit codes follow what the real tool prints, as far as programs read it: 0 done, 2 bad option, 3 not possible, 6 no such card, 9 no driver,
 * 12 no library. Next: smi_nvml.c asks, smi_query.c knows the fields. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "smi_query.h"

static const char g_usage[] =
    "nvidia-smi [-L | --query-gpu=FIELDS --format=csv[,noheader][,nounits]] [-i CARD]\n"
    "nvidia-smi -c MODE | -pm 0|1 | -mig 0|1 [-i CARD]\n"
    "    CARD is an index, a UUID or a PCI bus id. MODE is DEFAULT, PROHIBITED or EXCLUSIVE_PROCESS.\n";

static bool is_wanted(const struct smi_card *card, const char *selection)
{
    char index[16], copy[1024];
    if (!selection)
        return true;
    snprintf(index, sizeof index, "%u", card->index);
    snprintf(copy, sizeof copy, "%s", selection);
    for (char *save, *one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save))
        if (!strcmp(one, index) || !strcmp(one, card->uuid) || !strcasecmp(one, card->bus_id))
            return true;
    return false;
}

static void print_list(const struct smi_card *card)
{
    printf("GPU %u: %s (UUID: %s)\n", card->index, card->name, card->uuid);
}

static void print_table_head(void)
{
    char cuda[16], versions[256], text[64];
    time_t now = time(NULL);
    struct tm broken;
    smi_cuda_version(cuda, sizeof cuda);
    snprintf(versions, sizeof versions, "NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %s", smi_driver_version(), smi_driver_version(),
             cuda);
    strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", localtime_r(&now, &broken));
    puts(text);
    puts("+---------------------------------------------------------------------------------------+");
    printf("| %-85.85s |\n", versions);
    puts("|-----------------------------------------+----------------------+----------------------+");
    puts("| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |");
    puts("| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |");
    puts("|                                         |                      |               MIG M. |");
    puts("|=========================================+======================+======================|");
}

static void print_table_card(const struct smi_card *card)
{
    char power[32], memory[32];
    const char *mode = !strcmp(card->compute_mode, "Exclusive Process") ? "E. Process" : card->compute_mode;
    snprintf(power, sizeof power, "%uW / %uW", card->power_mw / 1000, card->power_limit_mw / 1000);
    snprintf(memory, sizeof memory, "%lluMiB / %lluMiB", card->used_mib, card->total_mib);
    printf("| %3u  %-26.26s %6s  | %-16s Off | %20s |\n", card->index, card->name, !strcmp(card->persistence, "Enabled") ? "On" : "Off",
           card->bus_id, !strcmp(card->ecc, "Enabled") ? "0" : "Off");
    printf("| N/A  %3uC    %-4s %21s | %20s | %6u%% %12s |\n", card->temperature_c, card->pstate, power, memory, card->gpu_percent, mode);
    printf("|%41s|%22s| %20s |\n", "", "", !strcmp(card->mig_mode, "[N/A]") ? "N/A" : card->mig_mode);
    puts("+-----------------------------------------+----------------------+----------------------+");
}

static void print_table_processes(const char *selection)
{
    static struct smi_process list[SMI_PROCESSES_MAX];
    bool is_any = false;
    puts("\n+---------------------------------------------------------------------------------------+");
    puts("| Processes:                                                                            |");
    puts("|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |");
    puts("|        ID   ID                                                             Usage      |");
    puts("|=======================================================================================|");
    for (unsigned i = 0; i < smi_count(); i++) {
        struct smi_card card;
        unsigned count = smi_read(i, &card) && is_wanted(&card, selection) ? smi_processes(&card, list) : 0;
        for (unsigned k = 0; k < count; k++, is_any = true) {
            const char *name = list[k].name;
            printf("|  %3u   N/A  N/A  %9u      C   %-38.38s %7lluMiB |\n", card.index, list[k].pid,
                   strlen(name) > 38 ? name + strlen(name) - 38 : name, list[k].used_mib);
        }
    }
    if (!is_any)
        puts("|  No running processes found                                                           |");
    puts("+---------------------------------------------------------------------------------------+");
}

enum action { ACTION_TABLE, ACTION_LIST, ACTION_SET, ACTION_QUERY };

struct request {
    enum action action;
    const char *fields, *selection;
    struct smi_format format;
    enum smi_mode mode;
    unsigned mode_value;
};

/* "-c DEFAULT" and the like; false for anything else. */
static bool parse_mode(const char *option, const char *value, struct request *request)
{
    static const struct {
        const char *option, *value;
        enum smi_mode mode;
        unsigned number;
    } rows[] = {
        {"-c", "DEFAULT", SMI_MODE_COMPUTE, 0},     {"-c", "0", SMI_MODE_COMPUTE, 0},     {"-c", "PROHIBITED", SMI_MODE_COMPUTE, 2},
        {"-c", "2", SMI_MODE_COMPUTE, 2},           {"-c", "3", SMI_MODE_COMPUTE, 3},     {"-c", "EXCLUSIVE_PROCESS", SMI_MODE_COMPUTE, 3},
        {"-pm", "0", SMI_MODE_PERSISTENCE, 0},      {"-pm", "1", SMI_MODE_PERSISTENCE, 1}, {"-mig", "0", SMI_MODE_MIG, 0},
        {"-mig", "1", SMI_MODE_MIG, 1},
    };
    for (size_t i = 0; value && i < sizeof rows / sizeof rows[0]; i++)
        if (!strcmp(rows[i].option, option) && !strcmp(rows[i].value, value)) {
            request->action = ACTION_SET;
            request->mode = rows[i].mode;
            request->mode_value = rows[i].number;
            return true;
        }
    return false;
}

/* 0, or an exit code after saying why. */
static int parse(int count, char **words, struct request *request)
{
    for (int i = 1; i < count; i++) {
        const char *word = words[i], *equals = strchr(word, '=');
        if (!strcmp(word, "-L") || !strcmp(word, "--list-gpus"))
            request->action = ACTION_LIST;
        else if (!strncmp(word, "--query-gpu=", 12)) {
            request->action = ACTION_QUERY;
            request->fields = equals + 1;
        } else if (!strncmp(word, "--format=", 9)) {
            request->format = (struct smi_format){.is_csv = !strncmp(equals + 1, "csv", 3),
                                                  .without_header = strstr(equals, "noheader"),
                                                  .without_units = strstr(equals, "nounits")};
        } else if ((!strcmp(word, "-i") || !strcmp(word, "--id")) && i + 1 < count)
            request->selection = words[++i];
        else if (!strncmp(word, "--id=", 5) || !strncmp(word, "-i=", 3))
            request->selection = equals + 1;
        else if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
            fputs(g_usage, stdout);
            return -1;
        } else if (parse_mode(word, words[i + 1], request)) {
            i++;
        } else {
            printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n");
            return 2;
        }
    }
    if (request->action == ACTION_QUERY && !request->format.is_csv) {
        printf("Error: \"--format=\" switch is missing. Must be csv, noheader and nounits are optional.\n");
        return 2;
    }
    return 0;
}

static int set_mode(const struct smi_card *card, const struct request *request)
{
    static const char *const names[] = {[SMI_MODE_COMPUTE] = "compute", [SMI_MODE_PERSISTENCE] = "persistence", [SMI_MODE_MIG] = "MIG"};
    nvmlReturn_t result = smi_set_mode(card, request->mode, request->mode_value);
    if (result == NVML_SUCCESS)
        printf("Set %s mode to %u for GPU %s.\n", names[request->mode], request->mode_value, card->bus_id);
    else
        printf("Unable to set %s mode for GPU %s: error %d\n", names[request->mode], card->bus_id, result);
    return result;
}

static int answer(const struct request *request)
{
    const unsigned count = smi_count();
    unsigned shown = 0;
    int result = 0;
    if (request->action == ACTION_QUERY && smi_print_header(request->fields, &request->format))
        return 2;
    if (request->action == ACTION_TABLE && count)
        print_table_head();
    for (unsigned i = 0; i < count; i++) {
        struct smi_card card;
        if (!smi_read(i, &card) || !is_wanted(&card, request->selection))
            continue;
        shown++;
        if (request->action == ACTION_LIST)
            print_list(&card);
        else if (request->action == ACTION_SET)
            result = set_mode(&card, request) ? 3 : result;
        else if (request->action == ACTION_QUERY)
            smi_print_row(&card, request->fields, &request->format);
        else
            print_table_card(&card);
    }
    if (request->action == ACTION_TABLE && count)
        print_table_processes(request->selection);
    if (shown)
        return result;
    puts(request->selection && count ? "No devices were found matching the given id" : "No devices were found");
    return 6;
}

int main(int count, char **words)
{
    struct request request = {.action = ACTION_TABLE};
    int code = parse(count, words, &request);
    if (code)
        return code < 0 ? 0 : code;
    code = smi_open();
    if (code)
        return code;
    code = answer(&request);
    smi_close();
    return code;
}
