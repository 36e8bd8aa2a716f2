/* smi_nvml.h - NVML as nvidia-smi reaches it: opened at run time and resolved by public names, so that whatever stands in front of the
 * library (a hook) is seen by nvidia-smi too. */
#ifndef TENFOLD_SIM_SMI_NVML_H
#define TENFOLD_SIM_SMI_NVML_H

#include <stdbool.h>

#include "../../include/nvml_abi.h"

/* 0, or nvidia-smi's exit code after saying why on standard output, as nvidia-smi does. */
int smi_open(void);
void smi_close(void);

/* Facts, as text in the form that nvidia-smi prints; "N/A" where NVML has none. */
struct smi_card {
    nvmlDevice_t handle;
    unsigned index;
    char name[96], uuid[80], serial[40], bus_id[32], compute_mode[32], mig_mode[16], mig_pending[16], persistence[16], ecc[16], pstate[8];
    char driver[80], compute_capability[16];
    unsigned power_mw, power_limit_mw, temperature_c, gpu_percent, memory_percent;
    unsigned sm_mhz, sm_max_mhz, memory_mhz, memory_max_mhz;
    unsigned long long total_mib, used_mib, free_mib, reserved_mib;
};

/* nvidia-smi -c, -pm, -mig: NVML's answer to setting the mode. */
enum smi_mode { SMI_MODE_COMPUTE, SMI_MODE_PERSISTENCE, SMI_MODE_MIG };
nvmlReturn_t smi_set_mode(const struct smi_card *card, enum smi_mode which, unsigned value);

unsigned smi_count(void);
bool smi_read(unsigned index, struct smi_card *ret_card);
const char *smi_driver_version(void);
void smi_cuda_version(char *ret_text, unsigned size_bytes);

struct smi_process {
    unsigned pid;
    unsigned long long used_mib;
    char name[96];
};
enum { SMI_PROCESSES_MAX = 256 };
unsigned smi_processes(const struct smi_card *card, struct smi_process *list);

#endif
